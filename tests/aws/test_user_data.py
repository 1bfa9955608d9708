"""User data: valid for cloud-init itself, for the shell and for systemd; small, and without a secret.

``tests/instance`` executes it.
"""

from __future__ import annotations

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

from dl4jlegacy.aws import kept_run, master_address, watch
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
WORKER = replace(MASTER, role="worker", run=(), master="10.0.0.1", processes=8)
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


@pytest.mark.long
def test_cloud_init_does_find_what_is_wrong(schema, tmp_path: Path) -> None:
    path = tmp_path / "user-data"
    path.write_text(user_data(WORKER).replace("runcmd:", "runcmd: 5\nother:"), encoding="utf-8")
    status, said = schema(path)
    assert status == 1
    assert "runcmd: 5 is not of type 'array'" in said


@NODES
def test_it_is_far_below_amazons_limit(node: InstanceConfig) -> None:
    assert len(user_data(node).encode()) < MOST_NBYTES // 2


def test_what_would_be_too_long_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfError, match=r"master are \d+ bytes, AWS takes 16384; shorten the command line"):
        user_data(replace(MASTER, run=("--dataset", "x" * MOST_NBYTES)))


@NODES
def test_it_holds_no_secret(node: InstanceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    before = user_data(node)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "DL4J_SECRET", "AWS_PROFILE")
    for name in names:
        monkeypatch.setenv(name, f"the-value-of-{name}")
    assert user_data(node) == before
    assert not [name for name in names if re.search(rf"{name}\b", before)]
    assert "PRIVATE KEY" not in before


@NODES
def test_its_scripts_are_right_for_the_shell_and_python(node: InstanceConfig) -> None:
    config = yaml.safe_load(user_data(node))
    install, fetch = files(node)["/usr/local/lib/dl4j/install"], files(node)["/usr/local/lib/dl4j/fetch.py"]
    scripts = [text for text in files(node).values() if text.startswith("#!/bin/sh\n")]
    for script in (*scripts, *(words[2] for words in config["bootcmd"] + config["runcmd"])):
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
    compiled = subprocess.run(
        [sys.executable, "-c", "import ast, sys; ast.parse(sys.stdin.read())"], input=fetch.encode()
    )
    assert compiled.returncode == 0
    assert "@" not in re.sub(r'"\$@"|dl4j-worker@', "", install)


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


