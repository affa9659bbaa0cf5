"""How sphinx builds these pages: sphinx-build -W -n docs build/docs."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "flexlegion"
author = "the flexlegion developers"
try:
    release = importlib.metadata.version("flexlegion")
except importlib.metadata.PackageNotFoundError:  # a checkout that was not installed
    release = ""

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]
exclude_patterns = ["build", "requirements.txt"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = "flexlegion"
html_static_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Notebooks are executed by tests/docs/test_notebooks.py; here with -D nb_execution_mode=force.
nb_execution_mode = "off"

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections say types where names do not
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# Hosts outside are asked by `sphinx-build -b linkcheck` alone, which needs a network.
linkcheck_timeout = 20
linkcheck_retries = 2
# It answers browsers alone.
linkcheck_ignore = [r"https://ui\.perfetto\.dev.*"]
