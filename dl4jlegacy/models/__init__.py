"""Trained models: predictions, generation, reconstruction, and a queue that batches requests."""
