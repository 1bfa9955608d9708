"""Sessions that Zookeeper is made to forget, and links that lose packets."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout.zookeeper import WorkerRegistration, ZooKeeperSession
from tools.chaos.expiry import expire_session
from tools.chaos.network import child_environment, why_no_lossy_link
from tools.chaos.watchdog import deferred_signals


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


@pytest.mark.cluster
def test_a_session_that_is_ended_from_outside_is_lost_and_its_worker_registers_again(zookeeper_address: str) -> None:
    with ZooKeeperSession(zookeeper_address) as session, WorkerRegistration(session, "w", {}, group="chaos") as worker:
        before = session.get(worker.path)
        assert before is not None
        expire_session(zookeeper_address, before.owner)
        until(lambda: worker.renewed == 1, "the worker's node is written again")
        after = session.get(worker.path)
        assert after is not None and after.owner != before.owner
        with pytest.raises(TrackerError, match="knows no session"):
            expire_session(zookeeper_address, before.owner)


def test_a_session_that_its_owner_takes_back_is_taken_over_until_it_has_ended() -> None:
    """A server that leaves the first connection before any answer, the second after one, and then knows it no more."""
    granted, unknown = (struct.pack(">iiiqi16s", 36, 0, time_out, 7, 16, b"") for time_out in (10_000, 0))
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer(answers: Iterable[bytes]) -> int:
            for number, said in enumerate(answers):
                connection, _ = server.accept()
                with connection:
                    if not connection.recv(4096):
                        return number
                    connection.sendall(said)
            return number + 1

        host, port = server.getsockname()
        server.settimeout(30)
        asked = pool.submit(answer, [b"", granted, unknown])
        expire_session(f"{host}:{port}", 7)
        assert asked.result(30) == 3
        asked = pool.submit(answer, itertools.repeat(granted))
        with pytest.raises(TrackerError, match="its owner takes it back every time"):
            expire_session(f"{host}:{port}", 7, deadline_seconds=1.0)
        socket.create_connection((host, port), timeout=30).close()
        assert asked.result(30) > 1


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(TrackerError, match=r"0x1 at Zookeeper 127\.0\.0\.1:1 could not be ended"):
        expire_session("127.0.0.1:1", 1)


LINK = """
import socket, subprocess, sys
from tools.chaos.network import HOST, LossyLink, enter_own_namespaces
enter_own_namespaces(network=True)
link, server = LossyLink(0, 5), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((HOST, 7))
server.settimeout(1.0)
SEND = '''
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(200):
    sender.sendto(b"x", (sys.argv[1], 7))
'''
counts = []
for loss in (0, 0.05, 1, 0):
    link.set_loss(loss)
    subprocess.run(link.command([sys.executable, "-c", SEND, HOST]), check=True, timeout=60)
    got = 0
    try:
        while got < 200:
            server.recv(10)
            got += 1
    except TimeoutError:
        pass
    counts.append(got)
link.close()
server.close()
print(*counts)
"""


@pytest.mark.skipif(os.geteuid() != 0 or why_no_lossy_link() != "", reason=f"no links here: {why_no_lossy_link()}")
def test_a_link_carries_loses_and_cuts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "link.py"
    script.write_text(LINK)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=child_environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    whole, lossy, cut, restored = map(int, done.stdout.split())
    assert (whole, cut, restored) == (200, 0, 200)
    assert 170 <= lossy < 200
    links = Path("/proc/net/dev").read_text(encoding="ascii")
    assert "dl4jnear" not in links


CUT = """
import socket
from tools.chaos.network import HOST, MEMBER_HOST, cut_off_member, enter_own_namespaces
enter_own_namespaces(network=True)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((MEMBER_HOST, 7))
server.settimeout(1.0)
member, client = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
member.bind((HOST, 0))
counts = []
for cut in (False, True, False):
    if counts:
        cut_off_member(cut=cut)
    got = []
    for name, sender in (("member", member), ("client", client)):
        try:
            sender.sendto(name.encode(), (MEMBER_HOST, 7))
            got.append(server.recv(10).decode())
        except OSError:  # refused at once, or nothing came
            pass
    counts.append("+".join(got))
print(*counts)
"""


@pytest.mark.skipif(os.geteuid() != 0 or why_no_lossy_link() != "", reason=f"no links here: {why_no_lossy_link()}")
def test_a_member_is_cut_off_from_members_and_not_from_clients(tmp_path: Path) -> None:
    script = tmp_path / "cut.py"
    script.write_text(CUT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=child_environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["member+client", "client", "member+client"]


WATCHED = """
import subprocess, sys
from pathlib import Path
from tools.chaos.watchdog import Watchdog
watchdog = Watchdog(Path(sys.argv[1]), temporary=len(sys.argv) > 2)
kept, waited = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
watchdog.send(f"+{kept.pid}")
watchdog.send(f"+{waited.pid}")
waited.kill()
waited.wait()
watchdog.send(f"-{waited.pid}")
print(kept.pid, flush=True)
input()
"""


@pytest.mark.parametrize("temporary", [False, True])
def test_what_a_killed_run_has_started_is_ended_all_the_same(tmp_path: Path, temporary: bool) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(folder), *(["temporary"] if temporary else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    ) as run:
        assert run.stdout is not None
        started = psutil.Process(int(run.stdout.readline()))
        run.kill()
        run.communicate(timeout=60)
    assert psutil.wait_procs([started], timeout=60)[1] == []
    if temporary:
        until(lambda: not folder.exists(), "the folder is removed")
    assert folder.exists() is not temporary


def test_a_signal_waits_until_a_new_process_is_written_down() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with deferred_signals():
            signal.raise_signal(signal.SIGTERM)
            assert came == []
            done = subprocess.run(
                [sys.executable, "-c", "import signal; signal.raise_signal(signal.SIGTERM)"], timeout=60, check=False
            )
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.returncode == -signal.SIGTERM  # the new process does not inherit the deferral
