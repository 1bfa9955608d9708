"""Arrays on CPU and GPU, seeded random streams, and binary frames. Independent of networks and data sets."""
