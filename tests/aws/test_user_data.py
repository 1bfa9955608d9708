"""User data: valid for cloud-init itself, for the shell and for systemd; small, and without a secret.

``tests/instance`` executes it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from dl4jlegacy.aws import on_instance
from dl4jlegacy.aws.cluster_spec import buckets_in
from dl4jlegacy.aws.user_data import _KEPT, MOST_NBYTES, InstanceConfig, user_data
from dl4jlegacy.cli.options.read import ResumeOptions
from dl4jlegacy.errors import (
    CloudError,
    ConfError,
    DeadlineError,
    NotAuthorisedError,
    NotEnoughWorkersError,
    TrackerError,
    TrainingError,
    UsageError,
)
from dl4jlegacy.storage.s3.session import Aws
from tests.support.debian_packages import missing_for, unpack

RUN = ("--model", "dbn", "--dataset", "s3://some data/100% $HOME", "--run", "a \"quoted\" name\nand 'another' \\")
MASTER = InstanceConfig(
    role="master",
    cluster="digits",
    region="us-east-1",
    bucket="dl4j-digits-123456789012-us-east-1",
    wheel="dl4jlegacy-0.1.0-py3-none-any.whl",
    wheel_sha256="0" * 64,
    requirements_sha256="1" * 64,
    expires=1_900_000_000,
    run=(*RUN, "--out", "s3://models-of-mine/dbn.zip"),
    workers=4,
)
WORKER = replace(MASTER, role="worker", run=(), processes=8)
STANDBY = replace(MASTER, role="standby", standby=True)
WITNESS = replace(STANDBY, role="witness")
NODES = pytest.mark.parametrize("node", [MASTER, WORKER, STANDBY, WITNESS], ids=lambda node: node.role)


def files(node: InstanceConfig) -> dict[str, str]:
    return {file["path"]: file["content"] for file in yaml.safe_load(user_data(node))["write_files"]}


@pytest.fixture(scope="session")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], tuple[int, str]]:
    """``cloud-init schema``, from Debian's package: tells the exit status and what it says of a file."""
    folder = tmp_path_factory.mktemp("cloud-init")
    wanted = [name for name in missing_for("cloud-init", folder) if name == "cloud-init" or name.startswith("python3-")]
    root = unpack(wanted, folder) if wanted else Path("/")
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    command = [python, str(root / "usr/bin/cloud-init"), "schema", "--config-file"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root / "usr/lib/python3/dist-packages")}

    def checked(path: Path) -> tuple[int, str]:
        done = subprocess.run([*command, str(path)], env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return checked


@pytest.mark.long
@NODES
def test_cloud_init_itself_finds_nothing_wrong(node: InstanceConfig, schema, tmp_path: Path) -> None:
    path = tmp_path / "user-data"
    path.write_text(user_data(node), encoding="utf-8")
    assert schema(path) == (0, f"Valid cloud-config: {path}\n")


def test_what_would_be_too_long_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfError, match=r"master are \d+ bytes, AWS takes 16384; shorten the command line"):
        user_data(replace(MASTER, run=("--dataset", "x" * MOST_NBYTES)))


@NODES
def test_it_is_small_holds_no_secret_and_has_scripts_that_can_be_parsed(node: InstanceConfig, monkeypatch) -> None:
    before = user_data(node)
    assert len(before.encode()) < MOST_NBYTES // 2
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "DL4J_SECRET", "AWS_PROFILE")
    for name in names:
        monkeypatch.setenv(name, f"the-value-of-{name}")
    assert user_data(node) == before
    assert not [name for name in (*names, "PRIVATE KEY") if re.search(rf"{name}\b", before)]
    config, written = yaml.safe_load(before), files(node)
    scripts = [text for text in written.values() if text.startswith("#!/bin/sh\n")]
    for script in (*scripts, *(words[2] for words in config["bootcmd"] + config["runcmd"])):
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
    ast.parse(written["/usr/local/lib/dl4j/fetch.py"])
    assert not re.search(r"@[A-Z]+@", before)


@NODES
def test_what_is_installed_is_held_against_hashes_of_this_package(node: InstanceConfig) -> None:
    config, install = yaml.safe_load(user_data(node)), files(node)["/usr/local/lib/dl4j/install"]
    assert config["packages"] == ["python3-boto3", "python3-venv"]  # apt checks these
    lines = [line.removeprefix("again ") for line in install.splitlines() if "$pip " in line]
    assert lines == [
        "$pip install --require-hashes --only-binary :all: --requirement /var/cache/dl4j/requirements.txt",
        f"$pip install --no-deps --no-index /var/cache/dl4j/{node.wheel}",
        "$pip check",
    ]
    [fetch] = [shlex.split(line) for line in install.splitlines() if "fetch.py" in line]
    wanted = [node.wheel, node.wheel_sha256, "requirements.txt", node.requirements_sha256]
    assert fetch[-6:] == [node.bucket, node.region, *wanted]


