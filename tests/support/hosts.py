"""Several hosts on this machine, for the tests: network namespaces with addresses of their own and nothing beyond them.

Each host has one link, and all that goes over it passes through a ``Wire``, a thread of the tests, which can cut a host
off, or make its link slow and lossy. (The kernel's own means for that, netem, is a module that many machines lack.)
There is nothing to take down: a namespace ends with its processes, also when the tests are killed.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import random
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.support import REPOSITORY

__all__ = ["Host", "Link", "Wire", "hosts"]

_PACKET = 65_536
_REMEDY = (
    "run the tests as root, or as a user who may make namespaces (unshare -Urn) and open /dev/net/tun (chmod a+rw)"
)


@dataclass(frozen=True, slots=True)
class Link:
    """What happens to packets that come from a host or go to it."""

    is_cut: bool = False
    seconds: float = 0.0
    loss: float = 0.0


class Wire:
    """Brings packets from host to host, on a thread of its own."""

    def __init__(self, links: dict[str, int]) -> None:
        self._files = {socket.inet_aton(address): file for address, file in links.items()}
        self._links = dict.fromkeys(self._files, Link())
        self._late: list[tuple[float, int, int, bytes]] = []
        self._numbers, self._random = itertools.count(), random.Random(11)
        self._wakes, self._waker = os.pipe()
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="wire")
        self._thread.start()

    def change(self, address: str, **changes: float) -> None:
        """Change a host's link: ``is_cut``, ``seconds`` of delay one way, ``loss`` as a part of 1."""
        key = socket.inet_aton(address)
        self._links[key] = replace(self._links[key], **changes)

    def end(self) -> None:
        """Stop, and close all links."""
        os.close(self._waker)
        self._thread.join()
        for file in (*self._files.values(), self._wakes):
            os.close(file)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for address, file in self._files.items():
                selector.register(file, selectors.EVENT_READ, address)
            selector.register(self._wakes, selectors.EVENT_READ)
            while True:
                pause = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
                for key, _ in selector.select(pause):
                    if key.data is None:
                        return
                    self._take(key.data, os.read(key.fd, _PACKET))
                while self._late and self._late[0][0] <= time.monotonic():
                    self._give(*heapq.heappop(self._late)[2:])

    def _take(self, source: bytes, packet: bytes) -> None:
        """Forward an IPv4 packet to its host; drop other packets, and those to unknown hosts."""
        target = packet[16:20]
        if packet[0] >> 4 != 4 or target not in self._files:
            return
        ends = (self._links[source], self._links[target])
        if any(end.is_cut or self._random.random() < end.loss for end in ends):
            self.lost += 1
            return
        seconds = sum(end.seconds for end in ends)
        if seconds:
            heapq.heappush(self._late, (time.monotonic() + seconds, next(self._numbers), self._files[target], packet))
        else:
            self._give(self._files[target], packet)

    def _give(self, file: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # the host is gone
            os.write(file, packet)


class Host:
    """A host: its address, and how commands are started on it."""

    def __init__(self, name: str, address: str, prefix: Sequence[str]) -> None:
        self.name, self.address = name, address
        here, tests = socket.socketpair()
        with here:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tests.support.host_process", name, address, str(here.fileno())],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=REPOSITORY,
                pass_fds=[here.fileno()],
            )
        with tests:
            said, links, _, _ = socket.recv_fds(tests, 100, 1)
        if not said:
            assert self._process.stderr is not None
            why = self._process.stderr.read().decode().strip().rpartition("\n")[2]
            self.end()
            raise RuntimeError(f"host {name} cannot be made: {why}; {_REMEDY}")
        self.link = links[0]
        user = ["--user", "--preserve-credentials"] if "--user" in prefix else []
        self.program = ["nsenter", "--target", str(self._process.pid), "--net", "--uts", *user, "--"]

    def end(self) -> None:
        """End the process that holds the host; what else runs there holds its network until it ends, too."""
        assert self._process.stdin is not None and self._process.stderr is not None
        self._process.stdin.close()
        self._process.stderr.close()
        self._process.wait(60)


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[tuple[dict[str, Host], Wire]]:
    """Yield hosts of these names, 10.7.0.1 and following, and what connects them.

    Raises:
        RuntimeError: this machine or user may make none; says why, and what to do.
    """
    prefix = ["unshare", "--net", "--uts", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--"]
    with contextlib.ExitStack() as stack:
        there: dict[str, Host] = {}
        for number, name in enumerate(names, 1):
            there[name] = Host(name, f"10.7.0.{number}", prefix)
            stack.callback(there[name].end)
        wire = Wire({host.address: host.link for host in there.values()})
        stack.callback(wire.end)
        yield there, wire
