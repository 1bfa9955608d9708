"""A machine that boots: Debian's root file system under its own systemd and cloud-init, in a container.

It stands for an EC2 instance: the user data come from a seed (NoCloud) instead of the metadata service, what a role
would give is in systemd's default environment, and the network is this machine's. Needs root; what is not installed
here (mmdebstrap, systemd-nspawn) is unpacked from Debian's packages.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.compiled_kernels import give_kernels
from tests.support.debian_packages import missing_for, unpack

__all__ = ["SECONDS", "Machine", "booted", "debian"]

SECONDS = 8 * 60.0
_PACKAGES = ("ca-certificates", "systemd", "systemd-sysv", "dbus", "cloud-init", "openssh-server", "python3")
_CLOUD = """\
datasource_list: [NoCloud]
network: {config: disabled}
growpart: {mode: 'off'}
resize_rootfs: false
locale: false
ssh_genkeytypes: [ed25519]
"""
"""What concerns disks and the network, which a container shares, and host keys of one kind, which are made quickly.

All else is as in Debian's images for clouds. Those have a locale, and this one none, without which a part of cloud-init
fails; then systemd may wait for ever for the end of that unit's control group, of which it is not told in a container.
"""
_ESSENTIAL = """\
printf '%s\\n' 'path-exclude=/usr/share/doc/*' 'path-exclude=/usr/share/locale/*' 'path-exclude=/usr/share/man/*' \
    'path-exclude=/usr/lib/python3/dist-packages/botocore/data/*/*' \
    'path-include=/usr/lib/python3/dist-packages/botocore/data/s3/*' > "$1/etc/dpkg/dpkg.cfg.d/small"
"""
"""What no machine here reads is not unpacked: of Debian's boto3, only S3 is used."""
_NO_BYTECODE = ("usr/bin/py3compile", "usr/bin/py3clean")
"""Programs with which packages compile all of their modules. What a machine imports is compiled then."""
_COMPILED = """\
[Service]
Environment=PYTHONPYCACHEPREFIX=/var/lib/dl4j/bytecode NUMBA_CACHE_DIR=/var/cache/kernels
CacheDirectory=kernels
"""
"""With ``PIP_COMPILE`` pip leaves out most of its work, and the services compile once what they import.

The kernels are there, and systemd gives them to whoever runs a service.
"""
_PACKAGE = Path("/opt/dl4j/lib/python3.11/site-packages/dl4jlegacy")
_INSTALLED = "opt/dl4j"
_REACHES = re.compile(r"PIP_(?!FIND_LINKS)|SSL_CERT_|REQUESTS_CA|(https?|no)_proxy$", flags=re.I)
_TRUSTED = Path("/usr/local/share/ca-certificates")


