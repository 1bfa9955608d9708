"""AdaGrad's and RmsProp's states begin with numbers of their own, without a network too: in folds, slots, files."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, IrisDataSetIterator
from dl4jlegacy.errors import CheckpointError, WireError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    RBM,
    AdaGrad,
    Adam,
    DenseLayer,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RmsProp,
)
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_model, write_model
from dl4jlegacy.scaleout.contract import finished
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.state.aggregate import STATE
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.updater_beginning import begin_state
from dl4jlegacy.system.strict_json import to_json
from dl4jlegacy.training.prepare import read_checkpoint

KERNELS = load("numpy")
MIXED = MultiLayerConfiguration(
    conf=NeuralNetConfiguration(seed=1, updater=AdaGrad(learning_rate=0.1, epsilon=0.5)),
    layers=(
        DenseLayer(n_in=4, n_out=3),
        DenseLayer(n_out=3, updater=Adam()),
        OutputLayer(n_out=3, activation="softmax", updater=RmsProp(epsilon=0.25)),
    ),
)
DBN = MultiLayerConfiguration(
    conf=NeuralNetConfiguration(seed=1, updater=AdaGrad(learning_rate=0.1)),
    layers=(RBM(n_in=4, n_out=3), OutputLayer(n_out=3, activation="softmax")),
    pretrain=True,
)


def model() -> tuple[Result, np.ndarray]:
    """Return a model whose state has moved, and the state that it would begin with."""
    network = MultiLayerNetwork(MIXED)
    new = network.updater_state.copy()
    assert sorted(map(float, set(new))) == [0.0, np.float32(1e-6), 0.25]  # AdaGrad's whatever epsilon is
    network.updater_state[:] = 7
    return first_model(network), new


@pytest.mark.parametrize("router", ["easgd", "gradient-sharing"])
def test_a_slot_begins_with_a_new_state(router: str) -> None:
    given, new = model()
    strategy: Any = create_router(router, jobs_per_round=4)
    np.testing.assert_array_equal(strategy.memory.replica(given, None).arrays[STATE], new)


def test_what_a_model_says_of_another_state_is_refused() -> None:
    given, new = model()
    with pytest.raises(WireError, match="of 51 numbers, and its state has 50"):
        begin_state(given.values, new[1:])
    with pytest.raises(WireError, match="says nothing of an updater state"):
        begin_state({"state_begins": {"size": "all"}}, new)


class Forgetful:
    """An aggregation of somebody's own that keeps neither the model's values nor the contract about phases."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays

    def finish(self, *, ends_phase: bool) -> Any:
        return Result({"mine": 1}, self._arrays).encode(), None


@pytest.mark.parametrize("ends_phase", [False, True])
def test_an_aggregator_of_ones_own_need_not_know(ends_phase: bool) -> None:
    given, new = model()
    frame, _ = finished(Forgetful(dict(given.arrays)), given.encode(), ends_phase=ends_phase)  # type: ignore[arg-type]
    made = Result.decode(frame)
    assert made.values == {"mine": 1, **given.values}
    np.testing.assert_array_equal(made.arrays[STATE], new if ends_phase else given.arrays[STATE])


def trained(conf: MultiLayerConfiguration, **fields: Any) -> MultiLayerNetwork:
    with ActorNetworkRunner("master", IrisDataSetIterator(30)) as runner:
        runner.setup(Conf(multi_layer_conf=conf, run="beginning", workers=2, jobs_per_round=2, **fields))
        network: MultiLayerNetwork = runner.network(runner.train(progress=False))
        return network


@pytest.mark.parametrize("parameter_servers", [0, 3])
def test_finetuning_begins_anew_after_pretraining_on_workers(parameter_servers: int) -> None:
    network = trained(DBN, router_args={"parameter_servers": parameter_servers})
    [visible] = [block for block in network.updater.blocks if block.is_pretrain]
    untouched = network.updater_state[visible.state_start : visible.state_stop]
    np.testing.assert_array_equal(untouched, np.float32(1e-6))  # fine-tuning leaves visible biases alone
    assert (network.updater_state >= np.float32(1e-6)).all()


