"""Injects faults and undoes them; one function for each kind of fault."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dl4jlegacy.errors import Dl4jError, TrackerError
from dl4jlegacy.scaleout.hazelcast.link import DisturbedError, HazelcastLink
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.scaleout.state.records import Keys
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.services import Services
from tools.chaos.expiry import expire_session
from tools.chaos.network import cut_off_member
from tools.chaos.schedule import Fault
from tools.chaos.testbed import Process, TestBed, wait_until

__all__ = ["DETECTION_GOALS", "ActiveFault", "inject"]

DETECTION_GOALS = {
    "worker-kill": 0.5,
    "workers-kill": 0.5,
    "worker-freeze": 2.5,
    "worker-long-freeze": 2.5,
    "partition": 2.5,
    "master-kill": 5.0,
    "master-freeze": 5.0,
    "master-long-freeze": 5.0,
}
"""Seconds within which a fault should be in the journal; for a master: within which another one has taken over."""

_END_SECONDS = 30.0
_SERVER_SECONDS = 180.0
_STEP_SECONDS = 1500.0  # more than any deadline
_DEPOSED_SECONDS = 20.0
_WARNING_SECONDS = 20.0
_LEAST_ROUNDS = 5.0  # rounds a second of a run on a busy machine
_REQUEST_SECONDS = 5.0
_DAMAGED_NBYTES = 16
_NEWEST_KEYS = 4
_FILE_LIMIT_NBYTES = 150_000  # smaller than a checkpoint, larger than a log
_STATUS_AFTER_SIGTERM = (0, 128 + signal.SIGTERM)
_WRITE_WARNING = "could not be written"


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """An injected fault, and how to undo it.

    Attributes:
        recover: undoes the fault; called after the fault's duration; returns when the broken part works or is starting.
        missing_pids: ids of the processes that the run should miss.
        event: the journal's event for missing processes.
        note: for the report, for instance the name of the master.
    """

    recover: Callable[[], None]
    missing_pids: tuple[int, ...] = ()
    event: str = ""
    note: str = ""

    def detected(self, entries: Sequence[JournalEntry], at: float) -> float | None:
        """Return the seconds from ``at`` until the journal had named all missing processes; None if it did not."""
        matching = [entry for entry in entries if entry.event == self.event and entry.time >= at]
        if not self.missing_pids:
            return round(matching[0].time - at, 3) if matching else None
        moments = []
        for pid in self.missing_pids:
            own = [entry.time for entry in matching if f"-{pid}-" in _process_ids(entry)]
            if not own:
                return None
            moments.append(min(own) - at)
        return round(max(moments), 3)


def _process_ids(entry: JournalEntry) -> str:
    return f"{entry.fields.get('process', '')}- {entry.fields.get('worker', '')}-"


def inject(test_bed: TestBed, fault: Fault) -> ActiveFault:
    """Inject the fault; returns at once.

    Raises:
        Dl4jError: the fault is not possible at the moment.
    """
    return _INJECTORS[fault.kind](test_bed, fault)


# -- workers -----------------------------------------------------------------------------------------------------------


def _kill_worker(test_bed: TestBed, fault: Fault) -> ActiveFault:
    return _kill(test_bed, [test_bed.processes[fault.target]], "worker_gone")


def _kill_workers(test_bed: TestBed, fault: Fault) -> ActiveFault:
    return _kill(test_bed, test_bed.workers, "worker_gone")


def _kill(test_bed: TestBed, processes: list[Process], event: str) -> ActiveFault:
    pids = tuple(process.pid for process in processes)
    for process in processes:
        process.signal(signal.SIGKILL)

    def recover() -> None:
        for process in processes:
            _wait_for_end(process)
            test_bed.start(process)

    return ActiveFault(recover, pids, event)


def _freeze_worker(test_bed: TestBed, fault: Fault) -> ActiveFault:
    process = test_bed.processes[fault.target]
    process.signal(signal.SIGSTOP)
    return ActiveFault(lambda: process.signal(signal.SIGCONT), (process.pid,), "worker_gone")


def _drain_worker(test_bed: TestBed, fault: Fault) -> ActiveFault:
    process = test_bed.processes[fault.target]
    process.signal(signal.SIGTERM)

    def recover() -> None:
        status = _wait_for_end(process)
        if status not in _STATUS_AFTER_SIGTERM:
            raise Dl4jError(f"{process.name} was asked to leave (SIGTERM) and ended with {status}")
        test_bed.start(process)

    return ActiveFault(recover, (process.pid,), "worker_left")


def _step_clock(test_bed: TestBed, fault: Fault) -> ActiveFault:
    """Set a process's wall clock forward or back, and correct it again."""
    process = test_bed.leader() if fault.target == "master" else test_bed.processes[fault.target]
    seconds = _STEP_SECONDS if fault.number % 2 else -_STEP_SECONDS
    process.set_clock(seconds)
    return ActiveFault(lambda: process.set_clock(0.0), note=f"{process.name} by {seconds:+g} s")


