"""Liveness of processes: connections between master and workers, heartbeats, failure detection, quorum."""
