"""The native libraries, as Python calls them."""