def _wait_for_end(process: Process) -> int:
    what = f"the end of {process.name} (pid {process.pid})"
    wait_until(lambda: process.exit_status is not None, _END_SECONDS, what, pause=0.01)
    return process.exit_status or 0


# -- masters -----------------------------------------------------------------------------------------------------------


def _kill_master(test_bed: TestBed, fault: Fault) -> ActiveFault:
    leader = test_bed.leader()
    active = _kill(test_bed, [leader], "master_took_over")
    return replace(active, missing_pids=(), note=leader.name)


def _freeze_master(test_bed: TestBed, fault: Fault) -> ActiveFault:
    leader = test_bed.leader()
    leader.signal(signal.SIGSTOP)

    def recover() -> None:
        try:
            _wait_for_another(test_bed, leader)
        finally:  # no process leads a run that has ended meanwhile, and this master must notice that, too
            leader.signal(signal.SIGCONT)
        _wait_until_deposed(test_bed, leader)

    return ActiveFault(recover, event="master_took_over", note=leader.name)


def _wait_for_another(test_bed: TestBed, leader: Process) -> None:
    def led_by_another() -> bool:
        with contextlib.suppress(TrackerError):
            return test_bed.leader() is not leader
        return False

    wait_until(led_by_another, _DEPOSED_SECONDS, f"another master in the place of {leader.name} (pid {leader.pid})")


def _wait_until_deposed(test_bed: TestBed, leader: Process) -> None:
    """Wait until a replaced master has noticed that and left or stands by; if it has left, start it as a standby."""

    def has_noticed() -> bool:
        return leader.exit_status is not None or any(line for line in leader.last_lines() if "stands by" in line)

    wait_until(has_noticed, _DEPOSED_SECONDS, f"{leader.name} (pid {leader.pid}) notices that it leads no more")
    if leader.exit_status is not None:
        test_bed.start(leader)


# -- servers -----------------------------------------------------------------------------------------------------------


def _kill_server(test_bed: TestBed, fault: Fault) -> ActiveFault:
    os.kill(_server_pid(test_bed, fault.target), signal.SIGKILL)

    def recover() -> None:
        Services.restart(fault.target, test_bed.services_folder)

    return ActiveFault(recover)


def _freeze_server(test_bed: TestBed, fault: Fault) -> ActiveFault:
    pid = _server_pid(test_bed, fault.target)
    os.kill(pid, signal.SIGSTOP)

    def recover() -> None:
        os.kill(pid, signal.SIGCONT)
        _wait_for_servers(test_bed)

    return ActiveFault(recover)


def _server_pid(test_bed: TestBed, name: str) -> int:
    state = Services.status(test_bed.services_folder)
    pid = state.pids.get(name) if state is not None else None
    if pid is None:
        raise Dl4jError(f"{name} does not run")
    return pid


def _wait_for_servers(test_bed: TestBed) -> None:
    """Wait until all servers answer, and the members see each other."""
    state = Services.status(test_bed.services_folder)
    servers = () if state is None else state.servers
    members = sum(server.name != "zookeeper" for server in servers)
    wait_until(
        lambda: all(server.answers(members) for server in servers),
        _SERVER_SECONDS,
        f"all of {', '.join(server.name for server in servers)} answer, and the members see each other",
    )


def _empty_grid(test_bed: TestBed, fault: Fault) -> ActiveFault:
    """Remove the run's map with its contents."""
    link = HazelcastLink(test_bed.services.hazelcast.split(","), test_bed.services.cluster_name, test_bed.map_name())
    with contextlib.closing(link):
        wait_until(link.connected, _REQUEST_SECONDS, "a connection to the grid")
        link.destroy().wait(_REQUEST_SECONDS)
    return ActiveFault(_nothing)


