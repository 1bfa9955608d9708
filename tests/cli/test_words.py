"""Texts by words and by characters, from the command line: trained, evaluated, predicted, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy import load_model
from dl4jlegacy.datasets import Reading, load
from dl4jlegacy.datasets.text.texts import UNKNOWN, TextReader
from dl4jlegacy.models.prediction import rows_in

pytestmark = pytest.mark.usefixtures("here")
WORDS = ("--tokens", "words", "--vocabulary-size", "50")
SHORT = ("--epochs", "1", "--jobs-per-round", "4", "--batch-size", "8")
FABLE = "The fox saw the grapes, and the grapes hung high. The crow saw the fox, and the fox left.\n"


@pytest.fixture
def notes(here: Path) -> Path:
    """A text of 1,600 words that says the same again and again."""
    (here / "notes.txt").write_text(FABLE * 80, encoding="utf-8")
    return here / "notes.txt"


def trained(dl4j: Any, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = dl4j.json("train", *options)
    return found


def test_a_text_is_learned_by_words_evaluated_and_predicted(dl4j: Any, notes: Path) -> None:
    long = ("--epochs", "12", "--jobs-per-round", "1", "--workers", "1", "--format", "json", "--out", "m.zip")
    report = trained(dl4j, "notes.txt", *WORDS, *long)
    assert (report["model"], report["text"]["tokens"]) == ("word-lstm", "words")
    assert report["accuracy"] > 0.9 and not report["scaled_features"]
    model = load_model("m.zip")
    assert model.reading.text == TextReader(tokens="words", vocabulary_size=50)
    assert model.label_names[:4] == (UNKNOWN, "the", "fox", ",") and len(model.label_names) == 12
    found = dl4j.json("evaluate", "m.zip", "--dataset", "notes.txt")
    assert (found["accuracy"], found["loss"]) == (report["accuracy"], report["loss"])
    Path("lines.txt").write_text("The fox saw the\n\nthe grapes hung\nThe CROW\n", encoding="utf-8")
    lines = dl4j("predict", "m.zip", "lines.txt").splitlines()
    assert [line.split()[1] for line in lines] == ["grapes", "high", "saw"]
    assert dl4j("predict", "m.zip", "lines.txt", "--workers", "2").splitlines() == lines
    first = json.loads(dl4j("predict", "m.zip", "lines.txt", "--format", "jsonl").splitlines()[0])
    assert first["label_name"] == "grapes" and len(first["probabilities"]) == 12
    assert sum(first["probabilities"]) == pytest.approx(1, abs=1e-4)
    features = TextReader(tokens="words").features("The fox saw the", model.label_names)
    assert model.answer(features).argmax() == first["class"] == model.output(features)[0, :, -1].argmax()


def test_words_that_were_not_learned_are_counted_at_prediction(
    dl4j: Any, notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(dl4j, "notes.txt", *WORDS, *SHORT, "--out", "text.zip")
    rows = [f"{city},{n},{'yes' if n % 3 else 'no'}" for n, city in enumerate(["Bonn", "Ulm", "Trier"] * 20)]
    Path("cities.csv").write_text("\n".join(["city,n,sold", *rows]), encoding="utf-8")
    dl4j("train", "cities.csv", "--epochs", "1", "--out", "cities.zip")
    Path("lines.txt").write_text("the zebra saw\nthe okapi saw a zebra\n", encoding="utf-8")
    Path("new.csv").write_text("city,n,sold\nKiel,1,yes\nUlm,2,no\nKiel,3,no\nBern,4,yes\n,5,no\n", encoding="utf-8")
    text, cities = load_model("text.zip"), load_model("cities.zip")
    not_learned = "words were not in the training data, and all count as one unknown word:"
    said = {
        "lines.txt": f"lines.txt: 4 of 8 {not_learned} 'zebra' 2, 'okapi' 1, 'a' 1",
        "new.csv": f"new.csv, column 'city': 4 of 5 {not_learned} 'Kiel' 2, 'Bern' 1, 'missing' 1",  # a gap, filled in
    }
    for model, file in ((text, "lines.txt"), (cities, "new.csv")):
        caplog.clear()
        assert len(list(rows_in(model, file, warns=False)[0])) and not caplog.records, "a server says nothing"
        assert len(list(rows_in(model, file)[0]))
        assert [record.getMessage() for record in caplog.records] == [said[file]]
    caplog.clear()
    load("new.csv", reading=Reading(transform=cities.reading.transform))
    assert "words were not in the training data" in caplog.text or "word was not in the training data" in caplog.text


def test_unknown_words_are_one_word_in_predictions_and_evaluations(dl4j: Any, notes: Path) -> None:
    trained(dl4j, "notes.txt", *WORDS, *SHORT, "--out", "m.zip")
    Path("lines.txt").write_text("the zebra saw\nthe okapi saw\n", encoding="utf-8")
    zebra, okapi = dl4j("predict", "m.zip", "lines.txt", "--probabilities").splitlines()
    assert zebra == okapi
    Path("others.txt").write_text("a zebra and an okapi met. " * 60, encoding="utf-8")
    found = dl4j.json("evaluate", "m.zip", "--dataset", "others.txt", "--split", "all")
    assert found["examples"] > 5 and 0 <= found["accuracy"] <= 1


def test_a_text_to_validate_on_has_the_words_that_are_learned(dl4j: Any, notes: Path) -> None:
    Path("others.txt").write_text(FABLE.replace("fox", "wolf") * 20, encoding="utf-8")
    report = trained(dl4j, "notes.txt", *WORDS, *SHORT, "--validation", "others.txt")
    assert report["validation"]["examples"] > 10


def test_characters_stay_what_they_were_and_are_predicted_too(dl4j: Any, notes: Path) -> None:
    named = trained(dl4j, "--dataset", "notes.txt", "--model", "char-lstm", *SHORT, "--out", "m.zip")
    plain, said = trained(dl4j, "notes.txt", *SHORT), trained(dl4j, "notes.txt", "--tokens", "characters", *SHORT)
    assert named["params_sha256"] == plain["params_sha256"] == said["params_sha256"]
    assert load_model("m.zip").reading.text == TextReader()
    Path("lines.txt").write_text("The fo\nthe x\n", encoding="utf-8")
    assert len(dl4j("predict", "m.zip", "lines.txt").splitlines()) == 2
    Path("lines.txt").write_text("The fo\nthe 7\n", encoding="utf-8")
    assert "lines.txt, line 2: the text has 1 character that the alphabet" in dl4j(
        "predict", "m.zip", "lines.txt", fails=3
    )


def test_a_network_of_ones_own_takes_words(dl4j: Any, notes: Path) -> None:
    Path("own.yaml").write_text(
        """
