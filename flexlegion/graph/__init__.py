"""Tensors, the graph of operators, what their types state, initial values, fingerprints."""
