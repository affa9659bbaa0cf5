"""All systems for which `export` writes a configuration."""

from __future__ import annotations

from flexlegion.exporters.job import System
from flexlegion.exporters.megatron import Megatron
from flexlegion.exporters.torchtitan import Torchtitan

SYSTEMS: dict[str, System] = {its.name: its for its in (Megatron(), Torchtitan())}
