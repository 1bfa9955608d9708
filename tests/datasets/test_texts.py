"""Words of a text: what one is, which are in a vocabulary, and the windows that are made of them."""

from __future__ import annotations

import pytest

from dl4jlegacy.datasets.text.texts import UNKNOWN, WORDS, TextReader
from dl4jlegacy.errors import ConfError, DataError

READER = TextReader(tokens="words")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop, well-known Fox!", ["don't", "stop", ",", "well-known", "fox", "!"]),
        ("don\u2019t\n\tgo", ["don't", "go"]),
        ("3.5 km -- 'so'", ["3", ".", "5", "km", "-", "-", "'", "so", "'"]),
        ("cafe\u0301 = caf\u00e9", ["caf\u00e9", "=", "caf\u00e9"]),
        ("\ufeffनमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("\u4f60\u597d 世界", ["\u4f60\u597d", "世界"]),
        ("", []),
    ],
)
def test_words_are_what_stands_between_spaces_and_punctuation_marks(text: str, words: list[str]) -> None:
    assert READER.words(text) == words


def test_case_is_kept_if_that_is_asked_for() -> None:
    assert TextReader(tokens="words", lower_case=False).words("The the") == ["The", "the"]


def test_a_vocabulary_is_by_frequency_and_then_by_the_alphabet() -> None:
    words = ["b", "b", "a", "a", "c", "d", "d", "d"]
    assert READER.vocabulary(words) == (UNKNOWN, "d", "a", "b", "c")
    assert TextReader(tokens="words", vocabulary_size=2).vocabulary(words) == (UNKNOWN, "d", "a")
    assert TextReader(tokens="words", vocabulary_size=1).vocabulary(words) == (UNKNOWN, "d")
    many = [f"w{number:05}" for number in range(3000)]
    assert READER.vocabulary(many) == (UNKNOWN, *many[:1000])


def test_a_vocabulary_is_that_of_the_training_part_alone_and_labels_are_the_words_that_follow() -> None:
    text = " ".join(["one two three four five"] * 40 + ["six seven"] * 25)
    train, test, names = READER.parts(text, 0.2)
    assert names == (UNKNOWN, "five", "four", "one", "three", "two")
    assert train.features.shape[1:] == (1, WORDS) and train.labels.shape[1:] == (6, WORDS)
    cycle = [names.index(word) for word in ["one", "two", "three", "four", "five"]]
    assert train.features[0, 0, :6].tolist() == [*cycle, cycle[0]]
    assert train.labels[0].argmax(axis=0)[:5].tolist() == [*cycle[1:], cycle[0]]
    assert train.features[1, 0, 0] == cycle[(WORDS // 2) % 5]  # every half window another begins
    assert (train.labels.sum(axis=1) == 1).all()
    assert set(test.features.ravel().tolist()) == {0.0}  # words that the training part has not
    again = READER.parts(text, 0.2, names)
    assert (again[0], again[1], again[2]) == (train, test, names)


def test_features_of_a_text_are_those_of_the_windows() -> None:
    names = (UNKNOWN, "the", "fox")
    assert READER.features("The fox saw", names).tolist() == [[[1, 2, 0]]]
    assert TextReader().features("ba", ("a", "b")).tolist() == [[[0, 1], [1, 0]]]
    with pytest.raises(DataError, match=r"the text ' ' has no word"):
        READER.features(" ", names)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfError, match=r"text\.tokens is 'word'; did you mean 'words'\?"):
        TextReader(tokens="word")  # type: ignore[arg-type]
    with pytest.raises(ConfError, match=r"text\.vocabulary_size is -1; give at least 1"):
        TextReader(tokens="words", vocabulary_size=-1)
    with pytest.raises(ConfError, match=r"text\.vocabulary_size is 5, and text\.tokens are characters"):
        TextReader(vocabulary_size=5)
    with pytest.raises(DataError, match="give a text of at least 166"):
        READER.parts("a b " * 40, 0.2)
    assert len(READER.parts("a b " * 83, 0.2)[1]) == 1


def test_a_vocabulary_for_which_the_memory_does_not_suffice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dl4jlegacy.system.resources.most_memory", lambda: 1 << 20)
    with pytest.raises(ConfError, match=r"labelling .* words, 3 different ones \(--vocabulary-size\), needs"):
        READER.parts("a b " * 100_000, 0.2)
