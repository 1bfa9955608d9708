"""Layers, one module for each family; ``layer`` has the union of all of them."""
