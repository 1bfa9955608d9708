"""A cluster on AWS, against moto's server: up, status, scale, down, and the exact calls that they make."""

from __future__ import annotations

import base64
import itertools
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from dl4jlegacy.aws import master_address
from dl4jlegacy.aws.cluster_bucket import DONE, PRESENT_MASTER, own_key
from dl4jlegacy.aws.cluster_spec import CLUSTER, EXPIRES, ROLE, ClusterSpec
from dl4jlegacy.aws.instances import list_instances
from dl4jlegacy.aws.payload import Payload
from dl4jlegacy.aws.prices import estimate
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, NotEnoughWorkersError, UsageError
from dl4jlegacy.storage.s3.session import Aws
from tests.support.aws_fixtures import Fault, FaultProxy, Request

PAYLOAD = Payload("dl4jlegacy-0.1.0-py3-none-any.whl", b"a wheel", b"numpy==2.4.6 --hash=sha256:0\n")
SPEC = ClusterSpec(
    name="digits",
    allow="203.0.113.7/32",
    ttl_seconds=4 * 3600,
    out="s3://models-of-mine/dbn.zip",
    workers=2,
    size="m5.large",
)


def registered(setup: ClusterSetup, master: Any) -> list[str]:
    """Every running worker has registered: moto's instances run nothing."""
    return [
        instance.id
        for instance in list_instances(setup._aws, setup.names.cluster)
        if instance.role == "worker" and instance.alive
    ]


@pytest.fixture
def cluster(aws: Aws) -> Callable[..., ClusterSetup]:
    return lambda name="digits": ClusterSetup(aws, name, list_workers=registered)


def instances(aws: Aws) -> list[dict[str, Any]]:
    reservations = aws.client("ec2").describe_instances()["Reservations"]
    return [i for r in reservations for i in r["Instances"] if i["State"]["Name"] != "terminated"]


def test_up_makes_a_cluster_that_status_shows_and_down_removes(cluster, image, aws) -> None:
    setup = cluster()
    status = setup.up(replace(SPEC, ami=image), PAYLOAD)
    assert [(instance.role, instance.state, instance.size) for instance in status.instances] == [
        ("master", "running", "m5.large"),
        ("worker", "running", "m5.large"),
        ("worker", "running", "m5.large"),
    ]
    assert len(status.workers) == 2
    assert len(status.resources) == 6
    removed = setup.down()
    assert len(removed) == 9
    assert setup.status().resources == ()
    assert not instances(aws)
    assert not setup.names.key_folder.exists()


def test_up_twice_changes_nothing(cluster, image, aws) -> None:
    setup = cluster()
    first = setup.up(replace(SPEC, ami=image), PAYLOAD)
    second = setup.up(replace(SPEC, ami=image), PAYLOAD)
    assert [instance.id for instance in first.instances] == [instance.id for instance in second.instances]
    assert first.resources == second.resources
    assert first.expires == second.expires
    [group] = aws.client("ec2").describe_security_groups(GroupNames=["dl4j-digits"])["SecurityGroups"]
    assert len(group["IpPermissions"]) == 2


def test_the_security_group_admits_the_cluster_and_ssh_from_one_network(cluster, image, aws, fault_proxy) -> None:
    cluster().up(replace(SPEC, ami=image), PAYLOAD)
    [made] = fault_proxy.calls("CreateSecurityGroup")
    assert made.parameters["GroupName"] == "dl4j-digits"
    assert made.parameters["TagSpecification.1.ResourceType"] == "security-group"
    inside, outside = (request.parameters for request in fault_proxy.calls("AuthorizeSecurityGroupIngress"))
    assert inside["IpPermissions.1.IpProtocol"] == "-1"
    assert inside["IpPermissions.1.Groups.1.GroupId"] == inside["GroupId"]
    assert not [name for name in inside if "CidrIp" in name]
    assert (outside["IpPermissions.1.FromPort"], outside["IpPermissions.1.ToPort"]) == ("22", "22")
    assert outside["IpPermissions.1.IpRanges.1.CidrIp"] == "203.0.113.7/32"
    assert not [name for name in outside if name.startswith("IpPermissions.2")]


