"""A cluster on AWS, against moto's server: up, status, scale, down, and the exact calls that they make."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from dl4jlegacy.aws.cluster_bucket import DONE, own_key
from dl4jlegacy.aws.cluster_spec import CLUSTER, EXPIRES, ROLE, ClusterSpec
from dl4jlegacy.aws.instances import list_instances
from dl4jlegacy.aws.payload import Payload
from dl4jlegacy.aws.prices import estimate
from dl4jlegacy.aws.setup import ClusterSetup, ClusterStatus
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, Dl4jError, NotEnoughWorkersError, UsageError
from dl4jlegacy.storage.s3.session import Aws
from tests.support.aws_fixtures import IMAGE, Fault, FaultProxy, Request

PAYLOAD = Payload("dl4jlegacy-0.1.0-py3-none-any.whl", b"a wheel", b"numpy==2.4.6 --hash=sha256:0\n")
SPEC = ClusterSpec(
    name="digits",
    allow="203.0.113.7/32",
    ttl_seconds=4 * 3600,
    out="s3://models-of-mine/dbn.zip",
    workers=2,
    size="m5.large",
    ami=IMAGE,
)


def registered(setup: ClusterSetup, master: Any) -> list[str]:
    """Every running worker has registered: moto's instances run nothing."""
    listed = list_instances(setup.aws, setup.names.cluster)
    return [instance.id for instance in listed if instance.role == "worker" and instance.alive]


@pytest.fixture
def cluster(aws: Aws) -> Callable[..., ClusterSetup]:
    return lambda name="digits", ask=registered: ClusterSetup(aws, name, list_workers=ask)


def up(setup: ClusterSetup, **changes: Any) -> ClusterStatus:
    return setup.up(replace(SPEC, name=setup.names.cluster, **changes), PAYLOAD)


def instances(aws: Aws) -> list[dict[str, Any]]:
    reservations = aws.client("ec2").describe_instances()["Reservations"]
    return [i for r in reservations for i in r["Instances"] if i["State"]["Name"] != "terminated"]


def launches(proxy: FaultProxy) -> list[dict[str, str]]:
    return [request.parameters for request in proxy.calls("RunInstances")]


def file(launch: dict[str, str], name: str) -> str:
    """What a file of a launch's user data has."""
    written = yaml.safe_load(base64.b64decode(launch["UserData"]))["write_files"]
    return next(each["content"] for each in written if each["path"] == f"/usr/local/lib/dl4j/{name}")


def test_up_makes_a_cluster_that_status_shows_and_down_removes(cluster, aws) -> None:
    setup = cluster()
    first, again = up(setup), up(setup)  # which changes nothing
    shown = [(instance.role, instance.state, instance.size) for instance in first.instances]
    assert shown == [(role, "running", "m5.large") for role in ("master", "worker", "worker")]
    assert len(first.workers) == 2 and len(first.resources) == 6
    assert (again.instances, again.resources, again.expires) == (first.instances, first.resources, first.expires)
    assert len(setup.down()) == 9
    assert setup.status().resources == ()
    assert not instances(aws) and not setup.names.key_folder.exists()
    assert setup.down() == []
    with pytest.raises(ConfError, match="has no running master"):
        setup.scale(3)


def test_the_security_group_admits_the_cluster_and_ssh_from_one_network(cluster, aws) -> None:
    setup = cluster()
    for _ in range(2):
        up(setup)
    [group] = aws.client("ec2").describe_security_groups(GroupNames=["dl4j-digits"])["SecurityGroups"]
    inside, ssh = sorted(group["IpPermissions"], key=lambda rule: rule["IpProtocol"])
    assert inside["IpProtocol"] == "-1" and not inside["IpRanges"]
    assert [pair["GroupId"] for pair in inside["UserIdGroupPairs"]] == [group["GroupId"]]
    assert (ssh["FromPort"], ssh["ToPort"], [each["CidrIp"] for each in ssh["IpRanges"]]) == (22, 22, [SPEC.allow])


def test_instances_end_themselves_are_encrypted_and_have_a_role_and_no_keys(cluster, aws, fault_proxy) -> None:
    up(cluster())
    for launch, count in zip(launches(fault_proxy), "12", strict=True):
        expected = {
            "MinCount": count,
            "MaxCount": count,
            "ImageId": IMAGE,
            "KeyName": "dl4j-digits",
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions.HttpTokens": "required",
            "BlockDeviceMapping.1.Ebs.Encrypted": "true",
            "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
            "IamInstanceProfile.Name": "dl4j-digits-us-east-1",
        }
        assert {name: launch[name] for name in expected} == expected
        assert not [name for name in launch if name.startswith("InstanceMarketOptions")]


