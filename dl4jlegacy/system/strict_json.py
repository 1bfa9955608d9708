"""Standard JSON: Python's ``json`` would write ``NaN`` and ``Infinity``, which other readers reject."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from dl4jlegacy.errors import NotFiniteError

__all__ = ["to_json"]


def to_json(value: Any, **options: Any) -> str:
    """Return ``value`` as JSON; ``options`` as for ``json.dumps``.

    Raises:
        NotFiniteError: the value contains NaN or infinity; the message says where.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        for place, number in _not_finite(value, ""):
            raise NotFiniteError(f"{place or 'the result'} is {number}: no result, and not written") from None
        raise


def _not_finite(value: Any, place: str) -> Iterator[tuple[str, float]]:
    """Yield every number that is NaN or infinite, and its place, such as ``probabilities[3][0]``."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _not_finite(part, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _not_finite(part, f"{place}[{index}]")
