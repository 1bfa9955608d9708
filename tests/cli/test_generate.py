"""``dl4j generate``: a text that goes on, as text and as JSON, and what it says of what cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import MultiLayerNetwork, write_model
from dl4jlegacy.cli import main
from dl4jlegacy.datasets import Reading
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.nn.zoo import char_lstm, mlp

pytestmark = pytest.mark.usefixtures("here")
ALPHABET = tuple("\n\x1b abcdé")


@pytest.fixture(autouse=True)
def model(here: Path) -> Path:
    """``m.zip``, a model of a few characters."""
    network = MultiLayerNetwork(char_lstm(8 * len(ALPHABET), len(ALPHABET), hidden=(8,)))
    network.set_params(np.random.default_rng(7).normal(0, 1, network.num_params).astype(np.float32))
    write_model(network, here / "m.zip", label_names=ALPHABET, reading=Reading(text=TextReader()))
    return here / "m.zip"


def test_text_begins_with_the_seed_text_and_json_has_both(dl4j: Any) -> None:
    asked = ("generate", "m.zip", "--seed-text", "bad café"[:3], "--length", "50", "--temperature", "2", "--seed", "9")
    found = dl4j.json(*asked)
    assert (found["model"], found["tokens"], found["seed_text"]) == ("m.zip", "characters", "bad")
    assert (found["length"], found["temperature"], found["seed"]) == (50, 2.0, 9)
    assert len(found["text"]) == 50 and set(found["text"]) <= set(ALPHABET)
    shown = dl4j(*asked)
    assert shown == "bad" + found["text"].replace("\x1b", "\\x1b") + "\n", "no character commands the terminal"
    assert dl4j(*asked) == shown
    assert dl4j(*asked[:-1], "10") != shown


def test_each_piece_is_written_as_soon_as_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class Gone:
        """A reader that leaves after ten pieces."""

        def write(self, text: str) -> int:
            written.append(text)
            if len(written) > 10:
                raise BrokenPipeError
            return len(text)

        def flush(self) -> None:
            pass

        def fileno(self) -> int:
            raise OSError

        errors, encoding = "strict", "utf-8"

        def reconfigure(self, **_: Any) -> None:
            pass

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(SystemExit) as leave:
        main.main(["generate", "m.zip", "--seed-text", "abc", "--length", "1000000000"])
    assert not leave.value.code and written[0] == "abc" and len(written) == 11


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ((), 2, "--seed-text is missing"),
        (("--seed-text", ""), 2, "--seed-text is missing"),
        (("--seed-text", "abz"), 3, "cannot go on with 'abz': the text has 1 character that the alphabet of 8 lacks"),
        (("--seed-text", "a", "--temperature", "0"), 2, "--temperature is '0'; it must be above 0"),
        (("--seed-text", "a", "--temperature", "nan"), 2, "--temperature is 'nan'"),
        (("--seed-text", "a", "--temperature", "-1"), 2, "--temperature is '-1'"),
        (("--seed-text", "a", "--temperature", "hot"), 2, "--temperature is 'hot'"),
        (("--seed-text", "a", "--length", "0"), 2, "--length is '0'"),
        (("--seed-text", "a", "--seed", "x"), 2, "--seed is 'x'"),
        (("--seed-text", "a", "--format", "xml"), 2, "--format is 'xml'"),
    ],
)
def test_what_is_asked_wrongly_is_named(dl4j: Any, words: tuple[str, ...], status: int, says: str) -> None:
    assert says in dl4j("generate", "m.zip", *words, fails=status)


def test_a_model_that_learned_no_text_is_named(dl4j: Any) -> None:
    write_model(MultiLayerNetwork(mlp(4, 3)), "flowers.zip")
    assert "model flowers.zip is no model of texts" in dl4j("generate", "flowers.zip", "--seed-text", "a", fails=8)
    assert "no.zip" in dl4j("generate", "no.zip", "--seed-text", "a", fails=8)


def test_bytes_that_are_no_text_are_named(dl4j: Any) -> None:
    assert "'\\udcff'" in dl4j("generate", "m.zip", "--seed-text", "\udcff", fails=3)
