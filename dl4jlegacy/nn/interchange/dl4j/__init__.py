"""Model files for Deeplearning4j: zips, their JSON, ND4J arrays."""
