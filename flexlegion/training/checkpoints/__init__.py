"""Checkpoints: what training keeps, and how files hold it."""
