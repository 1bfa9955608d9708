"""The user data of a new instance, which tells cloud-init what to do. A pure function.

The instance first schedules its own end (time to live), then fetches the wheel and the lock file of everything that it
needs from the cluster's bucket with its role, checks their SHA-256, installs them, gets the run's secret from the
parameter store, publishes its SSH host keys, and starts its systemd units. What fetches from the bucket is Debian's own
boto3, which apt checks; what the lock file names, pip checks. User data can be read by everybody on the instance, so
nothing secret is in it.

Legacy: ``provision-master.sh`` and the documentation's worker script, which built from the newest source.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import yaml

from dl4jlegacy.aws.cluster_spec import MASTER, WITNESS, WORKER, value_of
from dl4jlegacy.errors import (
    ConfError,
    DataError,
    NotAuthorisedError,
    PoisonJobError,
    TrainingError,
    UsageError,
    VersionError,
)

__all__ = ["MOST_NBYTES", "InstanceConfig", "user_data"]

MOST_NBYTES = 16384
"""Amazon's limit, before its encoding as base64."""

_CACHE = "/var/cache/dl4j"
_FETCH = """\
import hashlib, os, sys
import boto3
folder, bucket, region, *pairs = sys.argv[1:]
s3 = boto3.client("s3", region_name=region, endpoint_url=os.environ.get("AWS_ENDPOINT_URL"))
for name, digest in zip(pairs[::2], pairs[1::2]):
    path = os.path.join(folder, name)
    s3.download_file(bucket, digest + "/" + name, path)
    if hashlib.sha256(open(path, "rb").read()).hexdigest() != digest:
        sys.exit(name + " in bucket " + bucket + " is not what the cluster was started with")
"""
_INSTALL = """\
#!/bin/sh
set -eu
again() { # a command that needs the network, up to 5 times
    n=1
    until "$@"; do
        [ "$n" -lt 5 ] || return 1
        sleep $((n * 5)); n=$((n + 1))
    done
}
id dl4j >/dev/null 2>&1 || useradd --system --home-dir /var/lib/dl4j --shell /usr/sbin/nologin dl4j
mkdir -p @CACHE@ /var/lib/dl4j /etc/dl4j
chown dl4j:dl4j /var/lib/dl4j
[ -x /opt/dl4j/bin/python ] || python3 -m venv /opt/dl4j
pip='/opt/dl4j/bin/pip --quiet --disable-pip-version-check'
again /usr/bin/python3 /usr/local/lib/dl4j/fetch.py @CACHE@ @FETCH@
again $pip install --require-hashes --only-binary :all: --requirement @CACHE@/requirements.txt
$pip install --no-deps --no-index @CACHE@/@WHEEL@
$pip check
again /opt/dl4j/bin/python -m dl4jlegacy.aws.boot --cluster @CLUSTER@ --region @REGION@ --bucket @BUCKET@
systemctl daemon-reload
units=@UNITS@
systemctl enable --quiet $units
systemctl start --no-block $units
"""
_MASTER = """\
#!/bin/sh
# Begins the run, or goes on with the one that it has begun, and says when it is done.
set -eu
set -- --tracker "hazelcast://$DL4J_ADDRESS:5701" --zookeeper "$DL4J_ADDRESS:2181"@BIND@ --log-format json
begun=@BEGUN@
if [ -z "$begun" ]; then
    dl4j master @RUN@ "$@"
else
    dl4j resume @FOLDER@ --workers 0 @KEPT@ "$@"
fi
exec python -m dl4jlegacy.aws.watch --region @REGION@ --bucket @BUCKET@ --done @MODEL@
"""
_PLACES = """\
servers=$(python -m dl4jlegacy.aws.master_address --region @REGION@ --bucket @BUCKET@)
with_port() { echo "$(echo "$1" | sed "s/,/:$2,/g"):$2"; }
"""
"""Of a cluster with a standby: where all servers are, the witness's last."""
_SERVICES = """\
#!/bin/sh
# This instance's part of the servers, which are on three.
set -eu
@PLACES@
exec dl4j services up --foreground --host "$DL4J_ADDRESS" --hosts "$servers" --witness "${servers##*,}" --heap @HEAP@
"""
_LEADER = """\
#!/bin/sh
# Leads the run, or stands by behind whoever does, and says when it is done.
set -eu
@PLACES@
zookeeper=$(with_port "$servers" 2181)
set -- --tracker "hazelcast://$(with_port "${servers%,*}" 5701)" --zookeeper "$zookeeper"@BIND@ --log-format json
begun=@BEGUN@
status=4
if @FIRST@[ -z "$begun" ]; then
    status=0; dl4j master @RUN@ "$@" || status=$?
fi
if [ "$status" -eq 4 ]; then # another one leads, or servers do not answer yet
    status=0
    said=$(dl4j master --standby @KEPT@ --zookeeper "$zookeeper"@BIND@ --log-format json --format json) || status=$?
    echo "$said"
    case "$said" in *'"standby"'*) exit 0 ;; esac # the other one has ended the run, and says so
    if [ "$status" -eq 4 ] && [ -n "$begun" ]; then # nobody has anything of it but checkpoints
        status=0; dl4j resume @FOLDER@ --workers 0 @KEPT@ "$@" || status=$?
    fi
fi
[ "$status" -eq 0 ] || exit "$status"
exec python -m dl4jlegacy.aws.watch --region @REGION@ --bucket @BUCKET@ --done @MODEL@
"""
_END = """\
#!/bin/sh
# Executed whenever dl4j-watch has ended, which does so by itself when the run is done.
[ "$EXIT_CODE $EXIT_STATUS" != "exited 0" ] || systemctl --no-block poweroff
"""
_WORKER = """\
#!/bin/sh
# Works for the present master, which may be another one than when this instance was started.
set -eu
servers=$(python -m dl4jlegacy.aws.master_address --region @REGION@ --bucket @BUCKET@ --otherwise @MASTER@)
zookeeper=$(echo "$servers" | sed 's/,/:2181,/g')
exec dl4j worker --zookeeper "$zookeeper:2181" --workers 1 --wait 600 --log-format json
"""
_UNIT = """\
[Unit]
Description=@WHAT@
After=network-online.target@AFTER@
Wants=network-online.target@AFTER@
StartLimitIntervalSec=6h
StartLimitBurst=60

[Service]
User=dl4j
Environment=PATH=/opt/dl4j/bin:/usr/bin:/bin AWS_DEFAULT_REGION=@REGION@ DL4J_SECRET_FILE=/etc/dl4j/secret
Environment=HOME=/var/lib/dl4j DL4J_DATA_DIR=/var/lib/dl4j/data DL4J_SERVICES=/var/lib/dl4j/services
EnvironmentFile=/etc/dl4j/address
WorkingDirectory=/var/lib/dl4j
@SERVICE@
Restart=on-failure
RestartSec=15
RestartPreventExitStatus=@FINAL@
SuccessExitStatus=143
TimeoutStopSec=40
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths=/var/lib/dl4j
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""
_CHECKPOINTS = "/var/lib/dl4j/checkpoints"
_KEPT = ("--out", "--data-dir", "--bind", "--id", "--cluster-name", "--device-memory-limit")
"""What the checkpoints do not tell, or the environment tells otherwise: whoever resumes must be told again."""
_FINAL = tuple(
    sorted({kind.exit_status for kind in (UsageError, ConfError, DataError, NotAuthorisedError, VersionError)})
)
"""Exit statuses that would be the same again, however often it is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """What one instance has to know.

    Attributes:
        role: master, worker, and, of a cluster with a standby, standby or witness.
        cluster, region: where it belongs.
        bucket: from which it fetches the wheel and the lock file.
        wheel, wheel_sha256, requirements_sha256: the wheel's name, and both digests.
        expires: when it ends, in seconds since 1970.
        master: the master's private address, for a worker, unless the bucket says another by then; with a standby,
            those of all servers, with commas between them.
        run: the arguments of ``dl4j master``, for a master.
        workers: how many worker processes the master expects, unless ``run`` says so.
        processes: of a worker's instance, each with one worker.
        heap: of the Hazelcast member, as Java writes it.
        keep: whether it stays when the run is done.
        standby: whether its cluster has a standby.
    """

    role: str
    cluster: str
    region: str
    bucket: str
    wheel: str
    wheel_sha256: str
    requirements_sha256: str
    expires: int
    master: str = ""
    run: tuple[str, ...] = ()
    workers: int = 1
    processes: int = 1
    heap: str = "1g"
    keep: bool = False
    standby: bool = False


