"""A model of texts goes on by itself: what is drawn, against formulas and against the network's whole output."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy import (
    LSTM,
    ComputationGraph,
    DenseLayer,
    InputType,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    TrainedModel,
    load_model,
    write_model,
)
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import Reading
from dl4jlegacy.datasets.text.characters import LENGTH
from dl4jlegacy.datasets.text.texts import UNKNOWN, TextReader
from dl4jlegacy.errors import ConfError, DataError, ModelError
from dl4jlegacy.models.generation import draw_class, generate_text
from dl4jlegacy.nn import Convolution1DLayer, GraphBuilder, LastTimeStep
from dl4jlegacy.nn.zoo import word_lstm

ALPHABET = tuple("\n abcde")
WORDS = (UNKNOWN, "the", "fox", ",", "(", ")")


def network_of(*layers: object, size: int = len(ALPHABET)) -> MultiLayerNetwork:
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=5), layers=layers, input_type=InputType.recurrent(size)
    )
    network = MultiLayerNetwork(conf)
    network.set_params(np.random.default_rng(7).normal(0, 1, network.num_params).astype(np.float32))
    return network


def output_layer() -> RnnOutputLayer:
    return RnnOutputLayer(n_out=len(ALPHABET), activation="softmax", loss="mcxent")


@pytest.fixture
def characters() -> TrainedModel:
    """An LSTM under random parameters: what it says depends on all that came before."""
    network = network_of(LSTM(n_out=9), LSTM(n_out=6), output_layer())
    return TrainedModel(network, Reading(label_names=ALPHABET, text=TextReader()))


@pytest.fixture
def words() -> TrainedModel:
    network = MultiLayerNetwork(word_lstm(32, len(WORDS), hidden=(8,)))
    network.set_params(np.random.default_rng(7).normal(0, 1, network.num_params).astype(np.float32))
    return TrainedModel(network, Reading(label_names=WORDS, text=TextReader(tokens="words")))


def drawn_from_whole_outputs(model: TrainedModel, text: str, length: int, temperature: float, seed: int) -> str:
    """The formula: each character from the outputs for all before it, which no state has carried on."""
    for position in range(length):
        logs = np.log(model.answer(TextReader().features(text, ALPHABET))[0].astype(float)) / temperature
        shares = np.exp(logs) / np.exp(logs).sum()
        uniform = Stream.of(seed).at(position, purpose="generate").generator().random()
        text += ALPHABET[int((np.cumsum(shares) <= uniform).sum())]
    return text


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_each_character_is_drawn_from_the_outputs_for_all_that_came_before(
    characters: TrainedModel, temperature: float
) -> None:
    pieces = list(generate_text(characters, "abc dad", length=40, temperature=temperature, seed=3))
    assert "abc dad" + "".join(pieces) == drawn_from_whole_outputs(characters, "abc dad", 40, temperature, 3)
    assert len(pieces) == 40 and {len(piece) for piece in pieces} == {1}


def test_it_is_the_same_for_a_seed_and_a_longer_text_begins_with_the_shorter_one(characters: TrainedModel) -> None:
    long, again = (list(generate_text(characters, "a", length=60, seed=11)) for _ in range(2))
    assert long == again
    assert list(generate_text(characters, "a", length=25, seed=11)) == long[:25]
    assert list(generate_text(characters, "a", length=60, seed=12)) != long


def test_pieces_come_one_by_one_and_the_rest_is_not_computed(
    characters: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    step = MultiLayerNetwork.rnn_time_step
    monkeypatch.setattr(MultiLayerNetwork, "rnn_time_step", lambda self, x: steps.append(x.shape) or step(self, x))
    pieces = generate_text(characters, "abc", length=10**9)
    assert steps == []
    assert len(list(itertools.islice(pieces, 3))) == 3
    assert steps == [(1, 7, 3), (1, 7, 1), (1, 7, 1)], "each character goes through the network once"


def test_a_network_that_carries_no_state_on_is_given_the_last_characters() -> None:
    network = network_of(Convolution1DLayer(n_out=5, kernel_size=3, convolution_mode="same"), output_layer())
    model = TrainedModel(network, Reading(label_names=ALPHABET, text=TextReader()))
    text = "abc" * 30
    found = text + "".join(generate_text(model, text, length=30, seed=4))
    for position in range(30):
        seen = found[: len(text) + position][-LENGTH:]
        shares = model.answer(TextReader().features(seen, ALPHABET))[0].astype(float)
        uniform = Stream.of(4).at(position, purpose="generate").generator().random()
        assert found[len(text) + position] == ALPHABET[draw_class(shares, 1.0, uniform)]


def test_a_graph_goes_on_too() -> None:
    builder = GraphBuilder(NeuralNetConfiguration(seed=5)).add_inputs("text")
    builder.set_input_types(InputType.recurrent(len(ALPHABET)))
    builder.add_layer("memory", LSTM(n_out=6), "text").add_layer("next", output_layer(), "memory")
    graph = ComputationGraph(builder.set_outputs("next").build())
    graph.set_params(np.random.default_rng(2).normal(0, 1, graph.num_params).astype(np.float32))
    check_formula(TrainedModel(graph, Reading(label_names=ALPHABET, text=TextReader())))


def test_a_network_with_one_answer_for_all_characters_goes_on_too() -> None:
    last = OutputLayer(n_out=len(ALPHABET), activation="softmax")
    network = network_of(LastTimeStep(layer=LSTM(n_out=6)), last)
    check_formula(TrainedModel(network, Reading(label_names=ALPHABET, text=TextReader())))


def check_formula(model: TrainedModel) -> None:
    found = "ab" + "".join(generate_text(model, "ab", length=20, seed=1))
    assert found == drawn_from_whole_outputs(model, "ab", 20, 1.0, 1)


def test_words_get_their_spaces_and_the_unknown_one_is_never_drawn(words: TrainedModel, caplog) -> None:
    words.network.param_table["2_b"][0] = 50  # the network is nearly sure of a word that it does not know
    with caplog.at_level(logging.WARNING):
        pieces = list(generate_text(words, "The okapi (", length=200, temperature=30))
    assert "'okapi'" in caplog.text and "'the'" not in caplog.text
    assert {piece.strip() for piece in pieces} == set(WORDS[1:])
    for before, piece in itertools.pairwise(["(", *pieces]):
        assert piece.startswith(" ") == (piece.strip() not in (",", ")") and before.strip() != "("), (before, piece)
    first = next(generate_text(words, "the fox ", length=1, seed=5))
    assert first == next(generate_text(words, "the fox", length=1, seed=5)).lstrip()


def test_a_draw_follows_the_probabilities_to_the_power_of_one_over_the_temperature() -> None:
    probabilities, uniforms = np.array([0.5, 0.3, 0.0, 0.2]), (np.arange(20_000) + 0.5) / 20_000
    for temperature in (0.5, 1.0, 3.0):
        drawn = [draw_class(probabilities, temperature, uniform) for uniform in uniforms]
        expected = probabilities ** (1 / temperature)
        found = np.bincount(drawn, minlength=4) / len(drawn)
        np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-4)
    assert draw_class(probabilities, 1e-300, 0.999999) == 0
    assert draw_class(np.array([0.0, 1.0, 0.0]), 1.0, np.nextafter(1, 0)) == 1
    assert draw_class(np.array([1.0, 0.0]), 1.0, 0.0) == 0


@pytest.mark.parametrize("temperature", [0, -1, float("nan"), float("inf")])
def test_a_temperature_that_is_none_is_refused(characters: TrainedModel, temperature: float) -> None:
    with pytest.raises(ConfError, match=rf"temperature is {temperature}; it must be a finite number above 0"):
        generate_text(characters, "a", temperature=temperature)


def test_what_it_cannot_go_on_with_is_refused_before_anything_is_drawn(characters: TrainedModel) -> None:
    with pytest.raises(DataError, match=r"cannot go on with 'abx': .*lacks, among them 'x'"):
        generate_text(characters, "abx")
    with pytest.raises(DataError, match="has no character"):
        generate_text(characters, "")
    with pytest.raises(ConfError, match="length is 0"):
        generate_text(characters, "a", length=0)
    with pytest.raises(ModelError, match="the model is no model of texts"):
        generate_text(TrainedModel(characters.network, Reading(label_names=ALPHABET)), "a")
    with pytest.raises(ModelError, match="6 characters, 6 different, for 7 outputs"):
        generate_text(TrainedModel(characters.network, Reading(label_names=ALPHABET[1:], text=TextReader())), "a")


def test_a_word_model_takes_any_text_with_a_word_in_it(words: TrainedModel) -> None:
    with pytest.raises(DataError, match="has no word"):
        generate_text(words, " \n")
    assert "".join(generate_text(words, "\u0928\u092e\u0938\u094d\u0924\u0947 \U0001f98a", length=5))


def test_a_file_of_the_model_says_the_same(characters: TrainedModel, tmp_path: Path) -> None:
    write_model(characters.network, tmp_path / "m.zip", label_names=ALPHABET, reading=Reading(text=TextReader()))
    loaded = load_model(tmp_path / "m.zip")
    assert list(generate_text(loaded, "ab", length=30)) == list(generate_text(characters, "ab", length=30))


def test_a_dense_network_is_no_reason_to_fail() -> None:
    """What comes depends on the last character alone then."""
    network = network_of(DenseLayer(n_out=5), output_layer())
    model = TrainedModel(network, Reading(label_names=ALPHABET, text=TextReader()))
    assert list(generate_text(model, "aab", length=20)) == list(generate_text(model, "cb", length=20))
