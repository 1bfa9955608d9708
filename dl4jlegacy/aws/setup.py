"""Brings a cluster on AWS up, shows it, scales it, and takes it down.

``up`` may be repeated: what exists stays, what is missing is created. ``down`` removes everything that carries the
cluster's tag and returns only when AWS shows none of it any more. Both find things by tags and names alone.

Legacy: ``ClusterSetup``, which started workers for a master set up by hand, and never ended anything.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from dl4jlegacy.aws.cluster_bucket import Done
from dl4jlegacy.aws.cluster_spec import (
    CLUSTER,
    DISK,
    MASTER,
    STANDBY,
    WITNESS_SIZES,
    WORKER,
    ClusterSpec,
    Names,
    Tags,
    buckets_in,
)
from dl4jlegacy.aws.instances import (
    Ec2BoxCreator,
    Instance,
    cancel_spot_requests,
    check_image,
    describe_instance_type,
    launch_settings_of,
    list_instances,
    newest_image,
    terminate_instances,
)
from dl4jlegacy.aws.launcher import Launcher, leaders, server_places
from dl4jlegacy.aws.owner import Owner, Ownership, owner_of
from dl4jlegacy.aws.payload import Payload
from dl4jlegacy.aws.provision import HostProvisioner, new_key
from dl4jlegacy.aws.resources import ClusterResources
from dl4jlegacy.aws.user_data import InstanceConfig
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, Dl4jError, NotEnoughWorkersError, counted
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.storage.s3.uploader import S3Uploader

__all__ = ["ClusterSetup", "ClusterStatus", "ListWorkers", "list_workers_over_ssh"]

logger = logging.getLogger(__name__)

ListWorkers = Callable[["ClusterSetup", Instance], list[str]]
"""Returns the ids of the workers that are registered with the master; raises ``Dl4jError`` while it cannot be asked."""

_ZOOKEEPER = 2181
_READY_SECONDS = 1200.0
_POLL_SECONDS = 5.0
_EMPTY_LISTINGS = 2


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster's instances, its other resources (``kind name``), the registered workers (None: not known), its owner.

    The owner is None for a cluster of an older version, and for none; ``done`` is None until its run is done.
    """

    name: str
    region: str
    instances: tuple[Instance, ...]
    resources: tuple[str, ...]
    workers: tuple[str, ...] | None
    owner: Owner | None
    done: Done | None = None

    @property
    def expires(self) -> str:
        """When the instances end by themselves; empty if there are none."""
        return min((instance.expires for instance in self.instances if instance.alive and instance.expires), default="")


