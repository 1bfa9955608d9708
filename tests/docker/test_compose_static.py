"""What can be known of ``docker/`` without a Docker engine; ``test_compose_cluster`` runs it."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from dl4jlegacy import MultiLayerNetwork, write_model
from dl4jlegacy.nn.zoo import mlp
from dl4jlegacy.services.jars import pinned_jars
from dl4jlegacy.services.settings import member_settings
from dl4jlegacy.version import __version__

REPOSITORY = Path(__file__).parent.parent.parent
DOCKER = REPOSITORY / "docker"
TOP = {"services", "networks", "volumes", "secrets", "configs", "name"}
SERVICE = {  # what the Compose specification has, as far as it is used here
    *("attach", "build", "cap_drop", "command", "depends_on", "deploy", "entrypoint", "environment", "healthcheck"),
    *("image", "logging", "mem_limit", "network_mode", "networks", "pids_limit", "ports", "profiles", "read_only"),
    *("restart", "security_opt"),
    *("stop_grace_period", "tmpfs", "user", "volumes", "working_dir"),
}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+(-[a-z0-9.-]+)?(@sha256:[0-9a-f]{64})?")
SECRET_NAME = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIAL|_KEY", re.IGNORECASE)


def interpolated(text: str, environ: dict[str, str]) -> str:
    """Replace ``${NAME:-default}`` as Compose does."""
    return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: environ.get(m[1]) or m[2] or "", text)


def compose(environ: dict[str, str] | None = None) -> dict[str, Any]:
    """The compose file as Compose reads it, without the parts that only others refer to."""
    read = yaml.safe_load(interpolated((DOCKER / "docker-compose.yml").read_text(), environ or {}))
    return {key: value for key, value in read.items() if not key.startswith("x-")}


def defaults() -> dict[str, str]:
    lines = (DOCKER / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))  # type: ignore[misc]


# --- what may be wrong with a compose file ----------------------------------------------------------------------------


def faults(file: dict[str, Any]) -> list[str]:
    """Everything that is wrong with a compose file; each line names the service."""
    found = [f"unknown section {key}" for key in set(file) - TOP]
    for name, service in file["services"].items():
        checks = (_schema, _references, _pins, _ports, _rights, _networks, _secrets)
        found += [f"{name}: {fault}" for check in checks for fault in check(service, file)]
    return found


def _schema(service: dict[str, Any], file: dict[str, Any]) -> Iterator[str]:
    for key in set(service) - SERVICE:
        yield f"{key} is not known"
    if "network_mode" in service and "networks" in service:
        yield "network_mode and networks exclude each other"
    for other, how in service.get("depends_on", {}).items():
        if how.get("condition") not in CONDITIONS:
            yield f"depends on {other} under an unknown condition"


def _references(service: dict[str, Any], file: dict[str, Any]) -> Iterator[str]:
    named = {
        "services": list(service.get("depends_on", {})),
        "networks": service.get("networks", []),
        "volumes": [v.split(":")[0] for v in service.get("volumes", []) if not v.startswith((".", "/"))],
        "secrets": service.get("build", {}).get("secrets", []),
    }
    for section, names in named.items():
        yield from (f"{section} has no {name}" for name in names if name not in file.get(section, {}))


def _pins(service: dict[str, Any], file: dict[str, Any]) -> Iterator[str]:
    if not PINNED.fullmatch(service.get("image", "")):
        yield f"image {service.get('image')} is not pinned to a version"


def _ports(service: dict[str, Any], file: dict[str, Any]) -> Iterator[str]:
    for port in service.get("ports", []):
        host = port.get("host_ip") if isinstance(port, dict) else str(port).rpartition(":")[0].rpartition(":")[0]
        if host not in ("127.0.0.1", "[::1]"):
            yield f"port {port} is open to other machines"


def _rights(service: dict[str, Any], file: dict[str, Any]) -> Iterator[str]:
    if str(service.get("user", "")).split(":")[0] in ("", "0", "root"):
        yield "runs as root"
    if service.get("read_only") is not True:
        yield "can write to its root file system"
    if service.get("cap_drop") != ["ALL"] or service.get("cap_add") or service.get("privileged"):
        yield "has capabilities"
    if "no-new-privileges:true" not in service.get("security_opt", []):
        yield "can get new privileges"
    if service.get("network_mode") == "host" or any("docker.sock" in v for v in service.get("volumes", [])):
        yield "reaches the host"
    if service.get("stop_grace_period") != "30s":
        yield "is not given 30 s to stop"
    if not re.fullmatch(r"[1-9]\d*[mg]", str(service.get("mem_limit", ""))):
        yield "may take all memory"
    if not 0 < int(service.get("pids_limit", 0)) <= 4096:
        yield "may start any number of processes"


def _networks(service: dict[str, Any], file: dict[str, Any]) -> Iterator[str]:
    there = {name: file["networks"].get(name) or {} for name in service.get("networks", ())}
    if not there and service.get("network_mode") != "none":
        yield "is in Compose's default network"
    if service.get("command", "")[:7] != "lead.sh" and not all(net.get("internal") for net in there.values()):
        yield "can reach the world"


def _secrets(service: dict[str, Any], file: dict[str, Any]) -> Iterator[str]:
    for key, value in service.get("environment", {}).items():
        if SECRET_NAME.search(key) and not str(value).startswith("/run/"):
            yield f"{key} is in the file"


# --- the file ---------------------------------------------------------------------------------------------------------


def test_nothing_is_wrong_with_the_compose_file() -> None:
    assert faults(compose()) == []
    assert faults(compose(defaults())) == []


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(file: dict[str, Any]) -> None:
        *folders, last = path.split("/")
        place = file
        for folder in folders:
            place = place[folder]
        if value is None:
            del place[last]
        else:
            place[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("extras", {}, "unknown section extras"),
        ("services/worker/comand", "x", "worker: comand is not known"),
        ("services/zookeeper", None, "master: services has no zookeeper"),
        ("services/zookeeper/image", "zookeeper:3.9", "zookeeper: image zookeeper:3.9 is not pinned"),
        ("services/zookeeper/ports", ["0.0.0.0:2181:2181"], "zookeeper: port 0.0.0.0:2181:2181 is open"),
        ("services/master/user", None, "master: runs as root"),
        ("services/worker/networks", None, "worker: is in Compose's default network"),
        ("networks/cluster/internal", False, "hazelcast-1: can reach the world"),
        ("services/master/environment", {"DL4J_SECRET": "abc"}, "master: DL4J_SECRET is in the file"),
    ],
)
def test_a_fault_of_each_kind_is_seen(path: str, value: Any, fault: str) -> None:
    file = copy.deepcopy(compose())
    change(path, value)(file)
    assert [line for line in faults(file) if line.startswith(fault)], faults(file)


def test_a_port_on_loopback_is_none() -> None:
    file = compose()
    file["services"]["zookeeper"]["ports"] = ["127.0.0.1:2181:2181", {"host_ip": "127.0.0.1", "target": 1}]
    assert faults(file) == []


def test_the_profiles_are_cpu_gpu_and_dev_and_cpu_is_taken_for_granted() -> None:
    services = compose()["services"]
    assert {p for service in services.values() for p in service.get("profiles", [])} == {"cpu", "gpu", "dev"}
    assert defaults()["COMPOSE_PROFILES"] == "cpu"
    assert services["worker"]["profiles"] == ["cpu"] and services["worker"]["deploy"]["replicas"] == 2
    [device] = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]


def test_the_defaults_in_the_two_files_are_the_same() -> None:
    assert compose(defaults()) == compose()


def test_the_master_listens_where_the_workers_are() -> None:
    services = compose()["services"]
    for name in ("master", "standby"):
        [alias] = services[name]["networks"]["cluster"]["aliases"]
        assert f"--bind {alias} " in services[name]["command"] and alias not in services
        assert services[name]["networks"]["outside"] is None


def test_a_member_may_take_twice_its_heap() -> None:
    defaults_ = defaults()
    heap, memory = defaults_["DL4J_HEAP"], defaults_["DL4J_MEMBER_MEMORY"]
    assert (heap[-1], memory[-1]) == ("m", "g") and int(memory[:-1]) * 1024 >= 2 * int(heap[:-1])


def test_no_secret_is_in_any_file() -> None:
    for path in DOCKER.rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith("requirements"):
            assert not re.search(r"(password|secret|token)\s*[:=]\s*[\"']?[A-Za-z0-9+/_-]{12,}", path.read_text(), re.I)
    assert not [key for key in defaults() if SECRET_NAME.search(key)]


def test_only_those_who_take_part_in_the_run_see_its_secret() -> None:
    services = compose()["services"]
    with_secret = {n for n, s in services.items() if any(v.startswith("secret:") for v in s.get("volumes", []))}
    assert with_secret == {"prepare", "master", "standby", "worker", "worker-gpu"}
    assert all("secret:/run/secret:ro" in services[name]["volumes"] for name in with_secret - {"prepare"})


# --- versions ---------------------------------------------------------------------------------------------------------


def test_the_images_are_of_the_versions_that_everything_else_is() -> None:
    services = compose()["services"]
    [hazelcast] = [jar.coordinates.rpartition(":")[2] for jar in pinned_jars("hazelcast")]
    zookeeper = pinned_jars("zookeeper")[0].coordinates.rpartition(":")[2]
    assert {services[f"hazelcast-{n}"]["image"] for n in (1, 2, 3)} == {f"hazelcast/hazelcast:{hazelcast}-slim"}
    assert services["zookeeper"]["image"].partition("@sha256:")[0] == f"zookeeper:{zookeeper}"
    assert services["master"]["image"] == services["worker"]["image"] == f"dl4jlegacy:{__version__}"


def test_the_dockerfile_pins_its_base_and_ends_as_nobody_in_particular() -> None:
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    stages = [line.split() for line in lines if line.startswith("FROM ")]
    assert [stage[3] for stage in stages] == ["build", "base", "serve", "run"], "without --target the last one is built"
    assert {stage[1] for stage in stages} - {stage[3] for stage in stages} == {"${PYTHON_IMAGE}"}
    [base] = [line.removeprefix("ARG PYTHON_IMAGE=") for line in lines if line.startswith("ARG PYTHON_IMAGE=")]
    pinned = PINNED.fullmatch(base)
    assert pinned is not None and pinned[2], "a tag may be given to another image; a digest cannot"
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
    installs = [line for line in lines if "pip" in line and "install " in line and "--no-index" not in line]
    assert installs and all("--require-hashes" in line for line in installs)


# --- the servers' settings --------------------------------------------------------------------------------------------


def test_the_members_are_set_up_as_dl4j_services_does_it() -> None:
    read = yaml.safe_load((DOCKER / "hazelcast.yaml").read_text())["hazelcast"]
    ours = json.loads(member_settings(5701, [5701, 5702, 5703], "dl4j"))["hazelcast"]
    assert read["split-brain-protection"] == ours["split-brain-protection"]
    assert read["map"] == ours["map"] and read["map"]["default"]["backup-count"] == 1
    assert read["jet"] == ours["jet"] and read["metrics"] == ours["metrics"]
    assert read["serialization"] == ours["serialization"]
    assert read["member-attributes"] == {"heap": {**ours["member-attributes"]["heap"], "value": "${dl4j.heap}"}}
    options = compose()["services"]["hazelcast-1"]["environment"]["JAVA_OPTS"]
    heap, said = (re.findall(pattern, options) for pattern in (r"-Xmx(\S+)", r"-Ddl4j\.heap=(\S+)"))
    assert heap == said and len(heap) == 1
    network, here = read["advanced-network"], ours["advanced-network"]
    assert set(network) == set(here) and network["enabled"] is here["enabled"] is True
    for end in (name for name in network if "socket" in name):
        assert network[end] == {key: value for key, value in here[end].items() if key != "interfaces"}
    join = network["join"]
    assert join["multicast"] == {"enabled": False} and join["auto-detection"] == {"enabled": False}
    names = [name for name in compose()["services"] if name.startswith("hazelcast-")]
    assert join["tcp-ip"]["enabled"] is True and join["tcp-ip"]["member-list"] == [f"{name}:6701" for name in names]
    here_only = {"hazelcast.socket.bind.any", "hazelcast.socket.client.bind.any", "hazelcast.logging.type"}
    theirs = {key: str(value).lower() for key, value in read["properties"].items()}
    assert theirs == {key: value for key, value in ours["properties"].items() if key not in here_only}


def test_members_and_masters_have_the_name_that_was_drawn_for_their_cluster(tmp_path: Path) -> None:
    prepare = (DOCKER / "bin" / "prepare.sh").read_text()
    names = []
    for deployment in ("one", "other"):
        over, shown = tmp_path / deployment / "over", tmp_path / deployment / "shown"
        for folder in ("secret", "over"):
            (tmp_path / deployment / folder).mkdir(parents=True)
        shows = ["bash", "-c", 'echo "${HZ_CLUSTERNAME:-}${DL4J_CLUSTER_NAME:-}" >>"$1"', "shows", str(shown)]
        for _ in range(2):  # again for a run that goes on
            subprocess.run(["sh", "-c", prepare.replace("/run/", f"{tmp_path / deployment}/")], check=True, timeout=60)
            assert started("member.sh", shows, over / "over").wait(60) == 0
            assert started("lead.sh", shows, over / "over").wait(60) == 0
        assert (over / "cluster-name").stat().st_mode & 0o777 == 0o444
        [name] = set(shown.read_text().split())
        names.append(name)
    assert all(re.fullmatch(r"dl4j-[0-9a-f]{16}", name) for name in names) and names[0] != names[1]
    assert "cluster-name" not in yaml.safe_load((DOCKER / "hazelcast.yaml").read_text())["hazelcast"]
    services = compose()["services"]
    assert "--cluster-name" not in services["master"]["command"]
    for member in (service for name, service in services.items() if name.startswith("hazelcast-")):
        assert member["entrypoint"] == ["/bin/bash", "/opt/dl4j/member.sh"]
        assert {"over:/run/over:ro", "./bin/member.sh:/opt/dl4j/member.sh:ro"} <= set(member["volumes"])


def test_a_member_without_a_name_does_not_start_under_the_one_that_everybody_knows(tmp_path: Path) -> None:
    assert started("member.sh", ["touch", str(tmp_path / "began")], tmp_path / "over").wait(60) != 0
    assert not (tmp_path / "began").exists()


def test_zookeeper_keeps_its_data_in_volumes_and_has_no_admin_server() -> None:
    lines = dict(line.split("=", 1) for line in (DOCKER / "zoo.cfg").read_text().splitlines())
    mounted = {v.split(":")[1] for v in compose()["services"]["zookeeper"]["volumes"]}
    assert {lines["dataDir"], lines["dataLogDir"]} <= mounted
    assert lines["admin.enableServer"] == "false" and lines["clientPort"] == "2181"


# --- the programs in the image ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def health() -> ModuleType:
    spec = importlib.util.spec_from_file_location("health", DOCKER / "bin" / "health.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


@pytest.mark.parametrize(
    ("state", "port", "healthy"), [("01", "0885", True), ("08", "0885", False), ("01", "1645", False)]
)
def test_a_container_is_healthy_while_it_is_connected_to_zookeeper(
    health: ModuleType, state: str, port: str, healthy: bool
) -> None:
    row = f"   0: 060013AC:BB6E 020013AC:{port} {state} 00000000:00000000 00:00000000 00000000 10001 0 4711\n"
    assert health.connected(HEADER + row, 2181) is healthy
    assert health.connected(HEADER, 2181) is False


def test_the_health_check_of_a_process_without_zookeeper_fails_where_it_should_have_one(tmp_path: Path) -> None:
    def status(**environ: str) -> int:
        command = ["python3", "-ISB", str(DOCKER / "bin" / "health.py")]
        return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, timeout=60).returncode

    assert status(DL4J_ZOOKEEPER="nowhere:1") == 1
    assert status(DL4J_ZOOKEEPER="") == 0


def test_the_image_of_the_server_serves_what_is_named_behind_it_and_is_asked_whether_it_does(tmp_path: Path) -> None:
    stage = (DOCKER / "Dockerfile").read_text().partition("FROM base AS serve\n")[2].partition("FROM ")[0]
    entry, model = (
        json.loads(re.findall(rf"^{word} (\[.*\])$", stage, flags=re.M)[0]) for word in ("ENTRYPOINT", "CMD")
    )
    assert entry[:3] == ["start.sh", "dl4j", "serve"] and (DOCKER / "requirements-serve.txt").exists()
    write_model(MultiLayerNetwork(mlp(4, 3)), tmp_path / "model.zip")
    words = [*entry[2:], *model, "--format", "json"]
    words[words.index("8000")], words[words.index("/models/model.zip")] = "0", str(tmp_path / "model.zip")
    token = {"DL4J_SERVE_TOKEN": "of-a-container-0123"}
    environ = {**os.environ, **token, "PYTHONPATH": str(REPOSITORY)}
    check = [sys.executable, "-ISB", str(DOCKER / "bin" / "serve_health.py")]
    with subprocess.Popen([sys.executable, "-m", "dl4jlegacy", *words], stdout=subprocess.PIPE, env=environ) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["url"].rpartition(":")[2]
        assert subprocess.run([*check, port], timeout=60).returncode == 0
        server.terminate()
        server.communicate(timeout=60)
    silent = subprocess.run([*check, port], capture_output=True, text=True, timeout=60)
    assert silent.returncode == 1 and f"not served at port {port}" in silent.stdout


def started(script: str, command: list[str], over: Path, **environ: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "DL4J_OVER": str(over), **environ}
    return subprocess.Popen([str(DOCKER / "bin" / script), *command], env=env, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("code", "told"), [(0, True), (1, True), (3, True), (4, False), (5, False), (7, False), (143, False)]
)
def test_the_end_of_a_run_is_told_but_not_that_of_a_master_whose_run_can_go_on(
    code: int, told: bool, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    assert started("lead.sh", ["sh", "-c", f"exit {code}"], over).wait(60) == code
    assert over.exists() is told


@pytest.mark.parametrize("is_kept", [True, False])
def test_servers_stay_for_a_run_whose_model_could_not_be_written(is_kept: bool, tmp_path: Path) -> None:
    over, dl4j = tmp_path / "over", tmp_path / "dl4j"
    dl4j.write_text(f'#!/bin/sh\n[ "$*" = status ] && exit {0 if is_kept else 4}\n')
    dl4j.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert started("lead.sh", ["sh", "-c", "exit 8"], over, PATH=path).wait(60) == 8
    assert over.exists() is not is_kept


def test_a_standby_leaves_it_to_the_master_to_tell(tmp_path: Path) -> None:
    over = tmp_path / "over"
    standby = started("lead.sh", ["true"], over, DL4J_LINGER="30")
    over.touch()
    assert standby.wait(60) == 0
    assert started("lead.sh", ["true"], tmp_path / "alone", DL4J_LINGER="1").wait(60) == 0
    assert (tmp_path / "alone").exists()


PATIENT = ["bash", "-c", 'trap "exit 143" TERM; echo >"$1"; while :; do sleep 0.1 & wait; done', "patient"]


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.01)


def test_a_stopped_master_is_told_so_and_tells_nobody(tmp_path: Path) -> None:
    master = started("lead.sh", [*PATIENT, str(tmp_path / "ready")], tmp_path / "over")
    wait_for(tmp_path / "ready")
    master.send_signal(signal.SIGTERM)
    assert master.wait(60) == 143
    assert not (tmp_path / "over").exists()


def test_a_server_ends_with_the_run(tmp_path: Path) -> None:
    server = started("until_over.sh", [*PATIENT, str(tmp_path / "ready")], tmp_path / "over")
    wait_for(tmp_path / "ready")
    (tmp_path / "over").touch()
    assert server.wait(60) == 0


def test_a_server_that_is_stopped_or_fails_says_so(tmp_path: Path) -> None:
    server = started("until_over.sh", [*PATIENT, str(tmp_path / "ready")], tmp_path / "over")
    wait_for(tmp_path / "ready")
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 143
    assert started("until_over.sh", ["sh", "-c", "exit 3"], tmp_path / "over").wait(60) == 3


def test_the_secret_is_made_once_for_the_owner_alone_and_an_earlier_end_is_forgotten(tmp_path: Path) -> None:
    script = (DOCKER / "bin" / "prepare.sh").read_text().replace("/run/", f"{tmp_path}/")
    for folder in ("secret", "over"):
        (tmp_path / folder).mkdir()
    (tmp_path / "over" / "over").touch()
    secrets = []
    for _ in range(2):
        subprocess.run(["sh", "-c", script], check=True, timeout=60)
        secrets.append((tmp_path / "secret" / "secret").read_text())
    assert secrets[0] == secrets[1] and len(secrets[0].strip()) >= 40
    assert (tmp_path / "secret" / "secret").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "over" / "over").exists()
