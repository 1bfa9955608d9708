"""The actions of a run's hostile neighbour: ``python -m tools.chaos.vandals HAZELCAST CLUSTER ZOOKEEPER FOLDER SEED``.

The neighbour is a stranger on the network of a cluster, who has plain clients of Hazelcast and of Zookeeper but not the
run's secret. Until it is ended, it writes meaningless keys, values and pickles, overwrites and deletes entries of the
run, removes whole maps, sends hints, and creates, changes and deletes nodes in Zookeeper. The last line of its standard
output contains the number of its actions so far in JSON. None of them may change the run's result; a pickle that any
process loads creates the folder ``FOLDER``.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError

from tools.chaos.junk import VALUES, Trap, keys, pickles

with warnings.catch_warnings():  # Python 3.11 warns of its own asyncore, which the client imports
    warnings.simplefilter("ignore", DeprecationWarning)
    from hazelcast.client import HazelcastClient
    from hazelcast.errors import HazelcastError, HazelcastSerializationError
    from hazelcast.serialization import serializer

__all__ = ["GridVandal", "NodeVandal", "main"]

_PREFIX = "dl4j."  # prefix of the names of all maps of a run
_NAMES = "dl4j.runs"  # the map that lists the runs
_ENVELOPE_NBYTES = 36
_TOPICS = ("head", "job", "update")
_BURST = 10  # keys at a time
_PAUSE_SECONDS = 0.2
_BLOW_SECONDS = 2.0  # between two attacks on genuine entries: a run needs a while to repair them
_ANSWER_SECONDS = 3.0
_MOST_NODES = 300
_DESTROYED_SHARE = 0.03  # fraction of the attacks
_GRID_ERRORS = (HazelcastError, OSError, TimeoutError)


def _write_pickles_only() -> None:
    """Prevent this process from loading pickles, as the package would do: it would trigger its own trap."""

    def refuse(*_: object) -> NoReturn:
        raise HazelcastSerializationError("a pickle")

    vars(serializer)["pickle"] = SimpleNamespace(dumps=vars(serializer)["pickle"].dumps, loads=refuse)


class GridVandal:
    """Writes into the maps of all runs in a grid. Used by one thread.

    Args:
        client: a plain client of the grid.
        rng: draws what is written, and where.
        trap: the folder that pickles create.
    """

    def __init__(self, client: Any, rng: random.Random, trap: str) -> None:
        self._client, self._rng, self._trap = client, rng, trap
        self.done: Counter[str] = Counter()
        self._next_blow = 0.0
        self._names = [_NAMES]

    def step(self) -> None:
        """Write a handful of entries, and from time to time attack genuine ones."""
        if len(self._names) == 1:
            self._find_runs()
        target = self._map(self._rng.choice(self._names))
        for key in keys(self._rng, _BURST):
            self._write(target, key)
        self._write(target, self._rng.choice((7, -1.5, True, [1, "x"])))  # keys that are no text
        for topic in _TOPICS:
            hint = self._rng.choice(("", "junk", 3, bytearray(b"\xff")))
            self._count("hints", self._client.get_topic(f"{target.name}.{topic}").publish(hint))
        if time.monotonic() >= self._next_blow:
            self._next_blow = time.monotonic() + self._rng.uniform(0.5, 1.5) * _BLOW_SECONDS
            self._strike(self._map(self._rng.choice(self._names)))

    def _find_runs(self) -> None:
        """Read the list of runs and incarnations, as anybody can."""
        records = self._map(_NAMES)
        for run in [key for key in _answer(records.key_set()) if isinstance(key, str)]:
            value = _answer(records.get(run))
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, TypeError, KeyError, RecursionError):
                incarnation = msgspec.msgpack.decode(value[_ENVELOPE_NBYTES:])["incarnation"]
                self._names.append(f"{_PREFIX}{run}.{incarnation}")

    def _map(self, name: str) -> Any:
        return self._client.get_map(name)

    def _write(self, target: Any, key: object) -> None:
        kind = self._rng.randrange(10)
        if kind == 0:
            self._count("pickles", target.set(key, Trap(self._trap)))  # Python's client pickles an object
        elif kind == 1:
            self._count("pickles", target.set(key, bytearray(pickles(self._rng, self._trap))))
        elif kind == 2:
            self._count("keys", target.set(key, self._rng.choice(("text", 5, 2.5, True, [1, 2]))))
        else:
            self._count("keys", target.set(key, bytearray(self._rng.choice(VALUES))))

    def _strike(self, target: Any) -> None:
        """Overwrite or delete an entry of a run, or remove a run's whole map."""
        if self._rng.random() < _DESTROYED_SHARE:
            target.destroy()
            self.done["maps destroyed"] += 1
            return
        there = sorted(key for key in _answer(target.key_set()) if isinstance(key, str))
        if not there:
            return
        key = self._rng.choice(there)
        kind = self._rng.randrange(3)
        if kind == 0:
            self._count("values overwritten", target.set(key, bytearray(self._rng.choice(VALUES))))
        elif kind == 1:
            self._count("values overwritten", target.set(key, bytearray(self._altered(_answer(target.get(key))))))
        else:
            self._count("entries deleted", target.remove(key))

    def _altered(self, value: object) -> bytes:
        """Return a value with one byte changed, if it is bytes."""
        raw = bytes(value) if isinstance(value, bytearray) else b"junk"
        place = self._rng.randrange(len(raw)) if raw else 0
        return raw[:place] + bytes([self._rng.randrange(256)]) + raw[place + 1 :]

    def _count(self, what: str, future: Any) -> None:
        _answer(future)
        self.done[what] += 1


