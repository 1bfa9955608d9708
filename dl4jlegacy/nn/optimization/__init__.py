"""The parts of a training step: activations, losses, weights, schedules, updaters."""
