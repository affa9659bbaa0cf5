"""The plan of an iteration, as Python sees it."""
