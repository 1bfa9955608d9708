"""The faults of a chaos run, drawn only from a seed, so that they can be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from dl4jlegacy.errors import UsageError, nearest

__all__ = ["AT_THE_END", "KINDS", "Fault", "draw_faults", "parse_kinds"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        number: from 1.
        kind: one of ``KINDS``.
        target: a process (``worker-2``), ``master`` (the leading one at that time), a server, a kind of record, or
            ``all``. With a full disk also ``takeover``: the master is killed meanwhile, and another one has to take
            over. With emptied servers: whether Zookeeper's data are ``kept`` or ``lost``.
        after_rounds: number of rounds after the recovery from the previous fault.
        seconds: duration; 0 if the fault is over at once.
        parts: the two faults of an overlapping one.
    """

    number: int
    kind: str
    target: str
    after_rounds: int
    seconds: float
    parts: tuple[Fault, ...] = ()


class _Kind(msgspec.Struct, frozen=True):
    """How faults of a kind are drawn: their targets, the least and most seconds, and their number in a deck."""

    targets: tuple[str, ...]
    seconds: tuple[float, float] = (0.0, 0.0)
    times: int = 1


_WORKER, _LINKED_WORKER = "a worker", "the worker behind the link"

_DRAWN = {
    "worker-kill": _Kind((_WORKER,), times=3),
    "worker-freeze": _Kind((_WORKER,), (3.0, 8.0)),
    "worker-drain": _Kind((_WORKER,), times=2),
    "workers-kill": _Kind(("all",)),
    "master-kill": _Kind(("master",)),
    "master-freeze": _Kind(("master",), (5.0, 8.0)),
    "member-kill": _Kind(("hazelcast-1", "hazelcast-2"), (0.5, 2.0)),
    "zookeeper-kill": _Kind(("zookeeper",), (0.5, 2.0)),
    "session-expiry": _Kind((_WORKER, "master")),
    "partition": _Kind((_LINKED_WORKER,), (3.0, 6.0)),
    "packet-loss": _Kind((_LINKED_WORKER,), (3.0, 6.0)),
    "corrupt-frame": _Kind(("model", "update", "data", "job", "worker", "head", "global", "log"), times=3),
    "full-disk": _Kind(("checkpoints", "takeover"), (1.0, 3.0)),
    "worker-long-freeze": _Kind((_WORKER,), (25.0, 60.0)),
    "master-long-freeze": _Kind(("master",), (25.0, 60.0)),
    "master-kill-at-done": _Kind(("master",)),
    "member-freeze": _Kind(("hazelcast-1", "hazelcast-2"), (3.0, 12.0)),  # the members wait for each other for 15 s
    "member-long-freeze": _Kind(("hazelcast-1", "hazelcast-2", "hazelcast-3"), (25.0, 60.0)),
    "zookeeper-freeze": _Kind(("zookeeper",), (3.0, 20.0)),
    "grid-empty": _Kind(("map",)),
    "members-kill": _Kind(("all",)),
    "servers-empty": _Kind(("kept", "lost"), (0.5, 2.0)),
    "clock-step": _Kind((_WORKER, "master"), (3.0, 8.0)),
    "member-partition": _Kind(("hazelcast-3",), (20.0, 30.0)),  # after 15 s they consider each other gone
    "overlapping": _Kind(("a process and a server",)),
}
_OVERLAPPING = (("worker-kill", "worker-freeze", "workers-kill", "master-kill"), ("member-kill", "zookeeper-kill"))
AT_THE_END = "master-kill-at-done"
"""The kind of the fault at the end of its run."""

KINDS = tuple(_DRAWN)
"""All kinds of fault, by name."""

_MOST_ROUNDS = 20


def parse_kinds(text: str | None) -> tuple[str, ...]:
    """Return the kinds named in ``text``, separated by commas; all if it names none.

    Raises:
        UsageError: an unknown name.
    """
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip())) or KINDS
    for name in names:
        if name not in _DRAWN:
            raise UsageError(f"--kinds names {name!r}{nearest(name, KINDS)}")
    return names


def draw_faults(seed: int, count: int, kinds: Sequence[str], workers: int) -> tuple[Fault, ...]:
    """Return ``count`` faults of these kinds against ``workers`` workers.

    They are drawn from shuffled decks that contain every kind, so that each kind occurs early, and about equally often
    in the long run. Only ``random()`` is used, whose numbers are the same in every version of Python.
    """
    source = random.Random(seed)
    faults: list[Fault] = []
    deck: list[str] = []
    for number in range(1, count + 1):
        if not deck:
            deck = [name for name in KINDS if name in kinds for _ in range(_DRAWN[name].times)]
        kind = deck.pop(int(source.random() * len(deck)))
        fault = _draw(source, number, kind, workers)
        if kind == "overlapping":
            both = [_draw(source, number, names[int(source.random() * len(names))], workers) for names in _OVERLAPPING]
            target = " and ".join(f"{part.kind} {part.target}" for part in both)
            fault = msgspec.structs.replace(fault, target=target, seconds=both[1].seconds, parts=tuple(both))
        faults.append(fault)
    return tuple(faults)


def _draw(source: random.Random, number: int, kind: str, workers: int) -> Fault:
    """Return one fault of a kind."""
    drawn = _DRAWN[kind]
    target = drawn.targets[int(source.random() * len(drawn.targets))]
    worker = int(source.random() * workers)
    least, most = drawn.seconds
    return Fault(
        number=number,
        kind=kind,
        target={_WORKER: f"worker-{worker}", _LINKED_WORKER: f"worker-{workers - 1}"}.get(target, target),
        after_rounds=1 + int(source.random() * _MOST_ROUNDS),
        seconds=round(least + source.random() * (most - least), 2),
    )
