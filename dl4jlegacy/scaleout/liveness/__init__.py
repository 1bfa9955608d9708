"""Who lives: links between master and workers, heartbeats, presence, quorum."""

__all__: list[str] = []
