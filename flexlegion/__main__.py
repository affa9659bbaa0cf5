"""``python -m flexlegion``."""

import sys

from flexlegion.cli import main

if __name__ == "__main__":
    status = main()
    try:
        from flexlegion.tools.launch import leave
    except KeyboardInterrupt:
        sys.exit(130)
    leave(status)
