"""Observers that pass a run's data to other tools: TensorBoard files, metrics, spans; extras bring the libraries."""
