"""A run over three hosts with addresses of their own: the page's recipe, hosts that are cut off, and a bad link."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dl4jlegacy.services import Services, ServicesState
from tests.support import REPOSITORY
from tests.support.cluster_commands import RUN, Command, embedded, spawn, until
from tests.support.cluster_fixtures import stopped_at_the_end
from tests.support.hosts import Host, Wire, hosts
from tests.support.pages import blocks, commands

pytestmark = [pytest.mark.cluster, pytest.mark.long]

TRACKER, ZOOKEEPER = "hazelcast://10.7.0.1:5701", "10.7.0.1:2181"
SERVED = "dl4j services up --host 10.7.0.1\n"
EPOCHS = "20"
"""Those of a run that goes on, also on a busy machine, until somebody is known to be gone, and then to its end."""
LED = f"--tracker {TRACKER} --zookeeper {ZOOKEEPER} --format json"


def recipe(first: str) -> list[str]:
    """Return the commands of the block that begins so, of the pages on several machines and on a lost one."""
    pages = ("docs/several-machines.md", "docs/lost-machine.md")
    [found] = [commands(block) for page in pages for block in blocks(page) if block.text.startswith(first)]
    return found


class Machines:
    """Three machines, each with a home of its own, on which lines are typed."""

    def __init__(self, there: dict[str, Host], wire: Wire, folder: Path) -> None:
        self.wire, self._hosts, self._folder = wire, there, folder
        self._started: list[Command] = []
        self._numbers = itertools.count()
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # Java's jars are there
        without_secret = {name: value for name, value in os.environ.items() if not name.startswith("DL4J_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**without_secret, "PATH": path, "XDG_CACHE_HOME": cache, "PYTHONUNBUFFERED": "1"}
        for name in there:
            (folder / name).mkdir()

    def home(self, host: str) -> Path:
        return self._folder / host

    def type(self, host: str, line: str) -> Command:
        """Type a line into a terminal of a host, which has what was exported there before."""
        home, number = self.home(host), next(self._numbers)
        own = {"HOME": str(home), "DL4J_SERVICES": str(home / "services")}
        script = f"cd {shlex.quote(str(home))}; export DL4J_SECRET_FILE=~/dl4j.secret; {line}"
        words = [*self._hosts[host].program, "bash", "-c", script]
        command = Command([script], self._folder / f"command-{number}", spawn(words, {**self._environment, **own}))
        self._started.append(command)
        return command

    def done(self, host: str, line: str) -> str:
        """Type a line, wait for its end, which must be a good one, and return what it printed."""
        command = self.type(host, line)
        assert command.wait(120) == 0, f"{line}: {command.err()}"
        return command.out() + command.err()

    def cut(self, host: str, is_cut: bool) -> None:
        self.wire.change(self._hosts[host].address, is_cut=is_cut)

    def end(self) -> None:
        for command in self._started:
            command.end()
        self._started.clear()
        for name in self._hosts:
            self.wire.change(self._hosts[name].address, is_cut=False, seconds=0.0, loss=0.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machines, str]]:
    """Three hosts; the first has the servers, started with the line of the page, and says what others must type."""
    folder = tmp_path_factory.mktemp("hosts")
    with hosts("first", "second", "third") as (there, wire), stopped_at_the_end(folder / "first" / "services"):
        machines = Machines(there, wire, folder)
        try:
            [secret] = [line for line in recipe("(umask 077; set -C; head") if line.startswith("(")]
            machines.done("first", secret)
            for other in ("second", "third"):  # scp
                (machines.home(other) / "dl4j.secret").write_bytes(
                    (machines.home("first") / "dl4j.secret").read_bytes()
                )
                (machines.home(other) / "dl4j.secret").chmod(0o600)
            said = machines.done("first", recipe(SERVED)[0])
            yield machines, said
        finally:
            machines.end()


def test_a_standby_goes_on_when_the_host_of_the_master_and_its_servers_vanishes(tmp_path: Path) -> None:
    """With the lines of the page; nothing tells the others that it is gone, as when a machine loses its power."""
    names, others = ("first", "second", "third"), "10.7.0.1:2181,10.7.0.2:2181,10.7.0.3:2181"
    with contextlib.ExitStack() as stack:
        there, wire = stack.enter_context(hosts(*names))
        for name in names:
            stack.enter_context(stopped_at_the_end(tmp_path / name / "services"))
        machines = Machines(there, wire, tmp_path)
        stack.callback(machines.end)
        for name in names:
            (machines.home(name) / "dl4j.secret").write_text("a secret of this test")
            (machines.home(name) / "dl4j.secret").chmod(0o600)
        for name, line in zip(names, recipe("dl4j services up --host 10.7.0.1 --hosts"), strict=True):
            machines.done(name, line)
        lead, stand_by, work = recipe("dl4j master --model dbn --dataset digits --tracker hazelcast://10.7.0.1:5701,")
        led = machines.type(
            "first", f"exec {lead} {' '.join(RUN[4:])} --epochs {EPOCHS} --format json --log-format json"
        )
        standby = machines.type("second", f"exec {stand_by} --format json")
        workers = [machines.type(host, f"exec {work}") for host in ("second", "third")]
        standby.says("standing by")
        happened(led, "worker_joined", 2)
        machines.done("second", f"dl4j status --zookeeper {others}")
        machines.cut("first", True)
        standby.says("this standby takes over")
        is_right(standby)
        assert [each.wait(180) for each in workers] == [0, 0]


@pytest.fixture
def machines(served: tuple[Machines, str]) -> Iterator[Machines]:
    yield served[0]
    served[0].type("first", f"dl4j stop --zookeeper {ZOOKEEPER}").wait(60)  # what a test that failed has left
    served[0].end()


def master(machines: Machines, host: str = "first") -> Command:
    """Start a master; on another host than that of the servers it is told their cluster's name."""
    state = Services.status(machines.home("first") / "services")
    assert state is not None
    grid = f"{LED} --log-format json --cluster-name {state.cluster_name}"
    return machines.type(host, f"exec dl4j master {' '.join(RUN)} --epochs {EPOCHS} --run r {grid}")


