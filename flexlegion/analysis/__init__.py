"""What is asked about a model on a machine: simulate, search, compare, explain.

Each answer is an object; commands print it.
"""

SHOWN = 20  # choices that `explain` prints