def test_instances_end_themselves_are_tagged_and_have_a_role_and_no_keys(cluster, image, aws, fault_proxy) -> None:
    cluster().up(replace(SPEC, ami=image), PAYLOAD)
    master, workers = (request.parameters for request in fault_proxy.calls("RunInstances"))
    assert (master["MinCount"], master["MaxCount"], workers["MinCount"], workers["MaxCount"]) == ("1", "1", "2", "2")
    for call, role in ((master, "master"), (workers, "worker")):
        assert call["ImageId"] == image
        assert call["InstanceInitiatedShutdownBehavior"] == "terminate"
        assert call["MetadataOptions.HttpTokens"] == "required"
        assert call["BlockDeviceMapping.1.DeviceName"] == "/dev/xvda"
        assert (
            call["BlockDeviceMapping.1.Ebs.Encrypted"] == call["BlockDeviceMapping.1.Ebs.DeleteOnTermination"] == "true"
        )
        assert call["IamInstanceProfile.Name"] == "dl4j-digits-us-east-1"
        assert call["KeyName"] == "dl4j-digits"
        assert {call["TagSpecification.1.ResourceType"], call["TagSpecification.2.ResourceType"]} == {
            "instance",
            "volume",
        }
        assert not [name for name in call if name.startswith("InstanceMarketOptions")]
        tags = {call[f"TagSpecification.1.Tag.{n}.Key"]: call[f"TagSpecification.1.Tag.{n}.Value"] for n in range(1, 6)}
        assert tags[CLUSTER] == "digits"
        assert tags[ROLE] == role
        assert tags[EXPIRES].endswith("Z")
    data = yaml.safe_load(base64.b64decode(workers["UserData"]))
    [script] = [file for file in data["write_files"] if file["path"] == "/usr/local/lib/dl4j/worker"]
    [instance] = [instance for instance in list_instances(aws, "digits") if instance.role == "master"]
    assert f"--otherwise {instance.private_address})" in script["content"]


def script(request: Request, name: str) -> str:
    """What a file of the user data in a request has."""
    written = yaml.safe_load(base64.b64decode(request.parameters["UserData"]))["write_files"]
    return next(file["content"] for file in written if file["path"] == f"/usr/local/lib/dl4j/{name}")


def unit(request: Request, name: str) -> str:
    """What a systemd unit of the user data in a request has."""
    written = yaml.safe_load(base64.b64decode(request.parameters["UserData"]))["write_files"]
    return next(file["content"] for file in written if file["path"] == f"/etc/systemd/system/{name}")


def test_every_core_of_every_worker_counts(cluster, image, aws, fault_proxy) -> None:
    spec = replace(SPEC, ami=image, workers=8, size="c5.2xlarge", master_size="m5.large")
    cluster().up(spec, PAYLOAD)
    master, workers = fault_proxy.calls("RunInstances")
    assert " --workers 64 " in script(master, "master")
    assert "$(seq -s ' ' -f 'dl4j-worker@%.0f.service' 8)" in script(workers, "install")
    found = estimate(aws, spec)
    assert (found.processes, found.jobs_per_round) == (64, 64)
    assert "they run 64 worker processes, 64 jobs a round" in found.text()
    for given, jobs in ((("--workers", "16"), 16), (("--workers", "16", "--jobs-per-round", "4"), 4)):
        assert estimate(aws, replace(spec, run=given)).jobs_per_round == jobs
    assert estimate(aws, replace(spec, processes=3)).processes == 24


def test_jobs_that_are_no_number_are_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="--jobs-per-round is 'many' after --"):
        replace(SPEC, run=("--jobs-per-round", "many")).check()


def disks(aws: Aws) -> list[int]:
    return sorted(volume["Size"] for volume in aws.client("ec2").describe_volumes()["Volumes"])


@pytest.mark.long
def test_disk_and_heap_are_what_was_asked_for_and_scale_takes_no_other_disk(cluster, image, aws, fault_proxy) -> None:
    setup, spec = cluster(), replace(SPEC, ami=image, disk=100, heap="3g", workers=1)
    setup.up(spec, PAYLOAD)
    setup.scale(2)
    assert disks(aws) == [100, 100, 100]
    assert {r.parameters["BlockDeviceMapping.1.Ebs.VolumeType"] for r in fault_proxy.calls("RunInstances")} == {"gp3"}
    assert " --heap 3g\n" in unit(fault_proxy.calls("RunInstances")[0], "dl4j-services.service")
    more = estimate(aws, spec).dollars_per_hour - estimate(aws, replace(spec, disk=50)).dollars_per_hour
    assert more == pytest.approx(2 * 50 * 0.08 / 730)


