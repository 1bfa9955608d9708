"""``dl4j aws``: clusters on AWS from the command line."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.read import Format, add_command, number_option
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, Dl4jError, UsageError, counted, nearest
from dl4jlegacy.system import files
from dl4jlegacy.system.console import emit, open_console
from dl4jlegacy.system.exits import Stopped
from dl4jlegacy.system.strict_json import to_json

if TYPE_CHECKING:
    from dl4jlegacy.aws.cluster_spec import ClusterSpec
    from dl4jlegacy.aws.instances import Instance
    from dl4jlegacy.aws.prices import Estimate
    from dl4jlegacy.aws.setup import ClusterSetup, ClusterStatus

__all__ = ["add_commands"]

_app = typer.Typer(
    name="aws",
    help="Clusters on AWS: start, look at, scale, end. Instances end by themselves when their time is over.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=False,
)


def add_commands(app: typer.Typer) -> None:
    """Add ``dl4j aws`` to ``app``."""
    app.add_typer(_app)


_ADDRESS_SERVICE = "https://checkip.amazonaws.com"
_EXTRA = {"allow_extra_args": True, "ignore_unknown_options": False}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The cluster's name.")]
Region = Annotated[
    str | None,
    typer.Option("-region", "--region", metavar="REGION", help="Where (your default, else us-east-1)."),
]
User = Annotated[str, typer.Option("--user", metavar="USER", help="Who SSH logs in as (admin).")]
KeyPath = Annotated[str, typer.Option("-kpath", metavar="FILE", help="The private key, if up did not make it.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the workers to register.")]
Node = Annotated[str, typer.Option("--node", metavar="NODE", help="master, an instance's id, or worker number.")]
Workers = Annotated[int, number_option("-w", "--workers", help="Worker instances (1).", least=1)]
Size = Annotated[str, typer.Option("-s", "--size", metavar="TYPE", help="Instance type (m5.large).")]
MasterSize = Annotated[str, typer.Option("--master-size", metavar="TYPE", help="The master's, if another.")]
Ttl = Annotated[str, typer.Option("--ttl", metavar="TIME", help="When instances end by themselves: 90m, 4h, 1d (4h).")]
Allow = Annotated[
    str, typer.Option("--allow", metavar="CIDR", help="From where SSH is admitted (your public address).")
]
Standby = Annotated[
    bool, typer.Option("--standby", help="A second master that takes over, with copies of all state, and a witness.")
]
Spot = Annotated[bool, typer.Option("--spot", help="Workers at the spot price, on demand where there is none.")]


@_app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        raise UsageError("give a command: aws up, join, status, scale, ssh, logs, down, reap or price (see --help)")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of ``dl4j aws up``; "": not given."""

    context: typer.Context
    name: Name
    out: Annotated[str, typer.Option("--out", metavar="S3", help="Where the model goes: s3://bucket/name.zip.")] = ""
    workers: Workers = 1
    size: Size = "m5.large"
    master_size: MasterSize = ""
    ami: Annotated[str, typer.Option("-ami", metavar="ID", help="Image (the newest Debian 12).")] = ""
    security_group: Annotated[str, typer.Option("-sg", metavar="ID", help="Security group (one is made).")] = ""
    key_pair: Annotated[str, typer.Option("-kp", metavar="NAME", help="Key pair (one is made).")] = ""
    key_path: KeyPath = ""
    worker_script: Annotated[str, typer.Option("-wscript", metavar="FILE", help="Run on every worker.")] = ""
    master_script: Annotated[str, typer.Option("-mscript", metavar="FILE", help="Run on the master.")] = ""
    region: Region = None
    ttl: Ttl = "4h"
    spot: Spot = False
    spot_only: Annotated[bool, typer.Option("--spot-only", help="With --spot: never on demand.")] = False
    allow: Allow = ""
    subnet: Annotated[str, typer.Option("--subnet", metavar="ID", help="Where to start (the default VPC's).")] = ""
    processes: Annotated[int, number_option("--processes", help="Workers of an instance (its cores).", least=0)] = 0
    disk: Annotated[int, number_option("--disk", metavar="GB", help="Disk of each instance (16).", least=8)] = 16
    heap: Annotated[
        str, typer.Option("--heap", metavar="SIZE", help="Memory for the run's state (half of the master's).")
    ] = ""
    keep: Annotated[bool, typer.Option("--keep", help="Instances stay when the run is done, until --ttl is over.")] = (
        False
    )
    standby: Standby = False
    user: User = "admin"
    wheel: Annotated[str, typer.Option("--wheel", metavar="FILE", help="This package's wheel (one is made).")] = ""
    requirements: Annotated[
        str, typer.Option("--requirements", metavar="FILE", help="What it needs, locked with hashes (it has its own).")
    ] = ""
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, tell the price, make nothing.")] = False
    no_wait: NoWait = False
    format: Format = "text"

    def cluster_spec(self, allow: str) -> ClusterSpec:
        """Return the cluster described by the options, with SSH admitted from ``allow``.

        Raises:
            UsageError: an option's value is invalid. ConfError: the place of the run's checkpoints is not possible.
        """
        from dl4jlegacy.aws.cluster_spec import ClusterSpec, check_name, parse_cidr, parse_ttl, value_of
        from dl4jlegacy.storage import paths as storage

        check_name(self.name)
        folder = value_of("--checkpoint-dir", self.context.args)
        if folder[:3].lower() == "s3:":
            storage.open_folder(folder)  # else a mistake in it would be noticed only on the instance
        given = {each.name: getattr(self, each.name) for each in fields(ClusterSpec) if hasattr(self, each.name)}
        run = tuple(self.context.args) or ("--model", "dbn", "--dataset", "digits")
        read = {"allow": allow and parse_cidr(allow), "ttl_seconds": parse_ttl(self.ttl), "run": run}
        return ClusterSpec(**given | read)