@pytest.mark.parametrize(
    ("digest", "ends"),
    [
        ("0" * 64, (1, "", f"requirements.txt in bucket {MASTER.bucket} is not what the cluster was started with\n")),
        pytest.param(hashlib.sha256(b"a lock file").hexdigest(), (0, "", ""), marks=pytest.mark.long, id="Debian's"),
    ],
)
def test_what_is_fetched_has_the_digest_that_the_cluster_was_started_with(
    digest: str, ends: tuple[int, str, str], aws: Aws, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The right one is fetched by Debian's own boto3, as on an instance; it says nothing."""
    python, packages = sys.executable, ""
    if not ends[0]:
        folder = tmp_path_factory.mktemp("boto3")
        wanted = [name for name in missing_for("python3-boto3", folder) if name.startswith("python3-")]
        root = unpack(wanted, folder) if wanted else Path("/")
        python, packages = "/usr/bin/python3", str(root / "usr/lib/python3/dist-packages")
    aws.client("s3").create_bucket(Bucket=MASTER.bucket)
    pairs = [
        ("a.whl", b"a wheel", hashlib.sha256(b"a wheel").hexdigest()),
        ("requirements.txt", b"a lock file", digest),
    ]
    for key, content, told in pairs:
        aws.client("s3").put_object(Bucket=MASTER.bucket, Key=f"{told}/{key}", Body=content)
    command = [python, "-c", files(MASTER)["/usr/local/lib/dl4j/fetch.py"], str(tmp_path), MASTER.bucket, MASTER.region]
    command += [word for key, _, told in pairs for word in (key, told)]
    env = {**os.environ, "PYTHONPATH": packages}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == ends
    assert (tmp_path / "a.whl").read_bytes() == b"a wheel"


@NODES
def test_the_end_is_wound_up_before_anything_else(node: InstanceConfig, tmp_path: Path) -> None:
    config = yaml.safe_load(user_data(node))
    [[shell, flag, script]] = config["bootcmd"]
    assert (shell, flag, next(iter(config))) == ("sh", "-c", "bootcmd")
    for command, does in (("systemctl", 'echo "$@"'), ("systemd-run", 'echo "$@"'), ("date", 'echo "$NOW"')):
        (tmp_path / command).write_text(f"#!/bin/sh\n{does}\n", encoding="ascii")
        (tmp_path / command).chmod(0o755)
    wound_up = "--unit=dl4j-end --timer-property=DefaultDependencies=no --on-active=90s systemctl poweroff\n"
    for now, expected in (
        (1_900_000_000 - 90, wound_up),
        (1_900_000_000, "poweroff\n"),  # its time was over while it was off
        (1_900_000_001, "poweroff\n"),
    ):
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NOW": str(now)}
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, expected)


PROGRAM = ["python", "-m", on_instance.__name__]
HERE = "10.0.0.8"
SERVERS = ["--tracker", "hazelcast://10.0.0.8:5701", "--zookeeper", "10.0.0.8:2181"]
WHERE = [*SERVERS, "--bind", "10.0.0.8", "--log-format", "json"]  # workers of other instances reach it there


