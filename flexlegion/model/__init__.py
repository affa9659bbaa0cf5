"""Models: layers that train."""
