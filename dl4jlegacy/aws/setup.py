"""ClusterSetup: a whole cluster on AWS: up, status, scale, down (layer 5).

``up`` may be repeated: what is there stays, what is missing is made. ``down`` ends everything that carries the
cluster's tag and returns only when AWS shows none of it any more. Both find what there is by tags and names alone.

Legacy: ``ClusterSetup``, which started workers for a master set up by hand, and never ended anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from dl4jlegacy.aws.belongings import Belongings
from dl4jlegacy.aws.boxes import (
    Box,
    Ec2BoxCreator,
    boxes_of,
    cancel_spot_requests,
    check_ami,
    end_boxes,
    newest_ami,
    size_info,
)
from dl4jlegacy.aws.cluster_spec import CLUSTER, MASTER, WORKER, ClusterSpec, Names, Tags, buckets_in
from dl4jlegacy.aws.node import HOSTS
from dl4jlegacy.aws.payload import Payload
from dl4jlegacy.aws.provision import HostProvisioner, new_key
from dl4jlegacy.aws.session import Aws
from dl4jlegacy.aws.userdata import Node, user_data
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, Dl4jError, NotEnoughWorkersError

__all__ = ["ClusterSetup", "ClusterStatus", "Ready", "registered_over_ssh"]

logger = logging.getLogger(__name__)

Ready = Callable[["ClusterSetup", Box], list[str]]
"""Returns the ids of the workers that the master has registered; raises ``Dl4jError`` while it cannot be asked."""

_ZOOKEEPER = 2181
_READY_SECONDS = 1200.0
_LOOK_SECONDS = 5.0
_QUIET_LOOKS = 2


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What there is of a cluster: its instances, its other belongings (``kind name``), the registered workers."""

    name: str
    region: str
    boxes: tuple[Box, ...]
    belongings: tuple[str, ...]
    workers: tuple[str, ...] | None

    @property
    def expires(self) -> str:
        """When the instances end by themselves; empty if there are none."""
        return min((box.expires for box in self.boxes if box.alive and box.expires), default="")


def registered_over_ssh(setup: ClusterSetup, master: Box) -> list[str]:
    """Ask the master's Zookeeper, through SSH, which workers are registered."""
    from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession, registered_workers

    secret = setup.belongings.read_secret()
    with (
        setup.provisioner(master) as host,
        host.tunnel(master.private_address, _ZOOKEEPER) as port,
        ZooKeeperSession(f"127.0.0.1:{port}", secret=secret) as session,
    ):
        return sorted(registered_workers(session))


