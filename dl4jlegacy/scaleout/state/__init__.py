"""The state of a run as values: heads, jobs, slices, aggregates, and their encoding."""
