"""The network of a chaos run: namespaces of its own, with wires that can be cut and lose packets, where that may be.

The whole run moves into a network and a mount namespace of its own, so that nothing of it (addresses, routes, a small
disk) is seen elsewhere, or left behind however it ends. Processes behind a wire are in a further network namespace.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import sys
from pathlib import Path

from dl4jlegacy.chaos.wire import leave_namespace, open_tun
from dl4jlegacy.errors import Dl4jError, UsageError

__all__ = [
    "HOST",
    "Wire",
    "disk_hindrance",
    "enter_own_namespaces",
    "environment",
    "mount_small_disk",
    "wire_hindrance",
]

HOST = "198.18.255.1"
"""Where the servers of a run with wires are: a range that RFC 2544 keeps for such tests, inside our namespace only."""

_TOOLS = ("ip", "nsenter")
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000
_READY_SECONDS = 20.0
_STOP_SECONDS = 5.0


def environment(**more: str) -> dict[str, str]:
    """Return our environment, in which a Python finds this very package wherever it is started, and ``more``."""
    package = str(Path(__file__).parents[2])
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{package}:{before}" if before else package, **more}


def wire_hindrance() -> str:
    """Return why there can be no wires between namespaces on this machine; "" if there can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's; this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} on the PATH (iproute2, util-linux)"
    return _tried("network namespaces and /dev/net/tun", "leave_namespace(); os.close(open_tun('dl4jtry%d')[0])")


def disk_hindrance() -> str:
    """Return why no small disk can be mounted here; "" if it can."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return "mounting a small disk needs root on Linux"
    return _tried("a mount namespace", f"leave_namespace({_CLONE_NEWNS})")


def _tried(what: str, code: str) -> str:
    """Try it in a process of its own, which may leave its namespace without taking ours along."""
    done = subprocess.run(
        [sys.executable, "-c", f"import os\nfrom {open_tun.__module__} import leave_namespace, open_tun\n{code}"],
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
        env=environment(),
    )
    return "" if done.returncode == 0 else f"{what} cannot be had: {done.stderr.strip().splitlines()[-1]}"


def enter_own_namespaces(*, network: bool) -> None:
    """Move this thread and all that it starts into namespaces of their own; call it before any other thread starts.

    Raises:
        UsageError: that is not allowed here.
    """
    try:
        leave_namespace(_CLONE_NEWNS | (_CLONE_NEWNET if network else 0))
        _run("mount", "--make-rprivate", "/")
        if network:
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "addr", "add", f"{HOST}/32", "dev", "lo")
            for name in ("ip_forward", "conf/all/rp_filter", "conf/default/rp_filter"):
                Path("/proc/sys/net/ipv4", name).write_text("1" if name == "ip_forward" else "0", encoding="ascii")
    except (OSError, subprocess.SubprocessError) as exc:
        raise UsageError(f"no namespaces of its own for a chaos run: {exc}") from exc


def mount_small_disk(folder: Path, size: str) -> None:
    """Mount an empty disk of ``size`` (``4m``) in memory at ``folder``; it is gone with our mount namespace."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20, stdin=subprocess.DEVNULL)


class Wire:
    """A network namespace behind a wire. Used from one thread; ``close`` takes both away."""

    def __init__(self, number: int, seed: int) -> None:
        """Lay the wire with this number, 0 to 99.

        Raises:
            Dl4jError: it cannot be laid; the message holds what its process said.
        """
        command = [sys.executable, "-m", "dl4jlegacy.chaos.wire"]
        addresses = [f"198.18.{number}.1", f"198.18.{number}.2"]
        self._process = subprocess.Popen(
            [*command, *addresses, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        if not self._is_ready():
            self._process.kill()
            _, said = self._process.communicate(timeout=_STOP_SECONDS)
            raise Dl4jError(f"the wire {addresses[0]} - {addresses[1]} cannot be laid: {said.decode().strip()}")

    def _is_ready(self) -> bool:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return bool(selector.select(_READY_SECONDS)) and self._process.stdout.readline() == b"ready\n"

    def command(self, command: list[str]) -> list[str]:
        """Return what runs ``command`` behind the wire; its process id is the command's own."""
        return ["nsenter", f"--net=/proc/{self._process.pid}/ns/net", "--", *command]

    def lose(self, share: float) -> None:
        """Lose this share of the packets from now on, both ways: 0 none, 1 all."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"loss {share}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        """Take the wire away; what is behind it is alone from then on."""
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._process.communicate(timeout=_STOP_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=_STOP_SECONDS)
