"""The user data, executed: cloud-init itself boots a copy of this machine's file system with it, twice.

The first copy becomes the master (Hazelcast, Zookeeper, ``dl4j master``), the second a worker; both install the wheel
from S3 and get their secret from the parameter store, which are moto's. The run trains, and its model is in S3.

Run by ``tests/instance/run``: it needs root, namespaces, a package archive and minutes, so it is no part of the plain
test command.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from dl4jlegacy.aws.boot import own_address
from dl4jlegacy.aws.cluster_spec import HOST_KEYS
from dl4jlegacy.aws.payload import load_payload
from dl4jlegacy.aws.session import Aws
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.nn.dl4j.serializer import restore_multi_layer_network
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession, registered_workers
from tests.aws.test_cluster import SPEC
from tests.support.aws_fixtures import FaultProxy
from tests.support.debian_packages import missing_for, unpack

HERE = Path(__file__).parent
MINUTES = 8
_CLOUD = """\
datasource_list: [NoCloud]
datasource: {NoCloud: {fs_label: null}}
network: {config: disabled}
disable_root: false
ssh_deletekeys: true
cloud_init_modules: [bootcmd, write-files, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [package-update-upgrade-install, scripts-user]
system_info: {distro: debian, paths: {cloud_dir: /var/lib/cloud}}
"""
"""Debian's configuration of cloud-init, without what would touch disks, users and the network of this machine."""


class Instance:
    """A copy of this machine that boots with user data."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.log, self.process = folder / "log", process

    def said(self, name: str) -> str:
        path = self.log / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def everything_said(self) -> str:
        names = [path.name for path in sorted(self.log.iterdir()) if path.is_file()]
        return "\n".join(f"--- {name}\n{self.said(name)[-3000:]}" for name in names)

    def wait(self, what: str, condition: Callable[[], object], seconds: float = MINUTES * 60.0) -> None:
        """Wait until something is so; what went wrong is in what it has said."""
        pause, waited = threading.Event(), 0.0
        while not condition():
            assert waited < seconds, f"not within {seconds} s: {what}\n{self.everything_said()}"
            assert self.process.poll() is None, f"it ended before {what}\n{self.everything_said()}"
            failed = re.search(r"^failed:.*", self.said("cloud-init-stages.log"), flags=re.M)
            assert not failed, f"cloud-init {failed}\n{self.everything_said()}"
            pause.wait(0.5)
            waited += 0.5


@pytest.fixture(scope="session")
def cloud_init(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian's cloud-init, unpacked."""
    folder = tmp_path_factory.mktemp("cloud-init")
    wanted = [name for name in missing_for("cloud-init", folder) if name == "cloud-init" or name.startswith("python3-")]
    return unpack(wanted, folder) if wanted else Path("/nowhere")


@contextmanager
def booted(
    name: str, user_data: str, folder: Path, cloud_init: Path, environment: dict[str, str]
) -> Iterator[Instance]:
    """An instance that boots; ended with all its processes."""
    for part in ("memory", "copy", "log", "files/usr/bin", "files/usr/local/sbin", "files/etc/cloud"):
        (folder / part).mkdir(parents=True)
    files = folder / "files"
    if cloud_init.is_dir():
        shutil.copytree(cloud_init, files, symlinks=True, dirs_exist_ok=True)
    for command in ("systemctl", "systemd-run"):
        shutil.copy2(HERE / "simulated_systemctl", files / "usr/bin" / command)
    shutil.copy2(HERE / "boot-cloud-init", files / "usr/local/sbin")
    (files / "etc/cloud/cloud.cfg").write_text(_CLOUD, encoding="utf-8")
    seed = files / "var/lib/cloud/seed/nocloud"
    seed.mkdir(parents=True)
    (seed / "user-data").write_text(user_data, encoding="utf-8")
    (seed / "meta-data").write_text(json.dumps({"instance-id": name, "local-hostname": name}), encoding="utf-8")
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", str(HERE / "boot"), str(folder)]
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    passed = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.lower().endswith("_proxy")}
    env = {**passed, **environment, "PATH": path, "HOME": "/root", "LANG": "C.UTF-8"}
    with (
        (folder / "log" / "boot").open("wb") as said,
        subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=said, stderr=said) as process,
    ):
        try:
            yield Instance(folder, process)
        finally:
            process.kill()
            process.wait(60)


def registered(zookeeper: str, secret: bytes) -> bool:
    try:
        with ZooKeeperSession(zookeeper, secret=secret) as session:
            return bool(registered_workers(session))
    except Dl4jError:
        return False  # not up yet


def test_the_user_data_makes_a_master_and_a_worker_that_train(
    aws: Aws, aws_environment: FaultProxy, image: str, cloud_init: Path, tmp_path: Path, monkeypatch
) -> None:
    assert os.geteuid() == 0, "this check needs root: it mounts a copy of the root file system"
    setup = ClusterSetup(aws, "digits", list_workers=lambda setup, master: ["the one that is about to be started"])
    run = ("--model", "dbn", "--dataset", "digits", "--jobs-per-round", "2", "--epochs", "30", "--seed", "7")
    setup.up(replace(SPEC, ami=image, workers=1, threads=2, run=run), load_payload())
    data = [base64.b64decode(r.parameters["UserData"]).decode() for r in aws_environment.calls("RunInstances")]
    [theirs] = re.findall(r"--zookeeper (\S+):2181 --workers", data[1])
    data[1] = data[1].replace(theirs, own_address())
    secret = setup.resources.read_secret()
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    with ExitStack() as stack:
        master, worker = (
            stack.enter_context(booted(name, text, tmp_path / name, cloud_init, environment))
            for name, text in zip(("master", "worker"), data, strict=True)
        )
        for instance in (master, worker):
            instance.wait("boot", lambda instance=instance: (instance.log / "booted").exists())
            assert instance.said("dl4j-install.log") == ""
            assert "systemd-run --unit=dl4j-end --on-active=" in instance.said("systemctl-calls")
            assert secret.decode() not in instance.everything_said()
        me = aws.client("sts").get_caller_identity()["UserId"]  # no role's: it is whoever runs this
        keys = aws.client("s3").get_object(Bucket=setup.names.bucket, Key=HOST_KEYS + me)["Body"].read().decode()
        assert "ssh-ed25519 " in keys
        worker.wait("a worker has registered", lambda: registered(f"{own_address()}:2181", secret))
        master.wait("model", lambda: "models-of-mine" in master.said("dl4j-master.service.log"))
    aws.client("s3").download_file("models-of-mine", "dbn.zip", str(tmp_path / "dbn.zip"))
    assert restore_multi_layer_network(tmp_path / "dbn.zip").num_params > 1000
    setup.down()
