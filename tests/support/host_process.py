"""A host of ``tests.support.hosts``: lives in a network of its own, and hands the one link that it has to the tests.

    unshare --net --uts python -m tests.support.host_process NAME ADDRESS SOCKET

The network ends with this process and those that were started in it; this one ends when its standard input does.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

__all__ = ["MTU"]

MTU = 9000
_LINK = b"link0"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8916, 0x891C, 0x8922
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def main(name: str, address: str, handle: str) -> None:
    """Set up loopback and the link, send the link's other end away, and wait."""
    socket.sethostname(name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _up(control, b"lo")
        link = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(link, _TUNSETIFF, struct.pack("16sH22x", _LINK, _IFF_TUN | _IFF_NO_PI))
        for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
            fcntl.ioctl(control, request, struct.pack("16sHH4s8x", _LINK, socket.AF_INET, 0, socket.inet_aton(text)))
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", _LINK, MTU))
        _up(control, _LINK)
    with socket.socket(fileno=int(handle)) as tests:
        socket.send_fds(tests, [b"ready"], [link])
    sys.stdin.read()


def _up(control: socket.socket, link: bytes) -> None:
    asked = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", link, 0))
    flags = struct.unpack("16sH22x", asked)[1]
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", link, flags | _IFF_UP))


if __name__ == "__main__":
    main(*sys.argv[1:])
