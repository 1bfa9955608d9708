"""What a slot remembers belongs to it: neither workers nor who leads the run change the bits of any such strategy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from dl4jlegacy import Conf
from dl4jlegacy.errors import JobError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.optimization.updaters import Nesterovs
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.protocol import closing as protocol_closing
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Head, Keys, Manifest
from dl4jlegacy.scaleout.strategies import STRATEGIES, create_router
from dl4jlegacy.scaleout.workers.perform import perform_in_slot
from tests.support.strategy_runs import SLOTS, Copies, bits, conf_of, data, interrupt, train

ARGS = {"easgd": {"beta": 0.7}, "gradient-sharing": {"tau": 2e-3}}
NAMES = sorted(name for name in STRATEGIES if create_router(name).memory)
EVERY = {"gradient-sharing": [1, 3]}
"""After how many rounds states are saved, for strategies that have a choice."""


def conf(router: str, **fields) -> Conf:
    name, _, every = router.partition("/")
    return conf_of(name, {**ARGS[name], **({"state_every": int(every)} if every else {})}, **fields)


ROUTERS = [f"{name}/{every}" if every else name for name in NAMES for every in EVERY.get(name, [""])]


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.long] * name.endswith("/1")) for name in ROUTERS])
def router(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.everyday(1)
def test_the_answer_does_not_depend_on_the_number_of_workers(router: str) -> None:
    ends = {bits(train(conf(router, workers=workers))) for workers in (1, 2, 3, 8)}
    assert len(ends) == 1
    assert ends != {bits(train(conf_of("iterative-reduce")))}


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


@pytest.fixture
def stopped(tmp_path: Path, router: str, unhurried: None):
    """The folder of a run as it was in its middle, its Conf, and the end that it came to."""
    run, kept = tmp_path / "run", tmp_path / "kept"
    wanted = conf(router, workers=2, checkpoint_dir=str(run), checkpoint_every=2)
    whole = train(wanted, saver=Copies(run, kept))
    assert CheckpointStore(kept).newest()[0].version < whole.head.version
    return kept, wanted.replace(checkpoint_dir=str(kept)), bits(whole)


@pytest.mark.everyday(1)
def test_a_run_that_is_resumed_has_the_states_with_which_it_stopped(stopped) -> None:
    folder, wanted, end = stopped
    states = CheckpointStore(folder).states(CheckpointStore(folder).newest()[0])
    assert states.keys() == set(range(SLOTS))
    arrays = [Result.decode(saved.frame).arrays for saved in states.values()]
    for name in arrays[0]:
        assert len({each[name].tobytes() for each in arrays}) == SLOTS, f"all slots have the same {name}"
    assert bits(train(wanted.replace(workers=3), resume=True)) == end


@pytest.mark.everyday(1)
def test_a_run_that_is_interrupted_between_two_checkpoints_keeps_its_states(tmp_path: Path, router: str) -> None:
    wanted = conf(router, workers=2, checkpoint_dir=str(tmp_path / "run"), checkpoint_every=1000)
    interrupt(wanted, in_log=router == "gradient-sharing/3")
    assert 3 <= CheckpointStore(wanted.checkpoint_dir).newest()[0].round < 48
    assert bits(train(wanted.replace(workers=3), resume=True)) == bits(train(conf(router)))


def test_no_checkpoint_is_made_of_a_version_that_has_lost_a_state(tmp_path: Path, router: str, caplog) -> None:
    """It would be one that nothing can go on from; the run itself goes on, and makes the next."""
    read, lost = protocol_closing.read_states, []

    def lose(store, snapshot):
        found = yield from read(store, snapshot)
        if len(lost) < 3:
            lost.append(found)
            return None
        return found

    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol_closing, "read_states", lose)
        train(conf(router, checkpoint_dir=str(folder), checkpoint_every=2, checkpoints_kept=100))
    assert all(lost) and caplog.text.count("of which a state was lost") == 3
    checkpoints = CheckpointStore(folder)
    assert all(checkpoints.states(checkpoints.load(version)[0]) for version in checkpoints.versions())


@pytest.mark.everyday(1)
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


@pytest.mark.everyday(1)
def test_states_are_deleted_with_their_checkpoints(stopped) -> None:
    folder, wanted, _ = stopped
    train(wanted.replace(checkpoints_kept=1), resume=True)
    (last,) = CheckpointStore(folder).versions()
    assert [path.name for path in folder.glob("states-*")] == [f"states-{last:08d}.safetensors"]


@pytest.mark.long
def test_validations_leave_states_alone(router: str) -> None:
    """The run ends in the same bits with validations in between as without."""
    validated = conf(router, workers=2)
    result = train(validated, validation=data(validated, shuffle=False))
    assert result.head.scores is not None
    assert bits(result) == bits(train(validated))


def test_jobs_that_train_no_network_are_told_what_is_missing(router: str) -> None:
    name, result = router.partition("/")[0], Result({}, {"params": np.zeros(3)})
    strategy = create_router(name)
    performer = SimpleNamespace(update=lambda model: None, perform=lambda job: result)
    words = rf"\['params'\], and {name} needs .*updater_state too; choose another router"
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