def up(options: UpOptions) -> None:
    """Start a cluster that trains; after -- comes what dl4j master is to do (--model dbn --dataset digits)."""
    if options.dry_run:
        _check(options)
        return
    spec = options.cluster_spec(options.allow or _own_address())
    open_console()
    spec.check()
    with _cluster(options.name, options.region, options.user, options.key_path) as setup:
        _start(setup, spec, options)


add_command(_app, up, UpOptions, context_settings=_EXTRA)


def _check(options: UpOptions) -> None:
    """Check what can be checked without creating anything; print the price, and what was not checked."""
    from dl4jlegacy.aws.payload import load_payload
    from dl4jlegacy.aws.prices import estimate
    from dl4jlegacy.aws.setup import ClusterSetup
    from dl4jlegacy.storage.s3.session import Aws

    spec = options.cluster_spec(options.allow)
    open_console()
    spec.check()
    load_payload(options.wheel, options.requirements)
    unchecked: list[str] = []
    with Aws(options.region, environ=os.environ) as aws:
        silent = aws.why_silent()
        if silent:
            unchecked.append(f"account, instance types, image, network and today's prices in {aws.region}: {silent}")
        else:
            ClusterSetup(aws, spec.name).check(spec)
        try:
            if not options.allow:
                _own_address()
        except CloudError as exc:
            unchecked.append(f"from where SSH is to be admitted: {exc}")
        fields, text = {}, []
        try:
            price = estimate(None if silent else aws, spec)
            fields, text = price.fields(), [price.text()]
        except ConfError as exc:
            if not silent:
                raise
            unchecked.append(str(exc))
    text += [f"not checked: {what}" for what in unchecked]
    emit(to_json({"dry_run": True, "unchecked": unchecked, **fields}) if options.format == "json" else "\n".join(text))