class Machine:
    """An instance on which scripts are executed: ``dl4j`` and ``python`` only note their arguments, and end as told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "var/lib/dl4j"
        (folder / "bin").mkdir()
        self.home.mkdir(parents=True)
        self.write("python", "")
        self.write("dl4j", "")

    def write(self, name: str, then: str) -> None:
        """Make a command that notes its arguments, and then does what a script of the shell says."""
        note = "import json, sys; print(json.dumps(sys.argv[2:]), file=open(sys.argv[1], 'a'))"
        text = f'#!/bin/sh\n{sys.executable} -c "{note}" {self.folder}/said {name} "$@"\n{then}\n'
        (self.folder / "bin" / name).write_text(text, encoding="utf-8")
        (self.folder / "bin" / name).chmod(0o755)

    def execute(self, node: InstanceConfig, name: str) -> tuple[int, list[list[str]]]:
        """Return the exit status of a script of an instance, and the commands that it executed."""
        (self.folder / "said").write_text("")
        script = files(node)[f"/usr/local/lib/dl4j/{name}"].replace("/var/lib/dl4j", str(self.home))
        env = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "DL4J_ADDRESS": HERE, "HOME": "/root"}
        done = subprocess.run(["sh", "-c", script], cwd=self.home, env=env, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        said = (self.folder / "said").read_text(encoding="utf-8").replace(str(self.folder), "")
        commands = [json.loads(line) for line in said.splitlines()]
        return done.returncode, [words[1:] if words[0] == "dl4j" else words for words in commands]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_worker_goes_to_the_present_master(machine: Machine) -> None:
    machine.write("python", "echo 10.0.0.77")
    asks = [*PROGRAM, "servers", "us-east-1", WORKER.bucket]
    goes = "worker --zookeeper 10.0.0.77:2181 --workers 1 --wait 600 --log-format json"
    assert machine.execute(WORKER, "worker") == (0, [asks, goes.split()])


@pytest.mark.parametrize("processes", [1, 8])
def test_a_worker_has_a_unit_for_each_of_its_processes(processes: int) -> None:
    told = files(replace(WORKER, processes=processes))
    lines = told["/usr/local/lib/dl4j/install"].splitlines()
    [units] = [line.removeprefix("units=") for line in lines if line.startswith("units=")]
    said = subprocess.run(["sh", "-c", f"echo {units}"], capture_output=True, text=True, timeout=60).stdout.split()
    assert said == ["dl4j-watch.service", *(f"dl4j-worker@{number}.service" for number in range(1, processes + 1))]
    assert lines[-2:] == ["systemctl enable --quiet $units", "systemctl start --no-block $units"]
    assert "/etc/systemd/system/dl4j-worker@.service" in told


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), ["--workers", "64"]),
        (("--jobs-per-round", "4"), ["--jobs-per-round", "4", "--workers", "64"]),
        (("--workers", "16"), ["--workers", "16"]),
        (("--workers=16",), ["--workers=16"]),
    ],
)
def test_a_master_expects_as_many_workers_as_processes_unless_it_is_told_otherwise(machine, given, expected) -> None:
    [words, _] = machine.execute(replace(MASTER, workers=64, run=("--model", "dbn", *given)), "master")[1]
    folder = words.index("--checkpoint-dir")
    assert words[3:folder] + words[folder + 2 : words.index("--tracker")] == expected


def begun(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "conf.json").write_text("{}", encoding="ascii")


def test_the_master_begins_the_run_that_was_asked_for_once_and_then_goes_on_with_it(machine: Machine) -> None:
    folder, out = "/var/lib/dl4j/checkpoints", ["--out", "s3://models-of-mine/dbn.zip"]
    done = [*PROGRAM, "done", "us-east-1", MASTER.bucket, out[1]]
    begins = [["master", *RUN, *out, "--checkpoint-dir", folder, "--workers", "4", *WHERE], done]
    assert machine.execute(MASTER, "master") == (0, begins)
    (machine.home / "checkpoints").mkdir()  # it was killed before it wrote down what it was to do
    assert machine.execute(MASTER, "master") == (0, begins)
    begun(machine.home / "checkpoints/later")  # another run's
    assert machine.execute(MASTER, "master") == (0, begins)
    (machine.home / "checkpoints/conf.json").write_text("{}", encoding="ascii")
    goes_on = [["resume", folder, "--workers", "0", *out, *WHERE], done]
    assert machine.execute(MASTER, "master") == (0, goes_on)
    for expected in (goes_on, begins):
        for status in (1, 4, 7, 137):  # it says that the run is done only once the model is written
            machine.write("dl4j", f"exit {status}")
            assert machine.execute(MASTER, "master") == (status, expected[:1])
        (machine.home / "checkpoints/conf.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (("--checkpoint-dir", "/var/lib/dl4j/my run's"), "/var/lib/dl4j/my run's"),
        (("--checkpoint-dir=/var/lib/dl4j/my run's",), "/var/lib/dl4j/my run's"),
        (("--checkpoint-dir", "s3://not-this", "--checkpoint-dir", "my run's"), "my run's"),
        (("--checkpoint-dir", "s3://runs-of-mine/my run's"), "s3://runs-of-mine/my run's"),
        (("--checkpoint-dir=s3://runs-of-mine/my run's",), "s3://runs-of-mine/my run's"),
    ],
)
def test_checkpoints_are_gone_on_with_where_they_are_asked_for(machine: Machine, given, place: str) -> None:
    node = replace(MASTER, run=(*RUN, *given, "--bind", "10.0.0.7", "--out", "s3://models-of-mine/dbn.zip"))
    [*asked, words, _] = machine.execute(node, "master")[1]
    assert words[1 : 1 + len(node.run)] == list(node.run)
    if place.startswith("s3://"):  # those of a lost instance, perhaps
        machine.write("python", "echo yes")
        assert asked == [[*PROGRAM, "is-kept", place]]
        assert buckets_in(given) == ("runs-of-mine",)  # on which its role has rights
    else:
        begun(machine.home / "my run's")
    [*_, words, _] = machine.execute(node, "master")[1]
    again = ["resume", place, "--workers", "0", "--out", "s3://models-of-mine/dbn.zip", "--bind", "10.0.0.7"]
    assert words == [*again, *SERVERS, "--log-format", "json"]
    if place.startswith("s3://"):
        machine.write("python", "exit 4")  # nothing is begun while S3 does not answer
        assert machine.execute(node, "master") == (4, asked)


@pytest.mark.parametrize("ended", ["exited 0", "exited 143", "exited 4", "killed TERM"])
def test_an_instance_ends_with_its_run_and_stays_when_its_watch_is_stopped_or_fails(ended: str, tmp_path: Path) -> None:
    (tmp_path / "systemctl").write_text('#!/bin/sh\necho "$@"\n', encoding="ascii")
    (tmp_path / "systemctl").chmod(0o755)
    code, status = ended.split()
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "EXIT_CODE": code, "EXIT_STATUS": status}
    script = files(WORKER)["/usr/local/lib/dl4j/end"]
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    does = "--no-block poweroff\n" if ended == "exited 0" else ""
    assert (done.returncode, done.stdout, done.stderr) == (0, does, "")


def test_what_resume_is_told_is_what_it_takes() -> None:
    takes = {f"--{field.name.replace('_', '-')}" for field in fields(ResumeOptions)}
    run = tuple(word for flag in _KEPT for word in (flag, "x"))
    [line] = re.findall("dl4j resume (.*)", files(replace(MASTER, run=run))["/usr/local/lib/dl4j/master"])
    assert {word for word in line.split() if word.startswith("--")} == {"--workers", *_KEPT} <= takes


def units(node: InstanceConfig) -> dict[str, dict[str, str]]:
    """The options of the systemd units of an instance by their name; of several ``Environment`` all together."""
    found: dict[str, dict[str, str]] = {}
    for path, text in files(node).items():
        if path.endswith(".service"):
            unit = found.setdefault(path.rpartition("/")[2], {"Environment": ""})
            for name, _, value in (line.partition("=") for line in text.splitlines() if "=" in line):
                unit[name] = f"{unit['Environment']} {value}" if name == "Environment" else value
    return found


@NODES
def test_what_watches_an_instance_reads_the_journal_is_stopped_last_and_ends_it_unless_it_is_to_stay(node) -> None:
    others = units(node)
    watch, command = others.pop("dl4j-watch.service"), f"watch us-east-1 {node.bucket}"
    assert watch["SupplementaryGroups"] == "systemd-journal"
    assert watch["ExecStart"].endswith(f"{' '.join(PROGRAM)} {command}")
    assert watch["ExecStopPost"] == "+/usr/local/lib/dl4j/end"
    assert others and all("dl4j-watch.service" in unit["After"].split() for unit in others.values())
    assert "dl4j-watch.service" in files(node)["/usr/local/lib/dl4j/install"]
    kept = replace(node, keep=True)
    watch = units(kept)["dl4j-watch.service"]
    assert watch["ExecStart"].endswith(f" {command} keep") and "ExecStopPost" not in watch
    assert "/usr/local/lib/dl4j/end" not in files(kept)


@NODES
def test_services_come_back_unless_that_is_in_vain_and_run_as_a_user_of_their_own_in_a_closed_room(node) -> None:
    for name, unit in units(node).items():
        for option in ("Restart=on-failure", "SuccessExitStatus=143", "User=dl4j", "ProtectSystem=strict"):
            assert unit[option.partition("=")[0]] == option.partition("=")[2]
        assert unit["NoNewPrivileges"] == unit["PrivateTmp"] == "yes"
        variables = unit["Environment"].split()
        assert {"DL4J_SECRET_FILE=/etc/dl4j/secret", "DL4J_SERVICES=/var/lib/dl4j/services"} <= set(variables)
        never = set(map(int, unit["RestartPreventExitStatus"].split()))
        assert never >= {UsageError.exit_status, ConfError.exit_status, NotAuthorisedError.exit_status}
        assert (TrainingError.exit_status in never) == ("master" in name)
        assert not never & {e.exit_status for e in (TrackerError, NotEnoughWorkersError, CloudError, DeadlineError)}
        assert "Requires" not in unit and int(unit["StartLimitBurst"]) > 1


def test_the_master_waits_for_the_servers_whose_clusters_name_nobody_can_guess(machine: Machine) -> None:
    services, master = (units(MASTER)[f"dl4j-{name}.service"] for name in ("services", "master"))
    for key in ("After", "Wants"):
        assert "dl4j-services.service" in master[key].split() and "dl4j-services.service" not in services[key]
    assert (services["Type"], services["ExecStart"]) == ("notify", "/usr/local/lib/dl4j/services")
    up = "services up --foreground --host 10.0.0.8 --hazelcast-port 5701 --zookeeper-port 2181 --heap 1g"
    assert machine.execute(MASTER, "services") == (0, [up.split()])  # without --cluster-name, which `services up` draws
