"""The state tracker on Hazelcast."""
