"""The layer API, a file for each kind of layer."""