def fetched(aws: Aws, folder: Path, digest: str, python: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """What came of ``fetch.py`` for a wheel and a lock file of such a digest, by a Python with a boto3."""
    aws.client("s3").create_bucket(Bucket=MASTER.bucket)
    pairs = []
    for key, content in (("a.whl", b"a wheel"), ("requirements.txt", b"a lock file")):
        told = digest if key == "requirements.txt" else hashlib.sha256(content).hexdigest()
        aws.client("s3").put_object(Bucket=MASTER.bucket, Key=f"{told}/{key}", Body=content)
        pairs += [key, told]
    (folder / "fetch.py").write_text(files(MASTER)["/usr/local/lib/dl4j/fetch.py"], encoding="utf-8")
    command = [python, str(folder / "fetch.py"), str(folder), MASTER.bucket, MASTER.region, *pairs]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_what_has_another_digest_than_the_cluster_was_started_with_ends_the_installation(
    aws: Aws, tmp_path: Path
) -> None:
    done = fetched(aws, tmp_path, "0" * 64, sys.executable)
    words = f"requirements.txt in bucket {MASTER.bucket} is not what the cluster was started with\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)
    assert (tmp_path / "a.whl").read_bytes() == b"a wheel"


@pytest.mark.long
def test_debians_own_boto3_fetches_and_says_nothing(
    aws: Aws, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("boto3")
    wanted = [name for name in missing_for("python3-boto3", folder) if name.startswith("python3-")]
    root = unpack(wanted, folder) if wanted else Path("/")
    digest = hashlib.sha256(b"a lock file").hexdigest()
    done = fetched(aws, tmp_path, digest, "/usr/bin/python3", str(root / "usr/lib/python3/dist-packages"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "requirements.txt").read_bytes() == b"a lock file"


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


SAYS_ARGUMENTS = f"""#!{sys.executable}
import json, sys
print(json.dumps(sys.argv[1:]))
"""
SERVERS = ["--tracker", "hazelcast://10.0.0.9:5701", "--zookeeper", "10.0.0.9:2181"]
WHERE = [*SERVERS, "--bind", "10.0.0.9", "--log-format", "json"]  # workers of other instances reach it there


@pytest.fixture
def executed(tmp_path: Path) -> Callable[[InstanceConfig, str], list[str]]:
    """What ``dl4j`` is told by a script of an instance, whose folders are below ``tmp_path``."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dl4j").write_text(SAYS_ARGUMENTS, encoding="utf-8")
    (tmp_path / "bin/python").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n', encoding="utf-8")
    for name in ("dl4j", "python"):
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "var/lib/dl4j").mkdir(parents=True)
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "DL4J_ADDRESS": "10.0.0.9", "HOME": "/root"}

    def execute(node: InstanceConfig, name: str) -> list[str]:
        script = files(node)[f"/usr/local/lib/dl4j/{name}"].replace("/var/lib/dl4j", str(tmp_path / "var/lib/dl4j"))
        folder = tmp_path / "var/lib/dl4j"
        done = subprocess.run(["sh", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return [word.replace(str(tmp_path), "") for word in json.loads(done.stdout)]

    return execute


def test_a_worker_goes_to_the_present_master(executed, tmp_path: Path) -> None:
    (tmp_path / "bin/python").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho 10.0.0.77\n', encoding="utf-8")
    (tmp_path / "bin/python").chmod(0o755)
    expected = "worker --zookeeper 10.0.0.77:2181 --workers 1 --wait 600 --log-format json"
    assert executed(WORKER, "worker") == expected.split()
    module, *asked = (tmp_path / "asked").read_text().removeprefix("-m ").split()
    assert module == master_address.__name__
    assert asked == ["--region", "us-east-1", "--bucket", WORKER.bucket, "--otherwise", WORKER.master]


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
def test_the_jobs_of_a_round_are_as_many_as_worker_processes_unless_somebody_says_otherwise(
    executed, given: tuple[str, ...], expected: list[str]
) -> None:
    words = executed(replace(MASTER, workers=64, run=("--model", "dbn", *given)), "master")
    folder = words.index("--checkpoint-dir")
    assert words[3:folder] + words[folder + 2 : words.index("--tracker")] == expected


def begun(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "conf.json").write_text("{}", encoding="ascii")


def test_the_master_begins_the_run_that_was_asked_for_once_and_then_goes_on_with_it(executed, tmp_path: Path) -> None:
    folder, out = "/var/lib/dl4j/checkpoints", ["--out", "s3://models-of-mine/dbn.zip"]
    begins = ["master", *RUN, *out, "--checkpoint-dir", folder, "--workers", "4", *WHERE]
    assert executed(MASTER, "master") == begins
    (tmp_path / folder[1:]).mkdir()  # it was killed before it wrote down what it was to do
    assert executed(MASTER, "master") == begins
    begun(tmp_path / folder[1:] / "later")  # another run's
    assert executed(MASTER, "master") == begins
    (tmp_path / folder[1:] / "conf.json").write_text("{}", encoding="ascii")
    assert executed(MASTER, "master") == ["resume", folder, "--workers", "0", *out, *WHERE]


@pytest.mark.parametrize(
    "given",
    [
        ("--checkpoint-dir", "/var/lib/dl4j/my run's"),
        ("--checkpoint-dir=/var/lib/dl4j/my run's",),
        ("--checkpoint-dir", "s3://not-this", "--checkpoint-dir", "my run's"),
    ],
)
def test_checkpoints_are_where_they_are_asked_for(executed, tmp_path: Path, given: tuple[str, ...]) -> None:
    node = replace(MASTER, run=(*RUN, *given, "--bind", "10.0.0.8", "--out", "s3://models-of-mine/dbn.zip"))
    assert executed(node, "master")[1 : 1 + len(node.run)] == list(node.run)
    begun(tmp_path / "var/lib/dl4j/my run's")
    words = executed(node, "master")
    assert words[1] in ("my run's", "/var/lib/dl4j/my run's")
    assert words[2:8] == ["--workers", "0", "--out", "s3://models-of-mine/dbn.zip", "--bind", "10.0.0.8"]
    assert words[8:] == [*SERVERS, "--log-format", "json"]


@pytest.mark.parametrize("form", [("--checkpoint-dir", "@"), ("--checkpoint-dir=@",)])
def test_a_new_master_goes_on_from_the_checkpoints_of_a_lost_one_in_s3(
    executed, tmp_path: Path, form: tuple[str, ...]
) -> None:
    place = "s3://runs-of-mine/my run's"
    given = tuple(word.replace("@", place) for word in form)
    node = replace(MASTER, run=(*RUN, *given, "--out", "s3://models-of-mine/dbn.zip"))
    says = tmp_path / "bin/python"
    for answer, command in (("", ["master", *node.run]), ("yes", ["resume", place, "--workers", "0"])):
        asked = f'echo "$3" >> {tmp_path}/asked; echo {answer}'
        says.write_text(f'#!/bin/sh\n[ "$2" != {kept_run.__name__} ] || {{ {asked}; }}\n')
        assert executed(node, "master")[: len(command)] == command
    assert (tmp_path / "asked").read_text().splitlines() == [place] * 2
    assert buckets_in(given) == ("runs-of-mine",)  # on which its role has rights
    says.write_text("#!/bin/sh\nexit 4\n")
    with pytest.raises(AssertionError, match=r"\(4, ''\)"):  # nothing is begun while S3 does not answer
        executed(node, "master")


def test_a_master_says_that_its_run_is_done_once_the_model_is_written_and_never_else(executed, tmp_path: Path) -> None:
    told = f"-m {watch.__name__} --region us-east-1 --bucket {MASTER.bucket} --done s3://models-of-mine/dbn.zip\n"
    executed(MASTER, "master")
    assert (tmp_path / "said").read_text() == told
    begun(tmp_path / "var/lib/dl4j/checkpoints")
    executed(MASTER, "master")
    assert (tmp_path / "said").read_text() == 2 * told
    for begins in (True, False):
        if begins:
            (tmp_path / "var/lib/dl4j/checkpoints/conf.json").unlink()
        else:
            (tmp_path / "var/lib/dl4j/checkpoints/conf.json").touch()
        for status in (1, 4, 7, 137):
            (tmp_path / "bin/dl4j").write_text(f"#!/bin/sh\nexit {status}\n", encoding="ascii")
            with pytest.raises(AssertionError, match=f"{status}"):
                executed(MASTER, "master")
    assert (tmp_path / "said").read_text() == 2 * told


def test_an_instance_ends_with_its_run_and_stays_when_what_watches_that_is_stopped_or_fails(tmp_path: Path) -> None:
    (tmp_path / "systemctl").write_text('#!/bin/sh\necho "$@"\n', encoding="ascii")
    (tmp_path / "systemctl").chmod(0o755)
    for ended, does in (
        (("exited", "0"), "--no-block poweroff\n"),
        (("exited", "143"), ""),  # told to stop
        (("exited", "4"), ""),
        (("killed", "TERM"), ""),
        (("killed", "KILL"), ""),
    ):
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "EXIT_CODE": ended[0], "EXIT_STATUS": ended[1]}
        script = files(WORKER)["/usr/local/lib/dl4j/end"]
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, does, "")


@NODES
def test_what_watches_an_instance_reads_the_journal_and_is_stopped_last(node: InstanceConfig) -> None:
    units = {name.rpartition("/")[2]: text for name, text in files(node).items() if name.endswith(".service")}
    unit = options(units.pop("dl4j-watch.service"))
    assert unit["SupplementaryGroups"] == "systemd-journal"
    assert unit["ExecStart"].endswith(f" -m {watch.__name__} --region us-east-1 --bucket {node.bucket}")
    assert unit["ExecStopPost"] == "+/usr/local/lib/dl4j/end"
    assert units and all("dl4j-watch.service" in options(text)["After"].split() for text in units.values())
    assert "dl4j-watch.service" in files(node)["/usr/local/lib/dl4j/install"]


@NODES
def test_an_instance_that_is_to_be_kept_is_only_watched(node: InstanceConfig) -> None:
    kept = files(replace(node, keep=True))
    unit = options(kept["/etc/systemd/system/dl4j-watch.service"])
    assert unit["ExecStart"].endswith(f" --bucket {node.bucket} --keep") and "ExecStopPost" not in unit
    assert "/usr/local/lib/dl4j/end" not in kept


def test_what_resume_is_told_is_what_it_takes() -> None:
    takes = {f"--{field.name.replace('_', '-')}" for field in fields(ResumeOptions)}
    run = tuple(word for flag in _KEPT for word in (flag, "x"))
    [line] = re.findall("dl4j resume (.*)", files(replace(MASTER, run=run))["/usr/local/lib/dl4j/master"])
    assert {word for word in line.split() if word.startswith("--")} == {"--workers", *_KEPT} <= takes


def options(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("Environment"))


@NODES
def test_services_come_back_unless_that_is_in_vain(node: InstanceConfig) -> None:
    for name, text in files(node).items():
        if name.endswith(".service"):
            unit = options(text)
            assert (unit["Restart"], unit["SuccessExitStatus"]) == ("on-failure", "143")
            never = set(map(int, unit["RestartPreventExitStatus"].split()))
            assert never >= {UsageError.exit_status, ConfError.exit_status, NotAuthorisedError.exit_status}
            assert (TrainingError.exit_status in never) == ("master" in name)
            assert not never & {e.exit_status for e in (TrackerError, NotEnoughWorkersError, CloudError, DeadlineError)}
            assert "Requires" not in unit and int(unit["StartLimitBurst"]) > 1


def test_the_master_waits_for_the_servers_but_does_not_end_with_them() -> None:
    services, master = (options(files(MASTER)[f"/etc/systemd/system/dl4j-{n}.service"]) for n in ("services", "master"))
    for key in ("After", "Wants"):
        assert "dl4j-services.service" in master[key].split() and "dl4j-services.service" not in services[key]
    assert services["Type"] == "notify"  # it is started when the servers answer
    assert " services up --foreground --host ${DL4J_ADDRESS} " in services["ExecStart"]
    assert " --hazelcast-port 5701 --zookeeper-port 2181 " in services["ExecStart"]


def test_the_cluster_gets_a_name_that_nobody_can_guess_which_stays_and_the_master_finds_it() -> None:
    units = {name: text for name, text in files(MASTER).items() if name.endswith(".service")}
    for text in units.values():
        assert "--cluster-name" not in text  # `services up` draws one
        assert "DL4J_SERVICES=/var/lib/dl4j/services" in text  # on the instance's disk, where the name stays
        assert "--folder" not in text


@NODES
def test_services_run_as_a_user_of_their_own_in_a_closed_room(node: InstanceConfig) -> None:
    units = {name: text for name, text in files(node).items() if name.endswith(".service")}
    assert units
    for text in units.values():
        for line in ("User=dl4j", "NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateTmp=yes"):
            assert line in text.splitlines()
        assert "DL4J_SECRET_FILE=/etc/dl4j/secret" in text
