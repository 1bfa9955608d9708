"""Vertices of computation graphs."""