class NodeVandal:
    """Creates, changes and deletes nodes in Zookeeper wherever that is allowed. Used by one thread."""

    def __init__(self, client: Any, rng: random.Random) -> None:
        self._client, self._rng = client, rng
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """Perform or try one action on one node."""
        paths = [path for path in self._paths("/") if not path.startswith("/zookeeper")]
        if not paths:
            return
        path, data = self._rng.choice(paths), self._rng.choice(VALUES)
        child = f"{path}/{self._rng.choice(('x', 'master', 'election', 'workers', '0000000000', 'a' * 200, 'lock'))}"
        ephemeral, sequence = self._rng.random() < 0.5, self._rng.random() < 0.5
        kind = self._rng.randrange(3)
        if kind == 0:
            self._try("nodes created", lambda: self._client.create(child, data, ephemeral=ephemeral, sequence=sequence))
        elif kind == 1:
            self._try("nodes changed", lambda: self._client.set(path, data))
        else:
            self._try("nodes deleted", lambda: self._client.delete(path, recursive=self._rng.random() < 0.5))

    def _try(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except NoAuthError:
            self.done[f"{what}: refused"] += 1
        except KazooException:
            return  # it is gone, or exists already
        else:
            self.done[what] += 1

    def _paths(self, root: str) -> list[str]:
        """Return the paths of all nodes that can be listed."""
        found, waiting = list[str](), [root]
        while waiting and len(found) < _MOST_NODES:
            path = waiting.pop()
            with contextlib.suppress(KazooException):
                children = [f"{path.rstrip('/')}/{name}" for name in self._client.get_children(path)]
                found += children
                waiting += children
        return found


def _answer(future: Any) -> Any:
    """Return a member's answer; raises ``TimeoutError`` if there is none: the package waits without a deadline."""
    came = threading.Event()
    future.add_done_callback(lambda _: came.set())
    if not came.wait(_ANSWER_SECONDS):
        raise TimeoutError
    return future.result()


def main(arguments: Sequence[str]) -> None:
    """Write until the process is ended."""
    hazelcast, cluster, zookeeper, trap, seed = arguments
    _write_pickles_only()
    rng = random.Random(int(seed))
    grid = HazelcastClient(cluster_name=cluster, cluster_members=hazelcast.split(","), invocation_timeout=2.0)
    nodes = KazooClient(zookeeper, timeout=5.0, connection_retry={"max_tries": -1, "max_delay": 0.5})
    nodes.start(timeout=60.0)
    vandals = (GridVandal(grid, rng, trap), NodeVandal(nodes, rng))
    while True:
        with contextlib.suppress(*_GRID_ERRORS):
            vandals[0].step()
        with contextlib.suppress(KazooException, OSError):
            if nodes.connected:
                vandals[1].step()
        sys.stdout.write(json.dumps(dict(vandals[0].done + vandals[1].done)) + "\n")
        sys.stdout.flush()
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
