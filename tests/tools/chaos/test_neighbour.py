"""The hostile neighbour of a chaos run: what it writes, and that a run beside it ends as one without."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, NoNodeError

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout.protocol.run_names import RunRecord
from dl4jlegacy.scaleout.state.envelope import Envelope
from dl4jlegacy.scaleout.state.records import Keys, encode_record
from dl4jlegacy.services import ServicesState
from tests.tools.chaos.test_run import run_chaos
from tools.chaos import neighbour as neighbour_module
from tools.chaos.junk import Trap, keys, pickles
from tools.chaos.neighbour import HostileNeighbour
from tools.chaos.vandals import GridVandal, NodeVandal
from tools.chaos.watchdog import Watchdog


class Future:
    """An answer that is there."""

    def __init__(self, value: object = None) -> None:
        self._value = value

    def add_done_callback(self, callback: Any) -> None:
        callback(self)

    def result(self) -> Any:
        return self._value


class Map:
    """A map of a grid, as Hazelcast's client has it."""

    def __init__(self, name: str) -> None:
        self.name, self.values, self.destroyed = name, dict[Any, Any](), 0

    def set(self, key: Any, value: Any) -> Future:
        self.values[str(key) if isinstance(key, list) else key] = value
        return Future()

    def get(self, key: Any) -> Future:
        return Future(self.values.get(key))

    def remove(self, key: Any) -> Future:
        return Future(self.values.pop(key, None))

    def key_set(self) -> Future:
        return Future(list(self.values))

    def destroy(self) -> None:
        self.values.clear()
        self.destroyed += 1


class Grid:
    """A client of a grid in which a run ``r`` has begun."""

    def __init__(self) -> None:
        self.maps: dict[str, Map] = {}
        self.hints: set[str] = set()
        record = encode_record(RunRecord(incarnation="abc"))
        self.get_map("dl4j.runs").set("r", bytearray(Envelope("runs", b"s" * 16).head("r", record) + record))

    def get_map(self, name: str) -> Map:
        return self.maps.setdefault(name, Map(name))

    def get_topic(self, name: str) -> Any:
        grid = self

        class Topic:
            def publish(self, message: object) -> Future:
                grid.hints.add(name)
                return Future()

        return Topic()


def test_a_vandal_finds_the_run_and_does_everything_to_its_map(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(0, 10**6, 4))
    monkeypatch.setattr("tools.chaos.vandals.time.monotonic", lambda: next(moments))
    grid = Grid()
    vandal = GridVandal(grid, random.Random(1), "trap")
    for _ in range(300):
        vandal.step()
    assert set(grid.maps) == {"dl4j.runs", "dl4j.r.abc"}
    assert {"dl4j.r.abc.head", "dl4j.r.abc.job", "dl4j.r.abc.update"} <= grid.hints
    assert all(grid.maps[name].destroyed for name in grid.maps)
    done = {"keys", "pickles", "hints", "values overwritten", "entries deleted", "maps destroyed"}
    assert {what for what, count in vandal.done.items() if count > 2} == done
    assert vandal.done["keys"] > 20 * vandal.done["entries deleted"]