def test_every_core_of_every_worker_counts(cluster, aws, fault_proxy) -> None:
    spec = replace(SPEC, workers=8, size="c5.2xlarge", master_size="m5.large")
    cluster().up(spec, PAYLOAD)
    master, workers = launches(fault_proxy)
    assert " --workers 64 " in file(master, "master")
    assert "$(seq -s ' ' -f 'dl4j-worker@%.0f.service' 8)" in file(workers, "install")
    found = estimate(aws, spec)
    assert (found.processes, found.jobs_per_round) == (64, 0)
    assert "64 worker processes, and the data decide the jobs of a round: --jobs-per-round 64 after --" in found.text()
    found = estimate(aws, replace(spec, run=("--workers", "16", "--jobs-per-round", "4")))
    assert found.jobs_per_round == 4
    assert "they run 64 worker processes, 4 jobs a round" in found.text()
    assert estimate(aws, replace(spec, processes=3)).processes == 24


@pytest.mark.long
def test_disk_and_heap_are_what_was_asked_for_and_else_follow_from_image_and_master(cluster, aws, fault_proxy) -> None:
    def disks() -> list[int]:
        return sorted(volume["Size"] for volume in aws.client("ec2").describe_volumes()["Volumes"])

    setup = cluster()
    up(setup, disk=100, heap="3g", workers=1)
    setup.scale(2)
    assert disks() == [100, 100, 100]
    assert {launch["BlockDeviceMapping.1.Ebs.VolumeType"] for launch in launches(fault_proxy)} == {"gp3"}
    assert " --heap 3g\n" in file(launches(fault_proxy)[0], "services")
    setup.down()
    [described] = aws.client("ec2").describe_images(ImageIds=[IMAGE])["Images"]
    [least] = [mapping["Ebs"]["VolumeSize"] for mapping in described["BlockDeviceMappings"] if "Ebs" in mapping]
    up(setup, master_size="c5.2xlarge", disk=8)
    assert " --heap 8192m\n" in file(launches(fault_proxy)[-2], "services")
    assert disks()[:3] == [max(8, least)] * 3


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        *(({"disk": disk}, UsageError, "--disk ") for disk in (7, 20_000)),
        *(({"heap": heap}, UsageError, "--heap ") for heap in ("lots", "0g", "4")),
        ({"run": ("--jobs-per-round", "many")}, UsageError, "--jobs-per-round is 'many' after --"),
        *(
            ({"run": ("--device", name)}, ConfError, f"--device {name} after --: instances get neither")
            for name in ("gpu", "gpu:0")
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(wrong, error: type[Dl4jError], words: str) -> None:
    with pytest.raises(error, match=words):
        replace(SPEC, **wrong).check()


@pytest.mark.parametrize("where", ["size", "master_size"])
def test_sizes_with_gpus_are_refused_unless_they_are_to_be_idle(cluster, fault_proxy, caplog, where) -> None:
    setup, spec = cluster(), replace(SPEC, **{where: "g4dn.xlarge"})
    with pytest.raises(ConfError, match=r"g4dn\.xlarge has 1 GPU, and instances get neither the GPU's driver nor CuPy"):
        setup.up(spec, PAYLOAD)
    assert not [r for r in fault_proxy.requests if r.action.startswith(("Create", "Put", "Run", "Import"))]
    setup.check(replace(spec, run=("--device", "cpu")))
    assert "it costs what it costs with GPUs, and trains on its CPUs" in caplog.text


@pytest.mark.long
def test_a_new_master_is_where_workers_look_for_it(cluster, aws) -> None:
    setup, addresses = cluster(), set()
    for _ in range(2):
        status = up(setup)
        [master] = [i for i in status.instances if i.role == "master" and i.state == "running"]
        assert setup.resources.servers().addresses == master.private_address
        addresses.add(master.private_address)
        aws.client("ec2").terminate_instances(InstanceIds=[master.id])  # it is lost
    assert len(addresses) == 2
    assert len([i for i in status.instances if i.role == "worker" and i.state == "running"]) == 2


def finish(setup: ClusterSetup, role: str = "master") -> None:
    """An instance says that its run is done; a master's ends."""
    [instance, *_] = [i for i in setup.status(ask=False).instances if i.role == role]
    setup.resources.upload(own_key(setup.resources._user_id(instance.id), DONE), SPEC.out.encode())
    if role == "master":
        setup.aws.client("ec2").terminate_instances(InstanceIds=[instance.id])


@pytest.mark.long
def test_a_run_that_its_master_says_is_done_is_shown_and_not_begun_again(cluster, fault_proxy) -> None:
    setup = cluster()
    up(setup)
    finish(setup, "worker")
    assert setup.status().done is None
    finish(setup)
    assert setup.status().done.model == SPEC.out
    fault_proxy.requests.clear()
    again = cluster()
    with pytest.raises(ConfError, match=r"digits is done since 20.*its model is s3://.*dl4j aws down digits"):
        up(again)
    again.undo()
    assert not fault_proxy.calls("RunInstances") and not fault_proxy.calls("TerminateInstances")
    setup.down()
    assert up(setup).done is None


def test_everything_made_carries_the_clusters_tag(cluster, aws) -> None:
    names = (setup := cluster()).names
    up(setup)
    ec2, iam = aws.client("ec2"), aws.client("iam")
    volumes = ec2.describe_volumes()["Volumes"]
    assert len(volumes) == 3 and all(volume["Encrypted"] for volume in volumes)
    of_instances = [{tag["Key"]: tag["Value"] for tag in each["Tags"]} for each in instances(aws)]
    assert sorted(tags[ROLE] for tags in of_instances) == ["master", "worker", "worker"]
    tags = [
        ec2.describe_security_groups(GroupNames=[names.group])["SecurityGroups"][0]["Tags"],
        ec2.describe_key_pairs(KeyNames=[names.key_pair])["KeyPairs"][0]["Tags"],
        iam.list_role_tags(RoleName=names.role)["Tags"],
        iam.get_instance_profile(InstanceProfileName=names.role)["InstanceProfile"]["Tags"],
        aws.client("ssm").list_tags_for_resource(ResourceType="Parameter", ResourceId=names.secret)["TagList"],
        aws.client("s3").get_bucket_tagging(Bucket=names.bucket)["TagSet"],
        *(each["Tags"] for each in (*instances(aws), *volumes)),
    ]
    for each in tags:
        assert {"Key": CLUSTER, "Value": "digits"} in each
        assert EXPIRES in {tag["Key"] for tag in each}


def test_the_role_may_read_its_own_bucket_and_secret_and_the_models_bucket_and_no_more(cluster, aws) -> None:
    names = (setup := cluster()).names
    up(setup, run=("--dataset", "s3://some-data/train"))
    policy = aws.client("iam").get_role_policy(RoleName=names.role, PolicyName="dl4jlegacy")["PolicyDocument"]
    assert {resource for statement in policy["Statement"] for resource in statement["Resource"]} == {
        f"arn:aws:s3:::{names.bucket}/*",
        f"arn:aws:s3:::{names.bucket}/instances/${{aws:userid}}/*",
        f"arn:aws:ssm:us-east-1:{names.account}:parameter/dl4jlegacy/digits/secret",
        *("arn:aws:s3:::models-of-mine", "arn:aws:s3:::models-of-mine/*"),
        *("arn:aws:s3:::some-data", "arn:aws:s3:::some-data/*"),
    }
    assert not [action for statement in policy["Statement"] for action in statement["Action"] if "*" in action]


def test_the_secret_is_in_the_parameter_store_and_in_no_request_but_its_own(cluster, aws, fault_proxy) -> None:
    setup = cluster()
    up(setup)
    secret = setup.resources.read_secret()
    assert len(secret) >= 40
    assert aws.client("ssm").get_parameter(Name=setup.names.secret)["Parameter"]["Type"] == "SecureString"
    for request in fault_proxy.requests:
        if request.action not in ("PutParameter", "GetParameter"):
            data = base64.b64decode(request.parameters.get("UserData", ""))
            assert secret not in request.body + data


@pytest.mark.long
def test_spot_workers_are_asked_for_and_the_master_is_not_one(cluster, aws, fault_proxy) -> None:
    up(cluster(), spot=True)
    workers = launches(fault_proxy)[1]
    asked = {name: value for name, value in workers.items() if name.startswith("InstanceMarketOptions")}
    assert set(asked.values()) == {"spot", "one-time", "terminate"}
    assert workers["TagSpecification.3.ResourceType"] == "spot-instances-request"
    assert [instance.spot for instance in list_instances(aws, "digits")] == [False, True, True]


@pytest.mark.long
def test_scale_starts_workers_like_the_first_though_up_was_repeated_and_ends_the_youngest(
    cluster, aws, fault_proxy
) -> None:
    setup = cluster()
    before = up(setup)
    setup.up(SPEC, replace(PAYLOAD, wheel=b"a newer wheel", requirements=b"numpy==2.4.7 --hash=sha256:1\n"))
    more = setup.scale(4)
    assert sum(instance.role == "worker" and instance.alive for instance in more.instances) == 4
    _, old, new = launches(fault_proxy)
    for name in ("UserData", "ImageId", "InstanceType", "KeyName", "IamInstanceProfile.Name"):
        assert old[name] == new[name]
    assert {instance.expires for instance in more.instances} == {before.expires}
    [fetch] = [shlex.split(line) for line in file(new, "install").splitlines() if "fetch.py" in line]
    assert fetch[-4:] == [PAYLOAD.name, PAYLOAD.wheel_sha256, "requirements.txt", PAYLOAD.requirements_sha256]
    for key, content in (
        (f"{fetch[-3]}/{fetch[-4]}", PAYLOAD.wheel),
        (f"{fetch[-1]}/{fetch[-2]}", PAYLOAD.requirements),
    ):
        assert aws.client("s3").get_object(Bucket=setup.names.bucket, Key=key)["Body"].read() == content
    fewer = [instance for instance in setup.scale(1).instances if instance.alive]
    assert [instance.role for instance in fewer] == ["master", "worker"]
    assert fewer[1].launched == min(instance.launched for instance in more.instances if instance.role == "worker")


def test_down_leaves_other_clusters_and_strangers_alone(cluster, aws) -> None:
    mine, theirs = cluster("mine"), cluster("theirs")
    for setup in (mine, theirs):
        up(setup)
    [stranger] = aws.client("ec2").run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1)["Instances"]
    before = theirs.status()
    mine.down()
    assert theirs.status() == before
    assert stranger["InstanceId"] in {instance["InstanceId"] for instance in instances(aws)}
    assert len(instances(aws)) == 4