dataset: notes.txt
text: {tokens: words, lower_case: false}
epochs: 1
multi_layer_conf:
  conf: {seed: 7, updater: {type: Adam, learning_rate: 0.01}}
  input_type: {type: recurrent, size: 1}
  layers:
    - {type: embedding, n_in: 1001, n_out: 8, activation: identity}
    - {type: lstm, n_out: 8, activation: tanh}
    - {type: rnn_output, activation: softmax, loss: mcxent}
""",
        encoding="utf-8",
    )
    report = trained(dl4j, "own.yaml", "--format", "json", "--out", "m.zip")
    assert report["text"] == {"tokens": "words", "lower_case": False, "classes": 13}
    assert "The" in load_model("m.zip").label_names


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("notes.txt", "--vocabulary-size", "9"), 2, "--vocabulary-size 9 is for words; give --tokens words"),
        (("notes.txt", "--tokens", "words", "--vocabulary-size", "0"), 2, "--vocabulary-size"),
        (("notes.txt", "--tokens", "letters"), 2, "--tokens is 'letters'"),
        (("notes.txt", "--tokens", "words", "--model", "char-lstm"), 3, "model char-lstm does not take words"),
        (("notes.txt", "--model", "word-lstm"), 3, "the data set is a text that is read by characters"),
        (("--dataset", "iris", "--model", "word-lstm"), 3, "the data set is not a text"),
        (("--dataset", "iris", "--tokens", "words"), 3, "data set 'iris' is no text, which --tokens"),
        (("notes.txt", "--tokens", "words", "--stratify"), 3, "leave --stratify out"),
        (("short.txt", "--tokens", "words"), 3, "the text has 100 words, of which the last 20 are held out; a window"),
        (("same.txt", "--tokens", "words"), 3, "the text has only one word, 'well', in all of the 320 places"),
        (("latin1.txt", "--tokens", "words"), 3, "latin1.txt as UTF-8 text: 'utf-8' codec can't decode byte 0xe7"),
        (("none.txt", "--tokens", "words"), 3, "there is no such file"),
    ],
)
def test_what_does_not_fit_is_said(dl4j: Any, notes: Path, options: tuple[str, ...], status: int, said: str) -> None:
    Path("short.txt").write_text("so it goes on and " * 20, encoding="utf-8")
    Path("same.txt").write_text("Well " * 400, encoding="utf-8")
    Path("latin1.txt").write_bytes("façade ".encode("latin1") * 200)
    assert said in dl4j("train", *options, fails=status)


def test_lines_that_cannot_be_predicted_are_named(dl4j: Any, notes: Path) -> None:
    trained(dl4j, "notes.txt", *WORDS, *SHORT, "--out", "m.zip")
    Path("latin1.txt").write_bytes("the fox\nla façade\n".encode("latin1"))
    assert "latin1.txt is no text in UTF-8" in dl4j("predict", "m.zip", "latin1.txt", fails=3)
    Path("empty.txt").write_text("\n \n", encoding="utf-8")
    for form in ("text", "json"):
        assert "empty.txt holds no text" in dl4j("predict", "m.zip", "empty.txt", "--format", form, fails=3)
    cluster = ("--tracker", "hazelcast://127.0.0.1:1", "--zookeeper", "127.0.0.1:1")  # which is not asked
    assert "empty.txt holds no text" in dl4j("predict", "m.zip", "empty.txt", *cluster, fails=3)
