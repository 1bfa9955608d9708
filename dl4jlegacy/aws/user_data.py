"""The user data of a new instance, which configures cloud-init. A pure function.

The instance first schedules its own end (time to live). Then it uses its role to fetch the wheel and the lock file of
all dependencies from the cluster's bucket, checks their SHA-256, installs them, gets the run's secret from the
parameter store, publishes its SSH host keys, and starts its systemd units. The bucket is read with Debian's own boto3,
which apt verifies; pip verifies the packages in the lock file. User data can be read by everybody on the instance, so
they contain no secret.

Legacy: ``provision-master.sh`` and the documentation's worker script, which built from the newest source.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import yaml

from dl4jlegacy.aws.cluster_spec import MASTER, STANDBY, WORKER, value_of
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
"""Amazon's limit, before the encoding as base64."""

_FOLDER = "/usr/local/lib/dl4j/"
_TIME_IS_OVER = (
    'left=$((@EXPIRES@ - $(date +%s))); [ "$left" -gt 0 ] || { systemctl poweroff; exit 0; }; '
    'systemd-run --unit=dl4j-end --timer-property=DefaultDependencies=no --on-active="${left}s" systemctl poweroff'
)
"""Runs at every boot before anything else: powers the instance off in time."""
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
mkdir -p /var/cache/dl4j /var/lib/dl4j /etc/dl4j
chown dl4j:dl4j /var/lib/dl4j
[ -x /opt/dl4j/bin/python ] || python3 -m venv /opt/dl4j
pip='/opt/dl4j/bin/pip --quiet --disable-pip-version-check'
again /usr/bin/python3 /usr/local/lib/dl4j/fetch.py /var/cache/dl4j @BUCKET@ @REGION@ @WHEEL@ @DIGESTS@
again $pip install --require-hashes --only-binary :all: --requirement /var/cache/dl4j/requirements.txt
$pip install --no-deps --no-index /var/cache/dl4j/@WHEEL@
$pip check
again /opt/dl4j/bin/python -m dl4jlegacy.aws.on_instance boot @REGION@ @BUCKET@ @CLUSTER@
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
exec python -m dl4jlegacy.aws.on_instance done @REGION@ @BUCKET@ @MODEL@
"""
_SERVICES = """\
#!/bin/sh
exec dl4j services up --foreground --host "$DL4J_ADDRESS" --hazelcast-port 5701 --zookeeper-port 2181 --heap @HEAP@
"""
_SERVICES_OF_THREE = """\
#!/bin/sh
# This instance's part of the servers, which are on three; the witness's address is the last.
set -eu
servers=$(python -m dl4jlegacy.aws.on_instance servers @REGION@ @BUCKET@)
exec dl4j services up --foreground --host "$DL4J_ADDRESS" --hosts "$servers" --witness "${servers##*,}" --heap @HEAP@
"""
_LEADER = """\
#!/bin/sh
# Leads the run, or stands by behind whoever does, and says when it is done.
set -eu
servers=$(python -m dl4jlegacy.aws.on_instance servers @REGION@ @BUCKET@)
with_port() { echo "$(echo "$1" | sed "s/,/:$2,/g"):$2"; }
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
exec python -m dl4jlegacy.aws.on_instance done @REGION@ @BUCKET@ @MODEL@
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
servers=$(python -m dl4jlegacy.aws.on_instance servers @REGION@ @BUCKET@)
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
_SERVICE = f"Type=notify\nTimeoutStartSec=600\nKillMode=mixed\nExecStart={_FOLDER}services"
_WATCH = """\
ExecStart=/opt/dl4j/bin/python -m dl4jlegacy.aws.on_instance watch @REGION@ @BUCKET@@KEEP@
SupplementaryGroups=systemd-journal"""
_ENDS = f"\nExecStopPost=+{_FOLDER}end"  # +: as root
_CHECKPOINTS = "/var/lib/dl4j/checkpoints"
_KEPT = ("--out", "--data-dir", "--bind", "--id", "--cluster-name", "--device-memory-limit")
"""Flags that are not in the checkpoints, or depend on the environment; they are repeated to resume a run."""
_FINAL = tuple(
    sorted({kind.exit_status for kind in (UsageError, ConfError, DataError, NotAuthorisedError, VersionError)})
)
"""Exit statuses that would not change if the command were repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """The configuration of one instance.

    Attributes:
        role: master or worker; in a cluster with a standby also standby or witness.
        cluster, region: of the instance.
        bucket: the bucket with the wheel and the lock file.
        wheel, wheel_sha256, requirements_sha256: the wheel's name, and both digests.
        expires: when the instance ends, in seconds since 1970.
        run: the arguments of ``dl4j master``, for a master.
        workers: number of worker processes that the master expects, unless ``run`` gives it.
        processes: of a worker's instance, each with one worker.
        heap: of the Hazelcast member, in Java's notation.
        keep: whether the instance stays when the run is done.
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
    run: tuple[str, ...] = ()
    workers: int = 1
    processes: int = 1
    heap: str = "1g"
    keep: bool = False
    standby: bool = False