def _start(setup: ClusterSetup, spec: ClusterSpec, options: UpOptions) -> None:
    """Start a cluster, and print its state and price; if that fails, remove what was started."""
    from dl4jlegacy.aws.payload import load_payload
    from dl4jlegacy.aws.prices import estimate

    price: Estimate | None = None
    with contextlib.suppress(ConfError):  # a size without a known price may be started anyway
        price = estimate(setup.aws, spec)
    payload = load_payload(options.wheel, options.requirements)
    setup.check_is_free()
    try:
        status = setup.up(spec, payload, wait=not options.no_wait)
    except DeadlineError as exc:
        raise DeadlineError(f"{exc}. It still costs money: `dl4j aws down {spec.name}` ends it") from exc
    except Dl4jError as exc:
        raise type(exc)(f"{exc}. {setup.undo()}") from exc
    except Stopped as stop:
        stop.hint = _what_runs(setup, price)
        raise
    _show(status, options.format, price.fields() if price else {})


def _what_runs(setup: ClusterSetup, price: Estimate | None) -> str:
    """Return, for the message, what an interrupted ``up`` leaves running, its cost, and how to end it."""
    name, region = setup.names.cluster, setup.names.region
    end = f"`dl4j aws down {name} --region {region}` ends it, `dl4j aws up {name}` with the same options goes on"
    try:
        alive = [instance for instance in setup.status(ask=False).instances if instance.alive]
    except Dl4jError as exc:
        return f"; what runs of cluster {name} could not be asked ({exc}): {end}"
    if not alive:
        return f"; no instance of cluster {name} runs: {end}"
    cost = f", {price.of_running(Counter(each.role for each in alive)):.2f} $/h" if price else ""
    until = min(instance.expires for instance in alive)
    ids = ", ".join(f"{instance.role} {instance.id}" for instance in alive)
    return f"; cluster {name} runs on, until {until} at most{cost} ({ids}): {end}"


def _own_address() -> str:
    """Return the public address of this machine, as AWS sees it."""
    try:
        with urllib.request.urlopen(_ADDRESS_SERVICE, timeout=10) as answer:  # a fixed https address
            text = str(answer.read(64).decode("ascii")).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise CloudError(
            f"your public address could not be looked up at {_ADDRESS_SERVICE} ({exc}); give it with --allow"
        ) from exc
    if not re.fullmatch(r"[0-9a-f.:]+", text):
        raise CloudError(f"{_ADDRESS_SERVICE} did not answer with an address; give yours with --allow")
    return text


@_app.command()
def join(name: Name, allow: Allow = "", region: Region = None, format: Format = "text") -> None:
    """Have your address admitted to a cluster that is somebody else's; nothing else of it changes."""
    from dl4jlegacy.aws.cluster_spec import check_name, parse_cidr

    check_name(name)
    network = parse_cidr(allow or _own_address())
    with _cluster(name, region) as setup:
        _show(setup.join(network), format)


@_app.command()
def status(
    name: Name, region: Region = None, user: User = "admin", key_path: KeyPath = "", format: Format = "text"
) -> None:
    """Show a cluster: its instances, its other resources, and which workers have registered."""
    with _cluster(name, region, user, key_path) as setup:
        _show(setup.status(), format)


@_app.command()
def scale(
    name: Name,
    workers: Annotated[int, number_option("-w", "--workers", help="Worker instances (1).", least=0)] = 1,
    region: Region = None,
    user: User = "admin",
    key_path: KeyPath = "",
    no_wait: NoWait = False,
    format: Format = "text",
) -> None:
    """Have N workers: start more like those that are there, or end the youngest."""
    with _cluster(name, region, user, key_path) as setup:
        _show(setup.scale(workers, wait=not no_wait), format)


