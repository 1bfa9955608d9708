"""Keys and values that others wrote into a run's store: skipped, counted, reported once, removed; never an end."""

from __future__ import annotations

import itertools
import logging
import random
from typing import Any

import pytest

from dl4jlegacy.errors import NotAuthorisedError
from dl4jlegacy.scaleout.persistence.journal import Journal, JournalReader
from dl4jlegacy.scaleout.protocol import increment
from dl4jlegacy.scaleout.protocol.frames import sweep
from dl4jlegacy.scaleout.state.envelope import Envelope
from dl4jlegacy.scaleout.state.records import HEAD, Head, Keys, Manifest, WorkerRecord, encode_record
from dl4jlegacy.scaleout.state.store import Buffer, MemoryStore
from dl4jlegacy.scaleout.state.untrusted import UntrustedKeys
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.system.clock import RunningClock
from tests.scaleout.protocol.test_protocol import network_work
from tests.support import simulator
from tools.chaos.junk import VALUES, keys

SECRET = b"the secret of a run, long enough"


class GridStore(MemoryStore):
    """A store in whose values are envelopes, as in the grid; ``plant`` writes as somebody who knows no secret."""

    def __init__(self, secret: bytes | None) -> None:
        super().__init__()
        self._envelope = Envelope("r", secret)
        self._is_signed = secret is not None

    def plant(self, key: str, value: bytes) -> None:
        """Write a value as anybody can: without a secret that is in an envelope too."""
        super().put(key, value if self._is_signed else self._sealed(key, value))

    def get(self, key: str) -> Buffer | None:
        raw = super().get(key)
        return None if raw is None else self._envelope.open(key, memoryview(raw))

    def put(self, key: str, value: Buffer) -> None:
        super().put(key, self._sealed(key, value))

    def put_if_absent(self, key: str, value: Buffer) -> bool:
        return super().put_if_absent(key, self._sealed(key, value))

    def replace_if_same(self, key: str, expected: Buffer, value: Buffer) -> bool:
        return super().replace_if_same(key, self._sealed(key, expected), self._sealed(key, value))

    def _sealed(self, key: str, value: Buffer) -> bytes:
        return self._envelope.head(key, value) + bytes(value)


@pytest.fixture(params=[SECRET, None], ids=["signed", "unsigned"])
def store(request: pytest.FixtureRequest) -> GridStore:
    return GridStore(request.param)


@pytest.fixture
def tracker(store: GridStore) -> StateTracker:
    return StateTracker(store, RunningClock(), is_authorised=True)


# --- keys -------------------------------------------------------------------------------------------------------------

NOW = Head(run="r", version=5, round=5, model=Manifest("model/5/m", 1, 1))


def of_a_run() -> list[str]:
    """Return a key of each kind that a run writes."""
    return [
        *(HEAD, Keys.job(3, 1), Keys.worker("host-1-ab-0"), "counter/updates_dropped", "global/conf"),
        *(f"{key}/0" for key in (Keys.data(3, 1), Keys.update(3, 1, "host-1-ab-0.7"), Keys.model(4, "master.2"))),
    ]


def test_the_keys_of_a_run_are_its_own_and_no_other_is_ever_useless():
    assert [key for key in of_a_run() if not Keys.is_of_run(key)] == []
    assert [key for key in of_a_run() if Keys.is_useless(key, NOW)] == [of_a_run()[1], *of_a_run()[5:7]]
    for key in (
        "job/x/0",
        "model/x",
        "job/1_0/0",
        "job/\u0663/0",
        f"job/{'9' * 5000}/0",
        "job",
        "",
        "log/9",
        "job/0/0/0",
    ):
        assert not Keys.is_of_run(key)
        assert not Keys.is_useless(key, NOW)


def survives(tracker: StateTracker, store: GridStore, rng: random.Random, count: int) -> None:
    """Plant keys and values, and call whatever reads what others can write; what is of the run must stay."""
    journal, reader = Journal(tracker, "genuine"), JournalReader(tracker)
    genuine = WorkerRecord(id="genuine-0", host="h", pid=1)
    for key in keys(rng, count):
        store.plant(key, rng.choice(VALUES))
    store.put(HEAD, encode_record(NOW))
    tracker.add_worker(genuine)
    tracker.define("plan", {"a": 1})
    journal.write("run_began")
    drive(sweep(store, NOW))
    assert [entry.event for entry in reader.read()] == ["run_began"]
    assert tracker.workers() == [genuine]
    assert (tracker.head(), tracker.get("plan")) == (NOW, {"a": 1})
    drive(increment(store, "counter/updates_dropped"))
    assert tracker.count("updates_dropped") >= 1
    for name in ("x", "\0", ""):
        assert tracker.get(name) is None or isinstance(tracker.get(name), dict | int)
        assert tracker.count(name) >= -1
    reader.prune()
    tracker.remove_foreign([key for key in store.keys("") if not Keys.is_of_run(key)])
    tracker.remove_foreign(store.foreign.take(count))
    left = store.keys("")
    assert [key for key in left if not Keys.is_of_run(key)] == []
    assert {HEAD, "worker/genuine-0", "global/plan"} <= set(left)
    assert [entry.event for entry in Journal.read(tracker)] == ["run_began"]