def list_workers_over_ssh(setup: ClusterSetup, master: Instance) -> list[str]:
    """Return the workers that are registered in the master's Zookeeper, asked through SSH."""
    from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession, registered_workers

    secret = setup.resources.read_secret()
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
        list_workers: how to learn which workers are registered.
        ssh_port: of the instances.
    """

    def __init__(
        self,
        aws: Aws,
        name: str,
        *,
        user: str = "admin",
        key_path: str = "",
        list_workers: ListWorkers = list_workers_over_ssh,
        ssh_port: int = 22,
    ) -> None:
        self._aws, self._list_workers, self._user, self._port = aws, list_workers, user, ssh_port
        account, arn = aws.caller()
        self.names = Names(name, aws.region, account)
        self.resources = ClusterResources(aws, self.names)
        self.ownership = Ownership(aws, self.names, owner_of(arn))
        self._key_path, self._was_there = key_path, True

    # --- up -----------------------------------------------------------------------------------------------------------

    def up(self, spec: ClusterSpec, payload: Payload, *, wait: bool = True) -> ClusterStatus:
        """Create what is missing of the cluster, and return once its workers have registered with Zookeeper.

        Raises:
            NotEnoughWorkersError, NotAuthorisedError, ConfError, CloudError: what AWS said; what was created stays,
            and ``down`` removes it. DeadlineError: the workers did not register in time.
        """
        spec.check()
        self._was_there = bool(self._running())
        self.check(spec)
        now = self._aws.clock.wall()
        tags = spec.tags("", now, now + spec.ttl_seconds)
        with self.ownership.held(lambda: self.resources.ensure_bucket(tags)):
            self._launch(spec, payload, now)
        if wait:
            self.wait_for_workers(spec.workers)
            self.provision(spec)
        return self.status(ask=wait)

    def _launch(self, spec: ClusterSpec, payload: Payload, now: float) -> None:
        """Create what is missing, as the only ``up`` that works on the cluster."""
        instances = self._running()
        self._was_there = bool(instances)
        expires = min((_seconds(each.expires) for each in instances if each.expires), default=now + spec.ttl_seconds)
        if expires <= now:
            raise ConfError(f"cluster {spec.name} has expired; `dl4j aws down {spec.name}` first")
        self._check_out(spec)
        launcher, config = self._ensure_resources(spec, payload, now=now, expires=expires)
        servers = self._ensure_servers(instances, launcher, config)
        self.resources.write_servers([(each.private_address, each.id) for each in servers])
        missing = spec.workers - sum(instance.role == WORKER for instance in instances)
        if missing > 0:
            worker = replace(config, role=WORKER, master=",".join(each.private_address for each in servers))
            self._start(lambda: launcher.launch(worker, missing))

    def _start(self, launch: Callable[[], list[str]]) -> list[Instance]:
        """Launch instances, of which ``launch`` returns the ids; return them once AWS describes them.

        The next ``up`` finds them then.

        Raises:
            CloudError: another ``up`` or a ``down`` has taken the cluster; what was launched meanwhile is ended again.
        """
        if not self.ownership.keep():
            raise self.ownership.taken_away()
        launched = self._wait_for_addresses(launch())
        if not self.ownership.keep():
            terminate_instances(self._aws, launched)
            raise self.ownership.taken_away()
        return launched

    def undo(self) -> str:
        """End what an ``up`` that failed began, unless the cluster is another's by now; return what was done."""
        name = self.names.cluster
        if self._was_there:
            return f"The cluster was there before and is left as it is; `dl4j aws down {name}` ends it"
        try:
            if not self.ownership.take_back():
                others = self.ownership.owner() is not None
                return "What there is of it is another `up`'s, and stays" if others else "Nothing had been begun"
            self.down()
        except Dl4jError as exc:
            return f"Not everything could be undone ({exc})"
        return "Everything begun was undone"

    def _running(self) -> list[Instance]:
        """Return the cluster's instances that run, or are starting."""
        instances = list_instances(self._aws, self.names.cluster)
        return [instance for instance in instances if instance.state in ("pending", "running")]

    def _ensure_resources(
        self, spec: ClusterSpec, payload: Payload, *, now: float, expires: float
    ) -> tuple[Launcher, InstanceConfig]:
        """Create what is missing besides instances; return what launches these, and the configuration of the master."""
        tags = spec.tags("", now, expires)
        vpc, subnets = self.resources.find_subnets(spec.subnet)
        launcher = Launcher(
            aws=self._aws,
            spec=spec,
            group=spec.security_group or self.resources.ensure_security_group(vpc, spec.allow, tags),
            key_pair=spec.key_pair or self._ensure_key_pair(tags),
            profile=self._ensure_profile(spec, tags),
            subnets=tuple(subnets),
            now=now,
            expires=expires,
        )
        # each below its digest: those of an `up` before, of which `scale` starts more, stay what they are
        self.resources.upload(f"{payload.wheel_sha256}/{payload.name}", payload.wheel)
        self.resources.upload(f"{payload.requirements_sha256}/requirements.txt", payload.requirements)
        leads = describe_instance_type(self._aws, spec.master_size or spec.size)
        launcher = replace(launcher, witness_size=WITNESS_SIZES[leads.architecture])
        processes = spec.processes_of(describe_instance_type(self._aws, spec.size).cores)
        config = InstanceConfig(
            role=MASTER,
            cluster=spec.name,
            region=self._aws.region,
            bucket=self.names.bucket,
            wheel=payload.name,
            wheel_sha256=payload.wheel_sha256,
            requirements_sha256=payload.requirements_sha256,
            expires=int(expires),
            run=(*spec.run, "--out", spec.out),
            workers=spec.workers * processes,
            processes=processes,
            heap=spec.heap_of(leads.memory),
            keep=spec.keep,
            standby=spec.standby,
        )
        return launcher, config

    def _ensure_key_pair(self, tags: Tags) -> str:
        public_key = new_key(self.names.key_folder / "key")
        return self.resources.ensure_key_pair(public_key, tags, in_use=self._was_there)

    def _ensure_profile(self, spec: ClusterSpec, tags: Tags) -> str:
        self.resources.ensure_secret(tags)
        return self.resources.ensure_role(buckets_in((spec.out, *spec.run)), tags)

    def check_is_free(self) -> None:
        """Raise ``ConfError`` if the cluster is somebody else's, or was yours and its run is done."""
        self.ownership.check()
        done, servers = self.resources.run_done(), self.resources.servers()
        running = {instance.id for instance in self._running()}
        if done is not None and not all(each.instance_id in running for each in (servers.instances if servers else ())):
            name = self.names.cluster
            raise ConfError(
                f"the run of cluster {name} is done since {done.since}, and its model is {done.model}; "
                f"`dl4j aws down {name}` removes what is left of it, and then another one can begin"
            )

    def check(self, spec: ClusterSpec) -> None:
        """Ask AWS whose the cluster is, and for what must exist: sizes, image, network, boundary. Creates nothing.

        Raises:
            ConfError: it is somebody else's, something does not exist, or a size has GPUs, which nothing here uses.
        """
        self.check_is_free()
        leads = spec.master_size or spec.size
        witness = {WITNESS_SIZES[describe_instance_type(self._aws, leads).architecture]} if spec.standby else set()
        for size in {spec.size, leads, *witness}:
            info = describe_instance_type(self._aws, size)
            if warning := spec.check_gpus(size, info.gpus):
                logger.warning("%s", warning)
            if spec.ami:
                check_image(self._aws, spec.ami, info.architecture)
            else:
                newest_image(self._aws, info.architecture)
        self.resources.find_subnets(spec.subnet)
        self.resources.check_boundary()

    def _check_out(self, spec: ClusterSpec) -> None:
        """Raise at once if the model's bucket belongs to somebody else."""
        S3Uploader(self._aws).ensure_bucket(buckets_in((spec.out,))[0])

    def _ensure_servers(self, instances: list[Instance], launcher: Launcher, config: InstanceConfig) -> list[Instance]:
        """Return the instance of the master, or, with a standby, of master, standby and witness; start what is missing.

        Raises:
            ConfError: the cluster runs, and was started without a standby, or with one.
        """
        found: list[Instance] = []
        for place in server_places(launcher.spec, self.resources.servers(), instances):
            own = replace(config, role=place.role)
            server = place.instance or self._start(partial(launcher.launch, own, 1, place.address))[0]
            if not server.private_address:
                raise CloudError(f"the {place.role} {server.id} has no private address; is its subnet in order?")
            found.append(server)
        return found

    def _wait_for_addresses(self, ids: list[str], *, seconds: float = 120.0) -> list[Instance]:
        """Return the instances with these ids once AWS describes them, with their addresses if they are alive."""
        with self._aws.deadline(seconds) as deadline:
            while True:
                listed = [i for i in list_instances(self._aws, self.names.cluster) if i.id in ids]
                found = [instance for instance in listed if instance.private_address or not instance.alive]
                if len(found) == len(ids):
                    return found
                if deadline.passed():
                    raise DeadlineError(f"AWS does not describe {', '.join(ids)}; `dl4j aws down {self.names.cluster}`")
                self._aws.clock.wait(1.0)

    def wait_for_workers(self, count: int, *, seconds: float = _READY_SECONDS) -> list[str]:
        """Return the registered workers once all ``count`` instances have one; none if the run is done by then.

        Raises:
            DeadlineError: not in time; says what was missing. NotEnoughWorkersError: instances ended meanwhile.
        """
        from dl4jlegacy.scaleout.links.liveness.failure_detector import host_of

        reason = "the master was not asked"
        with self._aws.deadline(seconds) as deadline:
            while True:
                try:
                    master = self._master_of(count)
                except NotEnoughWorkersError:
                    if self.resources.run_done() is None:
                        raise
                    return []
                try:
                    workers = self._list_workers(self, master)
                    machines = {host_of(worker) for worker in workers}
                    if len(machines) >= count:
                        return workers
                    reason = f"{len(machines)} of {count} have registered"
                except Dl4jError as exc:
                    reason = str(exc)
                if deadline.passed():
                    raise DeadlineError(
                        f"the workers of cluster {self.names.cluster} did not register within {seconds:.0f} s: "
                        f"{reason}; see `dl4j aws logs {self.names.cluster}`"
                    )
                self._aws.clock.wait(_POLL_SECONDS)

    def _master_of(self, count: int) -> Instance:
        """Return the master of ``count`` workers; raises ``NotEnoughWorkersError`` if instances of theirs ended."""
        instances = list_instances(self._aws, self.names.cluster)
        alive = [instance for instance in instances if instance.state in ("pending", "running")]
        masters = leaders(alive)
        if not masters or sum(instance.role == WORKER for instance in alive) < count:
            states = ", ".join(f"{i.id} ({i.role}) {i.state}" for i in instances) or "none"
            raise NotEnoughWorkersError(
                f"cluster {self.names.cluster} needs a master and {counted(count, 'worker')}; there are: {states}; "
                f"repeat `dl4j aws up`, or see `dl4j aws logs {self.names.cluster}`"
            )
        return masters[0]

    # --- status, scale ------------------------------------------------------------------------------------------------

    def status(self, *, ask: bool = True) -> ClusterStatus:
        """Return what exists; with ``ask`` also which workers are registered (None if the master cannot be asked)."""
        instances = list_instances(self._aws, self.names.cluster)
        workers = None
        for master in leaders([each for each in instances if each.state == "running"]) if ask else ():
            try:
                workers = tuple(self._list_workers(self, master))
                break
            except Dl4jError as exc:
                logger.warning("the %s cannot be asked for its workers: %s", master.role, str(exc))
        return ClusterStatus(
            self.names.cluster,
            self._aws.region,
            tuple(instances),
            tuple(self.resources.existing()),
            workers,
            self.ownership.owner(),
            self.resources.run_done(),
        )

    def join(self, allow: str) -> ClusterStatus:
        """Admit SSH from one more network (CIDR), whosever the cluster is; nothing else of it changes.

        Raises:
            ConfError: it has no instance that runs, or no security group of its own.
        """
        name, groups = self.names.cluster, self.resources.security_groups()
        if not self._running():
            raise ConfError(f"there is nothing to join: no instance of cluster {name} runs in {self._aws.region}")
        if not groups:
            raise ConfError(
                f"cluster {name} has no security group of its own; whoever owns the one that it is in admits you"
            )
        self.resources.admit(groups[0], allow, f"joined by {self.ownership.me}"[:255])
        return self.status(ask=False)

    def scale(self, count: int, spec: ClusterSpec | None = None, *, wait: bool = True) -> ClusterStatus:
        """Change the number of workers to ``count``: terminate the youngest, or launch more like the present ones.

        Whosever the cluster is, it stays theirs. An ``up`` that works on it is waited for, and waits for this.

        Raises:
            ConfError: the cluster has no master, or no worker to copy.
            DeadlineError: an ``up`` works on it all the time.
        """
        self._check_master(self._running())
        with self.ownership.held(lambda: None, others=True):
            self._scale(count)
        if wait and count:
            self.wait_for_workers(count)
        return self.status(ask=wait)

    def _check_master(self, instances: list[Instance]) -> None:
        if not leaders(instances):
            raise ConfError(
                f"cluster {self.names.cluster} has no running master in {self._aws.region}; `dl4j aws up` first"
            )

    def _scale(self, count: int) -> None:
        """Change the number of workers, as the only one who works on the cluster."""
        instances = self._running()
        self._check_master(instances)
        workers = [instance for instance in instances if instance.role == WORKER]
        if count < len(workers):
            terminate_instances(self._aws, workers[count:])
        elif count > len(workers):
            if not workers:
                raise ConfError(
                    f"cluster {self.names.cluster} has no worker to start another like; repeat `dl4j aws up`"
                )
            self._launch_more(workers[0], count - len(workers))

    def _launch_more(self, like: Instance, count: int) -> None:
        settings = launch_settings_of(self._aws, like)
        creator = Ec2BoxCreator(
            self._aws,
            ami=settings.ami,
            num_boxes=count,
            size=like.size,
            security_group_id=settings.groups[0],
            key_pair=settings.key_pair,
            tags={**settings.tags, CLUSTER: self.names.cluster},
            profile=self.names.role,
            subnets=(settings.subnet, *(s for s in self.resources.find_subnets()[1] if s != settings.subnet)),
            user_data=settings.user_data,
            disk=int(settings.tags.get(DISK, 0)),
        )
        self._start(creator.create_spot if like.spot else creator.create)

    # --- down ---------------------------------------------------------------------------------------------------------

    def down(self) -> list[str]:
        """Terminate and remove everything of the cluster; return what existed.

        Raises:
            CloudError: something is left, which the message names. ``down`` may be repeated.
        """
        instances = [instance for instance in list_instances(self._aws, self.names.cluster) if instance.alive]
        removed = [f"instance {instance.id}" for instance in instances] + self._existing_resources()
        self._say_whose()
        failures: list[str] = []
        for step in (self._terminate_all, lambda: cancel_spot_requests(self._aws, self.names.cluster)):
            try:
                step()
            except Dl4jError as exc:
                failures.append(str(exc))
        failures += self.resources.remove(keep_owner=bool(failures))
        left = self._left()
        if left:
            reasons = f": {'; '.join(dict.fromkeys(failures))}" if failures else ""
            raise CloudError(
                f"cluster {self.names.cluster} in {self._aws.region} is not gone, {', '.join(left)} is left{reasons}; "
                f"repeat `dl4j aws down {self.names.cluster}`"
            )
        self._remove_keys()
        return removed

    def _say_whose(self) -> None:
        """Warn if what is being ended is somebody else's."""
        with contextlib.suppress(Dl4jError):  # it is ended all the same
            owner = self.ownership.owner()
            if owner is not None and owner.arn != self.ownership.me:
                logger.warning(
                    "cluster %s, which ends now, is %s's since %s", self.names.cluster, owner.arn, owner.since
                )

    def _existing_resources(self) -> list[str]:
        try:
            return self.resources.existing()
        except Dl4jError:
            return []  # go on removing; what is left is listed again after that

    def _terminate_all(self) -> None:
        """Terminate instances until AWS lists none alive several times in a row: it may list a new one late."""
        empty = 0
        while empty < _EMPTY_LISTINGS:
            alive = [instance for instance in list_instances(self._aws, self.names.cluster) if instance.alive]
            terminate_instances(self._aws, alive)
            empty = 0 if alive else empty + 1
            if empty < _EMPTY_LISTINGS:
                self._aws.clock.wait(1.0)

    def _left(self) -> list[str]:
        alive = [
            f"instance {instance.id}" for instance in list_instances(self._aws, self.names.cluster) if instance.alive
        ]
        return alive + self.resources.existing()

    def _remove_keys(self) -> None:
        folder = self.names.key_folder
        for name in ("key", "known_hosts"):
            (folder / name).unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    # --- SSH ----------------------------------------------------------------------------------------------------------

    def key_file(self) -> Path:
        """Return the file of the private key for SSH."""
        return Path(self._key_path).expanduser() if self._key_path else self.names.key_folder / "key"

    def host_keys(self, instance: Instance) -> str:
        """Return the host keys that an instance has put into the cluster's bucket; raises ``CloudError`` until then."""
        keys = self.resources.read_host_keys(instance.id)
        if not keys:
            raise CloudError(
                f"{instance.id} has not told its host key yet; it does at the end of its first boot, after some minutes"
            )
        return keys

    def provisioner(self, instance: Instance) -> HostProvisioner:
        """Return what runs commands on an instance, and accepts only its host key."""
        keys = self.host_keys(instance)
        return HostProvisioner(
            instance.public_address, self._user, port=self._port, key_file=self.key_file(), host_keys=keys
        )

    def provision(self, spec: ClusterSpec) -> None:
        """Run the scripts of ``-wscript`` and ``-mscript``, on all hosts at the same time; raises ``CloudError``."""
        instances = [instance for instance in list_instances(self._aws, spec.name) if instance.state == "running"]
        scripts = {MASTER: spec.master_script, STANDBY: spec.master_script, WORKER: spec.worker_script}
        jobs = [(i, script) for i in instances if (script := scripts.get(i.role, ""))]
        if not jobs:
            return

        def run(job: tuple[Instance, str]) -> str:
            instance, script = job
            with self.provisioner(instance) as host:
                done = host.upload_and_run(script)
            return (
                ""
                if done.status == 0
                else f"{script} on {instance.id} ended with {done.status}: {done.err.strip()[-300:]}"
            )

        with ThreadPoolExecutor(min(len(jobs), 16)) as pool:
            failed = [text for text in pool.map(run, jobs) if text]
        if failed:
            raise CloudError("; ".join(failed))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
