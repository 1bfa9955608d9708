"""The network of a chaos run: Linux namespaces of its own, and a link that can be cut and can lose packets.

The whole run moves into its own network and mount namespace. So its addresses, routes and small disk are not visible
elsewhere, and disappear with the run in any case. A process behind the link is in a further network namespace.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import shutil
import subprocess
import sys
from pathlib import Path

from dl4jlegacy.errors import Dl4jError, UsageError
from tools.chaos.lossy_link import open_tun, unshare_namespaces

__all__ = [
    "HOST",
    "MEMBER_HOST",
    "LossyLink",
    "child_environment",
    "cut_off_member",
    "enter_own_namespaces",
    "mount_small_disk",
    "unmount",
    "why_no_lossy_link",
    "why_no_small_disk",
]

HOST = "198.18.255.1"
"""The servers' address in a run with a lossy link, only inside its namespace; RFC 2544 reserves it for such tests."""

MEMBER_HOST = "198.18.255.2"
"""The address of the member that can be cut off from the others; clients can still reach it then."""

_TOOLS = ("ip", "nsenter")
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000
_READY_SECONDS = 20.0
_STOP_SECONDS = 5.0


def child_environment(**more: str) -> dict[str, str]:
    """Return this process's environment and ``more``, changed so that Python imports from this checkout."""
    checkout = str(Path(__file__).parents[2])
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{checkout}:{before}" if before else checkout, **more}


@functools.cache
def why_no_lossy_link() -> str:
    """Return why there can be no link between namespaces on this machine; "" if there can be one. Tested once."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's; this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} on the PATH (iproute2, util-linux)"
    return _why_not("network namespaces and /dev/net/tun", "unshare_namespaces(); os.close(open_tun('dl4jtry%d')[0])")


def why_no_small_disk() -> str:
    """Return why no small disk can be mounted here; "" if one can."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return "mounting a small disk needs root on Linux"
    return _why_not("a mount namespace", f"unshare_namespaces({_CLONE_NEWNS})")


def _why_not(what: str, code: str) -> str:
    """Run ``code`` in a process of its own, which may unshare namespaces; return why it fails, or ""."""
    done = subprocess.run(
        [sys.executable, "-c", f"import os\nfrom {open_tun.__module__} import unshare_namespaces, open_tun\n{code}"],
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        env=child_environment(),
    )
    return "" if done.returncode == 0 else f"{what} cannot be had: {done.stderr.strip().splitlines()[-1]}"


def enter_own_namespaces(*, network: bool) -> None:
    """Move this thread, and all that it starts, into new namespaces; call it before any other thread is started.

    Raises:
        UsageError: that is not allowed here.
    """
    try:
        unshare_namespaces(_CLONE_NEWNS | (_CLONE_NEWNET if network else 0))
        _run("mount", "--make-rprivate", "/")
        if network:
            _run("ip", "link", "set", "lo", "up")
            for host in (HOST, MEMBER_HOST):
                _run("ip", "addr", "add", f"{host}/32", "dev", "lo")
            _run("ip", "rule", "add", "pref", "10", "lookup", "local")  # after the rules of ``cut_off_member``
            _run("ip", "rule", "del", "pref", "0")
            for name in ("ip_forward", "conf/all/rp_filter", "conf/default/rp_filter"):
                Path("/proc/sys/net/ipv4", name).write_text("1" if name == "ip_forward" else "0", encoding="ascii")
    except (OSError, subprocess.SubprocessError) as exc:
        raise UsageError(f"no namespaces of its own for a chaos run: {exc}") from exc


def cut_off_member(*, cut: bool) -> None:
    """Drop all packets between the members at the two addresses from now on; or, with ``cut`` False, no longer.

    Members send from the address that they are bound to, clients on this machine from the address that they connect to.

    Raises:
        subprocess.SubprocessError: the rules cannot be changed.
    """
    for source, target in ((HOST, MEMBER_HOST), (MEMBER_HOST, HOST)):
        change = "add" if cut else "del"
        _run("ip", "rule", change, "pref", "5", "from", source, "to", target, "blackhole")


def mount_small_disk(folder: Path, size: str) -> None:
    """Mount an empty disk in memory of ``size`` (``4m``) at ``folder``; it disappears with our mount namespace."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))


def unmount(folder: Path) -> None:
    """Unmount the disk at ``folder``, if there is one, even while files there are open."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if folder.is_mount():
            _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20, stdin=subprocess.DEVNULL)


class LossyLink:
    """A network namespace behind a link with adjustable packet loss. Used from one thread; ``close`` removes both."""

    def __init__(self, number: int, seed: int) -> None:
        """Create the link with this number, 0 to 99.

        Raises:
            Dl4jError: the link cannot be created; the message contains the output of its process.
        """
        command = [sys.executable, "-m", "tools.chaos.lossy_link"]
        addresses = [f"198.18.{number}.1", f"198.18.{number}.2"]
        self._process = subprocess.Popen(
            [*command, *addresses, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
        )
        if not self._is_ready():
            self._process.kill()
            _, said = self._process.communicate(timeout=_STOP_SECONDS)
            raise Dl4jError(f"the link {addresses[0]} - {addresses[1]} cannot be created: {said.decode().strip()}")

    def _is_ready(self) -> bool:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return bool(selector.select(_READY_SECONDS)) and self._process.stdout.readline() == b"ready\n"

    def command(self, command: list[str]) -> list[str]:
        """Return the command that runs ``command`` behind the link; the process id is that of ``command``."""
        return ["nsenter", f"--net=/proc/{self._process.pid}/ns/net", "--", *command]

    def set_loss(self, share: float) -> None:
        """Lose this fraction of the packets from now on, both ways: 0 none, 1 all."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"loss {share}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        """Remove the link; processes behind it are cut off from then on."""
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._process.communicate(timeout=_STOP_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=_STOP_SECONDS)
