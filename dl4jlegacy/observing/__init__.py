"""What follows a run for other tools: files for TensorBoard, metrics, spans; extras bring the libraries."""