@pytest.mark.long
def test_the_heap_is_half_of_the_masters_memory_and_no_disk_smaller_than_the_image(
    cluster, image, aws, fault_proxy
) -> None:
    [described] = aws.client("ec2").describe_images(ImageIds=[image])["Images"]
    [least] = [mapping["Ebs"]["VolumeSize"] for mapping in described["BlockDeviceMappings"] if "Ebs" in mapping]
    cluster().up(replace(SPEC, ami=image, master_size="c5.2xlarge", disk=8), PAYLOAD)
    assert " --heap 8192m\n" in unit(fault_proxy.calls("RunInstances")[0], "dl4j-services.service")
    assert disks(aws) == [max(8, least)] * 3


@pytest.mark.parametrize("wrong", [{"disk": 7}, {"disk": 20_000}, {"heap": "lots"}, {"heap": "0g"}, {"heap": "4"}])
def test_disks_and_heaps_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"--{next(iter(wrong))} "):
        replace(SPEC, **wrong).check()


@pytest.mark.parametrize("where", ["size", "master_size"])
def test_sizes_with_gpus_are_refused_unless_they_are_to_be_idle(cluster, image, fault_proxy, caplog, where) -> None:
    setup, spec = cluster(), replace(SPEC, ami=image, **{where: "g4dn.xlarge"})
    with pytest.raises(ConfError, match=r"g4dn\.xlarge has 1 GPU, and instances get neither the GPU's driver nor CuPy"):
        setup.up(spec, PAYLOAD)
    assert not [r for r in fault_proxy.requests if r.action.startswith(("Create", "Put", "Run", "Import"))]
    setup.check(replace(spec, run=("--device", "cpu")))
    assert "it costs what it costs with GPUs, and trains on its CPUs" in caplog.text


@pytest.mark.parametrize("device", ["gpu", "gpu:0"])
def test_runs_on_gpus_are_refused_before_anything_starts(device: str) -> None:
    with pytest.raises(ConfError, match=f"--device {device} after --: instances get neither"):
        replace(SPEC, run=("--device", device)).check()


@pytest.mark.long
def test_up_waits_for_every_instance_though_one_has_many_processes(aws, image) -> None:
    first = ["ip-1-7-0123abcd", "ip-1-8-0123abce"]
    answers = [first, first, [*first, "ip-2-7-0123abcf"]]
    asked = iter(answers)
    status = ClusterSetup(aws, "digits", list_workers=lambda setup, master: next(asked, answers[-1])).up(
        replace(SPEC, ami=image), PAYLOAD
    )
    assert len(status.workers) == 3


