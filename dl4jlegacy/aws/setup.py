"""Starts a cluster on AWS, shows its status, scales it, and removes it.

``up`` may be repeated: existing resources stay, missing ones are created. ``down`` removes everything that has the
cluster's tag, and returns only when AWS lists none of it any more. Both find resources by tags and names alone.

Legacy: ``ClusterSetup``, which started workers for a master set up by hand, and never ended anything.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dl4jlegacy.aws.calls import attempts, call
from dl4jlegacy.aws.cluster_bucket import Done
from dl4jlegacy.aws.cluster_spec import (
    MASTER,
    STANDBY,
    WITNESS,
    WITNESS_SIZES,
    WORKER,
    ClusterSpec,
    Names,
    buckets_in,
    seconds_of,
)
from dl4jlegacy.aws.instances import (
    Ec2BoxCreator,
    Instance,
    boxes_like,
    cancel_spot_requests,
    check_image,
    describe_instance_type,
    list_instances,
    newest_image,
    terminate_instances,
)
from dl4jlegacy.aws.owner import Owner, Ownership, owner_of
from dl4jlegacy.aws.payload import Payload
from dl4jlegacy.aws.provision import HostProvisioner, new_key
from dl4jlegacy.aws.resources import ClusterResources, failures_of
from dl4jlegacy.aws.server_places import leaders, server_places
from dl4jlegacy.aws.user_data import InstanceConfig, user_data
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, Dl4jError, NotEnoughWorkersError, counted
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.storage.s3.uploader import S3Uploader

__all__ = ["ClusterSetup", "ClusterStatus", "ListWorkers", "list_workers_over_ssh"]

logger = logging.getLogger(__name__)

ListWorkers = Callable[["ClusterSetup", Instance], list[str]]
"""Returns the ids of the workers registered with the master; raises ``Dl4jError`` while the master cannot be asked."""

_READY_SECONDS = 1200.0
_EMPTY_LISTINGS = 2
_LIST_WORKERS = (
    "cd / && sudo -u dl4j env DL4J_SECRET_FILE=/etc/dl4j/secret "
    "/opt/dl4j/bin/python -m dl4jlegacy.aws.on_instance workers {}:2181"
)


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster's instances, its other resources (``kind name``), the registered workers (None: not known), its owner.

    The owner is None for a cluster of an older version, and if there is no cluster; ``done`` is None until the run is
    done.
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
        """When the instances end by themselves; empty if there are no instances."""
        return min((instance.expires for instance in self.instances if instance.alive and instance.expires), default="")


def list_workers_over_ssh(setup: ClusterSetup, master: Instance) -> list[str]:
    """Return the workers registered in the master's Zookeeper, listed by the master's instance."""
    with setup.provisioner(master) as host:
        done = host.run_remote_command(_LIST_WORKERS.format(master.private_address), seconds=60)
    if done.status != 0:
        raise CloudError(f"{master.id} did not list its workers: {done.err.strip()[-300:]}")
    return done.out.split()


class ClusterSetup:
    """One cluster in one region; used by one thread at a time.

    Args:
        aws: the region.
        name: the cluster's.
        user: the login name for SSH.
        key_path: the private key, if it is not the one made by ``up``.
        list_workers: lists the registered workers.
    """

    def __init__(
        self,
        aws: Aws,
        name: str,
        *,
        user: str = "admin",
        key_path: str = "",
        list_workers: ListWorkers = list_workers_over_ssh,
    ) -> None:
        self.aws, self._list_workers, self._user = aws, list_workers, user
        account, arn = aws.caller()
        self.names = Names(name, aws.region, account)
        self.resources = ClusterResources(aws, self.names)
        self.ownership = Ownership(aws, self.names, owner_of(arn))
        self._key_path, self._was_there = key_path, True

    # --- up -----------------------------------------------------------------------------------------------------------

    def up(self, spec: ClusterSpec, payload: Payload, *, wait: bool = True) -> ClusterStatus:
        """Create what is missing of the cluster, and return once its workers have registered with Zookeeper.

        Raises:
            NotEnoughWorkersError, NotAuthorisedError, ConfError, CloudError: as AWS reported; what was created stays,
                and ``down`` removes it. DeadlineError: the workers did not register in time.
        """
        spec.check()
        self._was_there = bool(self._running())
        self.check(spec)
        now = self.aws.clock.wall()
        tags = spec.tags("", now, now + spec.ttl_seconds)
        with self.ownership.held(lambda: self.resources.ensure_bucket(tags)):
            self._launch(spec, payload, now)
        if wait:
            self.wait_for_workers(spec.workers)
            self.provision(spec)
        return self.status(ask=wait)

    def _launch(self, spec: ClusterSpec, payload: Payload, now: float) -> None:
        """Create what is missing; no other ``up`` works on the cluster meanwhile."""
        instances = self._running()
        self._was_there = bool(instances)
        expires = min((seconds_of(each.expires) for each in instances if each.expires), default=now + spec.ttl_seconds)
        if expires <= now:
            raise ConfError(f"cluster {spec.name} has expired; `dl4j aws down {spec.name}` first")
        S3Uploader(self.aws).ensure_bucket(buckets_in((spec.out,))[0])  # it may be another user's
        boxes = self._ensure_resources(spec, now, expires)
        leads = describe_instance_type(self.aws, spec.master_size or spec.size)
        config = self._upload(spec, payload, leads.memory, expires)
        sizes = {WORKER: spec.size, WITNESS: WITNESS_SIZES[leads.architecture]}

        def start(role: str, count: int, address: str = "") -> list[Instance]:
            own = replace(
                boxes,
                num_boxes=count,
                size=sizes.get(role, spec.master_size or spec.size),
                tags=spec.tags(role, now, expires),
                user_data=user_data(replace(config, role=role)),
                subnets=(self.resources.subnet_of(address, boxes.subnets),) if address else boxes.subnets,
                private_address=address,
            )  # only workers use the spot price: losing the master costs more than the difference
            return self._start(partial(own.create, spot=spec.spot and role == WORKER, fall_back=not spec.spot_only))

        servers = []
        for place in server_places(spec, self.resources.servers(), instances):
            server = place.instance or start(place.role, 1, place.address)[0]
            if not server.private_address:
                raise CloudError(f"the {place.role} {server.id} has no private address; is its subnet in order?")
            servers.append((server.private_address, server.id))
        self.resources.write_servers(servers)
        missing = spec.workers - sum(instance.role == WORKER for instance in instances)
        if missing > 0:
            start(WORKER, missing)

    def _start(self, launch: Callable[[], list[str]]) -> list[Instance]:
        """Launch instances with ``launch``, which returns their ids; return them once AWS describes them.

        The next ``up`` can find them then.

        Raises:
            CloudError: another ``up`` or a ``down`` has taken the cluster; the launched instances are ended again.
        """
        if not self.ownership.keep():
            raise self.ownership.taken_away()
        launched = self._wait_for_addresses(launch())
        if not self.ownership.keep():
            terminate_instances(self.aws, launched)
            raise self.ownership.taken_away()
        return launched

    def undo(self) -> str:
        """Remove a cluster that a failed ``up`` created, if it is still that ``up``'s; return the outcome in words."""
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
        return [each for each in self._instances() if each.state in ("pending", "running")]

    def _instances(self) -> list[Instance]:
        return list_instances(self.aws, self.names.cluster)

    def _ensure_resources(self, spec: ClusterSpec, now: float, expires: float) -> Ec2BoxCreator:
        """Create the missing resources besides instances; return a creator of instances that use them."""
        tags = spec.tags("", now, expires)
        vpc, subnets = self.resources.find_subnets(spec.subnet)
        group = spec.security_group or self.resources.ensure_security_group(vpc, spec.allow, tags)
        key_pair = spec.key_pair or self.resources.ensure_key_pair(
            new_key(self.names.key_folder / "key"), tags, in_use=self._was_there
        )
        self.resources.ensure_secret(tags)
        return Ec2BoxCreator(
            aws=self.aws,
            ami=spec.ami,
            num_boxes=0,
            size="",
            security_group_id=group,
            key_pair=key_pair,
            tags={},
            profile=self.resources.ensure_role(buckets_in((spec.out, *spec.run)), tags),
            subnets=tuple(subnets),
            user_data="",
            disk=spec.disk,
        )

    def _upload(self, spec: ClusterSpec, payload: Payload, memory: int, expires: float) -> InstanceConfig:
        """Upload the files that instances install; return the configuration of a master with ``memory`` MiB."""
        # each below its digest: files of an earlier `up`, which `scale` reuses, stay unchanged
        self.resources.upload(f"{payload.wheel_sha256}/{payload.name}", payload.wheel)
        self.resources.upload(f"{payload.requirements_sha256}/requirements.txt", payload.requirements)
        processes = spec.processes_of(describe_instance_type(self.aws, spec.size).cores)
        return InstanceConfig(
            role=MASTER,
            cluster=spec.name,
            region=self.aws.region,
            bucket=self.names.bucket,
            wheel=payload.name,
            wheel_sha256=payload.wheel_sha256,
            requirements_sha256=payload.requirements_sha256,
            expires=int(expires),
            run=(*spec.run, "--out", spec.out),
            workers=spec.workers * processes,
            processes=processes,
            heap=spec.heap_of(memory),
            keep=spec.keep,
            standby=spec.standby,
        )

    def check_is_free(self) -> None:
        """Raise ``ConfError`` if another user owns the cluster, or its run is done."""
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
        """Check the owner, and that sizes, image, network and boundary exist. Creates nothing.

        Raises:
            ConfError: another user owns the cluster, something does not exist, or a size has GPUs, which are not used.
        """
        self.check_is_free()
        leads = spec.master_size or spec.size
        witness = {WITNESS_SIZES[describe_instance_type(self.aws, leads).architecture]} if spec.standby else set()
        for size in {spec.size, leads, *witness}:
            info = describe_instance_type(self.aws, size)
            if warning := spec.check_gpus(size, info.gpus):
                logger.warning("%s", warning)
            if spec.ami:
                check_image(self.aws, spec.ami, info.architecture)
            else:
                newest_image(self.aws, info.architecture)
        self.resources.find_subnets(spec.subnet)
        self.resources.check_boundary()

    def _wait_for_addresses(self, ids: list[str]) -> list[Instance]:
        """Return the instances with these ids once AWS describes them, with the addresses of those alive."""
        for _ in attempts(self.aws, 120.0, pause=1.0):
            listed = [each for each in self._instances() if each.id in ids]
            found = [instance for instance in listed if instance.private_address or not instance.alive]
            if len(found) == len(ids):
                return found
        raise DeadlineError(f"AWS does not describe {', '.join(ids)}; `dl4j aws down {self.names.cluster}`")

    def wait_for_workers(self, count: int) -> list[str]:
        """Return the registered workers once all ``count`` instances have one; none if the run is done by then.

        Raises:
            DeadlineError: not in time; the message says what was missing. NotEnoughWorkersError: instances ended
                meanwhile.
        """
        from dl4jlegacy.scaleout.links.liveness.failure_detector import host_of

        reason, name = "", self.names.cluster
        for _ in attempts(self.aws, _READY_SECONDS, pause=5.0):
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
        raise DeadlineError(
            f"the workers of cluster {name} did not register within {_READY_SECONDS:.0f} s: {reason}; see "
            f"`dl4j aws logs {name}`"
        )

    def _master_of(self, count: int) -> Instance:
        """Return the master; raises ``NotEnoughWorkersError`` unless it and ``count`` workers run or are starting."""
        instances, alive = self._instances(), self._running()
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
        """Return what exists; with ``ask`` also the registered workers (None if the master cannot be asked)."""
        instances = self._instances()
        workers = None
        for master in leaders([each for each in instances if each.state == "running"]) if ask else ():
            try:
                workers = tuple(self._list_workers(self, master))
                break
            except Dl4jError as exc:
                logger.warning("the %s cannot be asked for its workers: %s", master.role, str(exc))
        return ClusterStatus(
            self.names.cluster,
            self.aws.region,
            tuple(instances),
            tuple(self.resources.existing()),
            workers,
            self.ownership.owner(),
            self.resources.run_done(),
        )

    def join(self, allow: str) -> ClusterStatus:
        """Admit SSH from one more network (CIDR), whoever owns the cluster; change nothing else.

        Raises:
            ConfError: the cluster has no running instance, or no security group of its own.
        """
        name, groups = self.names.cluster, self.resources.security_groups()
        if not self._running():
            raise ConfError(f"there is nothing to join: no instance of cluster {name} runs in {self.aws.region}")
        if not groups:
            raise ConfError(
                f"cluster {name} has no security group of its own; whoever owns the one that it is in admits you"
            )
        self.resources.admit(groups[0], allow, f"joined by {self.ownership.me}"[:255])
        return self.status(ask=False)

    def scale(self, count: int, *, wait: bool = True) -> ClusterStatus:
        """Change the number of workers to ``count``: terminate the youngest, or launch more like the present ones.

        The owner stays the same. ``scale`` and ``up`` exclude each other by waiting.

        Raises:
            ConfError: the cluster has no master, or no worker to copy.
            DeadlineError: an ``up`` works on it all the time.
        """
        name = self.names.cluster
        if not leaders(self._running()):
            raise ConfError(f"cluster {name} has no running master in {self.aws.region}; `dl4j aws up` first")
        with self.ownership.held(lambda: None, others=True):
            workers = [instance for instance in self._running() if instance.role == WORKER]
            terminate_instances(self.aws, workers[count:])
            if count > len(workers):
                if not workers:
                    raise ConfError(f"cluster {name} has no worker to start another like; repeat `dl4j aws up`")
                like, subnets = workers[0], self.resources.find_subnets()[1]
                boxes = boxes_like(self.aws, like, count - len(workers), self.names.role, subnets)
                self._start(partial(boxes.create, spot=like.spot))
        if wait and count:
            self.wait_for_workers(count)
        return self.status(ask=wait)

    # --- down ---------------------------------------------------------------------------------------------------------

    def down(self) -> list[str]:
        """Terminate and remove everything of the cluster; return what existed.

        Raises:
            CloudError: something is left; the message names it. ``down`` may be repeated.
        """
        name, removed = self.names.cluster, self._alive()
        with contextlib.suppress(Dl4jError):  # remains are listed again after the removal
            removed += self.resources.existing()
        with contextlib.suppress(Dl4jError):  # the cluster is ended in any case
            owner = self.ownership.owner()
            if owner is not None and owner.arn != self.ownership.me:
                logger.warning("cluster %s, which ends now, is %s's since %s", name, owner.arn, owner.since)
        failures = failures_of((self._terminate_all, lambda: cancel_spot_requests(self.aws, name)))
        failures += self.resources.remove(keep_owner=bool(failures))
        left = self._left()
        if left:
            reasons = f": {'; '.join(dict.fromkeys(failures))}" if failures else ""
            raise CloudError(
                f"cluster {name} in {self.aws.region} is not gone, {', '.join(left)} is left{reasons}; "
                f"repeat `dl4j aws down {name}`"
            )
        folder = self.names.key_folder
        for file in ("key", "known_hosts"):
            (folder / file).unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        return removed

    def _alive(self) -> list[str]:
        return [f"instance {instance.id}" for instance in self._instances() if instance.alive]

    def _left(self) -> list[str]:
        return self._alive() + self.resources.existing()

    def _terminate_all(self) -> None:
        """Terminate instances until AWS lists none alive several times in a row: a new one may be listed late."""
        empty = 0
        while empty < _EMPTY_LISTINGS:
            alive = [instance for instance in self._instances() if instance.alive]
            terminate_instances(self.aws, alive)
            empty = 0 if alive else empty + 1
            if empty < _EMPTY_LISTINGS:
                self.aws.clock.wait(1.0)

    # --- SSH ----------------------------------------------------------------------------------------------------------

    def key_file(self) -> Path:
        """Return the file of the private key for SSH."""
        return Path(self._key_path).expanduser() if self._key_path else self.names.key_folder / "key"

    def console_output(self, instance: Instance) -> str:
        """Return the console output of an instance."""
        said = call(self.aws, "ec2", "get_console_output", InstanceId=instance.id).get("Output")
        return str(said or "nothing yet").rstrip()

    def host_keys(self, instance: Instance) -> str:
        """Return the host keys that an instance has put into the cluster's bucket; raises ``CloudError`` until then."""
        keys = self.resources.read_host_keys(instance.id)
        if not keys:
            raise CloudError(
                f"{instance.id} has not told its host key yet; it does at the end of its first boot, after some minutes"
            )
        return keys

    def provisioner(self, instance: Instance) -> HostProvisioner:
        """Return an SSH connection to an instance, which accepts only the instance's host key."""
        keys = self.host_keys(instance)
        return HostProvisioner(instance.public_address, self._user, key_file=self.key_file(), host_keys=keys)

    def provision(self, spec: ClusterSpec) -> None:
        """Run the scripts of ``-wscript`` and ``-mscript`` on all hosts concurrently; raises ``CloudError``."""
        scripts = {MASTER: spec.master_script, STANDBY: spec.master_script, WORKER: spec.worker_script}
        jobs = [(i, scripts[i.role]) for i in self._instances() if i.state == "running" and scripts.get(i.role)]

        def run(instance: Instance, script: str) -> None:
            with self.provisioner(instance) as host:
                done = host.upload_and_run(script)
            if done.status != 0:
                raise CloudError(
                    f"{script} on {instance.id} ended with {done.status}: {done.err.strip()[-300:]}; mend it, and "
                    "repeat `dl4j aws up`"
                )

        with ThreadPoolExecutor(16) as pool:
            failed = [str(done.exception()) for done in [pool.submit(run, *job) for job in jobs] if done.exception()]
        if failed:
            raise CloudError("; ".join(failed))