# --- waiting ----------------------------------------------------------------------------------------------------------


def end_late(times: int) -> Callable[[Request], Fault | None]:
    """EC2 shows terminated instances as shutting down in the first ``times`` descriptions."""
    left = {"asked": 0}

    def judge(request: Request) -> Fault | None:
        if request.action == "TerminateInstances":
            left["asked"] = times
        elif request.action == "DescribeInstances" and left["asked"] > 0:
            left["asked"] -= 1
            return Fault("says", "terminated=shutting-down")
        return None

    return judge


@pytest.mark.long
def test_down_that_waits_in_vain_says_what_is_left_and_can_be_repeated(cluster, fault_proxy) -> None:
    setup = cluster()
    up(setup)
    fault_proxy.judge = end_late(10_000)
    with pytest.raises(CloudError, match=r"is not gone, instance i-.* have not ended within 600 s.*repeat"):
        setup.down()
    fault_proxy.judge = lambda request: None
    setup.down()
    assert setup.status().resources == ()
    up(setup)
    fault_proxy.requests.clear()
    fault_proxy.judge = end_late(5)
    setup.down()
    done = [request.action for request in fault_proxy.requests]
    ended, removed = done.index("TerminateInstances"), done.index("DeleteSecurityGroup")
    assert done[ended:removed].count("DescribeInstances") >= 6
    [asked] = fault_proxy.calls("TerminateInstances")
    assert len([name for name in asked.parameters if name.startswith("InstanceId.")]) == 3


