"""What a training step consists of: activations, losses, weights, schedules, updaters."""
