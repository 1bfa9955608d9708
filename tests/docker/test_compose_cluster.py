"""The compose file on a real Docker engine: trains, scales, survives, stops, and leaves nothing. ``docker/test.sh``."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.docker_engine import Engine, Unavailable, an_engine
from tests.docker.docker_images import provide, settings_of_pip

REPOSITORY = Path(__file__).parent.parent.parent
COMPOSE = REPOSITORY / "docker" / "docker-compose.yml"
TRAIN = "--model dbn --dataset digits --seed 7"
LONG = f"{TRAIN} --pretrain-epochs 2 --epochs 45"
"""A run that lasts long enough to be disturbed."""
MOST_BYTES = 600_000_000
MOST_SECONDS = 2.0

pytestmark = pytest.mark.docker


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """An engine with the images in it; where there is none, ``docker/test.sh`` has said so already."""
    try:
        with an_engine() as engine:
            yield engine
    except Unavailable as unavailable:
        pytest.skip(f"the cluster of containers cannot be tested here: {unavailable}")


@pytest.fixture(scope="session")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The project's image, built as the compose file says."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    dockerfile = (REPOSITORY / "docker" / "Dockerfile").read_text()
    [base] = re.findall(r"^ARG PYTHON_IMAGE=(\S+)", dockerfile, re.MULTILINE)
    servers = {service["image"] for service in services.values() if not service["image"].startswith("dl4jlegacy:")}
    zookeeper = services["zookeeper"]["image"]
    default = zookeeper.removeprefix("${DL4J_ZOOKEEPER_IMAGE:-").removesuffix("}")
    there = provide(engine, sorted({base, default} | servers - {zookeeper}))
    for name, (_, origin) in there.items():
        print(f"{name}: {origin}")
    engine.environ["DL4J_ZOOKEEPER_IMAGE"] = there[default][0]
    pip = tmp_path_factory.mktemp("pip") / "pip.conf"
    pip.write_text(settings_of_pip())
    python = f"PYTHON_IMAGE={there[base][0]}"
    compose = ["compose", "--file", str(COMPOSE), "build", "--quiet", "--build-arg", python, "master"]
    engine.docker(*compose, seconds=900, DL4J_PIP_CONF=str(pip))
    return str(services["master"]["image"])


class Containers:
    """One project of Compose: a cluster with containers, volumes and networks of its own."""

    def __init__(self, engine: Engine, train: str) -> None:
        self.engine, self.name = engine, f"dl4j-test-{uuid.uuid4().hex[:8]}"
        self.environ = {"DL4J_TRAIN": train, "COMPOSE_PROJECT_NAME": self.name}

    def __call__(self, *arguments: str, seconds: float = 120.0, check: bool = True) -> str:
        return self.engine.docker(
            *("compose", "--file", str(COMPOSE), *arguments), seconds=seconds, check=check, **self.environ
        ).stdout

    def states(self) -> dict[str, dict[str, Any]]:
        """All containers' states by the name of the service and their number."""
        lines = self("ps", "--all", "--format", "json").splitlines()
        containers = [json.loads(line) for line in lines]
        return {c["Name"].removeprefix(f"{self.name}-"): c for c in containers}

    def exit_codes(self) -> dict[str, int]:
        """Those of the containers that have ended."""
        return {name: c["ExitCode"] for name, c in self.states().items() if c["State"] == "exited"}

    def status(self) -> dict[str, Any]:
        """What ``dl4j status`` says in a worker's container; {} if there is no run to be asked about."""
        said = self("exec", "-T", "worker", "dl4j", "status", "--format", "json", check=False)
        return dict(json.loads(said)) if said else {}

    def left(self) -> list[str]:
        """Everything that the engine still has of this project."""
        of_project = ["--quiet", "--filter", f"label=com.docker.compose.project={self.name}"]
        kinds = (["ps", "--all"], ["network", "ls"], ["volume", "ls"])
        return [f"{kind[0]} {line}" for kind in kinds for line in self.engine.docker(*kind, *of_project).stdout.split()]


@pytest.fixture
def containers(engine: Engine, image: str) -> Iterator[Callable[[str], Containers]]:
    """Starts nothing yet; at the end all is taken down, and must be gone."""
    made: list[Containers] = []

    def make(train: str) -> Containers:
        made.append(Containers(engine, train))
        return made[-1]

    yield make
    for project in made:
        project("down", "--volumes", "--timeout", "30", seconds=120)
        assert project.left() == []


