"""``python -m flexlegion``."""

from flexlegion.cli import main
from flexlegion.tools.launch import leave

leave(main())