def user_data(instance: InstanceConfig) -> str:
    """Return the cloud-config of an instance; raises ``ConfError`` if it is too long."""
    units = _units(instance)
    files = {
        "/usr/local/lib/dl4j/fetch.py": (_FETCH, "0644"),
        "/usr/local/lib/dl4j/install": (_install(instance), "0755"),
        **{f"/usr/local/lib/dl4j/{name}": (text, "0755") for name, text in _scripts(instance).items()},
        **({} if instance.keep else {"/usr/local/lib/dl4j/end": (_END, "0755")}),
        **{f"/etc/systemd/system/{name}": (text, "0644") for name, text in units.items()},
    }
    config = {
        "bootcmd": [["sh", "-c", _end(instance.expires)]],
        "package_update": True,
        "packages": ["python3-boto3", "python3-venv"],
        "write_files": [{"path": path, "permissions": mode, "content": text} for path, (text, mode) in files.items()],
        "runcmd": [["sh", "-c", "/usr/local/lib/dl4j/install >/var/log/dl4j-install.log 2>&1"]],
    }
    text = "#cloud-config\n" + yaml.safe_dump(config, sort_keys=False, width=120)
    if len(text.encode()) > MOST_NBYTES:
        nbytes = len(text.encode())
        raise ConfError(
            f"the user data of {instance.cluster}'s {instance.role} are {nbytes} bytes, AWS takes {MOST_NBYTES}; "
            "shorten the command line of the run, for instance by a Conf file in S3"
        )
    return text