def _kill_members(test_bed: TestBed, fault: Fault) -> ActiveFault:
    """Kill all members at once, so that they restart without any data."""
    members = [name for name in test_bed.server_names() if name != "zookeeper"]
    for name in members:
        os.kill(_server_pid(test_bed, name), signal.SIGKILL)

    def recover() -> None:
        for name in members:
            Services.restart(name, test_bed.services_folder)

    return ActiveFault(recover)


def _empty_servers(test_bed: TestBed, fault: Fault) -> ActiveFault:
    """Kill all members and Zookeeper at once; they restart without data, except what Zookeeper has on disk."""
    names = test_bed.server_names()
    for name in names:
        os.kill(_server_pid(test_bed, name), signal.SIGKILL)

    def recover() -> None:
        if fault.target == "lost":
            shutil.rmtree(test_bed.services_folder / "zookeeper-data")
        for name in names:
            Services.restart(name, test_bed.services_folder)

    return ActiveFault(recover)


def _expire_session(test_bed: TestBed, fault: Fault) -> ActiveFault:
    if fault.target != "master":
        _expire_node_session(test_bed, test_bed.registration(test_bed.processes[fault.target]))
        return ActiveFault(_nothing)
    leader = test_bed.leader()
    _expire_node_session(test_bed, test_bed.candidates()[0][0])

    def recover() -> None:
        _wait_for_another(test_bed, leader)
        _wait_until_deposed(test_bed, leader)

    return ActiveFault(recover, event="master_took_over", note=leader.name)


def _expire_node_session(test_bed: TestBed, path: str) -> None:
    node = test_bed.session.get(path)
    if node is None:
        raise TrackerError(f"{path} is not there")
    expire_session(test_bed.services.zookeeper, node.owner)


def _nothing() -> None:
    """Undo a fault that leaves nothing to undo."""


# -- the network -------------------------------------------------------------------------------------------------------


def _cut_link(test_bed: TestBed, fault: Fault) -> ActiveFault:
    test_bed.link.set_loss(1.0)
    return ActiveFault(lambda: test_bed.link.set_loss(0.0), (test_bed.processes[fault.target].pid,), "worker_gone")


def _cut_off_member(test_bed: TestBed, fault: Fault) -> ActiveFault:
    """Cut a member off from the others until they have noticed; clients reach both parts."""
    cut_off_member(cut=True)

    def recover() -> None:
        cut_off_member(cut=False)
        _wait_for_servers(test_bed)

    return ActiveFault(recover)


def _lose_packets(test_bed: TestBed, fault: Fault) -> ActiveFault:
    test_bed.link.set_loss(0.05)
    return ActiveFault(lambda: test_bed.link.set_loss(0.0))


# -- data ------------------------------------------------------------------------------------------------------


def _corrupt(test_bed: TestBed, fault: Fault) -> ActiveFault:
    """Overwrite part of a record with random bytes, unless it has changed since it was read."""
    source = random.Random(fault.number)
    services = test_bed.services
    name = test_bed.map_name()
    link = HazelcastLink(services.hazelcast.split(","), services.cluster_name, name)
    try:
        wait_until(link.connected, _REQUEST_SECONDS, "a connection to the grid")
        end = time.monotonic() + _END_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(DisturbedError):
                key = _damage(link, fault.target, source)
                if key:
                    return ActiveFault(_nothing, note=key)
    finally:
        link.close()
    raise Dl4jError(f"no {fault.target} record of run {test_bed.run_name} stayed long enough to be damaged")


def _damage(link: HazelcastLink, kind: str, source: random.Random) -> str:
    """Damage a record of this kind; return its key, "" if it was removed or changed meanwhile."""
    key = _newest_key(link.keys().wait(_REQUEST_SECONDS), kind, source)
    raw = bytes(link.get(key).wait(_REQUEST_SECONDS) or b"") if key else b""
    if len(raw) <= _DAMAGED_NBYTES:
        return ""
    start = int(source.random() * (len(raw) - _DAMAGED_NBYTES))
    noise = bytes(int(source.random() * 256) for _ in range(_DAMAGED_NBYTES))
    altered = raw[:start] + noise + raw[start + _DAMAGED_NBYTES :]
    return key if link.replace_if_same(key, raw, b"", altered).wait(_REQUEST_SECONDS) else ""


