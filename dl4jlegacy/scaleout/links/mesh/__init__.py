"""Connections between the workers of a run, over which they push each other the messages that they have committed."""