@_app.command(context_settings=_EXTRA)
def ssh(
    context: typer.Context,
    name: Name,
    node: Node = "master",
    region: Region = None,
    user: User = "admin",
    key_path: KeyPath = "",
) -> int:
    """Log in on a node, whose host key is known; after -- comes a command to run instead. Exits as that does."""
    with _cluster(name, region, user, key_path) as setup:
        instance = _named(node, _running_nodes(setup), name)
        keys = setup.host_keys(instance)
        key = setup.key_file()
    known = setup.names.key_folder / "known_hosts"
    known.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.write(known, "".join(f"{instance.public_address} {line}\n" for line in keys.splitlines()).encode("ascii"))
    options = ("StrictHostKeyChecking=yes", f"UserKnownHostsFile={known}", "IdentitiesOnly=yes")
    command = ["ssh", "-i", str(key), *(f"-o{option}" for option in options), f"{user}@{instance.public_address}"]
    try:
        return subprocess.run([*command, *context.args]).returncode
    except FileNotFoundError as exc:
        raise ConfError("there is no ssh on this machine; install openssh-client") from exc


@_app.command()
def logs(
    name: Name,
    node: Node = "master",
    lines: Annotated[int, number_option("-n", "--lines", help="How many lines (100).", least=1)] = 100,
    region: Region = None,
    user: User = "admin",
    key_path: KeyPath = "",
) -> None:
    """Print what a node's services said, ended ones too; before it can be logged in to, what its console shows."""
    from dl4jlegacy.aws.cluster_spec import MASTER

    def print_last(text: str) -> None:
        emit("\n".join(text.splitlines()[-lines:]))

    with _cluster(name, region, user, key_path) as setup:
        nodes = _running_nodes(setup)
        if node not in nodes:
            servers = setup.resources.servers() if node == MASTER else None
            if kept := setup.resources.read_journal(servers.master.instance_id if servers else node):
                print_last(kept)
                return
        kept_of = ", ".join(sorted(setup.resources.journals().keys() - nodes.keys()))
        instance = _named(node, nodes, name, f"; logs are kept of {kept_of}" if kept_of else "")
        try:
            with setup.provisioner(instance) as host:
                command = (
                    f"sudo journalctl --no-pager -n {lines} -u 'dl4j-*'; sudo tail -n 20 /var/log/dl4j-install.log"
                )
                emit(host.run_remote_command(command, seconds=60).out.rstrip())
        except CloudError as exc:
            kept = setup.resources.read_journal(instance.id)
            emit(f"{exc}\n{f'the bucket has of {instance.id}' if kept else f'the console of {instance.id} shows'}:")
            print_last(kept or setup.console_output(instance))


@_app.command()
def down(name: Name, region: Region = None, format: Format = "text") -> None:
    """End a cluster and remove all that belongs to it; returns when nothing is left. The model in S3 stays."""
    with _cluster(name, region) as setup:
        removed, where = setup.down(), setup.names.region
    logs = ", with the logs in it" if any(each.startswith("bucket ") for each in removed) else ""
    said = f"removed {', '.join(removed)}{logs}" if removed else f"there was nothing of cluster {name} in {where}"
    emit(to_json({"cluster": name, "region": where, "removed": removed}) if format == "json" else said)


@_app.command()
def reap(
    region: Region = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="End every cluster of the region, orphan or not.")] = False,
    format: Format = "text",
) -> None:
    """Find clusters whose time is over, or of which only remains are there, and end them."""
    from dl4jlegacy.aws.reaper import reap as reap_clusters
    from dl4jlegacy.storage.s3.session import Aws

    open_console()
    with Aws(region, environ=os.environ) as aws:
        found = reap_clusters(aws, dry_run=dry_run, everything=everything)
    if format == "json":
        emit(to_json({"region": aws.region, "dry_run": dry_run, "clusters": [asdict(each) for each in found]}))
        return
    verb = "would end" if dry_run else "ended"
    texts = [f"{verb} {each.name}: {', '.join(each.belongings)}" for each in found]
    emit("\n".join(texts) or f"nothing to reap in {aws.region}")