def _end(expires: int) -> str:
    """Return the shell command, run at every boot before anything else, that powers the instance off in time."""
    return (
        f'left=$(({expires} - $(date +%s))); [ "$left" -gt 0 ] || {{ systemctl poweroff; exit 0; }}; '
        'systemd-run --unit=dl4j-end --timer-property=DefaultDependencies=no --on-active="${left}s" systemctl poweroff'
    )


def _install(instance: InstanceConfig) -> str:
    fetched = (instance.wheel, instance.wheel_sha256, "requirements.txt", instance.requirements_sha256)
    values = {
        "CACHE": _CACHE,
        "FETCH": " ".join(shlex.quote(word) for word in (instance.bucket, instance.region, *fetched)),
        "WHEEL": instance.wheel,
        "CLUSTER": instance.cluster,
        "REGION": instance.region,
        "BUCKET": instance.bucket,
        "UNITS": _started(instance),
    }
    return _fill(_INSTALL, values)


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z0-9]+)@", lambda found: values[found[1]], text)


def _scripts(instance: InstanceConfig) -> dict[str, str]:
    """Return what the units of the instance's role execute, by name."""
    values = {
        "REGION": instance.region,
        "BUCKET": instance.bucket,
        "MASTER": instance.master,
        "HEAP": instance.heap,
    }
    if instance.role == WORKER:
        return {WORKER: _fill(_WORKER, values)}
    services = {"services": _fill(_SERVICES.replace("@PLACES@", _PLACES.rstrip()), values)} if instance.standby else {}
    return services if instance.role == WITNESS else {**services, instance.role: _master(instance)}


