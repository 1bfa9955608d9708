"""The faults of a chaos run, drawn from a seed and nothing else, so that the same ones can be had again."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from dl4jlegacy.errors import UsageError, nearest

__all__ = ["KINDS", "Fault", "checked_kinds", "draw"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: what happens to whom, how many rounds after the one before was overcome, and for how long.

    ``target`` is a seat (``worker-2``), ``master`` (whichever leads then), a server, a kind of record, or ``all``; on a
    full disk ``takeover``: the master is killed there, and another has to take over.
    ``seconds`` is how long the fault lasts, 0 where it is but a moment.
    """

    number: int
    kind: str
    target: str
    after_rounds: int
    seconds: float


class _Kind(msgspec.Struct, frozen=True):
    """How faults of a kind are drawn: whom they may hit, how long they may last, how many are in a deck."""

    targets: tuple[str, ...]
    seconds: tuple[float, float] = (0.0, 0.0)
    times: int = 1


_WORKER, _FAR_WORKER = "some worker", "far worker"

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
    "partition": _Kind((_FAR_WORKER,), (3.0, 6.0)),
    "packet-loss": _Kind((_FAR_WORKER,), (3.0, 6.0)),
    "corrupt-frame": _Kind(("model", "update", "data", "job", "worker", "head", "global", "log"), times=3),
    "full-disk": _Kind(("checkpoints", "takeover"), (1.0, 3.0)),
}
KINDS = tuple(_DRAWN)
"""All kinds of fault, by name."""

_MOST_ROUNDS = 20


def checked_kinds(text: str | None) -> tuple[str, ...]:
    """Return the kinds named in ``text``, separated by commas; all if there is none.

    Raises:
        UsageError: an unknown name.
    """
    names = tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip())) or KINDS
    for name in names:
        if name not in _DRAWN:
            raise UsageError(f"--kinds names {name!r}{nearest(name, KINDS)}")
    return names


def draw(seed: int, count: int, kinds: Sequence[str], workers: int) -> tuple[Fault, ...]:
    """Return ``count`` faults of these kinds against ``workers`` workers.

    They come from shuffled decks in which every kind has its cards, so that each is met early, and about equally often
    in the long run. Only ``random()`` is used, whose numbers are the same in every version of Python.
    """
    source = random.Random(seed)
    faults: list[Fault] = []
    deck: list[str] = []
    for number in range(1, count + 1):
        if not deck:
            deck = [name for name in KINDS if name in kinds for _ in range(_DRAWN[name].times)]
        kind = deck.pop(int(source.random() * len(deck)))
        drawn = _DRAWN[kind]
        target = drawn.targets[int(source.random() * len(drawn.targets))]
        seat = int(source.random() * workers)
        least, most = drawn.seconds
        faults.append(
            Fault(
                number=number,
                kind=kind,
                target={_WORKER: f"worker-{seat}", _FAR_WORKER: f"worker-{workers - 1}"}.get(target, target),
                after_rounds=1 + int(source.random() * _MOST_ROUNDS),
                seconds=round(least + source.random() * (most - least), 2),
            )
        )
    return tuple(faults)
