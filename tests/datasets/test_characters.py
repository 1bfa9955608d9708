"""Texts as data sets: windows of one-hot characters, and the sonnets that ship with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSetIterator, Reading, load
from dl4jlegacy.datasets.text.characters import (
    CharacterIterator,
    alphabet_of,
    character_windows,
    read_sonnets,
    read_text,
)
from dl4jlegacy.errors import DataError


def text_of(windows: np.ndarray, alphabet: tuple[str, ...]) -> list[str]:
    assert ((windows == 0) | (windows == 1)).all()
    assert (windows.sum(axis=1) == 1).all()
    return ["".join(alphabet[k] for k in row) for row in windows.argmax(axis=1)]


def test_labels_are_the_characters_that_follow() -> None:
    data = character_windows("abracadabra", length=4)
    assert text_of(data.features, tuple("abcdr")) == ["abra", "cada"]
    assert text_of(data.labels, tuple("abcdr")) == ["brac", "adab"]
    assert data.features.dtype == np.float32


def test_windows_may_overlap_and_the_last_needs_a_character_behind_it() -> None:
    data = character_windows("abcdef", length=2, stride=1)
    assert text_of(data.features, tuple("abcdef")) == ["ab", "bc", "cd", "de"]
    assert text_of(data.labels, tuple("abcdef"))[-1] == "ef"


def test_the_sonnets_are_what_the_notice_says() -> None:
    text = read_sonnets()
    assert len(text) == 20_819
    assert text.isascii()
    sonnets = text.strip().split("\n\n")
    assert [len(sonnet.split("\n")) for sonnet in sonnets] == [14] * 34
    assert len(alphabet_of(text)) == 59
    assert "Shall I compare thee to a summer's day?" in text


def test_an_iterator_gives_the_same_batch_for_the_same_place() -> None:
    one, other = (CharacterIterator(read_sonnets(), 8, 32, seed=5) for _ in range(2))
    assert isinstance(one, DataSetIterator)
    assert one.label_names == one.alphabet
    list(one)
    assert one.batch(3, 7) == other.batch(3, 7)
    assert one.batch(3, 7) != one.batch(4, 7)
    assert (one.total_outcomes, one.batch(0, 0).features.shape) == (59, (8, 59, 32))
    assert "".join(one.characters([0, 1])) == "\n "


def test_the_end_of_a_text_is_held_out(tmp_path: Path) -> None:
    source = load("sonnets")
    train, test = (text_of(part.features, source.label_names) for part in (source.train, source.test))
    assert read_sonnets().startswith(train[0])
    assert train[1][:32] == train[0][32:]
    assert "".join(test) in read_sonnets()
    assert len(set("".join(train[::2])) - set(source.label_names)) == 0
    assert not set(train) & set(test)
    path = tmp_path / "own.txt"
    path.write_text(read_sonnets(), encoding="utf-8")
    assert load(path).train == source.train
    assert load(path, reading=Reading(label_names=source.label_names)).test == source.test


def test_what_is_no_such_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the text has 4 characters; a window of 4"):
        character_windows("abcd", length=4)
    with pytest.raises(DataError, match=r"2 characters that the alphabet of 2 lacks, among them 'c', 'd'.*character 1"):
        character_windows("acdb", alphabet="ab", length=1)
    with pytest.raises(DataError, match="windows of 4 characters every 0"):
        character_windows("abcdefg", length=4, stride=0)
    with pytest.raises(DataError, match="600 different characters"):
        alphabet_of("".join(map(chr, range(1000, 1600))))
    path = tmp_path / "latin1.txt"
    path.write_bytes("façade".encode("latin1"))
    with pytest.raises(DataError, match=r"latin1\.txt as UTF-8 text"):
        load(path)
    with pytest.raises(DataError, match="there is no such file"):
        load(tmp_path / "none.txt")
    with pytest.raises(DataError, match="none"):
        read_text(tmp_path / "none.txt")
