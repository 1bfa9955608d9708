"""UnseenWords: counts words that a model has not learned while rows are read, and logs them once at the end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence

from dl4jlegacy.errors import counted

__all__ = ["UnseenWords"]

logger = logging.getLogger(__name__)

_KEPT = 1000  # maximum distinct words counted per column
_SHOWN = 3
_LONGEST = 40


class UnseenWords:
    """Counts words by their column; used by one thread."""

    def __init__(self) -> None:
        self._words: dict[str, Counter[str]] = {}
        self._counts: Counter[str] = Counter()
        self._wholes: Counter[str] = Counter()

    def add(self, column: str, words: Sequence[str], known: Collection[str]) -> None:
        """Count the unknown words of a column ("": of a text); gaps do not count."""
        found = Counter(word for word in words if word)
        self._wholes[column] += found.total()
        kept = self._words.setdefault(column, Counter())
        for word, count in found.items():
            if word not in known:
                self._counts[column] += count
                if word in kept or len(kept) < _KEPT:
                    kept[word] += count

    def say(self, name: str) -> None:
        """Log the number of unknown words in ``name`` and the most frequent ones, for each column."""
        for column, count in self._counts.items():
            kept = self._words[column]
            shown = ", ".join(f"{word[:_LONGEST]!r} {times:,}" for word, times in kept.most_common(_SHOWN))
            where = f"{name}, column {column!r}" if column else name
            whole = self._wholes[column]
            logger.warning(
                "%s: %s of %s %s not in the training data, and all count as one unknown word: %s%s",
                where,
                f"{count:,}",
                counted(whole, "word"),
                "was" if count == 1 else "were",
                shown,
                " ..." if len(kept) > _SHOWN else "",
            )
