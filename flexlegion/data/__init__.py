"""Data sets: the shipped digits, and files in the usual formats, as arrays in memory."""

from flexlegion.data.dataset import Dataset, Splits
from flexlegion.data.digits import load_digits
from flexlegion.data.loaders import load

__all__ = ["Dataset", "Splits", "load", "load_digits"]
