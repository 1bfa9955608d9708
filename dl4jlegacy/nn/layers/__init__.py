"""Layers, one family a module; ``layer`` has the union of all of them."""
