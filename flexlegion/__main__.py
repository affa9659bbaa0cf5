"""``python -m flexlegion``."""

from flexlegion.cli.main import run

if __name__ == "__main__":
    run()
