"""Data sets: the shipped samples, and files in the usual formats, in memory or read ahead."""

from flexlegion.data.dataset import Dataset, Splits, TokenDataset
from flexlegion.data.digits import load_digits
from flexlegion.data.images import ImageFolder, load_images, write_digits
from flexlegion.data.loaders import load

__all__ = [
    "Dataset",
    "ImageFolder",
    "Splits",
    "TokenDataset",
    "load",
    "load_digits",
    "load_images",
    "write_digits",
]
