"""``MultiLayerNetwork``, and what it shares with graphs."""
