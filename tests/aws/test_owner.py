"""Whose a cluster is: two users and two ``up`` at once make one cluster with one owner; joining replaces nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from dl4jlegacy.aws.cluster_spec import OWNER
from dl4jlegacy.aws.instances import list_instances
from dl4jlegacy.aws.owner import owner_of
from dl4jlegacy.aws.payload import Payload
from dl4jlegacy.aws.reaper import find_clusters, reap
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, Dl4jError
from dl4jlegacy.storage.s3.session import ACCESS_KEY, ACCESS_SECRET, Aws
from tests.aws.test_cluster import PAYLOAD, SPEC, registered
from tests.support.aws_failures import left_with_our_tag, long_ago
from tests.support.aws_fixtures import Fault, Request, impatient

SECONDS = 60.0
UP = SPEC
ANNA, BERTA = (f"arn:aws:iam::123456789012:user/{name}" for name in ("anna", "berta"))
WHOLE = {"master": 1, "worker": 2}
User = Callable[..., ClusterSetup]


@pytest.fixture
def user(aws: Aws) -> Iterator[User]:
    """A user of the account, with keys of their own; ``wait`` is what their ``up`` does instead of waiting."""
    iam, keys = aws.client("iam"), {}
    with ExitStack() as sessions:

        def setup(name: str, wait: Callable[[float], None] | None = None) -> ClusterSetup:
            if name not in keys:
                iam.create_user(UserName=name)
                keys[name] = iam.create_access_key(UserName=name)["AccessKey"]
            environ = {ACCESS_KEY: keys[name]["AccessKeyId"], ACCESS_SECRET: keys[name]["SecretAccessKey"]}
            session = sessions.enter_context(impatient(wait, environ=environ))
            return ClusterSetup(session, "digits", list_workers=registered)

        yield setup


def roles(aws: Aws) -> Counter[str]:
    return Counter(instance.role for instance in list_instances(aws) if instance.alive)


def everything(aws: Aws, setup: ClusterSetup) -> dict[str, Any]:
    """What a cluster consists of, as AWS has it."""
    ec2, iam, s3, names = aws.client("ec2"), aws.client("iam"), aws.client("s3"), setup.names
    listed = s3.list_objects_v2(Bucket=names.bucket)["Contents"]
    return {
        "instances": sorted(instance.id for instance in list_instances(aws)),
        "groups": ec2.describe_security_groups(GroupNames=[names.group])["SecurityGroups"],
        "keys": ec2.describe_key_pairs(KeyNames=[names.key_pair], IncludePublicKey=True)["KeyPairs"],
        "policy": iam.get_role_policy(RoleName=names.role, PolicyName="dl4jlegacy")["PolicyDocument"],
        "secret": setup.resources.read_secret(),
        "objects": [(found["Key"], found["ETag"], found["LastModified"]) for found in listed],
        "tags": s3.get_bucket_tagging(Bucket=names.bucket)["TagSet"],
    }


def is_about_the_owner(request: Request) -> bool:
    return request.service == "s3" and request.path.endswith(f"/{OWNER}")


def outcome(future: Future[Any]) -> Dl4jError | None:
    error = future.exception(timeout=SECONDS)
    assert error is None or isinstance(error, Dl4jError), error
    return error


# --- two users --------------------------------------------------------------------------------------------------------


def test_another_users_up_is_refused_and_changes_nothing(user, aws, fault_proxy, monkeypatch, tmp_path) -> None:
    owner = user("anna").up(UP, PAYLOAD).owner
    assert (owner.arn, owner.working) == (ANNA, False)
    berta = user("berta")
    before = everything(aws, berta)
    monkeypatch.setenv("HOME", str(tmp_path / "berta"))
    fault_proxy.requests.clear()
    other = replace(UP, allow="198.51.100.1/32", out="s3://models-of-berta/dbn.zip", workers=5)
    refusal = rf"digits in us-east-1 belongs to {ANNA} since 20.*Z, and you are {BERTA}: .*`dl4j aws join digits`"
    with pytest.raises(ConfError, match=refusal):
        berta.up(other, Payload("another.whl", b"another wheel", b""))
    assert {r.action.split()[0] for r in fault_proxy.requests} <= {"GET", "GetCallerIdentity", "DescribeInstances"}
    assert everything(aws, berta) == before
    with pytest.raises(ConfError, match="belongs to"):  # as a dry run asks
        berta.check(other)


class _Meeting:
    """Holds back the conditional write with which each of two ``up`` claims the cluster, until both are about to."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)

    def __call__(self, request: Request) -> Fault | None:
        if is_about_the_owner(request) and request.headers.get("if-none-match"):
            try:
                self.barrier.wait(SECONDS)
            except threading.BrokenBarrierError:
                return Fault("error", "InternalError", 500)
        return None


