"""What a run saves in its folder: checkpoints, history, journal and lines."""
