"""``python -m flexlegion``."""

from flexlegion.cli import run

if __name__ == "__main__":
    run()
