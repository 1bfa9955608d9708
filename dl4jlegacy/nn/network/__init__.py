"""``MultiLayerNetwork``, and what it shares with graphs."""

__all__: list[str] = []
