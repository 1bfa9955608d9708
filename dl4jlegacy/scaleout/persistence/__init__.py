"""The contents of a run's folder: checkpoints, history, journal and JSON lines."""