class ClusterSetup:
    """One cluster in one region; used by one thread at a time.

    Args:
        aws: the region.
        name: the cluster's.
        user: who SSH logs in as.
        key_path: the private key, if it is not the one that ``up`` made.
        ready: how to learn who is registered.
        ssh_port: of the instances.
    """

    def __init__(
        self,
        aws: Aws,
        name: str,
        *,
        user: str = "admin",
        key_path: str = "",
        ready: Ready = registered_over_ssh,
        ssh_port: int = 22,
    ) -> None:
        self._aws, self._ready, self._user, self._port = aws, ready, user, ssh_port
        self.names = Names(name, aws.region, aws.account())
        self.belongings = Belongings(aws, self.names)
        self._key_path = key_path

    # --- up -----------------------------------------------------------------------------------------------------------

    def up(self, spec: ClusterSpec, payload: Payload, *, wait: bool = True) -> ClusterStatus:
        """Make what is missing of the cluster, and return once its workers have registered with Zookeeper.

        Raises:
            NotEnoughWorkersError, NotAuthorisedError, ConfError, CloudError: what AWS said; what was made stays, and
            ``down`` removes it. DeadlineError: the workers did not register in time.
        """
        spec.check()
        self.check(spec)
        boxes = [box for box in boxes_of(self._aws, spec.name) if box.state in ("pending", "running")]
        now = self._aws.pace.wall()
        expires = min((_seconds(b.expires) for b in boxes if b.expires), default=now + spec.ttl_seconds)
        if expires <= now:
            raise ConfError(f"cluster {spec.name} has expired; `dl4j aws down {spec.name}` first")
        plain = spec.tags("", now, expires)
        self._check_out(spec)
        vpc, subnets = self.belongings.default_subnets(spec.subnet)
        group = spec.security_group or self.belongings.security_group(vpc, spec.allow, plain)
        key_pair = spec.key_pair or self.belongings.key_pair(new_key(self.names.key_folder / "key"), plain)
        self.belongings.secret(plain)
        profile = self.belongings.role(buckets_in((spec.out, *spec.run)), plain)
        bucket = self.belongings.bucket(plain)
        self.belongings.upload(payload.name, payload.wheel)
        self.belongings.upload("constraints.txt", payload.constraints)
        node = Node(
            *(MASTER, spec.name, self._aws.region, bucket, payload.name, payload.wheel_sha256),
            *(payload.constraints_sha256, int(expires)),
            run=(*spec.run, "--out", spec.out),
            workers=spec.workers,
            threads=spec.threads,
        )
        starter = _Starter(self._aws, spec, group, key_pair, profile, tuple(subnets), now, expires)
        master = self._master(boxes, starter, node)
        missing = spec.workers - sum(box.role == WORKER for box in boxes)
        if missing > 0:
            starter.start(replace(node, role=WORKER, master=master.private_address), missing)
        if wait:
            self.wait_for_workers(spec.workers)
            self.provision(spec)
        return self.status(ask=wait)

    def check(self, spec: ClusterSpec) -> None:
        """Ask AWS for sizes, image and network; raises ``ConfError`` for what there is not. Makes nothing."""
        for size in {spec.size, spec.master_size or spec.size}:
            info = size_info(self._aws, size)
            if spec.ami:
                check_ami(self._aws, spec.ami, info.architecture)
            else:
                newest_ami(self._aws, info.architecture)
        self.belongings.default_subnets(spec.subnet)

    def _check_out(self, spec: ClusterSpec) -> None:
        """Raise now if the model's bucket is somebody else's."""
        from dl4jlegacy.aws.uploader import S3Uploader

        S3Uploader(self._aws).ensure_bucket(buckets_in((spec.out,))[0])

    def _master(self, boxes: list[Box], starter: _Starter, node: Node) -> Box:
        masters = [box for box in boxes if box.role == MASTER]
        if not masters:
            ids = starter.start(node, 1)
            masters = self._described(ids)
        if not masters[0].private_address:
            raise CloudError(f"the master {masters[0].id} has no private address; is its subnet in order?")
        return masters[0]

    def _described(self, ids: list[str], *, seconds: float = 120.0) -> list[Box]:
        """Return these boxes once AWS describes them, with their addresses."""
        end = self._aws.pace.now() + seconds
        while True:
            found = [b for b in boxes_of(self._aws, self.names.cluster) if b.id in ids and b.private_address]
            if len(found) == len(ids):
                return found
            if self._aws.pace.now() >= end:
                raise DeadlineError(f"AWS does not describe {', '.join(ids)}; `dl4j aws down {self.names.cluster}`")
            self._aws.pace.wait(1.0)

    def wait_for_workers(self, count: int, *, seconds: float = _READY_SECONDS) -> list[str]:
        """Return the registered workers once all ``count`` instances have one.

        Raises:
            DeadlineError: not in time; says what was missing. NotEnoughWorkersError: instances ended meanwhile.
        """
        end, reason = self._aws.pace.now() + seconds, "nobody was asked"
        while True:
            boxes = boxes_of(self._aws, self.names.cluster)
            alive = [box for box in boxes if box.state in ("pending", "running")]
            masters = [box for box in alive if box.role == MASTER]
            if not masters or sum(box.role == WORKER for box in alive) < count:
                states = ", ".join(f"{b.id} ({b.role}) {b.state}" for b in boxes) or "none"
                raise NotEnoughWorkersError(
                    f"cluster {self.names.cluster} needs a master and {count} workers; there are: {states}; "
                    f"repeat `dl4j aws up`, or see `dl4j aws logs {self.names.cluster}`"
                )
            try:
                workers = self._ready(self, masters[0])
                if len(workers) >= count:
                    return workers
                reason = f"{len(workers)} of {count} have registered"
            except Dl4jError as exc:
                reason = str(exc)
            if self._aws.pace.now() >= end:
                raise DeadlineError(
                    f"the workers of cluster {self.names.cluster} did not register within {seconds:.0f} s: {reason}; "
                    f"see `dl4j aws logs {self.names.cluster}`"
                )
            self._aws.pace.wait(_LOOK_SECONDS)

    # --- status, scale ------------------------------------------------------------------------------------------------

    def status(self, *, ask: bool = True) -> ClusterStatus:
        """Return what there is; with ``ask`` also who is registered (None if the master cannot be asked)."""
        boxes = boxes_of(self._aws, self.names.cluster)
        masters = [box for box in boxes if box.role == MASTER and box.state == "running"]
        workers = None
        if ask and masters:
            try:
                workers = tuple(self._ready(self, masters[0]))
            except Dl4jError as exc:
                logger.warning("the master cannot be asked for its workers: %s", str(exc))
        return ClusterStatus(self.names.cluster, self._aws.region, tuple(boxes), tuple(self.belongings.left()), workers)

    def scale(self, count: int, spec: ClusterSpec | None = None, *, wait: bool = True) -> ClusterStatus:
        """Have ``count`` workers: end the youngest, or start more like those that are there.

        Raises:
            ConfError: the cluster has no master, or no worker to start another like.
        """
        boxes = [box for box in boxes_of(self._aws, self.names.cluster) if box.state in ("pending", "running")]
        workers = [box for box in boxes if box.role == WORKER]
        if not any(box.role == MASTER for box in boxes):
            raise ConfError(
                f"cluster {self.names.cluster} has no running master in {self._aws.region}; `dl4j aws up` first"
            )
        if count < len(workers):
            end_boxes(self._aws, workers[count:])
        elif count > len(workers):
            if not workers:
                raise ConfError(
                    f"cluster {self.names.cluster} has no worker to start another like; repeat `dl4j aws up`"
                )
            self._more(workers[0], count - len(workers), spot=workers[0].spot)
        if wait and count:
            self.wait_for_workers(count)
        return self.status(ask=wait)

    def _more(self, like: Box, count: int, *, spot: bool) -> None:
        from dl4jlegacy.aws.boxes import recipe_of

        recipe = recipe_of(self._aws, like)
        tags = {**recipe.tags, CLUSTER: self.names.cluster}
        creator = Ec2BoxCreator(
            *(self._aws, recipe.ami, count, like.size, recipe.groups[0], recipe.key_pair),
            tags=tags,
            profile=self.names.role,
            subnets=(recipe.subnet, *(s for s in self.belongings.default_subnets()[1] if s != recipe.subnet)),
            user_data=recipe.user_data,
        )
        _ = creator.create_spot() if spot else creator.create()

    # --- down ---------------------------------------------------------------------------------------------------------

    def down(self) -> list[str]:
        """End and remove everything of the cluster; return what was there.

        Raises:
            CloudError: something is left; the message names it. Repeating is safe.
        """
        boxes = [box for box in boxes_of(self._aws, self.names.cluster) if box.alive]
        removed = [f"instance {box.id}" for box in boxes] + self._looked()
        failures: list[str] = []
        for step in (self._end_instances, lambda: cancel_spot_requests(self._aws, self.names.cluster)):
            try:
                step()
            except Dl4jError as exc:
                failures.append(str(exc))
        failures += self.belongings.remove()
        left = self._left()
        if left:
            reasons = f": {'; '.join(dict.fromkeys(failures))}" if failures else ""
            raise CloudError(
                f"cluster {self.names.cluster} in {self._aws.region} is not gone, {', '.join(left)} is left{reasons}; "
                f"repeat `dl4j aws down {self.names.cluster}`"
            )
        self._forget_keys()
        return removed

    def _looked(self) -> list[str]:
        try:
            return self.belongings.left()
        except Dl4jError:
            return []  # removing goes on all the same; what is left is asked again after it

    def _end_instances(self) -> None:
        """End instances until AWS shows none alive, several looks in a row: a new one may not be shown at once."""
        quiet = 0
        while quiet < _QUIET_LOOKS:
            alive = [box for box in boxes_of(self._aws, self.names.cluster) if box.alive]
            end_boxes(self._aws, alive)
            quiet = 0 if alive else quiet + 1
            if quiet < _QUIET_LOOKS:
                self._aws.pace.wait(1.0)

    def _left(self) -> list[str]:
        alive = [f"instance {box.id}" for box in boxes_of(self._aws, self.names.cluster) if box.alive]
        return alive + self.belongings.left()

    def _forget_keys(self) -> None:
        folder = self.names.key_folder
        for name in ("key", "known_hosts"):
            (folder / name).unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    # --- SSH ----------------------------------------------------------------------------------------------------------

    def key_file(self) -> Path:
        """Return the private key that logs in."""
        return Path(self._key_path).expanduser() if self._key_path else self.names.key_folder / "key"

    def host_keys(self, box: Box) -> str:
        """Return the host keys that an instance told in the cluster's bucket; raises ``CloudError`` before that."""
        keys = self.belongings.host_keys(HOSTS + box.private_address)
        if not keys:
            raise CloudError(
                f"{box.id} has not told its host key yet; it does at the end of its first boot, after some minutes"
            )
        return keys

    def provisioner(self, box: Box) -> HostProvisioner:
        """Return the way to run commands on an instance, whose host key is pinned."""
        keys = self.host_keys(box)
        return HostProvisioner(
            box.public_address, self._user, port=self._port, key_file=self.key_file(), host_keys=keys
        )

    def provision(self, spec: ClusterSpec) -> None:
        """Run the scripts of ``-wscript`` and ``-mscript``, on all hosts at the same time; raises ``CloudError``."""
        boxes = [box for box in boxes_of(self._aws, spec.name) if box.state == "running"]
        jobs = [(b, s) for b in boxes if (s := spec.master_script if b.role == MASTER else spec.worker_script)]
        if not jobs:
            return

        def run(job: tuple[Box, str]) -> str:
            box, script = job
            with self.provisioner(box) as host:
                done = host.upload_and_run(script)
            return (
                "" if done.status == 0 else f"{script} on {box.id} ended with {done.status}: {done.err.strip()[-300:]}"
            )

        with ThreadPoolExecutor(min(len(jobs), 16)) as pool:
            failed = [text for text in pool.map(run, jobs) if text]
        if failed:
            raise CloudError("; ".join(failed))


@dataclass(frozen=True, slots=True)
class _Starter:
    """Starts the instances of one ``up``."""

    aws: Aws
    spec: ClusterSpec
    group: str
    key_pair: str
    profile: str
    subnets: tuple[str, ...]
    now: float
    expires: float

    def start(self, node: Node, count: int) -> list[str]:
        spec = self.spec
        size = spec.master_size or spec.size if node.role == MASTER else spec.size
        tags: Tags = spec.tags(node.role, self.now, self.expires)
        creator = Ec2BoxCreator(
            *(self.aws, spec.ami, count, size, self.group, self.key_pair),
            tags=tags,
            profile=self.profile,
            subnets=self.subnets,
            user_data=user_data(node),
        )
        if spec.spot and node.role == WORKER:  # losing the master costs more than the difference
            return creator.create_spot(fall_back=not spec.spot_only)
        return creator.create()


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
