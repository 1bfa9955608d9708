"""What a slot remembers belongs to it: neither workers nor who leads the run change the bits of any such strategy."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, ListDataSetIterator
from dl4jlegacy.datasets import load
from dl4jlegacy.datasets.normalizers import NormalizerMinMaxScaler
from dl4jlegacy.errors import JobError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.updaters import Nesterovs
from dl4jlegacy.scaleout.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.perform import perform_in_slot
from dl4jlegacy.scaleout.records import Head, Keys, Manifest
from dl4jlegacy.scaleout.strategies import STRATEGIES, SlotStrategy, create_router

IRIS = load("iris")
TRAIN = NormalizerMinMaxScaler().fit(IRIS.train).transform(IRIS.train)
SLOTS = 4
ARGS = {"easgd": {"beta": 0.7}, "gradient-sharing": {"tau": 2e-3}, "iterative-reduce": {}}
NAMES = sorted(name for name in STRATEGIES if isinstance(create_router(name), SlotStrategy))


def conf(router: str, **fields) -> Conf:
    usual = {"multi_layer_conf": zoo.mlp(4, 3), "batch_size": 4, "epochs": 6, "jobs_per_round": SLOTS, "seed": 9}
    return Conf(**(usual | {"router": router, "router_args": ARGS[router]} | fields))


def train(conf, resume=False, **more):
    with ActorNetworkRunner("master", ListDataSetIterator(TRAIN, conf.batch_size, seed=conf.seed), **more) as runner:
        runner.setup(conf, resume=resume)
        return runner.train(deadline=60)


def bits(result) -> bytes:
    return result.model.arrays["params"].tobytes()


@pytest.fixture(params=NAMES)
def router(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_answer_does_not_depend_on_the_number_of_workers(router: str) -> None:
    ends = {bits(train(conf(router, workers=workers))) for workers in (1, 2, 3, 8)}
    assert len(ends) == 1
    assert ends != {bits(train(conf("iterative-reduce")))}


def test_an_updater_state_goes_on_in_its_slot(router: str) -> None:
    """Or momentum would begin at zero in each job, where a whole round has one batch for each slot."""
    network = zoo.mlp(4, 3)
    heavy, light = (
        msgspec.structs.replace(network, conf=msgspec.structs.replace(network.conf, updater=Nesterovs(0.05, momentum)))
        for momentum in (0.9, 0.0)
    )
    assert bits(train(conf(router, multi_layer_conf=heavy))) != bits(train(conf(router, multi_layer_conf=light)))


@pytest.mark.long
def test_it_learns(router: str) -> None:
    scores = [train(conf(router, epochs=epochs)).head.score for epochs in (1, 30)]
    assert scores[1] < scores[0] / 2


class Copies:
    """Copies the folder of a run once a checkpoint of its middle has been written."""

    def __init__(self, folder: Path, copy: Path) -> None:
        self.folder, self.copy = folder, copy

    def save(self, head, model) -> None:
        if head.version >= 12 and not self.copy.exists():
            shutil.copytree(self.folder, self.copy)


@pytest.fixture
def stopped(tmp_path: Path, router: str):
    """The folder of a run as it was in its middle, its Conf, and the end that it came to."""
    run, kept = tmp_path / "run", tmp_path / "kept"
    wanted = conf(router, workers=2, checkpoint_dir=str(run), checkpoint_every=2)
    whole = train(wanted, saver=Copies(run, kept))
    assert CheckpointStore(kept).newest()[0].version < whole.head.version
    return kept, wanted.replace(checkpoint_dir=str(kept)), bits(whole)


def test_a_run_that_is_resumed_has_the_states_with_which_it_stopped(stopped) -> None:
    folder, wanted, end = stopped
    states = CheckpointStore(folder).states(CheckpointStore(folder).newest()[0])
    assert states.keys() == set(range(SLOTS))
    arrays = [Result.decode(saved.frame).arrays for saved in states.values()]
    for name in arrays[0]:
        assert len({each[name].tobytes() for each in arrays}) == SLOTS, f"all slots have the same {name}"
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


@pytest.mark.long
def test_validations_leave_states_alone(router: str) -> None:
    """The run ends in the same bits with validations in between as without."""
    validated = conf(router, workers=2)
    data = ListDataSetIterator(TRAIN, 4, seed=9)
    with ActorNetworkRunner("master", data, validation=ListDataSetIterator(TRAIN, 4, shuffle=False)) as runner:
        runner.setup(validated)
        result = runner.train(deadline=60)
    assert result.head.scores is not None
    assert bits(result) == bits(train(validated))


def test_jobs_that_train_no_network_are_told_what_is_missing(router: str) -> None:
    strategy, result = create_router(router), Result({}, {"params": np.zeros(3)})
    performer = SimpleNamespace(update=lambda model: None, perform=lambda job: result)
    words = rf"\['params'\], and {router} needs .*updater_state too; choose another router"
    with pytest.raises(JobError, match=f"the model has the arrays {words}"):
        perform_in_slot(performer, strategy, None, result, None, load_kernels("numpy"))
    whole = Result({}, {"params": np.zeros(3), "updater_state": np.zeros(3)})
    with pytest.raises(JobError, match=f"the result of SimpleNamespace has the arrays {words}"):
        perform_in_slot(performer, strategy, None, whole, None, load_kernels("numpy"))


def test_states_are_useless_once_no_snapshot_can_name_them() -> None:
    """A slot that short rounds leave out keeps its state, whatever its round."""
    head = Head(
        run="r", version=9, round=9, model=Manifest("m", 1, 1), snapshot=Manifest("snapshot/7/m", 1, 1), replay_round=5
    )
    useless = [round_ for round_ in range(12) if Keys.is_useless(f"{Keys.state(round_, 0, 'w.1')}/0", head)]
    assert useless == [0, 1, 2, 3, 4]
    none = msgspec.structs.replace(head, snapshot=None)
    assert [n for n in range(12) if Keys.is_useless(f"{Keys.state(n, 0, 'w.1')}/0", none)] == list(range(8))
    snapshots = [n for n in range(12) if Keys.is_useless(f"{Keys.snapshot(n, 'm')}/0", head)]
    assert snapshots == [0, 1, 2, 3, 4, 5, 6]  # 7 is the head's