def user_data(instance: InstanceConfig) -> str:
    """Return the cloud-config of an instance; raises ``ConfError`` if it is too long."""
    values = {
        "CLUSTER": instance.cluster,
        "REGION": instance.region,
        "BUCKET": instance.bucket,
        "WHEEL": instance.wheel,
        "DIGESTS": f"{instance.wheel_sha256} requirements.txt {instance.requirements_sha256}",
        "HEAP": instance.heap,
        "EXPIRES": str(instance.expires),
        "KEEP": " keep" if instance.keep else _ENDS,
        "UNITS": _started(instance),
        **_run_values(instance),
    }
    files = {path: _fill(text, values) for path, text in (_scripts(instance) | _units(instance)).items()}
    config = {
        "bootcmd": [["sh", "-c", _fill(_TIME_IS_OVER, values)]],
        "package_update": True,
        "packages": ["python3-boto3", "python3-venv"],
        "write_files": [
            {"path": path, "permissions": "0644" if path.endswith((".py", ".service")) else "0755", "content": text}
            for path, text in files.items()
        ],
        "runcmd": [["sh", "-c", f"{_FOLDER}install >/var/log/dl4j-install.log 2>&1"]],
    }
    text = "#cloud-config\n" + yaml.safe_dump(config, sort_keys=False, width=120)
    nbytes = len(text.encode())
    if nbytes > MOST_NBYTES:
        raise ConfError(
            f"the user data of {instance.cluster}'s {instance.role} are {nbytes} bytes, AWS takes {MOST_NBYTES}; "
            "shorten the command line of the run, for instance by a Conf file in S3"
        )
    return text


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def _run_values(instance: InstanceConfig) -> dict[str, str]:
    """Return the values from the run's command line for the scripts of a master and a standby."""
    run, folder = instance.run, value_of("--checkpoint-dir", instance.run)
    if not folder:
        folder, run = _CHECKPOINTS, (*run, "--checkpoint-dir", _CHECKPOINTS)
    kept = [word for flag in _KEPT if (value := value_of(flag, run)) for word in (flag, value)]
    if not value_of("--workers", run):
        run = (*run, "--workers", str(instance.workers))
    # the shell's word that is not empty if there is a run: if S3 does not answer, the script ends and is started again
    begun = f"$([ ! -e {shlex.quote(f'{folder}/conf.json')} ] || echo yes)"
    if folder.startswith("s3://"):
        begun = f"$(python -m dl4jlegacy.aws.on_instance is-kept {shlex.quote(folder)})"
    return {
        "BIND": "" if value_of("--bind", run) else ' --bind "$DL4J_ADDRESS"',
        "BEGUN": begun,
        "FOLDER": shlex.quote(folder),
        "KEPT": shlex.join(kept),
        "RUN": shlex.join(run),
        "MODEL": shlex.quote(value_of("--out", run)),
        "FIRST": "" if instance.role == MASTER else "false && ",  # a standby begins no run
    }


def _scripts(instance: InstanceConfig) -> dict[str, str]:
    """Return the scripts of the instance by path, with placeholders."""
    scripts = {"fetch.py": _FETCH, "install": _INSTALL, "end": _END}
    if instance.keep:
        del scripts["end"]
    if instance.role == WORKER:
        scripts[WORKER] = _WORKER
    else:
        scripts["services"] = _SERVICES_OF_THREE if instance.standby else _SERVICES
    if instance.role in (MASTER, STANDBY):
        scripts[instance.role] = _LEADER if instance.standby else _MASTER
    return {f"{_FOLDER}{name}": text for name, text in scripts.items()}


def _units(instance: InstanceConfig) -> dict[str, str]:
    """Return the systemd units of the instance by path, with placeholders."""
    after = " dl4j-watch.service"  # stopped after the other units, so that it saves their last messages
    executes = f"ExecStart={_FOLDER}{instance.role}"
    units = {"watch": _unit("Saves the journal, and ends the instance with its run", _WATCH, "")}
    if instance.role == WORKER:
        units["worker@"] = _unit("dl4j worker %i", executes, after)
    else:
        units["services"] = _unit("Hazelcast and Zookeeper of dl4j", _SERVICE, after)
    if instance.role in (MASTER, STANDBY):
        never = (TrainingError.exit_status, PoisonJobError.exit_status, *_FINAL)
        units["master"] = _unit("dl4j master", executes, f"{after} dl4j-services.service", never)
    return {f"/etc/systemd/system/dl4j-{name}.service": text for name, text in units.items()}


def _unit(what: str, service: str, after: str, final: tuple[int, ...] = _FINAL) -> str:
    values = {
        "WHAT": what,
        "AFTER": after,
        "SERVICE": service,
        "FINAL": " ".join(map(str, final)),
        "REGION": "@REGION@",
    }
    return _fill(_UNIT, values)


def _started(instance: InstanceConfig) -> str:
    """Return, as a shell word, the units started at every boot; for a worker's instance one for each process."""
    if instance.role == WORKER:
        return f"\"dl4j-watch.service $(seq -s ' ' -f 'dl4j-worker@%.0f.service' {instance.processes})\""
    return shlex.quote(" ".join(path.rpartition("/")[2] for path in _units(instance)))
