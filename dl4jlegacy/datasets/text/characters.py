"""Text as sequences of one-hot characters; the labels are the characters that follow.

Follows the ``CharacterIterator`` of Deeplearning4j's character modelling example. Unlike there, a batch is addressed by
its position, and its windows depend only on the text and the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.errors import DataError, counted
from dl4jlegacy.system import files

__all__ = [
    "LENGTH",
    "CharacterIterator",
    "alphabet_of",
    "character_windows",
    "one_hot_text",
    "one_hot_windows",
    "read_sonnets",
    "read_text",
]

LENGTH = 64
"""Default number of characters of an example."""

_LARGEST_ALPHABET = 512


def read_sonnets() -> str:
    """Return 34 of Shakespeare's sonnets (1609, public domain; see ``data/NOTICE``), 20,819 characters."""
    return (resources.files("dl4jlegacy.datasets") / "data" / "sonnets.txt").read_text(encoding="ascii")


def read_text(path: str | Path) -> str:
    """Return the text in a UTF-8 file; raises ``DataError`` if it cannot be read as such."""
    try:
        return files.read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path} as UTF-8 text: {getattr(error, 'strerror', None) or error}") from error


def alphabet_of(text: str) -> tuple[str, ...]:
    """Return the distinct characters of ``text`` in the order of their numbers."""
    alphabet = tuple(sorted(set(text)))
    if len(alphabet) > _LARGEST_ALPHABET:
        raise DataError(
            f"the text has {len(alphabet)} different characters; a network for more than {_LARGEST_ALPHABET} is not "
            "meant to be made this way: replace rare ones, or is this no text?"
        )
    return alphabet


def one_hot_text(text: str, alphabet: Sequence[str]) -> Array:
    """Return ``text`` as ``(characters, len(alphabet))``; raises ``DataError``, which names an unknown character."""
    rows = np.eye(len(alphabet), dtype=np.float32)
    result: Array = rows[_numbers(text, alphabet)]
    return result


def character_windows(
    text: str, *, alphabet: Sequence[str] | None = None, length: int = LENGTH, stride: int | None = None
) -> DataSet:
    """Return windows of ``length`` characters, one every ``stride`` characters (default: without overlap).

    Features and labels are ``(windows, len(alphabet), length)``, the labels one character later. Characters at the end
    that fill no window are dropped.

    Raises:
        DataError: too short a text, or a character that is not in ``alphabet``.
    """
    step = length if stride is None else stride
    if length < 1 or step < 1:
        raise DataError(f"windows of {counted(length, 'character')} every {step}: both must be at least 1")
    if len(text) <= length:
        raise DataError(
            f"the text has {counted(len(text), 'character')}; a window of {length} and the one that follows need more"
        )
    letters = alphabet_of(text) if alphabet is None else tuple(alphabet)
    numbers = _numbers(text, letters)
    starts = np.arange(0, len(text) - length, step)
    places = starts[:, None] + np.arange(length)[None, :]
    return DataSet(*(one_hot_windows(numbers[places + later], len(letters)) for later in (0, 1)))


class CharacterIterator(ListDataSetIterator):
    """Batches of windows of a text, in a new order every epoch.

    Args:
        text: the text itself; ``read_text`` reads a file.
        batch_size: windows per batch.
        length: characters per window.
        stride: characters from the start of one window to the start of the next; default: ``length``.
        alphabet: the possible characters, default: those of ``text``.
        seed: of the order.
        shuffle: False keeps the order of the text.
    """

    def __init__(
        self,
        text: str,
        batch_size: int,
        length: int = LENGTH,
        *,
        stride: int | None = None,
        alphabet: Sequence[str] | None = None,
        seed: int = 123,
        shuffle: bool = True,
    ) -> None:
        self.alphabet = alphabet_of(text) if alphabet is None else tuple(alphabet)
        windows = character_windows(text, alphabet=self.alphabet, length=length, stride=stride)
        super().__init__(windows, batch_size, seed=seed, shuffle=shuffle, label_names=self.alphabet)

    def characters(self, numbers: Sequence[int]) -> Iterator[str]:
        """Yield the characters with these numbers."""
        return (self.alphabet[number] for number in numbers)


def _numbers(text: str, alphabet: Sequence[str]) -> npt.NDArray[np.intp]:
    places = {letter: number for number, letter in enumerate(alphabet)}
    unknown = sorted(set(text) - places.keys())
    if unknown:
        raise DataError(
            f"the text has {counted(len(unknown), 'character')} that the alphabet of {len(alphabet)} lacks, among them "
            f"{', '.join(map(repr, unknown[:5]))}; the first is character {text.index(unknown[0])}"
        )
    return np.array([places[letter] for letter in text], np.intp)


def one_hot_windows(numbers: npt.NDArray[np.intp], n: int) -> Array:
    """Return ``numbers (windows, length)`` one-hot, as ``(windows, n, length)``."""
    result = np.zeros((numbers.shape[0], n, numbers.shape[1]), np.float32)
    np.put_along_axis(result, numbers[:, None, :], 1, axis=1)
    return result
