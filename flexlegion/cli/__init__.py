"""The commands of ``flexlegion``, a module each; see ``flexlegion/cli/main.py``."""
