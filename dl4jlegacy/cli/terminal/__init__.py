"""What a terminal shows: panels, progress, tables of runs, ``status --watch``."""
