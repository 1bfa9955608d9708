"""A grid whose members have too little heap for a run is named before the run begins."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.cluster.grid_memory import check_grid_memory, needed_nbytes
from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, Memory, StateTracker
from dl4jlegacy.services import ServicesState
from dl4jlegacy.training.run import Run, resolve

SURE = ("iterative-reduce", "hogwild")
"""Routers of which a run is refused if two rounds' updates do not fit; slots save their states now and then only."""


def data(batches: int = 12) -> ListDataSetIterator:
    random = np.random.default_rng(1)
    labels = np.eye(3, dtype=np.float32)[random.integers(0, 3, 2 * batches)]
    return ListDataSetIterator(DataSet(random.random((2 * batches, 20), dtype=np.float32), labels), 2)


def run_of(hidden: int = 40, **settings: Any) -> Run:
    return resolve(Conf(multi_layer_conf=zoo.mlp(20, 3, hidden=(hidden,)), batch_size=2, **settings), data())


class Grid(InMemoryStateTracker):
    """A tracker that says how much memory there is."""

    def __init__(self, memory: Memory | None) -> None:
        super().__init__()
        self._has = memory

    def memory(self) -> Memory | None:
        return self._has


class Measured(MemoryStore):
    """A store that knows how many bytes of models and updates it has held at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def _look(self) -> None:
        kinds: Counter[str] = Counter()
        with self._lock:
            for key, value in self._values.items():
                kinds[key.partition("/")[0]] += len(value)
        self.most = max(self.most, sum(kinds[kind] for kind in ("model", "update", "state", "entry")))

    def put(self, key: str, value: Any) -> None:
        super().put(key, value)
        self._look()

    def put_many(self, items: Any) -> None:
        super().put_many(items)
        self._look()


@pytest.mark.parametrize("router", ["iterative-reduce", "hogwild", "gradient-sharing", "easgd"])
def test_a_run_holds_at_least_as_much_as_is_said_before_it(router: str) -> None:
    store = Measured()
    conf = Conf(
        multi_layer_conf=zoo.mlp(20, 3, hidden=(400,)), batch_size=2, router=router, jobs_per_round=3, workers=2
    )
    with ActorNetworkRunner("master", data(), tracker=StateTracker(store)) as runner:
        runner.setup(conf.replace(epochs=2))
        result = runner.train()
    assert result is not None
    nbytes, is_sure = sum(array.nbytes for array in result.model.arrays.values()), router in SURE
    assert needed_nbytes(nbytes, result.plan, keeps_updates=is_sure) <= store.most
    if router == "iterative-reduce":
        assert store.most <= 1.1 * needed_nbytes(nbytes, result.plan)


def test_what_a_run_needs_follows_from_its_two_largest_rounds() -> None:
    plan = run_of(jobs_per_round=4).plan
    assert needed_nbytes(100, plan) == 100 * (3 + 8)
    assert needed_nbytes(100, plan, keeps_updates=False) == 300
    one = run_of(jobs_per_round=12).plan  # all batches are in one round
    assert (one.total_rounds, needed_nbytes(100, one)) == (1, 100 * (2 + 12))
    few = run_of(jobs_per_round=100, epochs=2).plan  # a round has no more jobs than there are batches
    assert needed_nbytes(100, few) == 100 * (3 + 24)


@pytest.mark.parametrize("memory", [None, Memory(1, 1 << 30, 1), Memory(2, 1 << 29, 2)])
def test_nothing_is_said_of_a_grid_that_is_large_enough_or_says_nothing(
    memory: Memory | None, caplog: pytest.LogCaptureFixture
) -> None:
    check_grid_memory(run_of(), Grid(memory), takes_over=False)
    assert not caplog.records


@pytest.mark.parametrize(
    ("members", "heap_mib", "router", "is_refused"),
    [
        (1, 64, "iterative-reduce", True),
        (1, 130, "iterative-reduce", False),  # half as much again would be enough
        (2, 130, "iterative-reduce", True),  # everything is kept twice
        (1, 64, "gradient-sharing", False),  # its states are saved now and then only
        (1, 20, "gradient-sharing", True),
    ],
)
def test_a_run_is_refused_if_it_cannot_fit_and_warned_of_if_it_may_not(
    members: int, heap_mib: int, router: str, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = dataclasses.replace(run_of(run="r", router=router, jobs_per_round=4), model_nbytes=9 << 20)  # needs 99 MiB
    grid = Grid(Memory(members, heap_mib << 20, min(members, 2)))
    if is_refused:
        with pytest.raises(ConfError, match=r"run r: the grid is too small.* 9\.0 MiB .* 99\.0 MiB .*--heap \d+m"):
            check_grid_memory(run, grid, takes_over=False)
    else:
        check_grid_memory(run, grid, takes_over=False)
        assert "may be too small" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_grid_memory(run, grid, takes_over=True)  # what its master has borne, another one bears
    assert f"{heap_mib}.0 MiB of heap" in caplog.text


def test_updates_of_rows_are_not_taken_for_whole_models(caplog: pytest.LogCaptureFixture) -> None:
    run = dataclasses.replace(run_of(jobs_per_round=4), model_nbytes=30 << 20)
    run = dataclasses.replace(run, conf=run.conf.replace(router="row-averaging"))  # 3 models, and no 8 updates
    check_grid_memory(run, Grid(Memory(1, 150 << 20, 1)), takes_over=False)
    assert not caplog.records
    with pytest.raises(ConfError, match=r"too small.* 90\.0 MiB "):
        check_grid_memory(run, Grid(Memory(1, 80 << 20, 1)), takes_over=False)


def test_jobs_that_are_no_networks_are_not_measured() -> None:
    check_grid_memory(dataclasses.replace(run_of(), model_nbytes=0), Grid(Memory(1, 1, 1)), takes_over=False)


@pytest.mark.cluster
def test_a_new_run_is_refused_by_name_on_real_servers_with_a_small_heap_and_leaves_nothing(
    own_services: Callable[..., ServicesState], tmp_path: Path
) -> None:
    there = own_services(members=1, heap="48m")
    conf = Conf(run="large", multi_layer_conf=zoo.mlp(20, 3, hidden=(50_000,)), batch_size=2, jobs_per_round=4)
    runner = ActorNetworkRunner(
        "master",
        data(),
        tracker=f"hazelcast://{there.hazelcast}",
        zookeeper=there.zookeeper,
        cluster_name=there.cluster_name,
    )
    with runner, pytest.raises(ConfError, match=r"run large: the grid is too small.* its 1 member has 48\.0 MiB"):
        runner.setup(conf.replace(checkpoint_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())
    tracker = HazelcastStateTracker(there.hazelcast, cluster_name=there.cluster_name, run="other", secret=None)
    try:
        assert tracker.memory() == Memory(1, 48 << 20, 1)
        names = [found.name for found in tracker.store._link._client.get_distributed_objects()]  # type: ignore[attr-defined]
        assert not [name for name in names if "large" in name]
    finally:
        tracker.shutdown()
