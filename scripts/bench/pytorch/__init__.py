"""Networks in PyTorch: what is compared with, and what is imported."""