def worker(machines: Machines, host: str) -> Command:
    return machines.type(host, f"exec dl4j worker --zookeeper {ZOOKEEPER}")


def events(master: Command) -> list[str]:
    """Return what has happened in a run so far, as its master says; a last line may be cut short."""
    lines = [line for line in master.err().split("\n")[:-1] if line.startswith("{")]
    return [json.loads(line).get("event", "") for line in lines]


def happened(master: Command, event: str, count: int = 1) -> None:
    """Wait until something has happened so often."""
    try:
        until(lambda: events(master).count(event) >= count, what=f"{count} times {event}")
    except AssertionError as exc:
        raise AssertionError(f"{exc}; the master says {master.err()}") from None


def is_right(command: Command) -> None:
    """Wait for the end of a master; its answer must be that of one process, with every batch counted once."""
    assert command.wait(400) == 0, command.err()
    report, expected = json.loads(command.out()), embedded(int(EPOCHS))
    assert report["params_sha256"] == expected["params_sha256"]
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert report["examples"] == expected["examples"]


def test_the_recipe_of_the_page_works_on_three_hosts_as_it_stands(served: tuple[Machines, str]) -> None:
    machines, said = served
    state = Services.status(machines.home("first") / "services")
    assert isinstance(state, ServicesState)
    assert (state.hazelcast, state.zookeeper) == ("10.7.0.1:5701", "10.7.0.1:2181")
    on_others = recipe("export DL4J_SECRET_FILE=~/dl4j.secret\ndl4j worker")
    assert "on every other host" in said and on_others[-1] in said
    shorter = (
        "export DL4J_EPOCHS=10 DL4J_PRETRAIN_EPOCHS=2; "  # which variables may say, so that the line stays as it is
    )
    led = machines.type("first", shorter + recipe(SERVED)[1])
    workers = [machines.type(host, "; ".join(on_others)) for host in ("second", "third")]
    try:
        assert led.wait(400) == 0, led.err()
        assert [each.wait(180) for each in workers] == [0, 0]
        for host, each in zip(("second", "third"), workers, strict=True):
            assert f"worker {host}-" in each.out() + each.err()
        [accuracy] = re.findall(r"Accuracy: +([\d.]+)", led.out())
        assert float(accuracy) > 0.9
        assert (machines.home("first") / "model.zip").exists()
    finally:
        machines.end()


def test_servers_that_find_their_port_taken_name_who_has_it(served: tuple[Machines, str]) -> None:
    machines, _ = served
    again = machines.type("first", "DL4J_SERVICES=~/others dl4j services up --host 10.7.0.1")
    assert again.wait(60) == 4
    assert "port 5701 of 10.7.0.1, which is taken by java, pid " in again.err()
    assert "--hazelcast-port" in again.err()


