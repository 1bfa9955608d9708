"""Configurations of networks: their structs, builders, text forms, and the stages that they resolve to."""
