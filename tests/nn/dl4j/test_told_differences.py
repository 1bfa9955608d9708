"""What the real Deeplearning4j computes otherwise is refused, or told, by its name: never read in silence."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy import Adam, ComputationGraph, DenseLayer, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn import (
    RBM,
    AdamW,
    BinomialSamplingPreProcessor,
    ComposableInputPreProcessor,
    LinearSchedule,
    UnitVarianceProcessor,
    ZeroMeanAndUnitVariancePreProcessor,
    ZeroMeanPrePreProcessor,
)
from dl4jlegacy.nn.conf.graph_stages import GraphNode
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_model, write_model
from dl4jlegacy.nn.vertices import shape

OTHERS = [
    UnitVarianceProcessor(),
    ZeroMeanAndUnitVariancePreProcessor(),
    ComposableInputPreProcessor(input_pre_processors=(ZeroMeanPrePreProcessor(), UnitVarianceProcessor())),
]


def stack(pre: Any = None, first: Any = None) -> MultiLayerNetwork:
    layers = (first or DenseLayer(n_in=3, n_out=4, activation="tanh"), OutputLayer(n_in=4, n_out=2))
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(updater=Adam()), layers=layers, input_pre_processors={} if pre is None else {1: pre}
    )
    return MultiLayerNetwork(conf)


def graph(pre: Any) -> ComputationGraph:
    nodes = (
        GraphNode(name="d", inputs=("in",), vertex=DenseLayer(n_in=3, n_out=4, activation="tanh")),
        GraphNode(name="v", inputs=("d",), vertex=shape.PreprocessorVertex(pre_processor=pre)),
        GraphNode(name="o", inputs=("v",), vertex=OutputLayer(n_in=4, n_out=2)),
    )
    return ComputationGraph(
        ComputationGraphConfiguration(network_inputs=("in",), network_outputs=("o",), vertices=nodes)
    )


def foreign(network: Any, path: Path, version: Any, change: Callable[[str], str]) -> Path:
    """Write a network as Deeplearning4j would, with another configuration."""
    write_model(network, path, dl4j_version=version)
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name != "dl4jlegacy.json"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in kept.items():
            is_text = name == "configuration.json"
            archive.writestr(name, change(content.decode()) if is_text else content)
    return path


def told(change: Callable[[dict[str, Any]], None]) -> Callable[[str], str]:
    def changed(text: str) -> str:
        tree = json.loads(text)
        change(tree)
        return json.dumps(tree)

    return changed


@pytest.mark.parametrize("make", [stack, graph])
@pytest.mark.parametrize("wrapper", ["unitVariance", "zeroMeanAndUnitVariance", "composableInput"])
def test_preprocessors_that_divide_otherwise_are_refused(make: Any, wrapper: str, tmp_path: Path) -> None:
    instead = '"composableInput": {"inputPreProcessors": [{"unitVariance": {}}]}'
    text = instead if wrapper == "composableInput" else f'"{wrapper}": {{}}'

    def change(found: str) -> str:
        compact = json.dumps(json.loads(found))
        assert '"zeroMean": {}' in compact
        return compact.replace('"zeroMean": {}', text)

    path = foreign(make(ZeroMeanPrePreProcessor()), tmp_path / "m.zip", "0.9.1", change)
    with pytest.raises(ModelError, match=r"Processor, which divides by other deviations in Deeplearning4j"):
        restore_model(path)


@pytest.mark.parametrize("make", [stack, graph])
@pytest.mark.parametrize("pre", OTHERS, ids=lambda pre: pre.title())
def test_nor_are_they_written_for_it(make: Any, pre: Any, tmp_path: Path) -> None:
    for version in ("0.9.1", "1.0.0"):
        with pytest.raises(ModelError, match="which divides by other deviations in Deeplearning4j"):
            write_model(make(pre), tmp_path / "m.zip", dl4j_version=version)
    write_model(make(pre), tmp_path / "m.zip")
    assert restore_model(tmp_path / "m.zip").conf == make(pre).conf


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (lambda: stack(first=RBM(n_in=3, n_out=4, hidden_unit="gaussian")), "the values of gaussian hidden units"),
        (lambda: stack(first=DenseLayer(n_in=3, n_out=4, activation="rrelu")), "the slopes of rrelu"),
        (lambda: stack(BinomialSamplingPreProcessor()), "BinomialSamplingPreProcessor draws other numbers"),
    ],
)
def test_what_it_draws_in_prediction_is_told(
    network: Any, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = foreign(network(), tmp_path / "m.zip", "0.9.1", lambda text: text)
    assert said in caplog.text
    caplog.clear()
    restore_model(path)
    assert said in caplog.text


DECAYED = AdamW(learning_rate=0.01, weight_decay=0.05)


def decayed(updater: Any = DECAYED) -> MultiLayerNetwork:
    layers = (DenseLayer(n_in=3, n_out=4, activation="tanh", l2=0.1), OutputLayer(n_in=4, n_out=2))
    return MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(updater=updater), layers=layers))


def test_adamw_is_adam_with_its_weight_decay_in_1_0_0_and_is_no_updater_of_0_9_1(tmp_path: Path) -> None:
    read = restore_model(foreign(decayed(), tmp_path / "m.zip", "1.0.0", lambda text: text))
    assert [layer.updater for layer in read.layers] == [DECAYED, DECAYED]
    assert [layer.l2 for layer in read.layers] == [0.1, 0.0]
    with pytest.raises(ModelError, match=r"has the updater AdamW, which 0\.9\.1 does not have .*\(1\.0\.0 can\)"):
        write_model(decayed(), tmp_path / "old.zip", dl4j_version="0.9.1")
    write_model(decayed(), tmp_path / "own.zip")
    assert restore_model(tmp_path / "own.zip").conf == decayed().conf


@pytest.mark.parametrize(("old", "new"), [('"applyLR": true', '"applyLR": false'), ("config.Adam", "config.Nadam")])
def test_another_weight_decay_is_left_out_with_its_name(
    old: str, new: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = foreign(decayed(), tmp_path / "m.zip", "1.0.0", lambda text: text.replace(old, new))
    assert not any(isinstance(layer.updater, AdamW) for layer in restore_model(path).layers)
    assert "WeightDecay is left out; training on would not use it" in caplog.text


def test_a_schedule_over_a_run_stays_here_and_that_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    adam = Adam(learning_rate=0.01, schedule=LinearSchedule(iterations=9))
    for version in ("0.9.1", "1.0.0"):
        path = foreign(decayed(adam), tmp_path / "m.zip", version, lambda text: text)
        assert "its LinearSchedule is left out: the learning rate stays the same there" in caplog.text
        caplog.clear()
        assert restore_model(path).layers[0].updater == Adam(learning_rate=0.01)
    write_model(decayed(adam), tmp_path / "own.zip")
    assert restore_model(tmp_path / "own.zip").conf == decayed(adam).conf


def _bias_updater(tree: dict[str, Any]) -> None:
    layer = tree["confs"][0]["layer"]
    layer["biasUpdater"] = {**layer["iupdater"]}


def _bias_rate(tree: dict[str, Any]) -> None:
    layer = next(iter(tree["confs"][0]["layer"].values()))
    layer["learningRate"], layer["biasLearningRate"] = 0.001, 0.01


@pytest.mark.parametrize(
    ("version", "change", "what"), [("1.0.0", _bias_updater, "biasUpdater"), ("0.9.1", _bias_rate, "biasLearningRate")]
)
def test_states_of_biases_with_updaters_of_their_own_are_refused_with_the_remedy(
    version: str, change: Any, what: str, tmp_path: Path
) -> None:
    network = stack()
    path = foreign(network, tmp_path / "m.zip", version, told(change))
    with pytest.raises(ModelError, match=f"layer .* has .*{what}.*load_updater=False reads the network"):
        restore_model(path)
    assert (restore_model(path, load_updater=False).params == network.params).all()
