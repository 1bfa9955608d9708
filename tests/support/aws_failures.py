"""Up and down on AWS under seeded failures of their calls; whatever happens, nothing that costs may be left.

    python -m tests.support.aws_failures seeds [first seed]

Each seed runs against moto's server behind a proxy, both of this process alone. A failing seed replays exactly.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from dl4jlegacy.aws.cluster_spec import CLUSTER
from dl4jlegacy.aws.reaper import reap
from dl4jlegacy.aws.session import Aws
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.errors import Dl4jError
from tests.aws.test_cluster import PAYLOAD, SPEC, registered
from tests.support.aws_fixtures import (
    IMAGE,
    Fault,
    FaultProxy,
    Request,
    environment,
    impatient,
    reset_moto,
    serve_moto,
    shared_loader,
)

CHUNK = 20
EVERYWHERE = (
    *(Fault("reset-before"), Fault("reset-after"), Fault("reset-after")),
    *(Fault("error", "InternalError", 500), Fault("error", "ServiceUnavailable", 503)),
)
OF_SERVICE = {
    "ec2": (
        *(Fault("error", "RequestLimitExceeded", 503), Fault("error", "UnauthorizedOperation", 403)),
        *(Fault("error", "InsufficientInstanceCapacity", 500), Fault("error", "VcpuLimitExceeded")),
        *(Fault("error", "InvalidGroup.NotFound"), Fault("error", "InvalidInstanceID.NotFound")),
        *(Fault("error", "DependencyViolation"), Fault("stale"), Fault("stale")),
    ),
    "iam": (
        *(Fault("error", "Throttling"), Fault("error", "AccessDenied", 403), Fault("error", "NoSuchEntity", 404)),
        *(Fault("error", "ConcurrentModification", 409), Fault("error", "DeleteConflict", 409)),
    ),
    "s3": (
        *(Fault("error", "SlowDown", 503), Fault("error", "AccessDenied", 403), Fault("error", "NoSuchBucket", 404)),
        Fault("error", "OperationAborted", 409),
    ),
    "ssm": (Fault("error", "ThrottlingException"), Fault("error", "AccessDeniedException")),
    "sts": (Fault("error", "Throttling"), Fault("error", "ExpiredToken", 403)),
}


class Saboteur:
    """Fails calls by a seed: some once, some again and again."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.calls = 0
        self.first = self.chance.randrange(45)
        self.more = self.chance.choice((0.0, 0.0, 0.05, 0.2))
        self.lasting: dict[str, Fault] = {}
        self.done: list[str] = []

    def __call__(self, request: Request) -> Fault | None:
        self.calls += 1
        if request.action in self.lasting:
            return self._fail(request, self.lasting[request.action])
        if self.calls - 1 != self.first and self.chance.random() >= self.more:
            return None
        fault = self.chance.choice(EVERYWHERE + OF_SERVICE.get(request.service, ()))
        if fault.kind == "stale" and not request.action.startswith("Describe"):
            fault = Fault("reset-after")
        if self.chance.random() < 0.25:
            self.lasting[request.action] = fault
        return self._fail(request, fault)

    def _fail(self, request: Request, fault: Fault) -> Fault:
        self.done.append(f"{request.action}: {fault.kind} {fault.code}".strip())
        return fault


def left_with_our_tag(aws: Aws) -> list[str]:
    """Everything there is, asked without the code under test."""
    ec2, iam = aws.client("ec2"), aws.client("iam")
    tagged = [{"Name": "tag-key", "Values": [CLUSTER]}]
    found = [
        i["InstanceId"]
        for r in ec2.describe_instances(Filters=tagged)["Reservations"]
        for i in r["Instances"]
        if i["State"]["Name"] != "terminated"
    ]
    found += [group["GroupId"] for group in ec2.describe_security_groups(Filters=tagged)["SecurityGroups"]]
    found += [pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]]
    found += [volume["VolumeId"] for volume in ec2.describe_volumes(Filters=tagged)["Volumes"]]
    spots = ec2.describe_spot_instance_requests(Filters=tagged)["SpotInstanceRequests"]
    found += [s["SpotInstanceRequestId"] for s in spots if s["State"] in ("open", "active")]
    found += [role["RoleName"] for role in iam.list_roles(PathPrefix="/dl4jlegacy/")["Roles"]]
    found += [p["InstanceProfileName"] for p in iam.list_instance_profiles()["InstanceProfiles"]]
    found += [parameter["Name"] for parameter in aws.client("ssm").describe_parameters()["Parameters"]]
    buckets = [bucket["Name"] for bucket in aws.client("s3").list_buckets()["Buckets"]]
    return found + [bucket for bucket in buckets if bucket.startswith("dl4j-")]


def attempt(aws: Aws, seed: int, proxy: FaultProxy) -> tuple[str, str]:
    """Up and down under faults, then ``reap`` and ``down`` without; return how the first two ended."""
    saboteur = proxy.judge = Saboteur(seed)
    outcomes = []
    name = f"seed-{seed}"
    spec = replace(SPEC, name=name, ami=IMAGE, spot=seed % 2 == 0)
    for step in ("up", "down"):
        try:
            setup = ClusterSetup(aws, name, list_workers=registered)
            _ = setup.up(spec, PAYLOAD) if step == "up" else setup.down()
            outcomes.append("done")
        except Dl4jError as exc:
            assert "Traceback" not in str(exc)
            assert str(exc).count("\n") == 0
            outcomes.append(type(exc).__name__)
    proxy.judge = lambda request: None
    reap(aws)
    ClusterSetup(aws, name).down()
    assert left_with_our_tag(aws) == [], f"seed {seed} after {saboteur.done}"
    return outcomes[0], outcomes[1]


def fail(count: int, first: int) -> None:
    """Run the seeds, each on an empty moto, with an ``Aws`` and a home of its own for every twenty."""
    endings: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder, serve_moto(Path(folder)) as target:
        os.environ.update(environment("", Path(folder)))
        proxy = FaultProxy(target)
        try:
            os.environ["AWS_ENDPOINT_URL"] = proxy.url
            for start in range(first, first + count, CHUNK):
                with impatient() as aws:
                    for seed in range(start, min(start + CHUNK, first + count)):
                        reset_moto(target)
                        endings[attempt(aws, seed, proxy)] += 1
                        proxy.reset()
                gc.collect()  # the traceback of a connection that was reset holds its socket
        finally:
            proxy.close()
    print(dict(endings))


if __name__ == "__main__":
    import botocore.session

    botocore.session.create_loader = shared_loader  # megabytes of JSON, read once and not by every session anew
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[variable]
    fail(*(int(a) for a in (sys.argv[1:] + ["200", "0"][len(sys.argv) - 1 :])[:2]))
