"""Distributed runs over several processes and machines: registration, master, workers."""
