"""``python -m flexlegion``."""

import sys

from flexlegion.cli import main

sys.exit(main())
