"""Monitoring of a run: state, statistics, curves, observers."""
