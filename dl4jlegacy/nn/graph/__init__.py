"""``ComputationGraph``."""

__all__: list[str] = []