def test_of_two_users_who_start_at_once_one_owns_the_cluster_and_one_is_refused(user, aws, fault_proxy) -> None:
    setups = {ANNA: user("anna"), BERTA: user("berta")}
    fault_proxy.judge = _Meeting()
    with ThreadPoolExecutor(2) as pool:
        futures = {arn: pool.submit(setup.up, UP, PAYLOAD) for arn, setup in setups.items()}
        errors = {arn: outcome(future) for arn, future in futures.items()}
    fault_proxy.judge = lambda request: None
    [owner] = [arn for arn, error in errors.items() if error is None]
    [refused] = [arn for arn, error in errors.items() if error is not None]
    assert isinstance(errors[refused], ConfError) and f"belongs to {owner} since" in str(errors[refused])
    assert roles(aws) == WHOLE
    assert setups[refused].undo().endswith("`up`'s, and stays")  # as the command does after a failure
    assert roles(aws) == WHOLE and setups[refused].ownership.owner().arn == owner


# --- two at once of one user ------------------------------------------------------------------------------------------


def test_of_two_ups_at_once_one_waits_and_there_is_one_master(user, aws, fault_proxy) -> None:
    ended, waits_again, meeting, waits, launches = threading.Event(), threading.Event(), _Meeting(), count(1), count(1)

    def wait(seconds: float) -> None:
        """The one that waits looks again at once, while the other is at work, and then once that has ended."""
        if next(waits) > 1:
            waits_again.set()
            waited(ended)

    def judge(request: Request) -> Fault | None:
        """Launches are held until the other waits again, or is about to launch, too."""
        if request.action == "RunInstances":
            if next(launches) > 1:
                waits_again.set()
            waited(waits_again)
        return meeting(request)

    setups = [user("anna", wait=wait) for _ in range(2)]
    fault_proxy.judge = judge

    def up(setup: ClusterSetup) -> None:
        try:
            setup.up(UP, PAYLOAD)
        finally:
            ended.set()

    with ThreadPoolExecutor(2) as pool:
        assert [outcome(future) for future in [pool.submit(up, setup) for setup in setups]] == [None, None]
    assert roles(aws) == WHOLE
    assert not setups[0].ownership.owner().working


def waited(event: threading.Event) -> None:
    assert event.wait(SECONDS)


class _Held:
    """Holds one request, the first that ``chosen`` accepts, until ``go_on`` is set."""

    def __init__(self, chosen: Callable[[Request], bool]) -> None:
        self.chosen, self.arrived, self.go_on = chosen, threading.Event(), threading.Event()
        self.others: Callable[[Request], Fault | None] = lambda request: None

    def __call__(self, request: Request) -> Fault | None:
        if not self.arrived.is_set() and self.chosen(request):
            self.arrived.set()
            waited(self.go_on)
            return None
        return self.others(request)


@pytest.mark.long
@pytest.mark.parametrize("action", ["CreateSecurityGroup", "RunInstances"])
def test_an_up_that_is_at_work_is_waited_for_and_then_named(action, user, aws, fault_proxy) -> None:
    held = fault_proxy.judge = _Held(lambda request: request.action == action)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(user("anna").up, UP, PAYLOAD)
        waited(held.arrived)
        with pytest.raises(DeadlineError, match=r"another `up` of yours \([0-9a-f]{16}\) works on cluster digits"):
            user("anna").up(UP, PAYLOAD)
        held.go_on.set()
        assert outcome(first) is None
    assert roles(aws) == WHOLE


