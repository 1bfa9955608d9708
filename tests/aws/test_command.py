"""``dl4j aws``: what a person types and reads; bad input ends with the contract's exit status and names the remedy."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.aws.cluster_bucket import DONE, JOURNAL, own_key
from dl4jlegacy.aws.cluster_spec import parse_cidr, parse_ttl
from dl4jlegacy.aws.instances import list_instances
from dl4jlegacy.aws.reaper import find_clusters, reap
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.cli import main
from dl4jlegacy.cli.commands import aws as aws_commands
from dl4jlegacy.doctor import Settings
from dl4jlegacy.doctor.cloud import credentials
from dl4jlegacy.errors import UsageError
from dl4jlegacy.storage.s3.session import Aws, Clock
from tests.support.aws_fixtures import IMAGE, Fault, FaultProxy

UP = ("--out", "s3://models-of-mine/m.zip", "--allow", "203.0.113.7", "-ami", IMAGE)


ME = "arn:aws:sts::123456789012:user/moto"


class Outcome:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    def is_error(self, status: int, *words: str) -> None:
        assert self.status == status, self.err
        assert self.err.startswith("error [DL4J-"), self.err
        assert self.err.count("\n") == 1
        for word in words:
            assert word in self.err, f"{word!r} is not in {self.err!r}"


@pytest.fixture
def dl4j(capsys: pytest.CaptureFixture[str], aws_environment: FaultProxy) -> Any:
    def run(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as leave:
            main.main(list(arguments))
        return Outcome(int(leave.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def up(dl4j: Any, tmp_path: Path) -> Any:
    path = tmp_path / "dl4jlegacy-0.1.0-py3-none-any.whl"
    path.write_bytes(b"a wheel")
    return lambda *more, name="digits": dl4j("aws", "up", name, *UP, "--wheel", str(path), *more)


@pytest.mark.long
def test_up_status_scale_reap_down(dl4j, up, capsys) -> None:
    done = up("--no-wait", "-w", "2", "--ttl", "90m", "--format", "json")
    assert done.status == 0, done.err
    fields = json.loads(done.out)
    assert [instance["role"] for instance in fields["boxes"]] == ["master", "worker", "worker"]
    assert fields["price"]["dollars_per_hour"] == pytest.approx(3 * 0.096, abs=0.03)
    text = dl4j("aws", "status", "digits").out
    assert text.startswith(
        f"cluster digits in us-east-1, ends by itself at {fields['expires']}\n  owner   {ME} since 2"
    )
    assert fields["owner"]["arn"] == ME
    assert dl4j("aws", "join", "digits", "--allow", "2001:db8::7").out.startswith("cluster digits in us-east-1")
    assert "bucket dl4j-digits-123456789012-us-east-1" in text
    assert dl4j("aws", "scale", "digits", "-w", "1", "--no-wait").status == 0
    assert dl4j("aws", "reap").out == "nothing to reap in us-east-1\n"
    done = dl4j("aws", "reap", "--dry-run", "--all", "--format", "json")
    assert [found["name"] for found in json.loads(done.out)["clusters"]] == ["digits"]
    done = dl4j("aws", "down", "digits", "--format", "json")
    assert len([what for what in json.loads(done.out)["removed"] if what.startswith("instance i-")]) == 2
    text = dl4j("aws", "status", "digits").out  # AWS tells of ended instances for an hour
    assert not [line for line in text.splitlines()[1:] if " terminated" not in line]
    assert dl4j("aws", "down", "digits").out == "there was nothing of cluster digits in us-east-1\n"


@pytest.mark.long
def test_a_dry_run_tells_the_price_and_makes_nothing(dl4j, up, aws, fault_proxy) -> None:
    fault_proxy.requests.clear()
    done = up("-w", "3", "-s", "c5.xlarge", "--master-size", "m5.large", "--dry-run")
    assert done.status == 0, done.err
    assert "workers  3 x c5.xlarge: 0.1700 $/h" in done.out
    assert "at most" in done.out
    spot = json.loads(dl4j("aws", "price", "-w", "4", "--spot", "--ttl", "2h", "--format", "json").out)
    assert spot["worker"]["source"].startswith("spot, us-east-1")
    assert spot["dollars_at_most"] == pytest.approx(2 * spot["dollars_per_hour"], abs=0.01)
    changing = [r.action for r in fault_proxy.requests if not re.match(r"Describe|Get|List|GET|HEAD", r.action)]
    assert changing == []


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither AWS nor the service that tells one's own address can be reached."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(aws_commands, "_ADDRESS_SERVICE", "http://127.0.0.1:9")


DRY = ("aws", "up", "digits", "--out", "s3://models-of-mine/m.zip", "--dry-run")


def test_a_dry_run_without_network_tells_the_list_price_and_what_it_could_not_check(dl4j, offline, monkeypatch) -> None:
    done = dl4j(*DRY, "--spot")
    assert done.status == 0, done.err
    assert "workers  1 x m5.large: 0.0960 $/h (list price of us-east-1)" in done.out
    account, address = [line for line in done.out.splitlines() if line.startswith("not checked: ")]
    assert "AWS could not be reached" in account and all(w in account for w in ("instance types", "image", "network"))
    assert "your public address" in address and "--allow" in address
    dl4j("aws", "up", "digits", "--out", "m.zip", "--dry-run").is_error(2, "--out is 'm.zip'")
    dl4j(*DRY, "--requirements", __file__).is_error(3, "line 1", "--hash=sha256")
    dl4j("aws", "join", "Bad_Name").is_error(2, "a cluster cannot be called 'Bad_Name'")  # before the address is asked
    dl4j("aws", "status", "digits").is_error(4, "could not be reached")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    done = dl4j(*DRY, "-s", "x9.huge", "--format", "json")
    assert done.status == 0, done.err
    unchecked = "\n".join(json.loads(done.out)["unchecked"])
    assert "there are no AWS credentials here" in unchecked and "the price of x9.huge is not known" in unchecked
    dl4j("aws", "status", "digits").is_error(6, "no AWS credentials", "AWS_ACCESS_KEY_ID", "AWS_PROFILE")
    monkeypatch.setenv("org.deeplearning4j.aws.accessKey", "AKIAOLD")
    dl4j("aws", "status", "digits").is_error(6, "org.deeplearning4j.aws.accessSecret is not")


def test_the_originals_properties_are_credentials_and_are_never_shown(dl4j, monkeypatch, fault_proxy) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("org.deeplearning4j.aws.accessKey", "AKIAOLDPROPERTY")
    monkeypatch.setenv("org.deeplearning4j.aws.accessSecret", "never-to-be-seen")
    fault_proxy.judge = lambda r: Fault("error", "UnauthorizedOperation", 403) if r.service == "ec2" else None
    dl4j("aws", "status", "digits").is_error(6, "denies DescribeInstances", "docs/aws-iam-policy.json")
    fault_proxy.judge = lambda r: Fault("error", "InvalidClientTokenId", 403)
    for command in (("aws", "status", "digits"), DRY):
        done = dl4j(*command, *(("--allow", "203.0.113.7") if command is DRY else ()))
        done.is_error(6, "does not accept these credentials")
        assert "never-to-be-seen" not in done.out + done.err
    assert "Credential=AKIAOLDPROPERTY/" in fault_proxy.requests[-1].headers["authorization"]
    assert "never-to-be-seen" not in repr(Aws("us-east-1"))


@pytest.mark.long
def test_reap_ends_what_has_expired_and_nothing_else(dl4j, up, aws) -> None:
    for name, ttl in (("short", "5m"), ("long", "1d")):
        assert up("--no-wait", "--ttl", ttl, name=name).status == 0
    later = time.time() + 600
    with Aws("us-east-1", clock=Clock(now=aws.clock.now, wait=aws.clock.wait, wall=lambda: later)) as in_ten_minutes:
        assert [found.name for found in reap(in_ten_minutes, dry_run=True)] == ["short"]
        assert {instance.cluster for instance in list_instances(aws) if instance.alive} == {"short", "long"}
        assert [found.name for found in reap(in_ten_minutes)] == ["short"]
        assert [found.name for found in find_clusters(aws)] == ["long"]
        assert reap(in_ten_minutes) == []
    assert dl4j("aws", "reap", "--all").out.startswith("ended long: ")
    assert find_clusters(aws) == []


@pytest.mark.long
def test_an_up_that_fails_undoes_what_it_began(dl4j, up, fault_proxy, aws) -> None:
    fault_proxy.judge = lambda r: Fault("error", "VcpuLimitExceeded") if r.action == "RunInstances" else None
    up("--no-wait").is_error(7, "a quota of this account is reached", "Service Quotas", "Everything begun was undone")
    fault_proxy.judge = lambda request: None
    assert dl4j("aws", "down", "digits").out.startswith("there was nothing")


def test_an_up_that_is_interrupted_says_what_runs_what_it_costs_and_how_to_end_it(
    dl4j, up, aws, fault_proxy, monkeypatch
) -> None:
    monkeypatch.setattr(ClusterSetup, "wait_for_workers", lambda setup, count: signal.raise_signal(signal.SIGINT))
    done = up("-w", "3")
    assert done.status == 128 + signal.SIGINT and not done.out
    [said] = done.err.splitlines()
    running = [instance for instance in list_instances(aws) if instance.alive]
    assert Counter(instance.role for instance in running) == {"master": 1, "worker": 3}
    assert said.startswith(f"stopped by SIGINT; cluster digits runs on, until {running[0].expires} at most, 0.41 $/h (")
    assert all(f"{instance.role} {instance.id}" in said for instance in running)
    assert "`dl4j aws down digits --region us-east-1` ends it, `dl4j aws up digits` with the same options" in said
    assert not ClusterSetup(aws, "digits").ownership.owner().working
    assert dl4j("aws", "down", "digits").status == 0
    fault_proxy.judge = lambda r: signal.raise_signal(signal.SIGINT) if r.action == "CreateRole" else None
    done = up("--no-wait")
    assert done.status == 128 + signal.SIGINT
    assert "no instance of cluster digits runs: `dl4j aws down digits" in done.err


@pytest.mark.long
def test_spot_without_capacity_falls_back_to_on_demand(dl4j, up, fault_proxy) -> None:
    fault_proxy.judge = lambda r: (
        Fault("error", "InsufficientInstanceCapacity", 500)
        if "InstanceMarketOptions.MarketType" in r.parameters
        else None
    )
    done = up("--no-wait", "--spot", "--format", "json")
    assert done.status == 0, done.err
    assert "no spot capacity, so on demand" in done.err
    asked = [r.parameters for r in fault_proxy.calls("RunInstances")]
    tried = [p["SubnetId"] for p in asked if "InstanceMarketOptions.MarketType" in p]
    assert len(set(tried)) == len(tried) >= 3  # every zone
    assert [instance["spot"] for instance in json.loads(done.out)["boxes"]] == [False, False]
    assert dl4j("aws", "down", "digits").status == 0
    only = up("--no-wait", "--spot", "--spot-only")
    assert only.status == 7
    assert "no capacity" in only.err


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--ttl", "0"), 2, ("--ttl is '0'", "for instance 4h")),
        (("--ttl", "forever"), 2, ("--ttl is 'forever'",)),
        (("-region", "us-east-9"), 3, ("no AWS region 'us-east-9'", "did you mean 'us-east-")),
        (("-s", "m5.enormous"), 3, ("instance type 'm5.enormous'",)),
        (("-w", "0"), 2, ("-w is '0'",)),
        (("-ami", "ami-00000000"), 3, ("ami-00000000",)),
        (("--out", "model.zip"), 2, ("--out is 'model.zip'", "s3://bucket/name.zip")),
        (("--allow", "0.0.0.0/0"), 2, ("admits too many",)),
        (("--allow", "here"), 2, ("--allow is 'here'",)),
        (("-kp", "mine"), 2, ("-kpath",)),
        (("-kp", "mine", "-kpath", "no-such-file"), 3, ("no-such-file", "another -kpath")),
        (("-kp", "mine", "-kpath", "FILE"), 3, ("chmod 600", __file__)),
        (("-wscript", "no-such-script"), 3, ("-wscript no-such-script",)),
        (("--subnet", "subnet-0"), 3, ("subnet-0",)),
        (("--wheel", "thing.whl"), 3, ("--wheel thing.whl",)),
        (("--spot-only",), 2, ("--spot",)),
    ],
)
def test_bad_input_of_up(arguments, status, words, dl4j, up, aws) -> None:
    arguments = [__file__ if word == "FILE" else word for word in arguments]
    up(*arguments).is_error(status, *words)
    assert dl4j("aws", "down", "digits").out.startswith("there was nothing")


def test_the_doctor_asks_aws_whose_the_credentials_are(aws_environment: FaultProxy) -> None:
    assert ME in credentials(Settings()).found
    aws_environment.judge = lambda request: Fault("error", "ExpiredToken", 403)
    found = credentials(Settings())
    assert found.status == "warning" and "ExpiredToken" in found.found


@pytest.mark.long
def test_a_bucket_of_somebody_else_is_refused_before_anything_is_made(dl4j, up, fault_proxy) -> None:
    fault_proxy.judge = lambda r: (
        Fault("error", "403", 403) if r.service == "s3" and "models-of-mine" in r.path else None
    )
    up("--no-wait").is_error(6, "bucket models-of-mine")
    assert not fault_proxy.calls("RunInstances")
    fault_proxy.judge = lambda r: (
        Fault("error", "BucketAlreadyExists", 409)
        if r.action == "PUT s3"
        else Fault("error", "404", 404)
        if r.action == "HEAD s3"
        else None
    )
    up("--no-wait").is_error(6, "belongs to somebody else")


@pytest.mark.long
def test_what_instances_said_is_there_when_they_are_gone_until_down(dl4j, up, aws) -> None:
    dl4j("aws", "ssh", "digits").is_error(3, "no instance of it is running")
    assert up("--no-wait").status == 0
    dl4j("aws", "logs", "digits", "--node", "mastre").is_error(3, "did you mean 'master'?")
    dl4j("aws", "ssh", "digits").is_error(4, "has not told its host key yet")
    assert "the console of i-" in dl4j("aws", "logs", "digits").out  # no SSH yet
    setup = ClusterSetup(aws, "digits")
    master, worker = setup.status(ask=False).instances
    for instance in (master, worker):
        said = "".join(f"{number} of {instance.role}\n" for number in range(200))
        setup.resources.upload(own_key(setup.resources._user_id(instance.id), JOURNAL), said.encode())
    assert dl4j("aws", "logs", "digits", "-n", "1").out.endswith("\n199 of master\n")
    aws.client("ec2").terminate_instances(InstanceIds=[master.id, worker.id])
    assert dl4j("aws", "logs", "digits", "-n", "2").out == "198 of master\n199 of master\n"
    assert dl4j("aws", "logs", "digits", "--node", worker.id).out.startswith("100 of worker\n")
    dl4j("aws", "logs", "digits", "--node", "i-0").is_error(3, "no instance of it is running", master.id, worker.id)
    setup.resources.upload(own_key(setup.resources._user_id(master.id), DONE), b"s3://models-of-mine/m.zip")
    assert "\n  run     done since 2" in dl4j("aws", "status", "digits").out
    assert json.loads(dl4j("aws", "status", "digits", "--format", "json").out)["done"]["model"].endswith("/m.zip")
    assert "with the logs in it" in dl4j("aws", "down", "digits").out
    dl4j("aws", "logs", "digits").is_error(3, "no instance of it is running")


def test_without_boto3_the_extra_is_named(tmp_path: Path, repository: Path) -> None:
    hide = "import sys; sys.modules['boto3'] = None; from dl4jlegacy.cli.main import main; main(['aws', 'status', 'x'])"
    environment = {"PYTHONPATH": str(repository), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-c", hide]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 3
    assert "'./install aws'" in done.stderr


def test_the_documentation_names_commands_and_flags_that_there_are(dl4j, repository: Path) -> None:
    pages = [repository / "README.md", *(repository / "docs").glob("aws*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    found = re.findall(r"\bdl4j aws (\w+)((?: [^\n`|]*)?)", text)
    assert {name for name, _ in found} == {"up", "join", "status", "scale", "ssh", "logs", "down", "reap", "price"}
    for name, rest in found:
        help_text = dl4j("aws", name, "--help").out
        for flag in re.findall(r"(?<=[ \[])--?[a-z][a-z-]*", rest.partition(" -- ")[0]):
            assert re.search(rf"{flag}\b", help_text), f"dl4j aws {name} has no {flag}"


def test_nothing_of_aws_is_loaded_before_it_is_used(repository: Path) -> None:
    for what in ("main(['--help'])", "main(['aws', 'up', '--help'])", "dl4jlegacy.aws"):
        run = "import dl4jlegacy.aws" if what == "dl4jlegacy.aws" else f"from dl4jlegacy.cli.main import main; {what}"
        told = "print([n for n in ('boto3', 'botocore', 'paramiko', 'cryptography') if n in sys.modules])"
        code = f"import sys\ntry:\n    {run}\nexcept SystemExit:\n    pass\n{told}"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=repository, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        *((parse_ttl, *pair) for pair in (("5m", 300), ("1.5h", 5400), ("30", 1800), ("30d", 2592000))),
        *((parse_ttl, text, None) for text in ("0", "299s", "-1h", "31d", "", "1w", "1h30m")),
        (parse_cidr, "203.0.113.7", "203.0.113.7/32"),
        (parse_cidr, "203.0.113.9/28", "203.0.113.0/28"),
        (parse_cidr, "2001:DB8::7", "2001:db8::7/128"),
        (parse_cidr, "2001:db8:1:2::7/64", "2001:db8:1:2::/64"),
        *((parse_cidr, text, None) for text in ("10.0.0.0/8", "2001::/16", "::/0", "0.0.0.0/0")),
    ],
)
def test_times_to_live_and_networks_are_read(read: Callable[[str], object], text: str, expected: object) -> None:
    if expected is None:
        with pytest.raises(UsageError):
            read(text)
    else:
        assert read(text) == expected
