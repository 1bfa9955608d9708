"""Vertices of computation graphs."""

__all__: list[str] = []
