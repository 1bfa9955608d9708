"""Turns a text into examples: windows of characters, or of vocabulary words, labelled with what follows.

Words are given as numbers, ``(windows, 1, words)``, for an ``EmbeddingLayer``; one-hot words would need a thousand
times the memory. The vocabulary comes from the training part only, so that the held-out part behaves like new text.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.kind import DataKind, DataRequest, LoadedData, NewData, NewRows
from dl4jlegacy.datasets.tables.text_rows import opened_text
from dl4jlegacy.datasets.text.characters import (
    LENGTH,
    alphabet_of,
    character_windows,
    one_hot_text,
    one_hot_windows,
    read_sonnets,
    read_text,
)
from dl4jlegacy.datasets.unseen_words import UnseenWords
from dl4jlegacy.errors import ConfError, DataError, counted, nearest
from dl4jlegacy.system.resources import check_memory

__all__ = ["UNKNOWN", "WORDS", "TextData", "TextReader"]

UNKNOWN = "<unknown>"
"""The vocabulary entry, number 0, for every word outside of the vocabulary; no text contains this word."""
WORDS = 32
"""Words of an example."""
_VOCABULARY_SIZE = 1000  # default number of words of a vocabulary
_KINDS = ("characters", "words")


class TextReader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Turns texts into examples; the characters or words are the classes.

    A word is a run of letters, digits and their marks, with apostrophes and hyphens inside (``don't``, ``well-known``);
    every other character except a space is a word of its own. Texts are first normalized (Unicode NFC).

    Attributes:
        tokens: the elements of the sequence: ``characters`` or ``words``.
        vocabulary_size: the number of words in the vocabulary: the most frequent ones of the training part (of equally
            frequent ones the alphabetically first); all others become ``UNKNOWN``. 0: 1,000.
        lower_case: whether words are converted to lower case; characters are not.
    """

    tokens: Literal["characters", "words"] = "characters"
    vocabulary_size: int = 0
    lower_case: bool = True

    def __post_init__(self) -> None:
        if self.tokens not in _KINDS:
            raise ConfError(f"text.tokens is {self.tokens!r}{nearest(self.tokens, _KINDS)}")
        if self.vocabulary_size < 0:
            raise ConfError(f"text.vocabulary_size is {self.vocabulary_size}; give at least 1, or 0 for 1,000 words")
        if self.vocabulary_size and not self.has_words:
            raise ConfError(
                f"text.vocabulary_size is {self.vocabulary_size}, and text.tokens are characters, which are all told "
                "apart; leave it out, or take words"
            )

    @property
    def has_words(self) -> bool:
        """Whether a text is a sequence of words."""
        return self.tokens == "words"

    def words(self, text: str) -> list[str]:
        """Return the words of a text in order."""
        plain = unicodedata.normalize("NFC", text.removeprefix("\ufeff")).replace("\u2019", "'")
        return _pattern().findall(plain.lower() if self.lower_case else plain)

    def vocabulary(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return ``UNKNOWN`` and the most frequent words of a training part; raises ``DataError``."""
        counts = Counter(words)
        if len(counts) == 1:
            raise DataError(
                f"the text has only one word, {words[0]!r}, in all of the {counted(len(words), 'place')} that are "
                "learned from; there is nothing to tell apart"
            )
        order = sorted(counts, key=lambda word: (-counts[word], word))
        return (UNKNOWN, *order[: self.vocabulary_size or _VOCABULARY_SIZE])

    def parts(
        self, text: str, test_fraction: float, known: Sequence[str] | None = None
    ) -> tuple[DataSet, DataSet, tuple[str, ...]]:
        """Return the training part, the held-out part (the end of the text), and the names of the classes.

        Args:
            text: the whole text.
            test_fraction: the held-out share.
            known: the characters or words, if they are known.

        Raises:
            DataError: the text is too short, has only one word, or an unknown character. ConfError: there is not enough
                memory.
        """
        if not self.has_words:
            letters = tuple(known) if known is not None else alphabet_of(text)
            cut = round(len(text) * (1 - test_fraction))
            train = character_windows(text[:cut], alphabet=letters, stride=LENGTH // 2)
            return train, character_windows(text[cut:], alphabet=letters), letters
        words = self.words(text)
        cut = round(len(words) * (1 - test_fraction))
        if min(cut, len(words) - cut) <= WORDS:
            least = int((WORDS + 1) / min(test_fraction, 1 - test_fraction)) + 1
            raise DataError(
                f"the text has {counted(len(words), 'word')}, of which the last {len(words) - cut} are held out; a "
                f"window of {WORDS} and the word that follows need more in both parts: give a text of at least {least}"
            )
        names = tuple(known) if known is not None else self.vocabulary(words[:cut])
        train = _windows(_numbers(words[:cut], names), len(names), WORDS // 2)
        return train, _windows(_numbers(words[cut:], names), len(names), WORDS), names

    def features(self, text: str, names: Sequence[str]) -> Array:
        """Return a text as network input: ``(1, 1, words)`` or ``(1, characters, length)``.

        Raises:
            DataError: the text has no word, or a character that is not among the ``names``.
        """
        if not self.has_words:
            if not text:
                raise DataError("the text has no character")
            return np.ascontiguousarray(one_hot_text(text, names).T[None])
        words = self.words(text)
        if not words:
            raise DataError(f"the text {text!r} has no word")
        return _numbers(words, names).astype(np.float32)[None, None]


class TextData(DataKind[TextReader]):
    """Text files; the end of a text is held out, so that the two parts do not overlap."""

    name, reader, endings = "text", TextReader, (".txt",)
    options = ("tokens", "vocabulary_size")
    is_scaled, media_types, is_of_lines = False, {"text/plain": ".txt"}, True
    not_these = (
        "is no text, which --tokens and --vocabulary-size (text in a Conf) are for; leave them out, or give sonnets or "
        "a .txt file"
    )

    def load(self, asked: DataRequest, reader: TextReader) -> LoadedData:
        """See ``DataKind``."""
        place = asked.place
        text = read_sonnets() if place.kind == "bundled" else read_text(place.path)
        if asked.split.stratify:
            raise DataError(
                f"data set {place.name!r} is a text, whose end is held out, whatever it holds; leave --stratify out"
            )
        return LoadedData(*reader.parts(text, asked.split.test_fraction, asked.known), reader)

    def new_rows(self, new: NewData, reader: TextReader) -> NewRows:
        """See ``DataKind``. Each line that is not empty is a block; what follows the line is predicted."""
        return NewRows(_lines(new, reader))

    def answers_at(self, reader: TextReader) -> str:
        """See ``DataKind``."""
        return "last step"

    def network(self, reader: TextReader) -> str:
        """See ``DataKind``."""
        return reader.tokens

    def report(self, reader: TextReader, label_names: tuple[str, ...]) -> dict[str, Any]:
        """See ``DataKind``."""
        return {**super().report(reader, label_names), "classes": len(label_names)}


def _lines(new: NewData, reader: TextReader) -> Iterator[Array]:
    """Yield each line that is not empty as features; raises ``DataError``, which names the line."""
    number, is_empty, unseen, known, name = 0, True, UnseenWords(), frozenset(new.label_names), new.name
    with opened_text(new.open(), name) as lines:
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    is_empty = False
                    if reader.has_words:
                        unseen.add("", reader.words(line), known)
                    with _at(f"{name}, line {number}"):
                        rows = reader.features(line.rstrip("\r\n"), new.label_names)
                    yield rows
        except UnicodeDecodeError as exc:
            raise DataError(f"{name} is no text in UTF-8: {exc} (near line {number + 1})") from exc
    if is_empty:
        raise DataError(f"{name} holds no text; expected lines, of each of which what follows is to be predicted")
    if new.warns:
        unseen.say(name)


@contextlib.contextmanager
def _at(where: str) -> Iterator[None]:
    """Add to a ``DataError`` the place of the error."""
    try:
        yield
    except DataError as exc:
        raise DataError(f"{where}: {exc}") from exc


@functools.cache
def _pattern() -> re.Pattern[str]:
    """Return the pattern of a word; marks that are no letters, such as Devanagari vowels, belong to their letter."""
    marks = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "M"]
    letters = rf"[\w{re.escape(''.join(marks))}]+"
    return re.compile(rf"{letters}(?:['-]{letters})*|\S")


def _numbers(words: Sequence[str], names: Sequence[str]) -> npt.NDArray[np.intp]:
    places = {word: number for number, word in enumerate(names)}
    unknown = places.get(UNKNOWN, 0)
    return np.array([places.get(word, unknown) for word in words], np.intp)


def _windows(numbers: npt.NDArray[np.intp], size: int, step: int) -> DataSet:
    """Return a window every ``step`` words, with the following words as one-hot labels."""
    starts = np.arange(0, len(numbers) - WORDS, step)
    what = f"labelling {counted(len(starts), 'window')} of {WORDS} words, {size} different ones (--vocabulary-size),"
    check_memory(2 * 4 * len(starts) * WORDS * size, what)  # twice, while batches are made
    places = starts[:, None] + np.arange(WORDS)[None, :]
    return DataSet(numbers[places][:, None, :].astype(np.float32), one_hot_windows(numbers[places + 1], size))
