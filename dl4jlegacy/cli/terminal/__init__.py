"""Terminal output: panels, progress, tables of runs, ``status --watch``."""
