"""``MultiLayerNetwork``, and the base class that graphs share."""