@pytest.mark.long
def test_scaling_waits_for_an_up_and_leaves_the_cluster_whose_it_is(user, aws, fault_proxy) -> None:
    """As ``up`` counts the workers that there are, both would start those that are missing."""
    user("anna").up(replace(UP, workers=1), PAYLOAD)
    held = fault_proxy.judge = _Held(lambda request: request.action == "RunInstances")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(user("anna").up, UP, PAYLOAD)
        waited(held.arrived)
        berta = user("berta", wait=lambda seconds: held.go_on.set() or outcome(first))
        berta.scale(2)
        assert outcome(first) is None
    assert roles(aws) == WHOLE
    owner = berta.ownership.owner()
    assert (owner.arn, owner.working) == (ANNA, False)


@pytest.mark.long
def test_an_up_that_comes_back_after_another_took_over_ends_what_it_launched(user, aws, fault_proxy) -> None:
    held = fault_proxy.judge = _Held(lambda request: request.action == "RunInstances")
    frozen = user("anna")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(frozen.up, UP, PAYLOAD)
        waited(held.arrived)
        held.others = long_ago
        second = user("anna").up(UP, PAYLOAD)
        held.others = lambda request: None
        held.go_on.set()
        error = outcome(first)
    assert isinstance(error, CloudError) and "taken over by another `up`" in str(error)
    assert frozen.undo().endswith("stays")
    assert roles(aws) == WHOLE
    now = {instance.id for instance in list_instances(aws) if instance.alive}
    assert now == {instance.id for instance in second.instances if instance.alive}


class _Fatal:
    """The process is killed when it is about to launch for the ``time``-th time."""

    def __init__(self, time: int) -> None:
        self.left = time

    def __call__(self, request: Request) -> Fault | None:
        self.left -= request.action == "RunInstances"
        return Fault("reset-before") if self.left <= 0 else None


@pytest.mark.long
def test_a_killed_up_is_repeated_once_it_counts_as_killed(user, aws, fault_proxy) -> None:
    fault_proxy.judge = _Fatal(2)
    with pytest.raises(CloudError):
        user("anna").up(UP, PAYLOAD)
    fault_proxy.judge = lambda request: None
    assert roles(aws) == {"master": 1}
    with pytest.raises(DeadlineError, match="counts as killed after 180 s"):
        user("anna").up(UP, PAYLOAD)
    fault_proxy.judge = long_ago
    user("anna").up(UP, PAYLOAD)
    assert roles(aws) == WHOLE


@pytest.mark.long
def test_a_write_whose_answer_is_lost_is_the_owners_all_the_same(user, aws, fault_proxy, monkeypatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0.0)
    lost = set()

    def judge(request: Request) -> Fault | None:
        condition = request.headers.get("if-none-match") or request.headers.get("if-match")
        if condition is None or condition in lost:
            return None
        lost.add(condition)
        return Fault("reset-after")

    fault_proxy.judge = judge
    environ = {"AWS_MAX_ATTEMPTS": "3"}
    with impatient(environ=environ) as patient:
        ClusterSetup(patient, "digits", list_workers=registered).up(UP, PAYLOAD)
    assert len(lost) >= 4 and roles(aws) == WHOLE


# --- ending -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("action", ["TerminateInstances", "DeleteRole"])
def test_half_a_cluster_is_still_its_owners(action, user, aws, fault_proxy) -> None:
    anna, berta = user("anna"), user("berta")
    anna.up(UP, PAYLOAD)
    fault_proxy.judge = lambda r: Fault("error", "AccessDenied", 403) if r.action == action else None
    with pytest.raises(CloudError, match="is not gone"):
        anna.down()
    fault_proxy.judge = lambda request: None
    with pytest.raises(ConfError, match=f"belongs to {ANNA}"):
        berta.up(UP, PAYLOAD)
    anna.down()
    assert left_with_our_tag(aws) == []
    assert anna.ownership.owner() is None


@pytest.mark.long
def test_ending_somebody_elses_cluster_says_whose_it_was(user, aws, caplog) -> None:
    user("anna").up(UP, PAYLOAD)
    user("anna").down()
    assert not caplog.messages
    user("anna").up(UP, PAYLOAD)
    assert len(user("berta").down()) == 9
    assert [
        message for message in caplog.messages if message.startswith(f"cluster digits, which ends now, is {ANNA}'s")
    ]


