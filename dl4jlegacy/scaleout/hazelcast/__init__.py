"""The state tracker on Hazelcast."""

__all__: list[str] = []
