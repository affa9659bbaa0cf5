"""Strategies as programs for PyTorch's DTensor and for JAX."""
