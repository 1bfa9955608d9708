"""Configurations of networks: their structs, builders, text forms, and their resolution into stages."""
