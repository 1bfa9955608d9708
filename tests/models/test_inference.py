"""What a saved model's predictions are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from dl4jlegacy.errors import ModelError
from dl4jlegacy.models.model import read_model
from dl4jlegacy.models.prediction import Form, predict_blocks, rows_in, texts_of
from dl4jlegacy.nn import DenseLayer, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer, write_model
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration


def saved(folder: Path, activation: str, names: tuple[str, ...]) -> str:
    """The path of a model of two inputs and as many outputs."""
    layers = (DenseLayer(n_in=2, n_out=3), OutputLayer(n_out=2, activation=activation, loss="mse"))
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=1), layers=layers))
    write_model(network, folder / "model.zip", label_names=names)
    (folder / "rows.csv").write_text("0.5,1\n1,0.5\n", encoding="utf-8")
    return str(folder / "model.zip")


def predicted(path: str, file: Path) -> list[str]:
    """The lines that are printed."""
    model = read_model(path)
    return [
        line
        for text in texts_of(model, predict_blocks([model.output], rows_in(model, str(file))[0]), Form())
        for line in text.split("\n")
    ]


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_a_name_for_each_output_is_printed_whatever_the_network_is(activation: str, tmp_path: Path) -> None:
    lines = predicted(saved(tmp_path, activation, ("no", "yes")), tmp_path / "rows.csv")
    assert len(lines) == 2 and all(line in ("0 no", "1 yes") for line in lines)


def test_the_names_of_the_datas_classes_are_none_of_outputs_that_rebuild_the_input(tmp_path: Path) -> None:
    lines = predicted(saved(tmp_path, "sigmoid", ("a", "b", "c")), tmp_path / "rows.csv")
    assert len(lines) == 2 and all(line in ("0", "1") for line in lines)


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "a")])
def test_names_that_do_not_fit_classes_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{len(names)} label names, {len(set(names))} different, for 2 outputs"):
        predicted(saved(tmp_path, "softmax", names), tmp_path / "rows.csv")
