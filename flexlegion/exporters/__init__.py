"""Strategies out: as programs for PyTorch's DTensor and for JAX."""

from flexlegion.exporters.exported import Exported, Replaced, export, program_of
from flexlegion.exporters.space import target_of

__all__ = ["Exported", "Replaced", "export", "program_of", "target_of"]