@_app.command()
def price(
    workers: Workers = 1,
    size: Size = "m5.large",
    master_size: MasterSize = "",
    ttl: Ttl = "4h",
    spot: Spot = False,
    standby: Standby = False,
    region: Region = None,
    format: Format = "text",
) -> None:
    """Tell what a cluster would cost."""
    from dl4jlegacy.aws.cluster_spec import ClusterSpec, parse_ttl
    from dl4jlegacy.aws.prices import estimate
    from dl4jlegacy.storage.s3.session import Aws

    spec = ClusterSpec(
        name="price",
        allow="",
        ttl_seconds=parse_ttl(ttl),
        out="",
        workers=workers,
        size=size,
        master_size=master_size,
        spot=spot,
        standby=standby,
    )
    with Aws(region, environ=os.environ) as aws:
        found = estimate(aws, spec)
    emit(to_json(found.fields()) if format == "json" else found.text())


# --- shared --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _cluster(name: str, region: str | None, user: str = "admin", key_path: str = "") -> Iterator[ClusterSetup]:
    """Yield a cluster, with a session that ends afterwards."""
    from dl4jlegacy.aws.cluster_spec import check_name
    from dl4jlegacy.aws.setup import ClusterSetup
    from dl4jlegacy.storage.s3.session import Aws

    check_name(name)
    open_console()
    with Aws(region, environ=os.environ) as aws:
        yield ClusterSetup(aws, name, user=user, key_path=key_path)


def _show(status: ClusterStatus, format: str, price: dict[str, Any] | None = None) -> None:
    emit(to_json(_fields(status, price or {})) if format == "json" else _text(status, price or {}))


def _fields(status: ClusterStatus, price: dict[str, Any]) -> dict[str, Any]:
    """Return a cluster's state for JSON."""
    return {
        "cluster": status.name,
        "region": status.region,
        "expires": status.expires,
        "owner": status.owner and {"arn": status.owner.arn, "since": status.owner.since},
        "done": status.done and {"since": status.done.since, "model": status.done.model},
        **({"price": price} if price else {}),
        "boxes": [asdict(instance) for instance in status.instances],
        "belongings": list(status.resources),
        "workers": None if status.workers is None else list(status.workers),
    }


def _text(status: ClusterStatus, price: dict[str, Any]) -> str:
    """Return a cluster's state as text."""
    end = f", ends by itself at {status.expires}" if status.expires else ""
    lines = [f"cluster {status.name} in {status.region}{end}"]
    for each in status.instances:
        size = f"{each.size}{' spot' if each.spot else ''}"
        lines.append(f"  {each.role:7} {each.id} {size} {each.state} {each.public_address} {each.zone}".rstrip())
    lines += [f"  {resource}" for resource in status.resources]
    if len(lines) == 1:
        return f"there is nothing of cluster {status.name} in {status.region}"
    if status.owner is not None:
        lines.insert(1, f"  owner   {status.owner.arn} since {status.owner.since}")
    if status.done is not None:
        lines.insert(1, f"  run     done since {status.done.since}, its model is {status.done.model}")
    if status.workers is not None:
        lines.append(f"  {counted(len(status.workers), 'worker')} registered")
    if price:
        lines.append(f"  {price['dollars_per_hour']:.2f} $/h, at most {price['dollars_at_most']:.2f} $")
    return "\n".join(lines)


def _running_nodes(setup: ClusterSetup) -> dict[str, Instance]:
    """Return the running instances by all values of ``--node``: master, standby, a worker's number, an id."""
    from dl4jlegacy.aws.cluster_spec import WORKER

    running = [instance for instance in setup.status(ask=False).instances if instance.state == "running"]
    workers = [instance for instance in running if instance.role == WORKER]
    names = {str(number): instance for number, instance in enumerate(workers)}
    names.update((instance.id, instance) for instance in running)
    names.update((each.role, each) for each in reversed(running) if each.role != WORKER)
    return names


def _named(node: str, nodes: dict[str, Instance], cluster: str, more: str = "") -> Instance:
    """Return the instance that ``--node`` names; raises ``ConfError``."""
    if node not in nodes:
        known = nearest(node, list(nodes)) if nodes else "; no instance of it is running"
        raise ConfError(f"cluster {cluster} has no node {node!r}{known}{more}")
    return nodes[node]
