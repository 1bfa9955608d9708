"""Model files that Deeplearning4j reads and writes: zips, their JSON, ND4J arrays."""
