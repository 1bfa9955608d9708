"""A link between two network namespaces that can be cut and can lose packets: ``python -m tools.chaos.lossy_link``.

The process opens one end (a TUN device, which reads and writes whole IP packets) in the namespace in which it is
started, unshares a new namespace and opens the other end there; then it carries packets between the two. It reads
commands from its standard input, one per line: ``loss 0.05`` sets the fraction of lost packets (1 cuts the link). It
ends when its input ends; then both ends and the namespace are gone.

The kernel's own ``tc netem`` would do the same if its module ``sch_netem`` is available, but only for whole packets
that are already queued; this needs only ``/dev/net/tun`` and the right to use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import selectors
import struct
import subprocess
import sys

__all__ = ["main", "open_tun", "unshare_namespaces"]

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_PACKET_NBYTES = 1 << 16
_BURST = 64


def open_tun(pattern: str) -> tuple[int, str]:
    """Return a new non-blocking TUN device in this thread's namespace, and its name (``%d`` is replaced).

    Raises:
        OSError: there is no such device, or no right to use it.
    """
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        made = fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", pattern.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(fd)
        raise
    return fd, made[:16].rstrip(b"\0").decode()


def unshare_namespaces(flags: int = _CLONE_NEWNET) -> None:
    """Move this thread, and the threads and processes that it starts later, into new namespaces.

    Raises:
        OSError: there is no right to do so.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(arguments: list[str]) -> int:
    """Carry packets between address ``arguments[0]`` here and ``arguments[1]`` there; ``arguments[2]`` is the seed."""
    near_address, far_address, seed = arguments[0], arguments[1], int(arguments[2])
    near, name = open_tun("dl4jnear%d")
    _ip("addr", "add", near_address, "peer", far_address, "dev", name)
    _ip("link", "set", name, "up")
    unshare_namespaces()
    far, name = open_tun("dl4jfar%d")
    _ip("link", "set", "lo", "up")
    _ip("addr", "add", far_address, "peer", near_address, "dev", name)
    _ip("link", "set", name, "up")
    _ip("route", "add", "default", "via", near_address, "dev", name)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _carry(near, far, random.Random(seed))
    return 0


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=10, stdin=subprocess.DEVNULL)


def _carry(near: int, far: int, rng: random.Random) -> None:
    """Carry packets both ways until standard input ends."""
    loss = 0.0
    opposite = {near: far, far: near}
    with selectors.DefaultSelector() as selector:
        for fd in (near, far, 0):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    lines = os.read(0, 4096).decode().split("\n")
                    if lines == [""]:
                        return
                    loss = [float(line.split()[1]) for line in lines if line.startswith("loss ")][-1]
                else:
                    _forward(key.fd, opposite[key.fd], loss, rng)


def _forward(source_fd: int, target_fd: int, loss: float, rng: random.Random) -> None:
    for _ in range(_BURST):
        try:
            packet = os.read(source_fd, _PACKET_NBYTES)
        except BlockingIOError:
            return
        if rng.random() >= loss:
            with contextlib.suppress(OSError):  # a device that is full or down loses the packet
                os.write(target_fd, packet)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