class Machine:
    """A machine that has been switched on."""

    def __init__(self, root: Path, said: Path, process: subprocess.Popen[bytes]) -> None:
        self.root, self.process, self._said = root, process, said

    def said(self, name: str) -> str:
        """What a file below /var/log has, as far as it is there."""
        path = self.root / "var/log" / name
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def everything_said(self) -> str:
        files = [f"--- {name}\n{self.said(name)[-3000:]}" for name in ("cloud-init-output.log", "dl4j-install.log")]
        journal = ["journalctl", "--directory=/var/log/journal", "--no-pager", "--unit=dl4j-*"]
        units = subprocess.run(
            ["chroot", str(self.root), *journal], capture_output=True, text=True, errors="replace", timeout=60
        ).stdout
        return "\n".join([self._said.read_text(encoding="utf-8", errors="replace")[-6000:], *files, units[-9000:]])

    @property
    def is_off(self) -> bool:
        return self.process.poll() is not None

    def wait(self, what: str, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait until something is so; what went wrong is in what it has said."""
        pause, end = threading.Event(), time.monotonic() + seconds
        while not condition():  # which may itself take many seconds
            assert time.monotonic() < end, f"not within {seconds} s: {what}\n{self.everything_said()}"
            assert not self.is_off, f"it was off before {what}\n{self.everything_said()}"
            pause.wait(0.5)

    def wait_until_off(self, seconds: float = SECONDS) -> None:
        """Wait until it has powered off by itself."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still on after {seconds} s\n{self.everything_said()}") from None

    def processes(self, words: str) -> list[int]:
        """Numbers of its processes whose command line has these words."""
        return [number for number in self._processes() if words in _command_line(number)]

    def kill(self, words: str) -> None:
        """Kill those processes, as if by a lack of memory."""
        numbers = self.processes(words)
        assert numbers, f"no process {words}\n{self.everything_said()}"
        for number in numbers:
            os.kill(number, signal.SIGKILL)

    def _processes(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    inside = os.path.samefile(f"/proc/{entry.name}/root", self.root)
                except OSError:
                    continue  # it has ended
                if inside:
                    yield int(entry.name)


def _command_line(number: int) -> str:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``root``, Debian 12 as in a cloud's image, and ``nspawn``, which boots it.

    Made once for all processes of the suite; who comes later waits for whoever makes it.
    """
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"]).returncode != 0:
        pytest.skip("not run: only root, with namespaces, can boot a machine in a container")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "debian"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process, however that ends
        refused = folder / "refused"
        if not refused.is_file():
            shutil.rmtree(folder / "root", ignore_errors=True)  # of a process that did not come to its end
            refused.write_text(_make(folder), encoding="utf-8")
    why = refused.read_text(encoding="utf-8")
    if why:
        pytest.skip(f"not run: no machine can be booted in a container here: {why}")
    return folder


def _make(folder: Path) -> str:
    """Fill the folder of the fixture; return why nothing can be booted, or nothing."""
    names = ("mmdebstrap", "debian-archive-keyring", "systemd-container")
    mmdebstrap, keyring, nspawn = (_program(name, folder / name) for name in names)
    root = folder / "root"
    env = {**os.environ, "PATH": f"{os.environ['PATH']}:{mmdebstrap / 'usr/bin'}"}
    command = [str(mmdebstrap / "usr/bin/mmdebstrap"), "--mode=root", "--variant=apt"]
    command += [
        f"--include={','.join(_PACKAGES)}",
        f"--keyring={keyring / 'usr/share/keyrings'}",
        f"--essential-hook={_ESSENTIAL}",
    ]
    command += ["--dpkgopt=force-unsafe-io", '--aptopt=APT::Install-Recommends "false"', "--skip=cleanup/apt/lists"]
    _run([*command, "bookworm", str(root)], env)
    _trust_and_reach_what_this_machine_does(root)
    for name in _NO_BYTECODE:
        (root / name).unlink()
        (root / name).symlink_to("/bin/true")
    (root / "etc/cloud/cloud.cfg.d/99_container.cfg").write_text(_CLOUD, encoding="utf-8")
    (folder / "nspawn").unlink(missing_ok=True)
    (folder / "nspawn").symlink_to(nspawn)
    trial = subprocess.run([*_container(root, nspawn), "/bin/true"], capture_output=True, text=True, timeout=300)
    return trial.stderr.strip()[-300:] or "it says nothing" if trial.returncode != 0 else ""


def _program(package: str, folder: Path) -> Path:
    """The root below which a package's programs are: / where they are installed."""
    wanted = missing_for(package, folder)
    return unpack(wanted, folder) if wanted else Path("/")


def _run(command: list[str], env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def _trust_and_reach_what_this_machine_does(root: Path) -> None:
    for name in ("etc/resolv.conf", "etc/hosts", "etc/pip.conf"):
        if Path("/", name).is_file():
            (root / name).unlink(missing_ok=True)
            shutil.copy(Path("/", name), root / name)
    for certificate in _TRUSTED.glob("*.crt"):
        shutil.copy(certificate, root / str(_TRUSTED).lstrip("/"))
    _run(["chroot", str(root), "update-ca-certificates"])


@contextmanager
def booted(
    name: str,
    user_data: str,
    folder: Path,
    debian: Path,
    environment: Mapping[str, str] | None = None,
    installed: Machine | None = None,
) -> Iterator[Machine]:
    """A machine that boots with this user data; ended with all its processes, and its files with it.

    With ``installed`` it has what that machine has installed, as where an image was made of it.
    """
    root = folder / name
    _copy(debian / "root", root)
    if installed:
        _link(installed.root / _INSTALLED, root / _INSTALLED)
    seed = root / "var/lib/cloud/seed/nocloud"
    seed.mkdir(parents=True)
    (seed / "user-data").write_text(user_data, encoding="utf-8")
    (seed / "meta-data").write_text(json.dumps({"instance-id": name, "local-hostname": name}), encoding="utf-8")
    _give(root, environment or {})
    with (
        (folder / f"{name}.said").open("wb") as said,
        subprocess.Popen(
            [*_container(root, debian / "nspawn"), "--boot"],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Machine(root, folder / f"{name}.said", process)
        finally:
            process.kill()
            process.wait(60)
            shutil.rmtree(root)


def _copy(source: Path, root: Path) -> None:
    """Copy a root file system, but for the files of packages: those are replaced as a whole, so they may be shared."""
    root.mkdir()
    for entry in source.iterdir():
        if entry.name == "usr":
            _link(entry, root / "usr")
        else:
            subprocess.run(["cp", "-a", "--reflink=auto", str(entry), str(root)], check=True, timeout=300)


def _link(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", "--link", str(source), str(target)], check=True, timeout=300)


def _container(root: Path, nspawn: Path) -> list[str]:
    """The command that starts a container, which ends with whoever runs it, however that was; without what it runs."""
    until_then = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"]
    folder = nspawn / "usr/lib" / f"{platform.machine()}-linux-gnu"
    libraries = f"LD_LIBRARY_PATH={folder}:{folder / 'systemd'}"
    options = ["--register=no", "--keep-unit", "--private-users=no", "--resolv-conf=off", "--timezone=off"]
    options += ["--link-journal=no", "--console=pipe", f"--directory={root}"]
    return [*until_then, "--mount-proc", "env", libraries, str(nspawn / "usr/bin/systemd-nspawn"), *options]


def _give(root: Path, environment: Mapping[str, str]) -> None:
    """Give every service this environment, how this machine reaches package indexes, and what spares it work."""
    passed = {name: value for name, value in os.environ.items() if _REACHES.match(name)}
    given = {**passed, "PIP_COMPILE": "0", **environment}
    words = " ".join(f'"{name}={value}"' for name, value in given.items()).replace("%", "%%")
    folder = root / "etc/systemd/system.conf.d"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "environment.conf").write_text(f"[Manager]\nDefaultEnvironment={words}\n", encoding="utf-8")
    units = root / "etc/systemd/system/dl4j-.service.d"  # of all units whose names begin so
    units.mkdir()
    (units / "compiled.conf").write_text(_COMPILED, encoding="utf-8")
    give_kernels(root / "var/cache/kernels", _PACKAGE)
