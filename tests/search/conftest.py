"""The search's tests use what the simulator's tests share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))
