"""A cluster on AWS with a standby: three instances have its servers, and the loss of any one of them is survived."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dl4jlegacy.aws import on_instance
from dl4jlegacy.aws.cluster_bucket import (
    DONE,
    PRESENT_MASTER,
    PresentMaster,
    Servers,
    own_key,
    read_servers,
    write_object,
)
from dl4jlegacy.aws.cluster_spec import MASTER, STANDBY, WITNESS, WORKER
from dl4jlegacy.aws.instances import Instance, list_instances
from dl4jlegacy.aws.prices import estimate
from dl4jlegacy.aws.server_places import server_places
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.errors import CloudError, ConfError
from tests.aws.test_cluster import PAYLOAD, SPEC, cluster, instances  # noqa: F401 (a fixture)
from tests.aws.test_user_data import MASTER as ALONE
from tests.aws.test_user_data import PROGRAM, Machine, begun, files
from tests.aws.test_user_data import WORKER as WORKER_NODE

SERVERS = ("10.0.0.9", "10.0.0.8", "10.0.0.7")
LED = replace(ALONE, standby=True)
BEHIND = replace(LED, role=STANDBY)
VOTES = replace(LED, role=WITNESS)
OVER = '{"status":"done","standby":true}'
OUT = "s3://models-of-mine/dbn.zip"
ZOOKEEPER = ["--zookeeper", "10.0.0.9:2181,10.0.0.8:2181,10.0.0.7:2181"]
GRID = ["--tracker", "hazelcast://10.0.0.9:5701,10.0.0.8:5701"]
WHERE = [*GRID, *ZOOKEEPER, "--bind", "10.0.0.8", "--log-format", "json"]
STANDS_BY = ["master", "--standby", "--out", OUT, *ZOOKEEPER, "--bind", "10.0.0.8", "--log-format", "json"]
FOLDER = "/var/lib/dl4j/checkpoints"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.write("python", f'[ "$3" != servers ] || echo {",".join(SERVERS)}')
    return made


PLAIN = ("--model", "dbn", "--out", OUT)
ASKS = [*PROGRAM, "servers", "us-east-1", LED.bucket]
DONE_SAID = [*PROGRAM, "done", "us-east-1", LED.bucket, OUT]
BEGINS = ["master", *PLAIN, "--checkpoint-dir", FOLDER, "--workers", "4", *WHERE]
STANDING = [*STANDS_BY, "--format", "json"]
RESUMES = ["resume", FOLDER, "--workers", "0", "--out", OUT, *WHERE]


@pytest.mark.parametrize(
    ("node", "has_begun", "ends", "status", "executed"),
    [
        (LED, False, {}, 0, [BEGINS, DONE_SAID]),
        (LED, False, {"master--model": (1, "")}, 1, [BEGINS]),
        (LED, False, {"master--model": (4, "")}, 0, [BEGINS, STANDING, DONE_SAID]),
        (LED, False, {"master--model": (4, ""), "master--standby": (0, OVER)}, 0, [BEGINS, STANDING]),
        (LED, False, {"master--model": (4, ""), "master--standby": (4, "")}, 4, [BEGINS, STANDING]),
        (LED, True, {}, 0, [STANDING, DONE_SAID]),
        (LED, True, {"master--standby": (0, OVER)}, 0, [STANDING]),
        (LED, True, {"master--standby": (4, "")}, 0, [STANDING, RESUMES, DONE_SAID]),
        (LED, True, {"master--standby": (4, ""), f"resume*{FOLDER}": (8, "")}, 8, [STANDING, RESUMES]),
        (LED, True, {"master--standby": (7, "")}, 7, [STANDING]),
        (BEHIND, False, {}, 0, [STANDING, DONE_SAID]),
        (BEHIND, False, {"master--standby": (0, OVER)}, 0, [STANDING]),
        (BEHIND, False, {"master--standby": (4, "")}, 4, [STANDING]),
        (BEHIND, False, {"master--standby": (1, "")}, 1, [STANDING]),
        (BEHIND, True, {"master--standby": (4, "")}, 0, [STANDING, RESUMES, DONE_SAID]),
    ],
)
@pytest.mark.everyday(8)
def test_one_begins_the_run_each_may_go_on_with_it_and_who_ended_it_says_so(
    machine: Machine, node, has_begun, ends, status, executed
) -> None:
    cases = "".join(f"{key}) echo '{says}'; exit {status} ;;\n" for key, (status, says) in ends.items())
    machine.write("dl4j", f'case "$1$2" in\n{cases}esac'.replace(FOLDER, str(machine.home / "checkpoints")))
    if has_begun:
        begun(machine.folder / FOLDER[1:])
    assert machine.execute(replace(node, run=PLAIN), node.role) == (status, [ASKS, *executed])


def test_checkpoints_in_s3_are_asked_for_and_gone_on_with_by_either(machine: Machine) -> None:
    place = "s3://runs-of-mine/one"
    node = replace(BEHIND, run=(*PLAIN, "--checkpoint-dir", place))
    machine.write("python", f'case "$3" in servers) echo {",".join(SERVERS)} ;; is-kept) echo yes ;; esac')
    machine.write("dl4j", '[ "$2" != --standby ] || exit 4')
    asked = [ASKS, [*PROGRAM, "is-kept", place]]
    again = [STANDING, ["resume", place, *RESUMES[2:]], DONE_SAID]
    assert machine.execute(node, STANDBY) == (0, [*asked, *again])
    machine.write("python", "exit 4")  # nobody leads while it is not known where the servers are
    assert machine.execute(node, STANDBY) == (4, [ASKS])


def test_each_of_the_three_starts_its_part_of_the_servers_and_a_worker_goes_to_all(machine: Machine) -> None:
    part = ["services", "up", "--foreground", "--host", "10.0.0.8", "--hosts", ",".join(SERVERS)]
    for node in (LED, BEHIND, VOTES):
        expected = [ASKS, [*part, "--witness", "10.0.0.7", "--heap", "1g"]]
        assert machine.execute(node, "services") == (0, expected)
    counts = {node.role: sum(name.endswith(".service") for name in files(node)) for node in (LED, BEHIND, VOTES)}
    assert counts == {MASTER: 3, STANDBY: 3, WITNESS: 2}
    assert f"ExecStart=/usr/local/lib/dl4j/{STANDBY}\n" in files(BEHIND)["/etc/systemd/system/dl4j-master.service"]
    assert not [name for name in files(VOTES) if name.endswith(("/master", "/witness"))]
    told = ["worker", *ZOOKEEPER, "--workers", "1", "--wait", "600", "--log-format", "json"]
    assert machine.execute(WORKER_NODE, WORKER) == (0, [ASKS, told])


# -- what is launched --------------------------------------------------------------------------------------------------


def running(setup: ClusterSetup) -> dict[str, str]:
    """The private addresses of the running instances with servers, and their roles, the oldest first."""
    found = [i for i in list_instances(setup.aws, setup.names.cluster) if i.state == "running" and i.role != WORKER]
    return {instance.private_address: instance.role for instance in found}


def lose(setup: ClusterSetup, address: str) -> None:
    [lost] = [i.id for i in list_instances(setup.aws, setup.names.cluster) if i.private_address == address]
    setup.aws.client("ec2").terminate_instances(InstanceIds=[lost])


def told(fault_proxy, number: int) -> dict[str, str]:
    """The files that an instance was told to have."""
    data = base64.b64decode(fault_proxy.calls("RunInstances")[number].parameters["UserData"]).decode()
    return {file["path"].rpartition("/")[2]: file["content"] for file in yaml.safe_load(data)["write_files"]}


def test_a_lost_instance_is_replaced_at_its_address_and_begins_nothing(cluster, aws, fault_proxy) -> None:  # noqa: F811
    setup, spec = cluster(), replace(SPEC, standby=True, workers=1)
    status = setup.up(spec, PAYLOAD, wait=False)
    sizes = {instance.role: instance.size for instance in status.instances}
    assert sizes == {MASTER: "m5.large", STANDBY: "m5.large", WITNESS: "t3.small", WORKER: "m5.large"}
    first, second, witness = addresses = list(running(setup))
    assert list(running(setup).values()) == [MASTER, STANDBY, WITNESS]
    servers = read_servers(aws, setup.names.bucket)
    assert servers.addresses == ",".join(addresses) and [s.address for s in servers.leaders] == [first, second]
    lose(setup, first)
    assert setup.scale(1, wait=False)  # though the master is gone
    setup.up(spec, PAYLOAD, wait=False)
    assert len(fault_proxy.calls("RunInstances")) == 5
    request = fault_proxy.calls("RunInstances")[4].parameters
    assert request["PrivateIpAddress"] == first and request["SubnetId"]
    assert running(setup) == {second: STANDBY, witness: WITNESS, first: STANDBY}
    assert STANDBY in told(fault_proxy, 4) and MASTER not in told(fault_proxy, 4)
    assert read_servers(aws, setup.names.bucket).addresses == ",".join(addresses)
    with pytest.raises(ConfError, match="runs and has a standby: repeat `dl4j aws up` with --standby"):
        setup.up(replace(spec, standby=False), PAYLOAD, wait=False)
    leader = servers.leaders[1]
    setup.resources.upload(own_key(leader.user_id, DONE), OUT.encode())
    assert setup.status(ask=False).done.model == OUT  # the standby has led it to its end
    setup.down()
    assert not instances(aws)


def server(role: str, number: int) -> Instance:
    address = SERVERS[number]
    return Instance(f"i-{number}", "running", "digits", role, "m5.large", False, "", address, "", 0.0, "", "")


def test_where_servers_go_follows_from_what_runs_and_from_where_they_were() -> None:
    spec, roles = replace(SPEC, standby=True), (MASTER, STANDBY, WITNESS)
    former = Servers(tuple(PresentMaster(address, f"AROA:i-{n}") for n, address in enumerate(SERVERS)))
    all_of_them = [server(role, number) for number, role in enumerate(roles)]
    worker = replace(all_of_them[0], role=WORKER, private_address="10.0.0.20")

    def missing(former: Servers | None, *there: Instance) -> list[tuple[str, str]]:
        return [(each.role, each.address) for each in server_places(spec, former, there) if each.instance is None]

    anywhere = [(role, "") for role in roles]
    assert missing(None) == missing(former) == missing(former, worker) == anywhere  # it begins anew
    assert missing(None, all_of_them[0]) == anywhere[1:]  # an `up` that was killed
    assert missing(former, *all_of_them, worker) == []
    assert missing(former, *all_of_them[1:]) == [(STANDBY, SERVERS[0])]
    assert missing(former, all_of_them[0], all_of_them[2]) == [(STANDBY, SERVERS[1])]
    assert missing(former, *all_of_them[:2]) == [(WITNESS, SERVERS[2])]
    assert missing(former, all_of_them[2]) == [(MASTER, SERVERS[0]), (STANDBY, SERVERS[1])]
    again = replace(all_of_them[0], role=STANDBY)  # it has taken the place of the first one
    assert missing(former, again, all_of_them[2]) == [(STANDBY, SERVERS[1])]
    assert [place.role for place in server_places(SPEC, None, [])] == [MASTER]
    with pytest.raises(ConfError, match="runs and has no standby: repeat `dl4j aws up` without --standby"):
        server_places(spec, Servers(former.instances[:1]), all_of_them)


def test_the_price_has_all_three_and_tells_each() -> None:
    alone, safe = (estimate(None, replace(SPEC, standby=standby)) for standby in (False, True))
    assert safe.dollars_per_hour - alone.dollars_per_hour == pytest.approx(0.096 + 0.0208, abs=0.02)  # and their disks
    assert safe.dollars_per_hour == pytest.approx(
        safe.of_running({MASTER: 1, STANDBY: 1, WORKER: 2, WITNESS: 1}), abs=1e-9
    )
    said = safe.text()
    assert "standby  m5.large: 0.0960 $/h" in said and "witness  t3.small: 0.0208 $/h" in said
    assert (safe.fields()["witness"]["size"], "witness" in alone.fields()) == ("t3.small", False)


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"10.0.0.7", b"master.example AROA:i-1", b"10.0.0.7; rm -rf /", b"\xff \xff"),
        *(b"10.0.0.1 AROA:i-1\n10.0.0.2 AROA:i-2", b"10.0.0.1 AROA:i-1\n\n"),
    ],
)
def test_what_up_did_not_write_is_not_believed(aws, said: bytes) -> None:
    bucket = "dl4j-digits-123456789012-us-east-1"
    aws.client("s3").create_bucket(Bucket=bucket)
    with pytest.raises(CloudError, match="does not say yet where the cluster's servers are"):
        on_instance.server_addresses(aws, bucket)
    write_object(aws, bucket, PRESENT_MASTER, said)
    with pytest.raises(CloudError, match="is not as `up` writes it"):
        on_instance.server_addresses(aws, bucket)
