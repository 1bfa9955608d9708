"""EASGD is its formulas, and its replicas belong to slots: neither workers nor who leads the run change the bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, ListDataSetIterator
from dl4jlegacy.datasets import load
from dl4jlegacy.datasets.normalizers import NormalizerMinMaxScaler
from dl4jlegacy.errors import WireError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.aggregate import aggregate
from dl4jlegacy.scaleout.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.strategies import create_router

IRIS = load("iris")
TRAIN = NormalizerMinMaxScaler().fit(IRIS.train).transform(IRIS.train)
KERNELS = load_kernels("numpy")
SLOTS = 4


def conf(**fields):
    usual = {"multi_layer_conf": zoo.mlp(4, 3), "batch_size": 4, "epochs": 6, "jobs_per_round": SLOTS, "seed": 9}
    return Conf(**(usual | {"router": "easgd"} | fields))


def train(conf, resume=False, **more):
    with ActorNetworkRunner("master", ListDataSetIterator(TRAIN, conf.batch_size, seed=conf.seed), **more) as runner:
        runner.setup(conf, resume=resume)
        return runner.train(deadline=60)


def bits(result) -> bytes:
    return result.model.arrays["params"].tobytes()


def test_replicas_and_centre_are_those_of_the_formulas() -> None:
    """x <- x' - a (x' - c) and c <- c + a sum (x' - c) in float64, where each x' is what training made of x."""
    strategy, rng = create_router("easgd", {"beta": 0.8}, jobs_per_round=SLOTS), np.random.default_rng(2)
    centre = rng.normal(size=30)
    replicas, steps = [centre] * SLOTS, np.zeros(30, np.float32)
    model, states = Result({}, {"params": np.float32(centre), "updater_state": steps}), [None] * SLOTS
    for round_ in range(5):
        frames = []
        for slot in range(SLOTS):
            begins, gradient = strategy.replica(model, states[slot]), rng.normal(size=30)
            np.testing.assert_allclose(begins.arrays["params"], replicas[slot], rtol=0, atol=1e-5)
            assert begins.arrays["updater_state"].tolist() == [float(round_ * (slot + 1))] * 30
            trained = {
                "params": begins.arrays["params"] - np.float32(gradient),
                "updater_state": begins.arrays["updater_state"] + np.float32(slot + 1),
            }
            update, states[slot] = strategy.settle(model, states[slot], Result({"examples": 1}, trained), KERNELS)
            replicas[slot] = replicas[slot] - gradient
            frames.append(bytes(update.encode()))
        frame, _ = aggregate(strategy.aggregator(KERNELS), model.encode(), frames, version=round_, ends_phase=False)
        model = Result.decode(bytes(frame))
        differences = [0.8 / SLOTS * (replica - centre) for replica in replicas]
        replicas = [replica - difference for replica, difference in zip(replicas, differences, strict=True)]
        centre = centre + np.sum(differences, axis=0)
        np.testing.assert_allclose(model.arrays["params"], centre, rtol=0, atol=1e-5)


def test_the_answer_does_not_depend_on_the_number_of_workers() -> None:
    ends = {bits(train(conf(workers=workers))) for workers in (1, 2, 3, 8)}
    assert len(ends) == 1
    assert ends != {bits(train(conf(router="iterative-reduce")))}
    assert ends != {bits(train(conf(router_args={"beta": 0.5})))}


class Copies:
    """Copies the folder of a run once a checkpoint of its middle has been written."""

    def __init__(self, folder: Path, copy: Path) -> None:
        self.folder, self.copy = folder, copy

    def save(self, head, model) -> None:
        if head.version >= 12 and not self.copy.exists():
            shutil.copytree(self.folder, self.copy)


@pytest.fixture
def stopped(tmp_path: Path):
    """The folder of a run as it was in its middle, its Conf, and the end that it came to."""
    run, kept = tmp_path / "run", tmp_path / "kept"
    wanted = conf(workers=2, checkpoint_dir=str(run), checkpoint_every=2)
    whole = train(wanted, saver=Copies(run, kept))
    assert CheckpointStore(kept).newest()[0].version < whole.head.version
    return kept, wanted.replace(checkpoint_dir=str(kept)), bits(whole)


def test_a_run_that_is_resumed_has_the_replicas_with_which_it_stopped(stopped) -> None:
    folder, wanted, end = stopped
    states = CheckpointStore(folder).states(CheckpointStore(folder).newest()[0])
    assert states.keys() == set(range(SLOTS))
    replicas = {Result.decode(saved.frame).arrays["params"].tobytes() for saved in states.values()}
    assert len(replicas) == SLOTS  # or it would be averaging, where everybody begins with the same model
    assert bits(train(wanted.replace(workers=3), resume=True)) == end


def test_a_checkpoint_whose_states_are_damaged_is_passed_over(stopped, caplog) -> None:
    folder, wanted, end = stopped
    newest, older = CheckpointStore(folder).versions()[:2]
    damaged = folder / f"states-{newest:08d}.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    assert CheckpointStore(folder).newest()[0].version == older
    assert f"{damaged.name} has {len(content)} bytes that do not match the SHA-256" in caplog.text
    assert bits(train(wanted, resume=True)) == end


def test_states_are_deleted_with_their_checkpoints(stopped) -> None:
    folder, wanted, _ = stopped
    train(wanted.replace(checkpoints_kept=1), resume=True)
    (last,) = CheckpointStore(folder).versions()
    assert [path.name for path in folder.glob("states-*")] == [f"states-{last:08d}.safetensors"]


def test_a_validation_scores_the_centre_and_leaves_replicas_alone() -> None:
    """The run ends in the same bits with validations in between as without."""
    validated = conf(workers=2)
    data = ListDataSetIterator(TRAIN, 4, seed=9)
    with ActorNetworkRunner("master", data, validation=ListDataSetIterator(TRAIN, 4, shuffle=False)) as runner:
        runner.setup(validated)
        result = runner.train(deadline=60)
    assert result.head.scores is not None
    assert bits(result) == bits(train(validated))


def test_updates_of_another_shape_do_not_reach_the_model() -> None:
    strategy = create_router("easgd", jobs_per_round=SLOTS)
    model = Result({}, {"params": np.zeros(3, np.float32), "updater_state": np.zeros(3, np.float32)}).encode()
    strategy.check(Result({}, {"difference": np.ones(3, np.float32)}).encode(), model)
    for name, array in (("difference", np.ones(4, np.float32)), ("difference", np.ones(3)), ("params", np.ones(3))):
        with pytest.raises(WireError, match=r"a difference of float32 \[3\] belongs there"):
            strategy.check(Result({}, {name: array}).encode(), model)