@pytest.mark.long
def test_up_waits_until_every_instance_has_a_registered_worker(cluster) -> None:
    one = ["ip-1-7-0123abcd", "ip-1-8-0123abce"]  # two processes of one instance
    answers = iter([CloudError("no SSH yet"), [], one, *[[*one, "ip-2-7-0123abcf"]] * 2])

    def ready(setup: ClusterSetup, master: Any) -> list[str]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    assert len(up(cluster(ask=ready)).workers) == 3
    with pytest.raises(DeadlineError, match=r"did not register within 1200 s: 1 of 2 have registered; see `dl4j aws"):
        up(cluster(ask=lambda setup, master: one))


@pytest.mark.long
def test_up_does_not_wait_for_instances_that_have_ended_or_whose_run_is_done(cluster, aws) -> None:
    def ready(setup: ClusterSetup, master: Any) -> list[str]:
        ids = [instance.id for instance in list_instances(aws) if instance.role == "worker"]
        aws.client("ec2").terminate_instances(InstanceIds=ids)
        return []

    with pytest.raises(NotEnoughWorkersError, match=r"needs a master and 2 workers; there are: .*terminated"):
        up(cluster(ask=ready))
    assert up(cluster(ask=lambda setup, master: finish(setup) or [])).done.model == SPEC.out