def until(condition: Callable[[], Any], what: str, seconds: float = 90.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
    return value


def embedded(engine: Engine, image: str, train: str) -> str:
    """The hash of the parameters that one process comes to, without any cluster."""
    flags = ["run", "--rm", "--read-only", "--tmpfs", "/tmp", "--network", "none", image]
    done = engine.docker(*flags, "dl4j", "train", *train.split(), "--jobs-per-round", "4", "--format", "json")
    return str(json.loads(done.stdout)["params_sha256"])


def reported(text: str) -> str:
    [sha256] = re.findall(r"params +sha256 ([0-9a-f]{64})", text)
    assert "batches" in text and "lost 0, duplicated 0" in text
    return str(sha256)


# --- the image --------------------------------------------------------------------------------------------------------


def test_the_image_is_small_and_starts_in_under_two_seconds(
    engine: Engine, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    size = int(engine.docker("image", "inspect", image, "--format", "{{.Size}}").stdout)
    seconds = []
    for _ in range(7):
        began = time.monotonic()
        engine.docker("run", "--rm", "--read-only", "--tmpfs", "/tmp", "--network", "none", image, "dl4j", "--help")
        seconds.append(time.monotonic() - began)
    with capsys.disabled():
        print(f"\n{image}: {size / 1e6:.0f} MB, starts, says `dl4j --help` and ends in", end=" ")
        print(
            f"{statistics.median(seconds):.2f} s (median of {len(seconds)}, {min(seconds):.2f} to {max(seconds):.2f})"
        )
    assert size < MOST_BYTES
    assert statistics.median(seconds) < MOST_SECONDS


def test_the_kernels_come_compiled(engine: Engine, image: str) -> None:
    script = "start.sh true && find $HOME/kernels -name '*.nbc' | wc -l && "
    script += "start.sh dl4j train --model dbn --dataset digits --epochs 1 --pretrain-epochs 1 >/dev/null 2>&1 && "
    script += "find $HOME/kernels -name '*.nbc' | wc -l"
    flags = ["run", "--rm", "--read-only", "--tmpfs", "/tmp", "--network", "none", "--entrypoint", "sh", image]
    before, after = engine.docker(*flags, "-c", script).stdout.split()
    assert int(before) == int(after) > 0


def test_it_runs_as_nobody_in_particular_and_can_write_nowhere_but_in_tmp(engine: Engine, image: str) -> None:
    script = "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs):' /proc/self/status; "
    script += "for d in / /opt/dl4j /etc /usr /home /var; do touch $d/x 2>&1; done; touch $HOME/x && echo wrote"
    flags = [
        "run",
        "--rm",
        "--read-only",
        "--tmpfs",
        "/tmp",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
    ]
    said = engine.docker(*flags, "--entrypoint", "sh", image, "-c", script).stdout
    uid, *capabilities = said.split("\n")[:4]
    assert uid == "10001"
    assert [line.split()[1] for line in capabilities] == ["0" * 16, "0" * 16, "1"]
    assert said.count("Read-only file system") == 6 and said.endswith("wrote\n")


def test_neither_secret_nor_settings_of_the_build_are_in_the_image(engine: Engine, image: str) -> None:
    script = "ls -A /run/secret /etc/pip.conf /opt/dl4j/bin/pip 2>&1"
    said = engine.docker("run", "--rm", "--entrypoint", "sh", image, "-c", script, check=False).stdout
    assert "pip.conf': No such file" in said and "bin/pip': No such file" in said
    assert said.splitlines()[-1] == "/run/secret:"


# --- the cluster ------------------------------------------------------------------------------------------------------


def test_compose_up_trains_prints_the_evaluation_and_ends(
    engine: Engine, image: str, containers: Callable[[str], Containers], tmp_path: Path
) -> None:
    cluster = containers(TRAIN)
    said = cluster("up", seconds=300)
    assert "Accuracy:" in said and "Confusion Matrix" in said
    assert reported(said) == embedded(engine, image, TRAIN)
    services = until(lambda: len(codes := cluster.exit_codes()) == 9 and codes, "all 9 containers have ended", 30)
    assert set(services.values()) == {0}
    assert not re.search(
        r"[A-Za-z0-9_-]{40,}", re.sub(r"sha256 [0-9a-f]{64}", "", cluster("logs", "prepare", "master"))
    )
    cluster("cp", "master:/models/model.zip", str(tmp_path / "model.zip"))
    again = ["run", "--rm", "--no-deps", "master", "dl4j", "evaluate", "/models/model.zip", "--dataset", "digits"]
    result = json.loads(cluster(*again, "--format", "json"))
    assert f"accuracy  {result['accuracy']:.4f}" in said
    assert (tmp_path / "model.zip").stat().st_size > 10_000


def test_containers_run_with_the_rights_that_the_file_gives_them(containers: Callable[[str], Containers]) -> None:
    cluster = containers(LONG)
    cluster("up", "--detach", "--wait", seconds=180)
    for name, container in cluster.states().items():
        if name == "prepare-1":
            continue
        [found] = json.loads(cluster.engine.docker("inspect", container["ID"]).stdout)
        host = found["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["PortBindings"], name
        published = [publisher["PublishedPort"] for publisher in container["Publishers"] or ()]
        assert container["Health"] == "healthy" and not any(published), name
        service = re.sub(r"-\d+$", "", name)
        uid = cluster("exec", "-T", service, "sh", "-c", "grep ^Uid: /proc/1/status").split()[1]
        assert uid in ("1000", "10001"), name
        refused = cluster("exec", "-T", service, "sh", "-c", "touch /x 2>&1 || true")
        assert "Read-only file system" in refused, name


def test_workers_are_added_the_master_is_killed_and_a_member_restarted_in_mid_run(
    engine: Engine, image: str, containers: Callable[[str], Containers]
) -> None:
    cluster = containers(LONG)
    cluster("up", "--detach", seconds=180)
    until(lambda: (cluster.status().get("round") or 0) > 20, "the run has begun")
    cluster("up", "--detach", "--no-recreate", "--scale", "worker=4", seconds=120)
    until(lambda: len(cluster.status().get("workers", [])) == 4, "four workers")
    before = cluster.status()["master"]["host"]
    cluster("kill", "master")
    until(lambda: (cluster.status().get("master") or {}).get("host", before) != before, "the standby has taken over")
    cluster("restart", "hazelcast-2")
    until(lambda: cluster.states()["hazelcast-2-1"]["Health"] == "healthy", "the member is back")
    in_round = cluster.status().get("round") or 0
    assert until(lambda: (cluster.status().get("round") or 10**6) > in_round, "the run goes on")
    cluster("scale", "worker=3")
    cluster("wait", "standby", seconds=300)
    until(lambda: len(cluster.exit_codes()) == 10, "all 10 containers have ended", 30)
    codes = cluster.exit_codes()
    assert codes.pop("master-1") == 137
    assert set(codes.values()) == {0}
    assert reported(cluster("logs", "--no-log-prefix", "standby")) == embedded(engine, image, LONG)


def test_all_stop_within_thirty_seconds_and_the_run_goes_on_where_it_was(
    engine: Engine, image: str, containers: Callable[[str], Containers]
) -> None:
    cluster = containers(LONG)
    cluster("up", "--detach", seconds=180)
    until(lambda: (cluster.status().get("round") or 0) > 20, "the run has begun")
    cluster("stop", seconds=120)
    codes = cluster.exit_codes()
    assert len(codes) == 9 and 137 not in codes.values(), codes  # 137: killed, because it took longer than that
    servers = ["prepare", "zookeeper", "hazelcast-1", "hazelcast-2", "hazelcast-3"]
    cluster("up", "--detach", "--wait", "--no-recreate", *servers[1:], seconds=180)
    cluster("up", "--detach", "--no-recreate", "worker", seconds=180)
    again = ["run", "--rm", "--no-deps", "master", "lead.sh", "dl4j", "resume", "master", "--out", "/models/model.zip"]
    assert reported(cluster(*again, seconds=300)) == embedded(engine, image, LONG)


def test_what_the_engine_makes_of_the_file_is_what_is_written_there(engine: Engine) -> None:
    command = ["compose", "--file", str(COMPOSE), "--profile", "*", "config", "--format", "json"]
    services = json.loads(engine.docker(*command).stdout)["services"]
    assert set(services) == set(yaml.safe_load(COMPOSE.read_text())["services"])


def test_the_script_says_why_it_cannot_run_where_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\necho 'no engine here' >&2\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho 'no Debian here' >&2\nexit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environ["PYTHON"] = sys.executable
    script = str(REPOSITORY / "docker" / "test.sh")
    done = subprocess.run([script], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "cannot be tested here: docker version fails: no engine here" in done.stderr