def address(setup: ClusterSetup, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What an instance of the cluster takes for the master's address, and what it says about that."""
    with pytest.raises(SystemExit) as end:
        master_address.main(["--region", "us-east-1", "--bucket", setup.names.bucket, "--otherwise", "10.0.0.1"])
    assert end.value.code == 0
    said = capsys.readouterr()
    return said.out.strip(), said.err


@pytest.mark.long
def test_workers_find_a_master_that_was_replaced(cluster, image, aws, capsys) -> None:
    setup = cluster()
    found = []
    for _ in range(2):
        status = setup.up(replace(SPEC, ami=image), PAYLOAD)
        [master] = [i for i in status.instances if i.role == "master" and i.state == "running"]
        assert address(setup, capsys) == (master.private_address, "")
        found.append(master)
        aws.client("ec2").terminate_instances(InstanceIds=[master.id])  # it is lost
    first, second = found
    assert first.private_address != second.private_address
    workers = [i for i in status.instances if i.role == "worker" and i.state == "running"]
    assert len(workers) == 2  # they have been there all the time


@pytest.mark.parametrize(
    "said", [b"", b"10.0.0.7", b"master.example AROA:i-1", b"10.0.0.7; rm -rf /", b"\xff \xff", None]
)
def test_a_worker_keeps_to_the_address_that_it_has_where_there_is_no_other(cluster, capsys, said: bytes | None) -> None:
    setup = cluster()
    setup.resources.ensure_bucket(SPEC.tags("", 0.0, 0.0))
    if said is not None:
        setup.resources.upload(PRESENT_MASTER, said)
    found, warning = address(setup, capsys)
    assert found == "10.0.0.1"
    assert f"the master may be another one than 10.0.0.1: s3://{setup.names.bucket}" in warning


def finish(setup: ClusterSetup) -> None:
    """The master says that its run is done, and its instance ends."""
    [master] = [i for i in setup.status(ask=False).instances if i.role == "master"]
    [user_id] = [setup.resources._user_id(master.id)]
    setup.resources.upload(own_key(user_id, DONE), SPEC.out.encode())
    setup._aws.client("ec2").terminate_instances(InstanceIds=[master.id])


@pytest.mark.long
def test_a_run_that_is_done_is_shown_and_not_begun_again(cluster, image, aws, fault_proxy) -> None:
    setup, spec = cluster(), replace(SPEC, ami=image)
    assert setup.up(spec, PAYLOAD).done is None
    finish(setup)
    assert setup.status().done.model == SPEC.out
    fault_proxy.requests.clear()
    again = cluster()
    with pytest.raises(ConfError, match=r"digits is done since 20.*its model is s3://.*dl4j aws down digits"):
        again.up(spec, PAYLOAD)
    again.undo()
    assert not fault_proxy.calls("RunInstances") and not fault_proxy.calls("TerminateInstances")
    assert setup.status().done.model == SPEC.out
    setup.down()
    assert setup.up(spec, PAYLOAD).done is None


def test_only_the_master_says_that_a_run_is_done(cluster, image) -> None:
    setup = cluster()
    status = setup.up(replace(SPEC, ami=image), PAYLOAD)
    worker = status.instances[-1]
    setup.resources.upload(own_key(setup.resources._user_id(worker.id), DONE), b"s3://elsewhere/m.zip")
    assert worker.role == "worker" and setup.status().done is None


def test_up_does_not_wait_for_workers_of_a_run_that_is_done(cluster, image, aws) -> None:
    def registered_late(setup: ClusterSetup, master: Any) -> list[str]:
        finish(setup)
        return []

    status = ClusterSetup(aws, "digits", list_workers=registered_late).up(replace(SPEC, ami=image), PAYLOAD)
    assert status.done.model == SPEC.out


def test_everything_made_carries_the_clusters_tag(cluster, image, aws) -> None:
    names = (setup := cluster()).names
    setup.up(replace(SPEC, ami=image), PAYLOAD)
    ec2, iam = aws.client("ec2"), aws.client("iam")
    tags = [
        ec2.describe_security_groups(GroupNames=[names.group])["SecurityGroups"][0]["Tags"],
        ec2.describe_key_pairs(KeyNames=[names.key_pair])["KeyPairs"][0]["Tags"],
        iam.list_role_tags(RoleName=names.role)["Tags"],
        iam.get_instance_profile(InstanceProfileName=names.role)["InstanceProfile"]["Tags"],
        aws.client("ssm").list_tags_for_resource(ResourceType="Parameter", ResourceId=names.secret)["TagList"],
        aws.client("s3").get_bucket_tagging(Bucket=names.bucket)["TagSet"],
        *(instance["Tags"] for instance in instances(aws)),
    ]
    volumes = ec2.describe_volumes()["Volumes"]
    assert len(volumes) == 3 and all(volume["Encrypted"] for volume in volumes)
    tags += [volume["Tags"] for volume in volumes]
    for each in tags:
        assert {"Key": CLUSTER, "Value": "digits"} in each
        assert EXPIRES in {tag["Key"] for tag in each}


def test_the_role_may_read_its_own_bucket_and_secret_and_the_models_bucket_and_no_more(cluster, image, aws) -> None:
    names = (setup := cluster()).names
    setup.up(replace(SPEC, ami=image, run=("--dataset", "s3://some-data/train")), PAYLOAD)
    policy = aws.client("iam").get_role_policy(RoleName=names.role, PolicyName="dl4jlegacy")["PolicyDocument"]
    resources = {
        r for s in policy["Statement"] for r in ([s["Resource"]] * isinstance(s["Resource"], str) or s["Resource"])
    }
    assert resources == {
        f"arn:aws:s3:::{names.bucket}/*",
        f"arn:aws:s3:::{names.bucket}/instances/${{aws:userid}}/*",
        f"arn:aws:ssm:us-east-1:{names.account}:parameter/dl4jlegacy/digits/secret",
        *("arn:aws:s3:::models-of-mine", "arn:aws:s3:::models-of-mine/*"),
        *("arn:aws:s3:::some-data", "arn:aws:s3:::some-data/*"),
    }
    assert not [action for statement in policy["Statement"] for action in statement["Action"] if "*" in action]


def test_the_secret_is_in_the_parameter_store_and_in_no_request_but_its_own(cluster, image, aws, fault_proxy) -> None:
    setup = cluster()
    setup.up(replace(SPEC, ami=image), PAYLOAD)
    secret = setup.resources.read_secret()
    assert len(secret) >= 40
    found = aws.client("ssm").get_parameter(Name=setup.names.secret)["Parameter"]
    assert found["Type"] == "SecureString"
    for request in fault_proxy.requests:
        if request.action not in ("PutParameter", "GetParameter"):
            data = base64.b64decode(request.parameters.get("UserData", ""))
            assert secret not in request.body + data


@pytest.mark.long
def test_spot_workers_are_asked_for_and_the_master_is_not_one(cluster, image, aws, fault_proxy) -> None:
    cluster().up(replace(SPEC, ami=image, spot=True), PAYLOAD)
    master, workers = (request.parameters for request in fault_proxy.calls("RunInstances"))
    assert "InstanceMarketOptions.MarketType" not in master
    assert workers["InstanceMarketOptions.MarketType"] == "spot"
    assert workers["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert workers["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"
    assert workers["TagSpecification.3.ResourceType"] == "spot-instances-request"
    assert [instance.spot for instance in list_instances(aws, "digits")] == [False, True, True]


@pytest.mark.long
def test_scale_adds_workers_like_those_that_are_there_and_ends_the_youngest(cluster, image, aws, fault_proxy) -> None:
    setup = cluster()
    before = setup.up(replace(SPEC, ami=image), PAYLOAD)
    more = setup.scale(4)
    assert sum(instance.role == "worker" and instance.alive for instance in more.instances) == 4
    old, new = fault_proxy.calls("RunInstances")[1:]
    for name in ("UserData", "ImageId", "InstanceType", "KeyName", "IamInstanceProfile.Name"):
        assert old.parameters[name] == new.parameters[name]
    assert {instance.expires for instance in more.instances} == {before.expires}
    fewer = setup.scale(1)
    [kept] = [instance for instance in fewer.instances if instance.role == "worker" and instance.alive]
    assert kept.launched == min(instance.launched for instance in more.instances if instance.role == "worker")
    assert sum(instance.role == "master" and instance.alive for instance in fewer.instances) == 1


@pytest.mark.long
def test_whatever_up_was_repeated_with_those_that_scale_starts_find_what_they_are_to_install(
    cluster, image, aws, fault_proxy
) -> None:
    setup, spec = cluster(), replace(SPEC, ami=image, workers=1)
    setup.up(spec, PAYLOAD)
    setup.up(spec, replace(PAYLOAD, wheel=b"a newer wheel", requirements=b"numpy==2.4.7 --hash=sha256:1\n"))
    setup.scale(2)
    *_, started = fault_proxy.calls("RunInstances")
    [fetch] = [shlex.split(line) for line in script(started, "install").splitlines() if "fetch.py" in line]
    pairs = list(itertools.pairwise(fetch[-4:]))[::2]
    assert pairs == [(PAYLOAD.name, PAYLOAD.wheel_sha256), ("requirements.txt", PAYLOAD.requirements_sha256)]
    for (name, digest), content in zip(pairs, (PAYLOAD.wheel, PAYLOAD.requirements), strict=True):
        found = aws.client("s3").get_object(Bucket=setup.names.bucket, Key=f"{digest}/{name}")
        assert found["Body"].read() == content


def test_scaling_a_cluster_that_is_not_there_is_refused(cluster, aws) -> None:
    with pytest.raises(ConfError, match="has no running master"):
        cluster().scale(3)


def test_down_leaves_other_clusters_and_strangers_alone(cluster, image, aws) -> None:
    mine, theirs = cluster("mine"), cluster("theirs")
    for setup in (mine, theirs):
        setup.up(replace(SPEC, name=setup.names.cluster, ami=image), PAYLOAD)
    [stranger] = aws.client("ec2").run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"]
    before = theirs.status()
    mine.down()
    assert theirs.status() == before
    assert stranger["InstanceId"] in {instance["InstanceId"] for instance in instances(aws)}
    assert len(instances(aws)) == 4


def test_down_of_nothing_is_no_error(cluster) -> None:
    assert cluster("never").down() == []


# --- waiting ----------------------------------------------------------------------------------------------------------


def shown_late(times: int, after: str, says: str) -> Callable[[Request], Fault | None]:
    """EC2 shows an old state in the first ``times`` descriptions after an action."""
    left = {"asked": -1}

    def judge(request: Request) -> Fault | None:
        if request.action == after:
            left["asked"] = times
        elif request.action == "DescribeInstances" and left["asked"] > 0:
            left["asked"] -= 1
            return Fault("says", says)
        return None

    return judge


def actions(proxy: FaultProxy) -> list[str]:
    return [request.action for request in proxy.requests]


@pytest.mark.long
def test_down_waits_until_instances_have_ended_before_it_removes_the_rest(cluster, image, fault_proxy) -> None:
    setup = cluster()
    setup.up(replace(SPEC, ami=image), PAYLOAD)
    fault_proxy.requests.clear()
    fault_proxy.judge = shown_late(5, "TerminateInstances", "terminated=shutting-down")
    setup.down()
    done = actions(fault_proxy)
    ended, removed = done.index("TerminateInstances"), done.index("DeleteSecurityGroup")
    assert done[ended:removed].count("DescribeInstances") >= 6
    assert [name for name in done if name.startswith("Terminate")] == ["TerminateInstances"]
    [asked] = fault_proxy.calls("TerminateInstances")
    assert len([name for name in asked.parameters if name.startswith("InstanceId.")]) == 3


@pytest.mark.long
def test_down_that_waits_in_vain_says_what_is_left_and_can_be_repeated(cluster, image, fault_proxy) -> None:
    setup = cluster()
    setup.up(replace(SPEC, ami=image), PAYLOAD)
    fault_proxy.judge = shown_late(10_000, "TerminateInstances", "terminated=shutting-down")
    with pytest.raises(CloudError, match=r"is not gone, instance i-.* have not ended within 600 s.*repeat"):
        setup.down()
    fault_proxy.judge = lambda request: None
    setup.down()
    assert setup.status().resources == ()


@pytest.mark.long
def test_up_waits_until_every_worker_has_registered(cluster, image, aws) -> None:
    answers = [CloudError("no SSH yet"), [], ["a"], ["a", "b"]]

    def ready(setup: ClusterSetup, master: Any) -> list[str]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    status = ClusterSetup(aws, "digits", list_workers=ready).up(replace(SPEC, ami=image), PAYLOAD)
    assert status.workers == ("a", "b")
    assert len(answers) == 1


@pytest.mark.long
def test_up_that_waits_in_vain_says_for_whom(aws, image) -> None:
    setup = ClusterSetup(aws, "digits", list_workers=lambda setup, master: ["a"])
    with pytest.raises(DeadlineError, match=r"did not register within 1200 s: 1 of 2 have registered; see `dl4j aws"):
        setup.up(replace(SPEC, ami=image), PAYLOAD)


@pytest.mark.long
def test_up_does_not_wait_for_instances_that_have_ended(aws, image) -> None:
    def ready(setup: ClusterSetup, master: Any) -> list[str]:
        aws.client("ec2").terminate_instances(
            InstanceIds=[instance.id for instance in list_instances(aws) if instance.role == "worker"]
        )
        return []

    with pytest.raises(NotEnoughWorkersError, match=r"needs a master and 2 workers; there are: .*terminated"):
        ClusterSetup(aws, "digits", list_workers=ready).up(replace(SPEC, ami=image), PAYLOAD)
