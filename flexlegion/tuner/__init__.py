"""Strategies on the running machine: tried in training, and the really fastest chosen."""
