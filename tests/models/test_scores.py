"""The loss of each example: of the output layer, or of the reconstruction if nothing else was trained."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import DataSet
from dl4jlegacy.cli import main
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.models.model import evaluate_network, score_examples, with_features_as_labels
from dl4jlegacy.nn import (
    RBM,
    AutoEncoder,
    DenseLayer,
    NeuralNetConfiguration,
    OutputLayer,
    VariationalAutoencoder,
    write_model,
)
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.networks import Network, build_network

COUNT = ROWS + 40


def examples() -> DataSet:
    rng = np.random.default_rng(8)
    return DataSet.of_classes(rng.random((COUNT, 6), np.float32), rng.integers(0, 3, COUNT), 3)


def network(*layers: Any, pretrained: bool = False) -> Network:
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=2, dtype="float64"),
        layers=layers,
        pretrain=pretrained,
        backprop=not pretrained,
    )
    return build_network(conf)


def scores(of: Network, data: DataSet) -> np.ndarray:
    blocks = list(score_examples(of, data))
    assert [len(block) for block in blocks] == [ROWS, COUNT - ROWS]
    return np.concatenate(blocks)


def test_the_losses_of_a_classifier_are_minus_the_logarithms_of_what_it_gives_the_right_class() -> None:
    net, data = network(DenseLayer(n_in=6, n_out=4), OutputLayer(n_out=3, activation="softmax")), examples()
    found = scores(net, data)
    right = np.take_along_axis(net.output(data.features), data.classes[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(found, -np.log(right), rtol=1e-6)
    assert found.mean() == pytest.approx(evaluate_network(net, data, ()).loss)


@pytest.mark.parametrize("loss", ["reconstruction_crossentropy", "mse"])
@pytest.mark.parametrize("kind", [RBM, AutoEncoder])
def test_a_pretrained_layers_losses_are_those_of_its_reconstruction(kind: Any, loss: str) -> None:
    """Of the last one, whose input is the output of the first; the output layer behind it was never trained."""
    layers = (kind(n_in=6, n_out=5), kind(n_out=4, loss=loss), OutputLayer(n_out=3, activation="softmax"))
    net, data = network(*layers, pretrained=True), with_features_as_labels(examples())
    found = scores(net, data)
    x, z = net.feed_forward(data.features)[1], net.reconstruct(data.features, 1)
    cross = -(x * np.log(z) + (1 - x) * np.log1p(-z)).sum(axis=1)
    np.testing.assert_allclose(found, cross if loss != "mse" else ((x - z) ** 2).mean(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(found, scores(net, data))
    assert evaluate_network(net, data, ()).loss == pytest.approx(found.mean(), rel=1e-6)


@pytest.mark.long
def test_a_variational_autoencoders_losses_single_out_what_it_never_saw() -> None:
    layer = VariationalAutoencoder(n_in=6, n_out=2, encoder_layer_sizes=(8,), decoder_layer_sizes=(8,))
    net = network(layer, OutputLayer(n_out=3, activation="softmax"), pretrained=True)
    rng = np.random.default_rng(1)
    usual = 0.5 + 0.01 * rng.normal(size=(COUNT, 6))
    net.pretrain(DataSet(usual), 300)
    usual[7] = 1 - usual[7] * 2
    assert scores(net, with_features_as_labels(DataSet(usual))).argmax() == 7


def test_a_row_without_a_finite_loss_is_named() -> None:
    net = network(DenseLayer(n_in=6, n_out=4, activation="identity"), OutputLayer(n_out=6, activation="identity"))
    features = np.array(examples().features, np.float64)
    features[ROWS + 3] = 1e308
    with pytest.raises(NotFiniteError, match=r"row \d"):
        scores(net, with_features_as_labels(DataSet(features)))


def test_the_command_writes_a_line_for_each_example(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    data = examples()
    net = network(DenseLayer(n_in=6, n_out=4), OutputLayer(n_out=3, activation="softmax"))
    write_model(net, "m.zip")
    rows = zip(data.features.tolist(), data.classes.tolist(), strict=True)
    (tmp_path / "d.csv").write_text("".join(f"{','.join(map(str, x))},{y}\n" for x, y in rows))

    def run(*words: str) -> int:
        with pytest.raises(SystemExit) as leave:
            main.main(["evaluate", "m.zip", "--dataset", "d.csv", "--split", "all", *words])
        return leave.value.code or 0

    assert run("--scores", "s.csv") == 0
    header, *lines = csv.reader((tmp_path / "s.csv").read_text().splitlines())
    assert (header, [int(row) for row, _ in lines]) == (["row", "loss"], list(range(COUNT)))
    assert sorted(float(loss) for _, loss in lines) == pytest.approx(sorted(scores(net, data)), rel=1e-5)
    assert "Accuracy" in capsys.readouterr().out
    before = sorted(path.name for path in tmp_path.iterdir())
    assert (run("--scores", "no/s.csv"), run("--scores", ".")) == (8, 8)
    (tmp_path / "d.csv").write_text("1,2,3\n")
    assert run("--scores", "other.csv") == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == before
