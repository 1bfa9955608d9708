"""Sequences from CSV files, one sequence per file, one time step per row."""
