"""What follows a run for other tools: files for TensorBoard, metrics for Prometheus; extras bring their libraries."""
