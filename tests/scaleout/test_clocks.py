"""Wall clocks that are set, forward and back, end no run and keep no lease: durations are measured by other clocks."""

from __future__ import annotations

import ast
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast import store as hazelcast_store
from dl4jlegacy.scaleout.hazelcast.retry_deadline import RetryDeadline
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.protocol import Limits
from dl4jlegacy.scaleout.state.aggregate import CollectingAggregator
from dl4jlegacy.scaleout.state.job import CollectionJobIterator, Job, Result
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.tracker import StateTracker
from tests.test_layering import MODULES

TIMES_OF_DAY = {
    "dl4jlegacy.storage.s3.session": {"time.time"},  # launch times and prices, which Amazon's clock gives
    "dl4jlegacy.cli.commands.runs": {"time.time"},  # how long ago a run began, for people
    "dl4jlegacy.cli.terminal.watch": {"time.time"},  # when a run was seen, for people
    "dl4jlegacy.cluster.run_names": {"time.time"},  # when a run began, for people
    "dl4jlegacy.doctor.network": {"time.time"},  # whether this machine's clock is that of a server
    "dl4jlegacy.observing.events": {"time.time"},  # when something happened, for people
    "dl4jlegacy.observing.tensorboard": {"time.time"},  # when a point was written; names of files, in their order
    "dl4jlegacy.scaleout.actors.heartbeat": {"time.time"},  # when a heartbeat was sent, for people
    "dl4jlegacy.scaleout.persistence.history": {"time.time"},  # when a version was made, for people
    "dl4jlegacy.scaleout.persistence.journal": {"time.time"},  # when something happened, for people
    "dl4jlegacy.scaleout.phases": {"time.time"},  # when phases began, for people
    "dl4jlegacy.scaleout.zookeeper.session": {"time.time"},  # whether this machine's clock is that of the servers
    "dl4jlegacy.ui.run_sources": {"time.time"},  # for how long a folder has had no news, which nobody else can tell
    "dl4jlegacy.ui.watcher": {"time.time"},  # when a run was looked at, for people
}
"""Which modules may ask what time of day it is, and why."""
CLOCKS = {"time.time", "time.time_ns", "time.clock_gettime", "time.ctime", "time.asctime"} | {
    f"{place}.{call}" for place in ("datetime", "datetime.datetime", "date") for call in ("now", "utcnow", "today")
}


COMPARED = {
    (
        "dl4jlegacy.cli.commands.inspect",
        "states[0].time <= entry.time",
    ): "for people: between which versions a state is shown",
    (
        "dl4jlegacy.cli.commands.runs",
        "time.time() - run.began",
    ): "for people: about how long ago a master says that it began",
    (
        "dl4jlegacy.doctor.network",
        "when + 0.5 - (sent + time.time()) / 2",
    ): "this machine's clock and that of a server: it is what is asked for",
    ("dl4jlegacy.observing.tensorboard", "max(int(time.time()), newest + 1)"): "TensorBoard reads files by the time in "
    "their names; a file that is begun here comes after those that are there, whatever the clock says",
    ("dl4jlegacy.scaleout.phases", "time.time() - time.monotonic()"): "for people: where a process is put on the axis "
    "that a page shows; the page says that it is as good as the clocks are",
    (
        "dl4jlegacy.ui.run_sources",
        "max(run.last_news or 0.0, 0.0 if last is None else last.time)",
    ): "for people: when a folder had its last news",
    (
        "dl4jlegacy.ui.run_sources",
        "time.time() - news",
    ): "for people: minutes without news in a folder",
    (
        "dl4jlegacy.ui.run_sources",
        "max([record.beat for record in records], default=0.0)",
    ): "for people: when there was a last sign of life",
}
"""What compares a time of day with another one, which may be of another machine, and why it may: it decides nothing."""
OF_DAY = {"time", "began", "beat", "last_news", "st_mtime", "st_mtime_ns"}
"""Attributes that are a time of day, of an entry, a version, a worker, a run or a file."""


