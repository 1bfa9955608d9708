"""Sequences from files, one a sequence, or one a row."""