def test_a_vandal_looks_again_where_it_has_damaged_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a run in which a byte was changed, by itself or by a fault, is text no more."""
    monkeypatch.setattr("tools.chaos.vandals.time.monotonic", lambda: 0.0)
    grid = Grid()
    records = grid.get_map("dl4j.runs")
    whole = records.values["r"]
    records.values["r"] = bytearray(bytes(whole).replace(b"abc", b"a\xe4c"))
    vandal = GridVandal(grid, random.Random(1), "trap")
    vandal.step()
    assert set(grid.maps) == {"dl4j.runs"}
    records.values["r"] = whole
    for _ in range(20):
        vandal.step()
    assert set(grid.maps) == {"dl4j.runs", "dl4j.r.abc"}


def test_a_seed_writes_the_same_keys_few_of_which_a_run_could_have() -> None:
    first, again = (list(keys(random.Random(4), 500)) for _ in range(2))
    assert first == again
    assert 0 < sum(Keys.is_of_run(key) for key in first) < 250


def test_a_pickle_tells_when_it_is_read(tmp_path: Path) -> None:
    rng, traps = random.Random(2), [tmp_path / name for name in ("ours", "theirs")]
    packed = [pickles(rng, str(traps[0])) for _ in range(40)]
    assert not any(trap.exists() for trap in traps)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        pickle.loads(pickle.dumps(Trap(str(traps[1])), protocol))  # noqa: S301  # our own
        assert traps[1].is_dir()
        traps[1].rmdir()
    good = {raw for raw in packed if packed.count(raw) > 1}
    assert len(good) >= 2
    for raw in good:
        pickle.loads(raw)  # noqa: S301  # our own
        assert traps[0].is_dir()
        traps[0].rmdir()


class Tree:
    """A client of Zookeeper: one folder is guarded."""

    def __init__(self) -> None:
        self.nodes = {"/open": b"", "/open/a": b"", "/guarded": b"", "/guarded/b": b""}

    def get_children(self, path: str) -> list[str]:
        if path == "/guarded/b":
            raise NoNodeError
        return [node.rpartition("/")[2] for node in self.nodes if (node.rpartition("/")[0] or "/") == path]

    def _touch(self, path: str) -> None:
        if path.startswith("/guarded"):
            raise NoAuthError

    def create(self, path: str, data: bytes, **_: object) -> None:
        self._touch(path)
        self.nodes[path] = data

    def set(self, path: str, data: bytes) -> None:
        self._touch(path)

    def delete(self, path: str, *, recursive: bool) -> None:
        self._touch(path)
        if path in ("/open", "/open/a"):
            raise NoNodeError
        self.nodes.pop(path, None)


def test_a_vandal_tries_all_it_can_at_nodes_and_counts_what_is_refused() -> None:
    vandal = NodeVandal(Tree(), random.Random(3))
    for _ in range(400):
        vandal.step()
    what = ("nodes created", "nodes changed", "nodes deleted")
    assert set(vandal.done) == {*what, *(f"{one}: refused" for one in what)}


def test_what_it_has_done_is_counted_and_its_end_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Silent(Watchdog):
        def __init__(self) -> None:
            pass

        def send(self, line: str) -> None:
            said.append(line)

    monkeypatch.setattr(neighbour_module, "_PROGRAM", ("-c", ""))
    services = ServicesState(cluster_name="c", folder=str(tmp_path))
    neighbour = HostileNeighbour(tmp_path, services, Silent(), seed=1)
    neighbour.stop()  # it never began
    for counts in ({"keys": 3}, {"keys": 4, "hints": 1}):
        neighbour.start()  # and ends at once
        assert neighbour._popen is not None
        neighbour._popen.wait(60)
        line = json.dumps(counts)
        (tmp_path / f"neighbour.{neighbour._starts}.out").write_text(f'{{"keys": 1}}\n{line}\n{line[:5]}')
        with pytest.raises(Dl4jError, match="ended by itself"):
            neighbour.stop()
    assert neighbour.done == {"hints": 1, "keys": 7}
    assert [line[0] for line in said] == ["+", "-", "+", "-"]


@pytest.mark.long
@pytest.mark.release
@pytest.mark.cluster
def test_faults_beside_a_hostile_neighbour_change_nothing() -> None:
    kinds = "worker-kill,corrupt-frame"
    done = run_chaos(
        *("--faults", "2", "--seed", "4", "--workers", "2", "--kinds", kinds),
        *("--hostile-neighbour", "--rounds", "200", "--format", "json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["faults_done"], report["hash_equal"], report["batches_lost"]) == (2, True, 0)
    assert {"keys", "pickles", "hints", "nodes changed: refused"} <= set(report["neighbour"])
    assert report["replay"].endswith(f"--kinds {kinds} --hostile-neighbour")