def test_hosts_that_are_cut_off_and_come_back_change_nothing(machines: Machines) -> None:
    """First a worker's, then that of the servers and the master, which is to all workers as if everything were gone."""
    led = master(machines)
    workers = [worker(machines, host) for host in ("second", "third")]
    happened(led, "worker_joined", 2)
    until(lambda: re.search(r'"round": [1-9]\d', led.err()), what="ten rounds, so that both are heard of")
    machines.cut("second", True)
    happened(led, "worker_gone")
    machines.cut("second", False)
    happened(led, "worker_back")
    assert led.process.poll() is None
    machines.cut("first", True)
    for each in workers:
        each.says("does not answer")
    machines.cut("first", False)
    is_right(led)
    assert [each.wait(180) for each in workers] == [0, 0]


def test_a_master_whose_host_is_cut_off_gives_way_to_its_standby(machines: Machines) -> None:
    led = master(machines, "second")
    workers = [worker(machines, host) for host in ("first", "third")]
    standby = machines.type("third", f"exec dl4j master --standby --zookeeper {ZOOKEEPER} --format json")
    standby.says("standing by")
    happened(led, "worker_joined", 2)
    machines.cut("second", True)
    standby.says("this standby takes over")
    machines.cut("second", False)
    is_right(standby)
    assert led.wait(60) != 0  # it sees that another one leads
    assert [each.wait(180) for each in workers] == [0, 0]


def test_nobody_counts_as_gone_over_a_slow_link_that_loses_packets(machines: Machines) -> None:
    """20 ms each way, and one packet of a hundred."""
    machines.wire.change("10.7.0.3", seconds=0.02, loss=0.01)
    before = machines.wire.lost
    led, workers = master(machines), [worker(machines, host) for host in ("second", "third")]
    happened(led, "worker_joined", 2)
    is_right(led)
    assert [each.wait(180) for each in workers] == [0, 0]
    assert machines.wire.lost > before
    assert events(led).count("worker_joined") == 2
    assert not {"worker_gone", "worker_set_aside"} & set(events(led))


# -- the programs and lines of 2014, and the list of data sets of the successor ----------------------------------------


def program(machines: Machines, host: str, *words: str) -> Command:
    return machines.type(
        host, f"cd {shlex.quote(str(REPOSITORY))}; exec python -m tests.support.distributed_dl4j {' '.join(words)}"
    )


def answer(command: Command) -> dict:
    assert command.wait(120) == 0, command.err()
    said: dict = json.loads(command.out())
    assert (said["lost"], said["twice"]) == (0, 0)
    return said


@pytest.mark.parametrize("data", ["master", "list"])
def test_a_program_of_2014_is_joined_from_another_host_with_the_flags_of_2014(machines: Machines, data: str) -> None:
    """Its data are an iterator, or a list of ``DataSet``s; its run is found by the retriever's three lines."""
    state = Services.status(machines.home("first") / "services")
    assert state is not None
    led = program(machines, "first", data, TRACKER, ZOOKEEPER, state.cluster_name, "10.7.0.1")
    found = program(machines, "third", "retriever", "10.7.0.1")
    assert found.wait(90) == 0, found.err()
    assert json.loads(found.out()) == {"address": "10.7.0.1:5701", "clazz": "DBN", "run": "distributed"}
    other = machines.type("third", "exec actor-network-runner -ad 10.7.0.1 -t worker -a sda")
    assert other.wait(60) == 3
    assert "-a sda: run distributed trains a DBN of its own; leave -a out" in other.err()
    joined = machines.type("second", "exec actor-network-runner -ad 10.7.0.1 -t worker -a dbn")
    spread = answer(led)
    assert joined.wait(60) == 0, joined.err()
    assert spread == answer(program(machines, "third", "alone" if data == "master" else "list-alone"))


def test_the_master_and_the_worker_of_2014_meet_on_two_hosts(machines: Machines) -> None:
    """Both are ``actor-network-runner``; Zookeeper is where it always was, at port 2181 of the master's host."""
    flags = "-a mlp -data iris -hl 8 -fte 3 -sp 10"
    led = machines.type("first", f"exec actor-network-runner -t master -h 10.7.0.1 -stp 5701 {flags}")
    joined = machines.type("second", "exec actor-network-runner -t worker -ad 10.7.0.1 -a mlp")
    assert led.wait(120) == 0, led.err()
    assert "Accuracy" in led.out()
    assert joined.wait(60) == 0, joined.err()