def test_a_bucket_that_is_not_yet_tagged_is_no_orphan(user, aws) -> None:
    names = user("anna").names
    aws.client("s3").create_bucket(Bucket=names.bucket)
    [found] = find_clusters(aws)
    assert not found.is_orphan(aws.clock.wall()) and found.is_orphan(aws.clock.wall() + 3700)
    assert reap(aws) == []


# --- joining ----------------------------------------------------------------------------------------------------------


def test_joining_admits_one_more_network_and_replaces_nothing(user, aws) -> None:
    berta = user("berta")
    with pytest.raises(ConfError, match="nothing to join: no instance of cluster digits runs"):
        berta.join("198.51.100.1/32")
    user("anna").up(UP, PAYLOAD)
    before = everything(aws, berta)
    for allow in ("198.51.100.1/32", "2001:db8::7/128", "2001:db8::7/128"):
        assert berta.join(allow).owner.arn == ANNA
    after = everything(aws, berta)
    before.pop("groups")
    [group] = after.pop("groups")
    assert before == after
    rules = [rule for rule in group["IpPermissions"] if rule.get("FromPort") == 22]
    ranges = [each for rule in rules for each in (*rule["IpRanges"], *rule["Ipv6Ranges"])]
    assert {each.get("CidrIp") or each["CidrIpv6"]: each["Description"] for each in ranges} == {
        "203.0.113.7/32": "who started it",
        **dict.fromkeys(("198.51.100.1/32", "2001:db8::7/128"), f"joined by {BERTA}"),
    }
    other = aws.client("ec2").create_security_group(GroupName="annas", Description="hers")["GroupId"]
    user("anna").down()
    user("anna").up(replace(UP, security_group=other), PAYLOAD)
    with pytest.raises(ConfError, match="has no security group of its own"):
        berta.join("198.51.100.1/32")


# --- one owner, two machines ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_key_pair_of_running_instances_is_not_replaced_from_another_machine(
    user, aws, fault_proxy, monkeypatch, tmp_path
) -> None:
    anna = user("anna")
    anna.up(UP, PAYLOAD)
    before = everything(aws, anna)["keys"]
    monkeypatch.setenv("HOME", str(tmp_path / "another machine"))
    with pytest.raises(ConfError, match=r"another key than .*another machine.*copy the key from there"):
        user("anna").up(UP, PAYLOAD)
    assert everything(aws, anna)["keys"] == before
    instances = [instance.id for instance in list_instances(aws)]
    aws.client("ec2").terminate_instances(InstanceIds=instances)
    user("anna").up(UP, PAYLOAD)
    assert everything(aws, anna)["keys"] != before


@pytest.mark.parametrize(
    ("arn", "owner"),
    [
        (ANNA, ANNA),
        ("arn:aws:sts::1:assumed-role/Dev/anna@example.org", "arn:aws:sts::1:assumed-role/Dev/anna@example.org"),
        ("arn:aws:sts::1:assumed-role/Dev/botocore-session-1790000000", "arn:aws:sts::1:assumed-role/Dev"),
        ("arn:aws-cn:sts::1:assumed-role/Dev/AWS-CLI-session-1790000000", "arn:aws-cn:sts::1:assumed-role/Dev"),
    ],
)
def test_a_sessions_name_that_a_program_made_up_does_not_make_another_owner(arn: str, owner: str) -> None:
    assert owner_of(arn) == owner


@pytest.mark.long
def test_an_owner_that_cannot_be_read_is_named_and_does_not_keep_from_ending(user, aws) -> None:
    anna = user("anna")
    anna.up(UP, PAYLOAD)
    aws.client("s3").put_object(Bucket=anna.names.bucket, Key=OWNER, Body=b'{"arn": 7}')
    with pytest.raises(ConfError, match=r"s3://dl4j-digits-.*owner.json is not as this version writes it"):
        anna.up(UP, PAYLOAD)
    anna.down()
    assert left_with_our_tag(aws) == []
