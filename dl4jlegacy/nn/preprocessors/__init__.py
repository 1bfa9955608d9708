"""Input preprocessors, which stand between two layers."""

__all__: list[str] = []
