"""``ComputationGraph``."""
