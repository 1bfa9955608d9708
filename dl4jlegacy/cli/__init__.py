"""The command lines ``dl4j`` and ``actor-network-runner``."""
