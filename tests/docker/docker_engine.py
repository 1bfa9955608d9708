"""A Docker engine with Compose for the tests: the one that is there, else Debian's, started as root for the test.

Debian's packages are unpacked, not installed. The engine's own and Compose are those of Debian 13, since Debian 12 has
no Compose that understands the file; what they call (runc, iptables) comes from the release that this machine has.
``DL4J_DOCKERD`` has flags for an engine that is started, such as ``--cgroup-parent``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dl4jlegacy.services.jars import cache_folder

__all__ = ["Engine", "Unavailable", "an_engine"]

MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NEWER = ("docker.io", "docker-cli", "docker-compose", "docker-buildx", "containerd", "tini")
OWN = (
    *("runc", "iptables", "libip4tc2", "libip6tc2", "libxtables12", "libnftnl11", "libmnl0", "libnetfilter-conntrack3"),
    *("libnfnetlink0", "debootstrap"),
)
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class Unavailable(Exception):
    """There is no engine, and none can be started; says why."""


@dataclass(frozen=True)
class Engine:
    """How to reach an engine: the environment of ``docker``, in words where it comes from."""

    what: str
    environ: dict[str, str] = field(repr=False)

    def docker(
        self, *arguments: str, seconds: float = 120.0, check: bool = True, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``docker``; ``more`` are environment variables."""
        done = subprocess.run(
            ["docker", *arguments],
            env={**self.environ, **more},
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done


@contextmanager
def an_engine() -> Iterator[Engine]:
    """Yield an engine; one that was started for this ends with it. Raises ``Unavailable``."""
    reason = _missing(dict(os.environ))
    if not reason:
        yield Engine("the Docker engine of this machine", dict(os.environ))
        return
    if os.geteuid() != 0:
        raise Unavailable(f"{reason}; and to start Debian's engine for the test one has to be root")
    if os.uname().machine != "x86_64" or not KEYRING.exists() or not shutil.which("apt-get"):
        raise Unavailable(f"{reason}; and this is not a Debian on x86_64, whose packages the test could take it from")
    packages = _unpacked(reason)
    with (
        tempfile.TemporaryDirectory(prefix="dl4j-docker-", ignore_cleanup_errors=True) as folder,
        _started(packages, Path(folder), reason) as engine,
    ):
        yield engine


def _missing(environ: dict[str, str]) -> str:
    """Say what is missing for using the engine that the environment names; "" if nothing is."""
    for command in (
        ["docker", "version"],
        ["docker", "buildx", "version"],
        ["docker", "compose", "version", "--short"],
    ):
        name = " ".join(command[:2])
        try:
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
        except FileNotFoundError:
            return "there is no command docker"
        except subprocess.TimeoutExpired:
            return f"{name} does not answer within 30 s"
        if done.returncode != 0:
            return f"{name} fails: {(done.stderr or done.stdout).strip()[:300]}"
    version = tuple(int(n) for n in re.findall(r"\d+", done.stdout)[:2])
    return "" if version >= (2, 20) else f"Compose is of version {done.stdout.strip()}, 2.20 is the oldest that will do"


def _unpacked(reason: str) -> Path:
    """Return the folder with Debian's packages, fetching them if need be."""
    target = cache_folder() / "docker-engine"
    if (target / "complete").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    for folder in ("apt/lists/partial", "apt/cache/archives/partial", "new", "own"):
        (target / folder).mkdir(parents=True)
    (target / "apt/sources.list").write_text(f"deb [signed-by={KEYRING}] {MIRROR} trixie main\n")
    (target / "apt/apt.conf").write_text(
        f'Dir::Etc::sourcelist "{target}/apt/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
        f'Dir::State::lists "{target}/apt/lists";\nDir::Cache "{target}/apt/cache";\nAPT::Sandbox::User "root";\n'
    )
    newer = {**os.environ, "APT_CONFIG": str(target / "apt/apt.conf")}
    steps = [
        (["apt-get", "-qq", "update"], newer, target),
        (["apt-get", "-qq", "download", *NEWER], newer, target / "new"),
        (["apt-get", "-qq", "download", *OWN], dict(os.environ), target / "own"),
    ]
    for command, environ, folder in steps:
        done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise Unavailable(f"{reason}; and Debian's packages cannot be had: {done.stderr.strip()[-300:]}")
    for package in [*(target / "new").iterdir(), *(target / "own").iterdir()]:
        subprocess.run(["dpkg-deb", "-x", str(package), str(target / "root")], check=True, timeout=60)
    for name in ("iptables", "ip6tables", "iptables-save", "iptables-restore"):
        link = target / "root/usr/sbin" / name
        link.unlink(missing_ok=True)
        link.symlink_to("xtables-legacy-multi")
    (target / "complete").touch()
    return target


@contextmanager
def _started(packages: Path, folder: Path, reason: str) -> Iterator[Engine]:
    """Start the engine with everything of it in ``folder``; it is gone at the end, and so are its mounts."""
    root = packages / "root"
    (folder / "config").mkdir()
    (folder / "config/cli-plugins").symlink_to(root / "usr/libexec/docker/cli-plugins")
    environ = {
        **os.environ,
        "PATH": f"{root}/usr/bin:{root}/usr/sbin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(root / LIBRARIES),
        "XTABLES_LIBDIR": str(root / LIBRARIES / "xtables"),
        "DOCKER_HOST": f"unix://{folder}/docker.sock",
        "DOCKER_CONFIG": str(folder / "config"),
        "DEBOOTSTRAP_DIR": str(root / "usr/share/debootstrap"),
    }
    flags = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "-p", f"{folder}/pid"]
    flags += ["-H", f"unix://{folder}/docker.sock", "--ip6tables=false", *os.environ.get("DL4J_DOCKERD", "").split()]
    network = _network(environ)
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(["dockerd", *flags], env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while missing := _missing(environ):
            if engine.poll() is not None or time.monotonic() > end:
                said = (folder / "log").read_text(errors="replace")[-600:]
                raise Unavailable(f"{reason}; and Debian's engine does not start: {missing}\n{said}")
            time.sleep(0.2)
        yield Engine("Debian's engine, started for this test", environ)
    finally:
        engine.send_signal(signal.SIGTERM)
        try:
            engine.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(engine.pid, signal.SIGKILL)
            engine.wait()
        _unmount(folder)
        _restore(network, environ)


def _unmount(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, timeout=30)


def _network(environ: dict[str, str]) -> tuple[str, str]:
    """Return what an engine changes in this machine's network: iptables' rules, and whether packets are forwarded."""
    saved = subprocess.run(
        ["iptables-save"], env=environ, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    for table, chains in {"nat": "PREROUTING INPUT OUTPUT POSTROUTING", "filter": "INPUT FORWARD OUTPUT"}.items():
        if f"*{table}\n" not in saved:
            saved += f"*{table}\n" + "".join(f":{chain} ACCEPT [0:0]\n" for chain in chains.split()) + "COMMIT\n"
    return saved, FORWARD.read_text()


def _restore(network: tuple[str, str], environ: dict[str, str]) -> None:
    subprocess.run(["iptables-restore"], env=environ, input=network[0], text=True, timeout=30, check=True)
    FORWARD.write_text(network[1])
    subprocess.run(["ip", "link", "delete", "docker0"], capture_output=True, timeout=30, check=False)


if __name__ == "__main__":
    try:
        with an_engine() as found:
            print(f"{found.what}: {found.docker('version', '--format', '{{.Server.Version}}').stdout.strip()}")
    except Unavailable as unavailable:
        print(f"the cluster of containers cannot be tested here: {unavailable}", file=sys.stderr)
        sys.exit(1)
