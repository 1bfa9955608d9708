"""What instances of a cluster with a standby execute, on real servers: three addresses of loopback stand for three."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dl4jlegacy.aws.cluster_bucket import PRESENT_MASTER, PresentMaster, Servers, own_user_id, read_done, write_object
from dl4jlegacy.aws.cluster_spec import MASTER, STANDBY, WITNESS, WORKER
from dl4jlegacy.aws.user_data import InstanceConfig
from dl4jlegacy.services import Services
from dl4jlegacy.services.ports import member_answers, zookeeper_answers
from dl4jlegacy.storage.s3.session import Aws
from tests.aws.test_user_data import MASTER as ALONE
from tests.aws.test_user_data import files
from tests.support.cluster_commands import RUN, SECRET, Command, embedded, spawn, until
from tests.support.cluster_fixtures import QUICK_JAVA, stopped_at_the_end

pytestmark = [pytest.mark.cluster, pytest.mark.long]

HOME = os.environ["HOME"]
EPOCHS, OUT = "2", "s3://models-of-mine/dbn.zip"


class Instance:
    """An instance: its folder is the root of its files, its address one of loopback."""

    def __init__(self, config: InstanceConfig, address: str, folder: Path) -> None:
        self.config, self.address, self.home, self._folder = config, address, folder / "var/lib/dl4j", folder
        self.home.mkdir(parents=True)
        self.started: list[Command] = []

    def execute(self, name: str) -> Command:
        """Execute one of its scripts."""
        script = files(self.config)[f"/usr/local/lib/dl4j/{name}"].replace("/var/lib/dl4j", str(self.home))
        env = {
            **os.environ,
            **QUICK_JAVA,
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "DL4J_ADDRESS": self.address,
            "DL4J_SECRET": SECRET,
            "DL4J_SERVICES": str(self.home / "services"),
        }
        command = Command([script], self._folder / name, spawn(["sh", "-c", script], env))
        self.started.append(command)
        return command

    def lose(self) -> None:
        """End all that runs on it at once."""
        state = Services.status(self.home / "services")
        scripts = [psutil.Process(command.pid) for command in self.started]
        servers = [psutil.Process(pid) for pid in (state.pids.values() if state else ())]
        for process in [
            *scripts,
            *(child for script in scripts for child in script.children(recursive=True)),
            *servers,
        ]:
            process.kill()

    def end(self) -> None:
        for command in self.started:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(command.pid).children(recursive=True):
                    child.kill()
            command.end()


@pytest.fixture
def cluster(aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Instance]]:
    """The instances by their role, and a bucket that says where their servers are."""
    monkeypatch.setenv("HOME", HOME)  # Java's jars are there
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
    run = (*RUN, "--epochs", EPOCHS, "--out", OUT)
    led = replace(ALONE, standby=True, run=run, workers=1, heap="512m")
    there = {
        role: Instance(replace(led, role=role), f"{net}.{number}", tmp_path / role)
        for number, role in enumerate((MASTER, STANDBY, WITNESS, WORKER), 1)
    }
    for bucket in (ALONE.bucket, "models-of-mine"):
        aws.client("s3").create_bucket(Bucket=bucket)
    me = own_user_id(aws)
    present = tuple(PresentMaster(there[role].address, me) for role in (MASTER, STANDBY, WITNESS))
    write_object(aws, ALONE.bucket, PRESENT_MASTER, Servers(present).to_bytes())
    try:
        with (
            stopped_at_the_end(there[MASTER].home / "services"),
            stopped_at_the_end(there[STANDBY].home / "services"),
            stopped_at_the_end(there[WITNESS].home / "services"),
        ):
            yield there
    finally:
        for instance in there.values():
            instance.end()


def test_the_standby_ends_the_run_of_a_master_whose_instance_is_lost(cluster: dict[str, Instance], aws: Aws) -> None:
    for role in (MASTER, STANDBY, WITNESS):
        cluster[role].execute("services")
    for role in (MASTER, STANDBY, WITNESS):
        address = cluster[role].address
        until(lambda address=address: zookeeper_answers(2181, address), 90.0, f"Zookeeper of the {role}")
        if role != WITNESS:
            until(lambda address=address: member_answers(5701, 2, address), 90.0, f"the member of the {role}")
    cluster[MASTER].execute(MASTER)
    standby, worker = cluster[STANDBY].execute(STANDBY), cluster[WORKER].execute(WORKER)
    standby.says("standing_by")
    worker.says("joined")
    cluster[MASTER].lose()
    assert standby.wait(180) == 0, standby.err()
    report, expected = json.loads(standby.out()), embedded(int(EPOCHS))
    assert report["params_sha256"] == expected["params_sha256"]
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert report["model_path"] == OUT
    done = read_done(aws, ALONE.bucket, PresentMaster("", own_user_id(aws)))
    assert done is not None and done.model == OUT  # whereupon all instances end