def _master(instance: InstanceConfig) -> str:
    run = instance.run
    folder = value_of("--checkpoint-dir", run)
    if not folder:
        folder, run = _CHECKPOINTS, (*run, "--checkpoint-dir", _CHECKPOINTS)
    kept = [(flag, value) for flag in _KEPT if (value := value_of(flag, run))]
    if not value_of("--workers", run):
        run = (*run, "--workers", str(instance.workers))
    values = {
        "BIND": "" if value_of("--bind", run) else ' --bind "$DL4J_ADDRESS"',
        "BEGUN": _begun(folder),
        "FOLDER": shlex.quote(folder),
        "KEPT": shlex.join(word for pair in kept for word in pair),
        "RUN": shlex.join(run),
        "REGION": instance.region,
        "BUCKET": instance.bucket,
        "MODEL": shlex.quote(value_of("--out", run)),
        "FIRST": "" if instance.role == MASTER else "false && ",  # a standby begins no run
    }
    if instance.standby:
        return _fill(_LEADER.replace("@PLACES@", _PLACES.rstrip()), values)
    return _fill(_MASTER, values)


def _begun(folder: str) -> str:
    """Return the shell's word that is not empty if there is a run in a folder; in S3 it may be that of a lost instance.

    If S3 does not answer the script ends, and is started again.
    """
    if folder.startswith("s3://"):
        return f"$(python -m dl4jlegacy.aws.kept_run {shlex.quote(folder)})"
    return f"$([ ! -e {shlex.quote(f'{folder}/conf.json')} ] || echo yes)"


def _units(instance: InstanceConfig) -> dict[str, str]:
    """Return the systemd units by name."""
    executes = f"ExecStart=/usr/local/lib/dl4j/{instance.role}"
    watch = {"dl4j-watch.service": _unit(instance, "What keeps the journal, and ends with the run", _watch(instance))}
    after = " dl4j-watch.service"  # which therefore is stopped after them, and keeps their last words
    if instance.role == WORKER:
        return {**watch, "dl4j-worker@.service": _unit(instance, "dl4j worker %i", executes, after=after)}
    up = (
        "/opt/dl4j/bin/dl4j services up --foreground --host ${DL4J_ADDRESS} --hazelcast-port 5701 --zookeeper-port 2181"
    )
    up = "/usr/local/lib/dl4j/services" if instance.standby else f"{up} --heap {instance.heap}"
    services = f"Type=notify\nTimeoutStartSec=600\nKillMode=mixed\nExecStart={up}"
    watch["dl4j-services.service"] = _unit(instance, "Hazelcast and Zookeeper of dl4j", services, after=after)
    if instance.role == WITNESS:
        return watch
    final = (TrainingError.exit_status, PoisonJobError.exit_status, *_FINAL)
    return {
        **watch,
        "dl4j-master.service": _unit(
            instance, "dl4j master", executes, after=f"{after} dl4j-services.service", final=final
        ),
    }


def _watch(instance: InstanceConfig) -> str:
    command = f"-m dl4jlegacy.aws.watch --region {instance.region} --bucket {instance.bucket}"
    lines = [f"ExecStart=/opt/dl4j/bin/python {command}{' --keep' if instance.keep else ''}"]
    if not instance.keep:
        lines.append("ExecStopPost=+/usr/local/lib/dl4j/end")  # +: as root
    return "\n".join([*lines, "SupplementaryGroups=systemd-journal"])


def _started(instance: InstanceConfig) -> str:
    """Return the shell's word for the units that are started at every boot: of a worker's, one for each process."""
    if instance.role != WORKER:
        return f"'{' '.join(_units(instance))}'"
    return f"\"dl4j-watch.service $(seq -s ' ' -f 'dl4j-worker@%.0f.service' {instance.processes})\""


def _unit(
    instance: InstanceConfig, what: str, service: str, *, after: str = "", final: tuple[int, ...] = _FINAL
) -> str:
    values = {
        "WHAT": what,
        "AFTER": after,
        "REGION": instance.region,
        "SERVICE": service,
        "FINAL": " ".join(map(str, final)),
    }
    return _fill(_UNIT, values)