def comparisons(source: str) -> set[str]:
    """Return the expressions of a module that subtract times of day, order by them, or take the first or the last."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(op=ast.Sub()):
                compared: list[ast.AST] = [node.left, node.right]
            case ast.Compare() if any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops):
                compared = [node.left, *node.comparators]
            case ast.Call() if ast.unparse(node.func).rpartition(".")[2] in ("sorted", "sort", "min", "max"):
                compared = [*node.args, *(each.value for each in node.keywords)]
            case _:
                continue
        if any(_is_of_day(each) for part in compared for each in ast.walk(part)):
            found.add(ast.unparse(node))
    return {one for one in found if not any(other != one and other in one for other in found)}


def _is_of_day(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("time.time", "time.time_ns")
    return isinstance(node, ast.Attribute) and node.attr in OF_DAY and ast.unparse(node) != "time.time"


def test_every_comparison_of_times_of_day_is_known_and_decides_nothing() -> None:
    found = {
        (name, each) for name, path in MODULES.items() if "tools" not in name for each in comparisons(path.read_text())
    }
    assert found == set(COMPARED)


@pytest.mark.parametrize(
    "source",
    [
        "sorted(entries, key=lambda entry: entry.time)",
        "entries.sort(key=lambda entry: (entry.time, entry.source))",
        "ended.time >= history[-1].time",
        "a.began < b.began",
        "time.time() - record.beat",
        "max(file.stat().st_mtime for file in files)",
        "self._last = max(self._last + 1, time.time_ns())",
    ],
)
def test_the_sweep_finds_every_way_to_compare_times(source: str) -> None:
    assert comparisons(source)
    assert not comparisons("a.key < b.key, a.began == b.began, clock.now() - self._seen")


def wall_clock_uses(source: str) -> Counter[str]:
    """Return the ways in which a module can learn what time of day it is, however it names them."""
    tree = ast.parse(source)
    calls = {name.rpartition(".")[2] for name in CLOCKS}
    found = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in calls]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"time.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Import | ast.ImportFrom):
            renamed = [alias.name for alias in node.names if alias.asname]
            found += [f"time.{name}" for name in renamed if name in ("time", "datetime")]
        if isinstance(node, ast.Call) and not node.args and ast.unparse(node.func) in ("time.localtime", "time.gmtime"):
            found.append("time.time")
    return Counter(name for name in found if name in CLOCKS)


def test_no_module_measures_a_duration_with_the_wall_clock() -> None:
    uses = {name: set(wall_clock_uses(path.read_text())) for name, path in MODULES.items() if "tools" not in name}
    assert {name: calls for name, calls in uses.items() if calls} == TIMES_OF_DAY


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time\nclock = time.time",
        "from time import time\ntime()",
        "import time as time\ntime.time()",
        "import time\ntime.localtime()",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.utcnow()",
    ],
)
def test_the_sweep_finds_every_way_to_the_wall_clock(source: str) -> None:
    assert wall_clock_uses(source)


class WallClock:
    """A wall clock that a test sets; the machine's monotonic clock goes on as it does."""

    def __init__(self) -> None:
        self.ahead, self._really = 0.0, time.time

    def __call__(self) -> float:
        return self._really() + self.ahead


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> hazelcast_store.HazelcastStateTracker:
    """The tracker that a cluster's processes use, with its clock, over a store in this process."""
    store = MemoryStore()
    store.patience, store.traffic, store.memory = RetryDeadline("here:1", 20.0), lambda: (0, 0), lambda: None
    monkeypatch.setattr(hazelcast_store, "HazelcastStore", lambda *args, **given: store)
    return hazelcast_store.HazelcastStateTracker("here:1", cluster_name="c", run="r", secret=None)


class Performer:
    """Answers a number with itself, after ``before`` has been called with the job."""

    progress = 0

    def __init__(self, before: Callable[[Job], Any]) -> None:
        self._before = before

    def update(self, model: Result) -> None:
        """Numbers need no model."""

    def perform(self, job: Job) -> Result:
        self._before(job)
        return Result({"value": [job.work], "examples": 1})


def numbers_of_a_run(
    tracker: StateTracker,
    conf: Conf,
    before: Callable[[Job], Any],
    tick: Callable[[RunStatus], Any],
    over: threading.Event,
) -> list[int]:
    """Return the model of a run that joins the numbers up to 12, sorted; ``over`` is set when it has ended."""
    runner = ActorNetworkRunner(
        "master",
        CollectionJobIterator(list(range(12)), jobs_per_round=3),
        tracker=tracker,
        performer=lambda conf, kernels: Performer(before),
        aggregator=CollectingAggregator(lambda total, value: [*total, *value]),
        first_model=Result({"value": []}),
    )
    with runner:
        runner.setup(conf)
        try:
            return sorted(runner.train(tick, deadline=30).model.values["value"])
        finally:
            over.set()


@pytest.mark.parametrize("seconds", [1500.0, -1500.0, 86400.0 * 365])
def test_a_run_goes_on_whatever_the_wall_clock_is_set_to(
    wall_clock: WallClock, tracker: StateTracker, seconds: float
) -> None:
    """25 minutes are more than the four times ``stuck_seconds`` for which a run may stand still."""
    ticks, set_often = 0, threading.Event()  # which the jobs wait for

    def set_clock(status: RunStatus) -> None:
        nonlocal ticks
        wall_clock.ahead, ticks = wall_clock.ahead + seconds, ticks + 1
        if ticks > 3:
            set_often.set()

    conf = Conf(workers=2, data_by_reference=False)
    numbers = numbers_of_a_run(tracker, conf, lambda job: set_often.wait(60), set_clock, set_often)
    assert numbers == list(range(12))


def test_a_lease_expires_although_the_wall_clock_goes_back(wall_clock: WallClock, tracker: StateTracker) -> None:
    hung, release = [], threading.Event()

    def hang_once(job: Job) -> None:
        if not hung:
            hung.append(job.worker_id)
            release.wait(60)

    def set_back(status: RunStatus) -> None:
        wall_clock.ahead -= 1500.0

    limits = Limits(lease=0.3, poll=0.05)
    conf = Conf(workers=2, stuck_seconds=0.2, heartbeat_seconds=0.05, limits=limits, data_by_reference=False)
    assert numbers_of_a_run(tracker, conf, hang_once, set_back, release) == list(range(12))
    assert hung