# --- files of before --------------------------------------------------------------------------------------------------


def of_before(path: Path) -> None:
    """Make of a model file what a version wrote whose states began with zeros."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    own = json.loads(entries["dl4jlegacy.json"])
    assert own["format"] == 3
    entries["dl4jlegacy.json"] = json.dumps(own | {"format": 1}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def test_a_model_file_of_before_is_read_with_the_state_raised_to_where_it_would_have_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, path = MultiLayerNetwork(MIXED), tmp_path / "model.zip"
    new = network.updater_state.copy()
    network.updater_state[:] = 2
    write_model(network, path)
    np.testing.assert_array_equal(restore_model(path).updater_state, 2)
    assert not caplog.records
    of_before(path)
    np.testing.assert_array_equal(restore_model(path).updater_state, 2 + new)
    assert "AdaGrad and RmsProp began their state with zeros" in caplog.text
    caplog.clear()
    np.testing.assert_array_equal(restore_model(path, load_updater=False).updater_state, new)
    assert not caplog.records


def test_files_of_other_updaters_keep_their_format(tmp_path: Path) -> None:
    conf = MIXED.replace(conf=NeuralNetConfiguration(updater=Adam()), layers=(OutputLayer(n_in=4, n_out=3),))
    for saves, network, wanted in ((True, conf, 1), (False, MIXED, 1), (True, MIXED, 3)):
        write_model(MultiLayerNetwork(network), tmp_path / "model.zip", save_updater=saves)
        with zipfile.ZipFile(tmp_path / "model.zip") as archive:
            assert json.loads(archive.read("dl4jlegacy.json"))["format"] == wanted


def make_older(folder: Path) -> np.ndarray:
    """Make of a run's checkpoints those of a version before; return the newest's state."""
    for path in sorted(folder.glob("checkpoint-*.json")):
        body = json.loads(path.read_text())
        body |= {"format": "dl4jlegacy-checkpoint-1", "values": {}}
        body.pop("digest")
        body["digest"] = hashlib.sha256(to_json(body, sort_keys=True).encode()).hexdigest()
        path.write_text(to_json(body))
    return np.array(read_checkpoint(str(folder)).network.updater_state)


def resumed(folder: Path, conf: MultiLayerConfiguration, **fields: Any) -> Any:
    fields = {"checkpoint_every": 1, "run": "beginning", "workers": 2, "jobs_per_round": 2, **fields}
    with ActorNetworkRunner("master", IrisDataSetIterator(30)) as runner:
        runner.setup(Conf(multi_layer_conf=conf, checkpoint_dir=str(folder), **fields), resume=True)
        return runner.network(runner.train(progress=False))


def test_a_run_of_before_is_refused_where_it_would_go_on_otherwise_and_its_model_can_be_had(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"checkpoint_every": 1, "dataset": "iris"}
    last = OutputLayer(n_in=4, n_out=3, activation="softmax")
    adam = MultiLayerConfiguration(conf=NeuralNetConfiguration(updater=Adam()), layers=(last,))
    cases = {"adagrad": (MIXED, 1, "other steps"), "short": (adam, 2, "more updates"), "alike": (adam, 1, "")}
    for name, (conf, frequency, words) in cases.items():
        folder = tmp_path / name
        now = trained(conf, checkpoint_dir=str(folder), averaging_frequency=frequency, **fields)
        older = make_older(folder)
        if name == "adagrad":
            np.testing.assert_allclose(older, now.updater_state + MultiLayerNetwork(MIXED).updater_state)
        again = {"averaging_frequency": frequency, "epochs": 2, **fields}
        if words:
            with pytest.raises(CheckpointError, match=f"older version of dl4jlegacy and cannot go on here.*{words}"):
                resumed(folder, conf, **again)
        else:
            assert resumed(folder, conf, **again).params.tobytes() == trained(conf, epochs=2).params.tobytes()
