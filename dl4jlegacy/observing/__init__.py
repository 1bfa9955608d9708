"""What follows a run for other tools: files for TensorBoard. Each needs a library of its own, which an extra brings."""
