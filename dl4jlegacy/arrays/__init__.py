"""Arrays on CPU and GPU, seeded random streams, and their frames on the wire. Knows nothing of networks or data."""
