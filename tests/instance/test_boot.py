"""The user data, executed by a real systemd and Debian's own cloud-init: machines install, train, and end themselves.

One machine becomes the master (Hazelcast, Zookeeper, ``dl4j master``), another a worker; both install the wheel from S3
and get their secret from the parameter store, which are moto's. What is killed there comes back by itself.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.aws.cluster_bucket import HOST_KEYS, JOURNAL, PRESENT_MASTER, PresentMaster, Servers, own_key
from dl4jlegacy.aws.on_instance import own_address
from dl4jlegacy.aws.payload import load_payload
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.aws.user_data import user_data
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_multi_layer_network
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession, registered_workers
from dl4jlegacy.storage.s3.session import Aws
from tests.aws.test_cluster import SPEC
from tests.aws.test_user_data import WORKER
from tests.instance.machine import SECONDS, booted, debian  # noqa: F401 (a fixture)
from tests.support.aws_fixtures import FaultProxy
from tests.support.cluster_fixtures import QUICK_JAVA

pytestmark = pytest.mark.long

MEMBER = "HazelcastMemberStarter"


def test_a_machine_boots_and_powers_off_when_its_time_is_over(debian: Path, tmp_path: Path) -> None:  # noqa: F811
    """Its end is wound up before the network, and so before anything that may hang: nothing is there to install."""
    with booted("worker", user_data(replace(WORKER, expires=int(time.time()) + 60)), tmp_path, debian) as machine:
        machine.wait("boot", lambda: "dl4j-end.timer" in machine.said("cloud-init-output.log"))
        machine.wait("runcmd", lambda: (machine.root / "var/log/dl4j-install.log").exists())
        machine.wait_until_off()


def test_a_machine_that_is_switched_on_after_its_time_powers_off_at_once(debian: Path, tmp_path: Path) -> None:  # noqa: F811
    with booted("worker", user_data(replace(WORKER, expires=int(time.time()) - 1)), tmp_path, debian) as machine:
        machine.wait_until_off()
        assert not (machine.root / "var/log/dl4j-install.log").exists()


def registered(zookeeper: str, secret: bytes) -> bool:
    try:
        with ZooKeeperSession(zookeeper, secret=secret) as session:
            return bool(registered_workers(session))
    except Dl4jError:
        return False  # not up yet


def stored(aws: Aws, bucket: str, key: str) -> bool:
    return any(found["Key"] == key for found in aws.client("s3").list_objects_v2(Bucket=bucket).get("Contents", ()))


def content(aws: Aws, bucket: str, key: str) -> str:
    return aws.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read().decode()


def test_the_user_data_makes_a_master_and_a_worker_that_train_though_all_of_it_is_killed_once(
    aws: Aws,
    aws_environment: FaultProxy,
    image: str,
    debian: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    setup = ClusterSetup(aws, "digits", list_workers=lambda setup, master: ["the one that is about to be started"])
    run = ("--model", "dbn", "--dataset", "digits", "--jobs-per-round", "2", "--epochs", "3", "--seed", "7")
    setup.up(replace(SPEC, workers=1, processes=2, run=run), load_payload())
    data = [base64.b64decode(r.parameters["UserData"]).decode() for r in aws_environment.calls("RunInstances")]
    me = aws.client("sts").get_caller_identity()["UserId"]  # no role's: it is whoever runs this
    master_here = Servers((PresentMaster(own_address(), me),))
    setup.resources.upload(PRESENT_MASTER, master_here.to_bytes())
    secret = setup.resources.read_secret()
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")} | QUICK_JAVA
    with ExitStack() as stack:
        master = stack.enter_context(booted("master", data[0], tmp_path, debian, environment))
        master.wait("a master", lambda: master.processes("dl4j master"), 2 * SECONDS)
        worker = stack.enter_context(booted("worker", data[1], tmp_path, debian, environment, installed=master))
        machines = (master, worker)
        worker.wait("registration", lambda: registered(f"{own_address()}:2181", secret), 2 * SECONDS)
        worker.kill("dl4j worker")
        [member] = master.processes(MEMBER)
        master.kill(MEMBER)
        master.wait("another member", lambda: master.processes(MEMBER) not in ([], [member]))
        master.kill("dl4j master")
        master.wait("a master that goes on", lambda: master.processes("dl4j resume"))
        worker.wait("a worker that goes on", lambda: worker.processes("dl4j worker"))
        for machine in machines:
            machine.wait("boot", lambda machine=machine: (machine.root / "var/lib/cloud/data/result.json").exists())
            assert machine.said("dl4j-install.log") == ""
            assert secret.decode() not in machine.everything_said()
        keys = content(aws, setup.names.bucket, own_key(me, HOST_KEYS))
        assert "ssh-ed25519 " in keys
        master.wait("model", lambda: stored(aws, "models-of-mine", "dbn.zip") or master.is_off)
        for machine in machines:
            machine.wait_until_off()  # its run is done
    assert setup.resources.run_done().model == SPEC.out
    said = content(aws, setup.names.bucket, own_key(me, JOURNAL))
    assert "dl4j" in said and secret.decode() not in said
    path = tmp_path / "dbn.zip"
    aws.client("s3").download_file("models-of-mine", path.name, str(path))
    # An instance has an environment of its own; here somebody may have chosen OpenBLAS's kernels, which round otherwise
    usual = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    done = subprocess.run(
        [sys.executable, "-m", "dl4jlegacy", "train", *run, "--out", str(tmp_path / "embedded.zip")],
        capture_output=True,
        text=True,
        timeout=600,
        env=usual,
    )
    assert done.returncode == 0, done.stderr
    params = [restore_multi_layer_network(file).params for file in (path, tmp_path / "embedded.zip")]
    np.testing.assert_array_equal(*params)
    setup.down()
