"""What breaks, and how it is mended: one function for each kind of fault."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dl4jlegacy.chaos.expiry import expire
from dl4jlegacy.chaos.schedule import Fault
from dl4jlegacy.chaos.stage import Seat, Stage, wait_until
from dl4jlegacy.errors import Dl4jError, TrackerError
from dl4jlegacy.scaleout.hazelcast.link import DisturbedError, HazelcastLink
from dl4jlegacy.scaleout.journal import JournalEntry
from dl4jlegacy.services import Services

__all__ = ["GOALS", "Wound", "strike"]

GOALS = {
    "worker-kill": 0.5,
    "workers-kill": 0.5,
    "worker-freeze": 2.5,
    "partition": 2.5,
    "master-kill": 5.0,
    "master-freeze": 5.0,
}
"""Seconds within which a fault of a kind should be noticed: of a master, that another one has taken over."""

_END_SECONDS = 30.0
_DEPOSED_SECONDS = 20.0
_WARNING_SECONDS = 20.0
_REQUEST_SECONDS = 5.0
_DAMAGED_NBYTES = 16
_NEWEST = 4
_FILE_NBYTES = 150_000  # less than a checkpoint, more than a log
_STOPPED_BY_US = (0, 128 + signal.SIGTERM)
_UNWRITTEN = "could not be written"


@dataclass(frozen=True, slots=True)
class Wound:
    """What was done: the ids of processes that should be missed, the event that tells so, and how it is mended.

    ``heal`` is called after the fault's seconds, and returns when what was broken is whole or on its way.
    """

    heal: Callable[[], None]
    missed: tuple[int, ...] = ()
    event: str = ""
    note: str = ""

    def noticed(self, entries: Sequence[JournalEntry], at: float) -> float | None:
        """Return how long after ``at`` the journal had named all that were missed; None if it did not."""
        told = [entry for entry in entries if entry.event == self.event and entry.time >= at]
        if not self.missed:
            return round(told[0].time - at, 3) if told else None
        moments = []
        for pid in self.missed:
            own = [
                e.time for e in told if f"-{pid}-" in f"{e.fields.get('process', '')}- {e.fields.get('worker', '')}-"
            ]
            if not own:
                return None
            moments.append(min(own) - at)
        return round(max(moments), 3)


def strike(stage: Stage, fault: Fault) -> Wound:
    """Do what the fault says; returns at once.

    Raises:
        Dl4jError: it cannot be done as things are.
    """
    return _STRIKES[fault.kind](stage, fault)


# -- workers -----------------------------------------------------------------------------------------------------------


def _kill_worker(stage: Stage, fault: Fault) -> Wound:
    return _kill(stage, [stage.seats[fault.target]], "worker_gone")


def _kill_workers(stage: Stage, fault: Fault) -> Wound:
    return _kill(stage, stage.workers, "worker_gone")


def _kill(stage: Stage, seats: list[Seat], event: str) -> Wound:
    pids = tuple(seat.pid for seat in seats)
    for seat in seats:
        seat.signal(signal.SIGKILL)

    def heal() -> None:
        for seat in seats:
            _wait_for_end(seat)
            stage.start(seat)

    return Wound(heal, pids, event)


def _freeze_worker(stage: Stage, fault: Fault) -> Wound:
    seat = stage.seats[fault.target]
    seat.signal(signal.SIGSTOP)
    return Wound(lambda: seat.signal(signal.SIGCONT), (seat.pid,), "worker_gone")


def _drain_worker(stage: Stage, fault: Fault) -> Wound:
    seat = stage.seats[fault.target]
    seat.signal(signal.SIGTERM)

    def heal() -> None:
        status = _wait_for_end(seat)
        if status not in _STOPPED_BY_US:
            raise Dl4jError(f"{seat.name} was asked to leave (SIGTERM) and ended with {status}")
        stage.start(seat)

    return Wound(heal, (seat.pid,), "worker_left")


def _wait_for_end(seat: Seat) -> int:
    wait_until(lambda: seat.ended is not None, _END_SECONDS, f"the end of {seat.name} (pid {seat.pid})", 0.01)
    return seat.ended or 0


# -- masters -----------------------------------------------------------------------------------------------------------


def _kill_master(stage: Stage, fault: Fault) -> Wound:
    leader = stage.leader()
    wound = _kill(stage, [leader], "master_took_over")
    return Wound(wound.heal, (), wound.event, leader.name)


def _freeze_master(stage: Stage, fault: Fault) -> Wound:
    leader = stage.leader()
    leader.signal(signal.SIGSTOP)

    def heal() -> None:
        _wait_for_another(stage, leader)
        leader.signal(signal.SIGCONT)
        _wait_until_deposed(stage, leader)

    return Wound(heal, (), "master_took_over", leader.name)


def _wait_for_another(stage: Stage, leader: Seat) -> None:
    def led_by_another() -> bool:
        with contextlib.suppress(TrackerError):
            return stage.leader() is not leader
        return False

    wait_until(led_by_another, _DEPOSED_SECONDS, f"another master in the place of {leader.name} (pid {leader.pid})")


def _wait_until_deposed(stage: Stage, leader: Seat) -> None:
    """Wait until a master that was replaced has noticed, and has left or stands by; put a new one where it left."""

    def noticed() -> bool:
        return leader.ended is not None or any(line for line in leader.last_lines() if "stands by" in line)

    wait_until(noticed, _DEPOSED_SECONDS, f"{leader.name} (pid {leader.pid}) notices that it leads no more")
    if leader.ended is not None:
        stage.start(leader)


# -- servers -----------------------------------------------------------------------------------------------------------


def _kill_server(stage: Stage, fault: Fault) -> Wound:
    state = Services.status(stage.services_folder)
    pid = state.pids.get(fault.target) if state is not None else None
    if pid is None:
        raise Dl4jError(f"{fault.target} does not run")
    os.kill(pid, signal.SIGKILL)

    def heal() -> None:
        Services.restart(fault.target, stage.services_folder)

    return Wound(heal)


def _expire_session(stage: Stage, fault: Fault) -> Wound:
    if fault.target != "master":
        _expire(stage, stage.registration(stage.seats[fault.target]))
        return Wound(_nothing)
    leader = stage.leader()
    _expire(stage, stage.candidates()[0][0])

    def heal() -> None:
        _wait_for_another(stage, leader)
        _wait_until_deposed(stage, leader)

    return Wound(heal, (), "master_took_over", leader.name)


def _expire(stage: Stage, path: str) -> None:
    node = stage.session.get(path)
    if node is None:
        raise TrackerError(f"{path} is not there")
    expire(stage.services.zookeeper, node.owner)


def _nothing() -> None:
    """Mend nothing."""


# -- the network -------------------------------------------------------------------------------------------------------


def _cut(stage: Stage, fault: Fault) -> Wound:
    stage.wire.lose(1.0)
    return Wound(lambda: stage.wire.lose(0.0), (stage.seats[fault.target].pid,), "worker_gone")


def _lose_packets(stage: Stage, fault: Fault) -> Wound:
    stage.wire.lose(0.05)
    return Wound(lambda: stage.wire.lose(0.0))


# -- what is kept ------------------------------------------------------------------------------------------------------


def _corrupt(stage: Stage, fault: Fault) -> Wound:
    """Write random bytes over some of a value, if it is still there as it was read."""
    source = random.Random(fault.number)
    link = HazelcastLink(stage.services.hazelcast.split(","), stage.services.cluster_name, f"dl4j.{stage.run}")
    try:
        wait_until(link.connected, _REQUEST_SECONDS, "a connection to the grid")
        end = time.monotonic() + _END_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(DisturbedError):
                key = _damaged(link, fault.target, source)
                if key:
                    return Wound(_nothing, note=key)
    finally:
        link.close()
    raise Dl4jError(f"no {fault.target} record of run {stage.run} stayed long enough to be damaged")


def _damaged(link: HazelcastLink, kind: str, source: random.Random) -> str:
    """Damage a record of this kind; return its key, "" if it was gone or changed before."""
    key = _chosen(link.keys().wait(_REQUEST_SECONDS), kind, source)
    raw = bytes(link.get(key).wait(_REQUEST_SECONDS) or b"") if key else b""
    if len(raw) <= _DAMAGED_NBYTES:
        return ""
    start = int(source.random() * (len(raw) - _DAMAGED_NBYTES))
    damage = bytes(int(source.random() * 256) for _ in range(_DAMAGED_NBYTES))
    altered = raw[:start] + damage + raw[start + _DAMAGED_NBYTES :]
    return key if link.replace_if_same(key, raw, b"", altered).wait(_REQUEST_SECONDS) else ""


def _chosen(keys: list[str], kind: str, source: random.Random) -> str:
    """Return one of the newest keys of a kind, "" if there is none."""
    parts = [key.split("/") for key in keys if key.split("/")[0] == kind]
    parts.sort(key=lambda part: int(part[1]) if len(part) > 1 and part[1].isdigit() else 0)
    newest = parts[-_NEWEST:]
    return "/".join(newest[int(source.random() * len(newest))]) if newest else ""


def _fill_disk(stage: Stage, fault: Fault) -> Wound:
    """Leave no room for checkpoints; wait until the master has said so, and once there is room, for a new one."""
    leader = stage.leader()
    said = leader.log.read_text(encoding="utf-8", errors="replace").count(_UNWRITTEN)
    make_room = _filled(stage.disk) if stage.setting.small_disk else _limited(leader.pid)

    def heal() -> None:
        try:
            wait_until(
                lambda: leader.log.read_text(encoding="utf-8", errors="replace").count(_UNWRITTEN) > said,
                _WARNING_SECONDS,
                f"a warning of {leader.name} that a checkpoint could not be written to the full disk",
            )
            if fault.target == "takeover":
                leader.signal(signal.SIGKILL)
                _wait_for_another(stage, leader)
        finally:
            make_room()
        if fault.target == "takeover":
            _wait_for_end(leader)
            stage.start(leader)
        before = _newest(stage.checkpoints)
        wait_until(
            lambda: _newest(stage.checkpoints) > before, _WARNING_SECONDS, "a checkpoint after there was room again"
        )

    return Wound(heal, note=leader.name)


def _filled(disk: Path) -> Callable[[], None]:
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        for nbytes in (1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * nbytes) == nbytes:
                    pass
    return lambda: path.unlink()


def _limited(pid: int) -> Callable[[], None]:
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (_FILE_NBYTES, before[1]))

    def lift() -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    return lift


def _newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("checkpoint-*.json")), default="")


_STRIKES: dict[str, Callable[[Stage, Fault], Wound]] = {
    "worker-kill": _kill_worker,
    "worker-freeze": _freeze_worker,
    "worker-drain": _drain_worker,
    "workers-kill": _kill_workers,
    "master-kill": _kill_master,
    "master-freeze": _freeze_master,
    "member-kill": _kill_server,
    "zookeeper-kill": _kill_server,
    "session-expiry": _expire_session,
    "partition": _cut,
    "packet-loss": _lose_packets,
    "corrupt-frame": _corrupt,
    "full-disk": _fill_disk,
}
