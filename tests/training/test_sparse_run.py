"""Runs of networks on sparse features: the same bits for any number of workers, from Python and on the command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import (
    ActorNetworkRunner,
    AdaGrad,
    Adam,
    Conf,
    DataSet,
    DenseLayer,
    ListDataSetIterator,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    Sgd,
)
from dl4jlegacy.cli.main import main as entry_point
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.scoring import ValidationConf

COLUMNS = 120_000


def main(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        entry_point(arguments)
    return int(left.value.code or 0)


def examples(rows: int = 200) -> DataSet:
    """Two classes; some columns are of the one, others of the other, most of neither."""
    rng = np.random.default_rng(3)
    classes = rng.integers(0, 2, rows)
    columns = [
        np.unique(np.concatenate([rng.integers(0, COLUMNS, 8), rng.integers(0, 100, 4) * 2 + c])) for c in classes
    ]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in columns])])
    values = np.ones(offsets[-1], np.float32)
    return DataSet.of_classes(SparseFeatures(offsets, np.concatenate(columns), values, COLUMNS), classes)


def conf_of(updater: Any = None, **more: Any) -> Conf:
    layers = (DenseLayer(n_in=COLUMNS, n_out=4, activation="tanh"), OutputLayer(n_out=2, activation="softmax"))
    network = NeuralNetConfiguration(seed=4, updater=updater or AdaGrad(learning_rate=0.3))
    return Conf(
        multi_layer_conf=MultiLayerConfiguration(layers, network), jobs_per_round=4, epochs=3, seed=1, run="r", **more
    )


def trained(conf: Conf, data: DataSet) -> tuple[str, Any, Any]:
    with ActorNetworkRunner("master", ListDataSetIterator(data, 10, seed=2)) as runner:
        runner.setup(conf)
        result = runner.train()
        network = runner.network(result)
    return hashlib.sha256(network.params.tobytes()).hexdigest(), network, result


def test_any_number_of_workers_ends_in_the_same_bits_and_learns(tmp_path: Path) -> None:
    data = examples()
    digests = set()
    for workers in (1, 3):
        digest, network, result = trained(conf_of(workers=workers), data)
        digests.add(digest)
        assert result.conf.router == "row-averaging"
        assert (result.batches_lost, result.head.batches) == (0, 60)
    assert len(digests) == 1
    assert network.evaluate(data).accuracy() > 0.9
    validated = trained(conf_of(workers=2, validation=ValidationConf(fraction=0.2)), data)[2]
    assert validated.validation.examples == 40


def test_a_run_draws_its_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Millions of parameters take seconds to draw: no network is drawn that gets others, or is only looked at."""
    drawn = []
    real = MultiLayerNetwork._init_params
    monkeypatch.setattr(MultiLayerNetwork, "_init_params", lambda network: (drawn.append(network.n_in), real(network)))
    network = trained(conf_of(workers=2), examples())[1]
    assert drawn.count(COLUMNS) == 1
    assert network.num_params > COLUMNS


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"router": "hogwild"}, "Conf.router is hogwild, and the features are sparse: only row-averaging"),
    ({"updater": Adam()}, "updater Adam changes weights that a batch does not touch"),
    ({"router_args": {"parameter_servers": 2}}, "'parameter_servers'"),
]


@pytest.mark.parametrize(("more", "said"), REFUSED)
def test_what_does_not_go_with_sparse_features_is_refused_before_the_run(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfError, match=said):
        trained(conf_of(**more), examples(60))


def test_row_averaging_is_for_sparse_features_only() -> None:
    dense = DataSet(np.ones((40, 3), np.float32), np.eye(2)[np.arange(40) % 2])
    layers = (DenseLayer(n_in=3, n_out=4), OutputLayer(n_out=2, activation="softmax"))
    conf = Conf(multi_layer_conf=MultiLayerConfiguration(layers), router="row-averaging", jobs_per_round=2)
    with pytest.raises(ConfError, match="which is for sparse features, and the data have none"):
        trained(conf, dense)


def test_a_file_is_learned_evaluated_and_predicted_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = examples(240)
    with Path("rows.svm").open("w") as file:
        for row, label in enumerate(data.classes.tolist()):
            file.write(f"{label} " + " ".join(f"{c}:1" for c in data.features[row : row + 1].touched()) + "\n")
    network = conf_of(Sgd(learning_rate=1.0)).multi_layer_conf
    assert network is not None
    layers = (DenseLayer(n_out=4, activation="tanh"), *network.layers[1:])
    conf = Conf(multi_layer_conf=MultiLayerConfiguration(layers, network.conf), jobs_per_round=4, epochs=6)
    Path("conf.json").write_text(conf.to_json())
    told = ["--format", "json"]
    assert main(["train", "conf.json", "--dataset", "rows.svm", "--batch-size", "12", "--out", "m.zip", *told]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["router"] == "row-averaging" and report["accuracy"] > 0.7
    assert main(["evaluate", "m.zip", "--dataset", "rows.svm", *told]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == report["accuracy"]
    Path("new.svm").write_text("0 0:1 2:1 4:1 6:1\n0 1:1 3:1 5:1 7:1\n")
    assert main(["predict", "m.zip", "new.svm"]) == 0
    assert len(capsys.readouterr().out.split()) >= 2
    assert main(["train", "conf.json", "--dataset", "rows.svm", "--regression", *told]) == 3
    assert "100,000 fit at most" in capsys.readouterr().out