def _newest_key(keys: list[str], kind: str, source: random.Random) -> str:
    """Return one of the newest keys of a kind in the run, "" if there is none."""
    parts = [key.split("/") for key in keys if key.split("/")[0] == kind and Keys.is_of_run(key)]
    parts.sort(key=lambda part: int(part[1]) if len(part) > 1 and part[1].isdigit() else 0)
    newest = parts[-_NEWEST_KEYS:]
    return "/".join(newest[int(source.random() * len(newest))]) if newest else ""


def _fill_disk(test_bed: TestBed, fault: Fault) -> ActiveFault:
    """Leave no space for checkpoints; wait for the master's warning, and after space was freed for a new checkpoint."""
    leader, seconds = test_bed.leader(), _checkpoint_seconds(test_bed)
    before = _warnings(leader)
    make_room = _fill(test_bed.disk) if test_bed.options.small_disk else _limit_file_size(leader.pid)

    def recover() -> None:
        try:
            wait_until(
                lambda: _warnings(leader) > before,
                seconds,
                f"a warning of {leader.name} that a checkpoint could not be written to the full disk",
            )
            if fault.target == "takeover":
                leader.signal(signal.SIGKILL)
                _wait_for_another(test_bed, leader)
        finally:
            make_room()
        if fault.target == "takeover":
            _wait_for_end(leader)
            test_bed.start(leader)
        newest = _newest_checkpoint(test_bed.checkpoints)
        wait_until(
            lambda: _newest_checkpoint(test_bed.checkpoints) > newest,
            seconds,
            "a checkpoint after there was room again",
        )

    return ActiveFault(recover, note=leader.name)


def _warnings(leader: Process) -> int:
    """Return how often a master has logged that a checkpoint could not be written."""
    return leader.log.read_text(encoding="utf-8", errors="replace").count(_WRITE_WARNING)


def _fill(disk: Path) -> Callable[[], None]:
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        for nbytes in (1 << 16, 1 << 10, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * nbytes) == nbytes:
                    pass
    return path.unlink


def _limit_file_size(pid: int) -> Callable[[], None]:
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (_FILE_LIMIT_NBYTES, before[1]))

    def lift() -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    return lift


def _checkpoint_seconds(test_bed: TestBed) -> float:
    """Return how long to wait for a checkpoint: a strategy with a log writes one at the end of the log."""
    router = create_router(test_bed.options.router, json.loads(test_bed.options.router_args))
    return _WARNING_SECONDS + router.log_every / _LEAST_ROUNDS


def _newest_checkpoint(folder: Path) -> str:
    return max((path.name for path in folder.glob("checkpoint-*.json")), default="")


# -- two at a time -----------------------------------------------------------------------------------------------------


def _inject_both(test_bed: TestBed, fault: Fault) -> ActiveFault:
    """Inject a fault of a process and one of a server; the server is repaired first, since the process needs it."""
    first, second = (inject(test_bed, part) for part in fault.parts)

    def recover() -> None:
        second.recover()
        first.recover()

    return replace(first, recover=recover, note="; ".join(part.note for part in (first, second) if part.note))


_INJECTORS: dict[str, Callable[[TestBed, Fault], ActiveFault]] = {
    "worker-kill": _kill_worker,
    "worker-freeze": _freeze_worker,
    "worker-long-freeze": _freeze_worker,
    "worker-drain": _drain_worker,
    "workers-kill": _kill_workers,
    "master-kill": _kill_master,
    "master-freeze": _freeze_master,
    "master-long-freeze": _freeze_master,
    "member-kill": _kill_server,
    "member-freeze": _freeze_server,
    "member-long-freeze": _freeze_server,
    "zookeeper-kill": _kill_server,
    "zookeeper-freeze": _freeze_server,
    "grid-empty": _empty_grid,
    "members-kill": _kill_members,
    "servers-empty": _empty_servers,
    "session-expiry": _expire_session,
    "partition": _cut_link,
    "packet-loss": _lose_packets,
    "member-partition": _cut_off_member,
    "corrupt-frame": _corrupt,
    "full-disk": _fill_disk,
    "clock-step": _step_clock,
    "overlapping": _inject_both,
}