def test_thousands_of_foreign_keys_end_nothing_and_are_removed(tracker: StateTracker, store: GridStore):
    survives(tracker, store, random.Random(1), 3000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_thousand_foreign_keys_end_nothing_and_are_removed(
    seed: int, tracker: StateTracker, store: GridStore
):
    survives(tracker, store, random.Random(seed), 10_000)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_a_foreign_value_is_reported_once_and_many_as_totals(caplog: pytest.LogCaptureFixture):
    foreign = UntrustedKeys()
    for key in [*(f"log/{number}" for number in range(20_000)), *["head"] * 80_000]:
        foreign.note(key, f"{key} is refused")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 20 + 4
    assert told[0] == "log/0 is refused; it is left out"
    assert "100,000 foreign values" in told[-1]
    assert len(foreign.take(10**9)) == 20_001


def test_junk_in_the_journal_floods_no_log_and_pushes_no_entry_out(
    tracker: StateTracker, store: GridStore, caplog: pytest.LogCaptureFixture
):
    journal, reader = Journal(tracker, "a"), JournalReader(tracker)
    for number in range(50):
        journal.write("worker_joined", number=number)
    for number in range(2000):
        store.plant(f"log/9{number:019}/z", b"junk")
    with caplog.at_level(logging.WARNING):
        assert len(reader.read()) == 50
        assert reader.needs_pruning()
        reader.prune()
    assert len(store.keys("log/")) == 50
    assert not reader.needs_pruning()
    assert len(Journal.read(tracker)) == 50
    assert len(caplog.text) < 10_000


# --- a run among others' keys -----------------------------------------------------------------------------------------


class HostileNeighbour(simulator.SimulatedStore):
    """A store to which a stranger writes between the operations: new keys, and values over those of the run.

    With a secret what it wrote is refused; without one it is read, and parses as nothing.
    """

    signed = True
    planted = 0

    def __init__(self, chunk_nbytes: int) -> None:
        super().__init__(chunk_nbytes)
        self._rng = random.Random(17)
        self._junk: dict[str, bytes] = {}

    def plant(self) -> None:
        over_the_runs = self.now and self._rng.random() < 0.002
        key = self._rng.choice(sorted(self.now)) if over_the_runs else next(keys(self._rng, 1))
        if key in self.now and not over_the_runs:  # often the head, and a run needs a while between two blows
            return
        self.now.pop(key, None)
        self._junk[key] = self._rng.choice(VALUES[2:7])
        type(self).planted += 1
        if len(self._junk) > 300:  # the master's monitor removes them
            self._junk = dict(itertools.islice(self._junk.items(), 100, None))

    def get(self, key: str) -> bytes | None:
        self.plant()
        if key not in self._junk:
            return super().get(key)
        self.operations += 1
        if self.signed:
            raise NotAuthorisedError(f"the value under {key!r} is refused")
        return self._junk[key]

    def put(self, key: str, value: Any) -> None:
        self._junk.pop(key, None)
        super().put(key, value)

    def put_if_absent(self, key: str, value: Any) -> bool:
        if key not in self._junk:
            return super().put_if_absent(key, value)
        self.operations += 1
        return False

    def replace_if_same(self, key: str, expected: Any, value: Any) -> bool:
        if key not in self._junk:
            return super().replace_if_same(key, expected, value)
        self.operations += 1
        is_same = not self.signed and self._junk[key] == bytes(expected)
        if is_same:
            del self._junk[key]
            self._write(key, value)
        return is_same

    def delete(self, key: str) -> None:
        self._junk.pop(key, None)
        super().delete(key)

    def keys(self, prefix: str) -> list[str]:
        strange = [key for key in self._junk if key.startswith(prefix)]
        return sorted({*super().keys(prefix), *strange})


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("router", ["iterative-reduce", "hogwild"])
def test_a_run_beside_a_hostile_neighbour_ends_as_one_without(
    signed: bool, router: str, monkeypatch: pytest.MonkeyPatch
):
    class Neighbour(HostileNeighbour):
        pass

    Neighbour.signed = signed
    monkeypatch.setattr(simulator, "SimulatedStore", Neighbour)
    simulator.simulate(network_work(), 2, first=1, router=router)
    assert Neighbour.planted > 2000
