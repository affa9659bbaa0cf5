"""flexlegion: automatic parallelization of deep-learning training on the Legion runtime.

Importing this package neither imports legate nor loads native code; training does.
"""

from flexlegion.errors import UserError
from flexlegion.model import History, Model
from flexlegion.optimizers import SGD, Adam, AdamW
from flexlegion.soap import ParallelConfig
from flexlegion.strategy import Strategy
from flexlegion.tuning import TuneResult, tune

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "History",
    "Model",
    "ParallelConfig",
    "Strategy",
    "TuneResult",
    "UserError",
    "tune",
]
