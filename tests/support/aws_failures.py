"""Up and down on AWS under seeded failures of their calls: nothing that costs is left, and a second up makes it whole.

Seeds are in turn of the one kind and of the other.

    python -m tests.support.aws_failures seeds [first seed]

Each seed runs against moto's server behind a proxy, both of this process alone. A failing seed replays exactly.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from dl4jlegacy.aws.cluster_spec import CLUSTER, MASTER, OWNER, ROLE, WORKER
from dl4jlegacy.aws.reaper import reap
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.storage.s3.session import Aws
from tests.aws.test_cluster import PAYLOAD, SPEC, registered
from tests.support.aws_fixtures import (
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


def all_pages(client: Any, operation: str, result: str, **arguments: Any) -> list[dict[str, Any]]:
    """Everything that an operation lists, page after page."""
    if not client.can_paginate(operation):  # then it lists all at once
        return list(getattr(client, operation)(**arguments)[result])
    return [item for page in client.get_paginator(operation).paginate(**arguments) for item in page[result]]


def alive(aws: Aws) -> list[dict[str, Any]]:
    """Every instance with our tag that may still cost something, asked without the code under test."""
    tagged = [{"Name": "tag-key", "Values": [CLUSTER]}]
    reservations = all_pages(aws.client("ec2"), "describe_instances", "Reservations", Filters=tagged)
    return [i for r in reservations for i in r["Instances"] if i["State"]["Name"] != "terminated"]


def left_with_our_tag(aws: Aws) -> list[str]:
    """Everything there is, to the last page, asked without the code under test."""
    ec2, iam, ssm, s3 = (aws.client(service) for service in ("ec2", "iam", "ssm", "s3"))
    tagged: dict[str, Any] = {"Filters": [{"Name": "tag-key", "Values": [CLUSTER]}]}
    ours = {"PathPrefix": "/dl4jlegacy/"}
    found = [instance["InstanceId"] for instance in alive(aws)]
    found += [g["GroupId"] for g in all_pages(ec2, "describe_security_groups", "SecurityGroups", **tagged)]
    found += [pair["KeyName"] for pair in all_pages(ec2, "describe_key_pairs", "KeyPairs")]
    found += [volume["VolumeId"] for volume in all_pages(ec2, "describe_volumes", "Volumes", **tagged)]
    spots = all_pages(ec2, "describe_spot_instance_requests", "SpotInstanceRequests", **tagged)
    found += [s["SpotInstanceRequestId"] for s in spots if s["State"] in ("open", "active")]
    found += [role["RoleName"] for role in all_pages(iam, "list_roles", "Roles", **ours)]
    found += [p["InstanceProfileName"] for p in all_pages(iam, "list_instance_profiles", "InstanceProfiles")]
    found += [parameter["Name"] for parameter in all_pages(ssm, "describe_parameters", "Parameters")]
    buckets = [bucket["Name"] for bucket in all_pages(s3, "list_buckets", "Buckets")]
    return found + [bucket for bucket in buckets if bucket.startswith("dl4j-")]


def long_ago(request: Request) -> Fault | None:
    """No failure; only it is long ago that an ``up`` which did not end has written who owns its cluster."""
    return Fault("old") if request.action == "GET s3" and request.path.endswith(f"/{OWNER}") else None


def repeat(aws: Aws, seed: int, proxy: FaultProxy) -> None:
    """Up under faults, then without: the second ends with the wanted number, and ``down`` leaves nothing."""
    saboteur = proxy.judge = Saboteur(seed)
    name = f"seed-{seed}"
    spec = replace(SPEC, name=name, spot=seed // 2 % 2 == 0)
    with contextlib.suppress(Dl4jError):
        ClusterSetup(aws, name, list_workers=registered).up(spec, PAYLOAD)
    proxy.judge = long_ago
    setup = ClusterSetup(aws, name, list_workers=registered)
    setup.up(spec, PAYLOAD)
    roles = Counter(tag["Value"] for i in alive(aws) for tag in i["Tags"] if tag["Key"] == ROLE)
    assert roles == {MASTER: 1, WORKER: spec.workers}, f"seed {seed} after {saboteur.done}: {roles}"
    setup.down()
    assert left_with_our_tag(aws) == [], f"seed {seed} after {saboteur.done}"


def attempt(aws: Aws, seed: int, proxy: FaultProxy) -> tuple[str, str]:
    """Up and down under faults, then ``reap`` and ``down`` without; return how the first two ended."""
    saboteur = proxy.judge = Saboteur(seed)
    outcomes = []
    name = f"seed-{seed}"
    spec = replace(SPEC, name=name, spot=seed // 2 % 2 == 0)
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
    if outcomes[1] == "done":
        assert left_with_our_tag(aws) == [], f"seed {seed} after {saboteur.done}, and down was content"
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
                        if seed % 2:
                            repeat(aws, seed, proxy)
                        else:
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
