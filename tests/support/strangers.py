"""Unwanted clients at any port: hundreds of silent, slow and hostile ones; measures what they cost a process."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from dl4jlegacy.scaleout.links.liveness.handshake import CHALLENGE_NBYTES, Connection
from tests.support.cluster_commands import until

__all__ = [
    *("FEW", "HTTP", "MANY", "MODELS", "PATIENCE", "Crowd", "Footprint", "Speech", "Strangers", "Watched"),
    "of_the_run",
]

PATIENCE = 120.0
_TICK_SECONDS, _SLOW_SECONDS = 0.02, 0.1
_EACH_SECOND = 400
"""So many connections at most are opened in a second: those that were closed are replaced."""
Kind = Literal["idle", "slow", "hostile"]


@dataclass(frozen=True)
class Crowd:
    """How many come to each port."""

    idle: int
    slow: int
    hostile: int


MANY, FEW = Crowd(idle=1100, slow=300, hostile=100), Crowd(idle=300, slow=60, hostile=30)


@dataclass(frozen=True)
class Speech:
    """What is said at a port: ``slow`` byte for byte, from its beginning to its end and on with its last byte;
    ``hostile`` at once, by one of them each, who read no answer."""

    slow: Sequence[bytes]
    hostile: Sequence[bytes]


_NOISE = random.Random(45).randbytes(60_000)
HTTP = Speech(
    slow=(
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ",
        b"POST /api/v1/stop HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n",
    ),
    hostile=(
        _NOISE,
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n",
        b"GET /api/v1/stream HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /api/v1/history?points=100000 HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200,
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200,
        b"POST /api/v1/save HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"f\r\n"
        + b"x" * 900_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + _NOISE[:500],
        b"",  # and then it is reset
    ),
)


_PREDICT = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
MODELS = Speech(
    slow=(*HTTP.slow, _PREDICT + b'16000000\r\n\r\n{"rows": [[', _PREDICT + b"1"),
    hostile=(
        *HTTP.hostile,
        _PREDICT + b"16000000\r\n\r\n" + b"[" * 1_000_000,
        _PREDICT + b"15000\r\n\r\n" + b'{"rows": [' + b"[1, 2, 3, 4], " * 1000,
        (_PREDICT + b'26\r\n\r\n{"rows": [[1, 2, 3, 4.5]]}') * 500,
    ),
)


def of_the_run(connection: Connection) -> Speech:
    """Return what comes where the processes of a run speak to each other: hellos that are slow, long, or prove nothing.

    The name in the hello is there, so that its proof is looked at.
    """
    hello = connection.magic + bytes(32) + b"\1" + bytes(32) + b"\5guest"
    assert len(connection.magic) < CHALLENGE_NBYTES
    return Speech(
        slow=(connection.magic, hello, connection.magic[:9]),
        hostile=(
            _NOISE,
            hello,
            hello + b"B" * 1_000_000,
            connection.magic + _NOISE,
            connection.magic[:-2] + b"9\n" + _NOISE,
            HTTP.hostile[4],
            b"",
        ),
    )


@dataclass
class _Stranger:
    kind: Kind
    address: tuple[str, int]
    says: bytes
    socket: socket.socket | None = None
    said: int = 0


class Strangers:
    """A crowd at each of some ports, on a thread of its own while it is entered. Whoever is sent away comes again.

    Args:
        ports: addresses, and what is said there.
        crowd: who comes to each.
    """

    def __init__(self, ports: Mapping[tuple[str, int], Speech], crowd: Crowd) -> None:
        self._all = list[_Stranger]()
        for address, speech in ports.items():
            self._all += [_Stranger("idle", address, b"") for _ in range(crowd.idle)]
            self._all += [_Stranger("slow", address, speech.slow[n % len(speech.slow)]) for n in range(crowd.slow)]
            said = speech.hostile
            self._all += [_Stranger("hostile", address, said[n % len(said)]) for n in range(crowd.hostile)]
        random.Random(45).shuffle(self._all)
        self._out = list(self._all)
        self._missing = {id(each) for each in self._all}
        self._by_fd: dict[int, _Stranger] = {}
        self._poll = select.epoll()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strangers", daemon=True)
        self.came: Counter[Kind] = Counter()
        self.all_came = threading.Event()

    def __enter__(self) -> Self:
        need = len(self._all) + 500
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < need:
            resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        slow_at = 0.0
        try:
            while not self._over.is_set():
                began = time.monotonic()
                for fd, event in self._poll.poll(0, max(64, len(self._all))):
                    self._happens(self._by_fd[fd], event)
                for stranger in self._out[: int(_EACH_SECOND * _TICK_SECONDS)]:
                    self._come(stranger)
                self._out = self._out[int(_EACH_SECOND * _TICK_SECONDS) :]
                if began >= slow_at:
                    slow_at = began + _SLOW_SECONDS
                    for stranger in [each for each in self._by_fd.values() if each.kind == "slow"]:
                        self._say_more(stranger)
                self._over.wait(max(0.0, _TICK_SECONDS - (time.monotonic() - began)))
        finally:
            for stranger in list(self._by_fd.values()):
                self._go(stranger)
            self._poll.close()

    def _come(self, stranger: _Stranger) -> None:
        line = socket.socket(socket.AF_INET6 if ":" in stranger.address[0] else socket.AF_INET)
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(BlockingIOError):
            line.connect(stranger.address)
        stranger.socket, stranger.said = line, 0
        self._by_fd[line.fileno()] = stranger
        wants = select.EPOLLRDHUP | (select.EPOLLOUT if stranger.kind == "hostile" else 0)
        self._poll.register(line.fileno(), wants)
        self._missing.discard(id(stranger))
        self.came[stranger.kind] += 1
        if not self._missing:
            self.all_came.set()

    def _happens(self, stranger: _Stranger, event: int) -> None:
        if event & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            self._go(stranger)
            self._out.append(stranger)
            return
        assert stranger.socket is not None
        if stranger.says == b"":
            stranger.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._go(stranger)
            self._out.append(stranger)
            return
        with contextlib.suppress(OSError):
            stranger.said += stranger.socket.send(stranger.says[stranger.said :])
        if stranger.said >= len(stranger.says):
            self._poll.modify(stranger.socket.fileno(), select.EPOLLRDHUP)

    def _say_more(self, stranger: _Stranger) -> None:
        assert stranger.socket is not None
        with contextlib.suppress(OSError):
            stranger.socket.send(stranger.says[min(stranger.said, len(stranger.says) - 1) :][:1])
            stranger.said += 1

    def _go(self, stranger: _Stranger) -> None:
        assert stranger.socket is not None
        del self._by_fd[stranger.socket.fileno()]
        stranger.socket.close()
        stranger.socket = None


@dataclass(frozen=True)
class Footprint:
    """What a process has at some moment: open files, resident bytes, and bytes printed on stderr."""

    files: int
    nbytes: int
    said: int


class Watched:
    """A process with few files to open, whose footprint is looked at.

    Args:
        command: it runs.
        folder: where its output goes, and where it runs.
        files: its limit of open files.
        env: added to the environment.
    """

    def __init__(self, command: Sequence[str], folder: Path, files: int, env: Mapping[str, str] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.out, self.err = folder / "out", folder / "err"
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # noqa: E731  # for the child alone
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                list(command), stdout=out, stderr=err, cwd=folder, preexec_fn=limit, env={**os.environ, **(env or {})}
            )
        self.most_nbytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.process.kill()
        self.process.wait()
        self._thread.join(PATIENCE)

    def _look(self) -> None:
        while not self._over.wait(0.1) and self.process.poll() is None:
            with contextlib.suppress(OSError, IndexError):  # it has just ended
                self.most_nbytes = max(self.most_nbytes, self.footprint().nbytes)

    def footprint(self) -> Footprint:
        place = Path(f"/proc/{self.process.pid}")
        resident = int((place / "statm").read_text().split()[1]) * resource.getpagesize()
        return Footprint(len(os.listdir(place / "fd")), resident, self.err.stat().st_size)

    def says(self, text: str) -> str:
        """Wait until a line of its output, or of stderr, has a text; return it."""
        found = list[str]()

        def is_said() -> bool:
            assert self.process.poll() is None, self.err.read_text()[-4000:]
            lines = [*self.out.read_text().splitlines(), *self.err.read_text().splitlines()]
            found[:] = [line for line in lines if text in line]
            return bool(found)

        until(is_said, PATIENCE, f"it says {text}")
        return found[0]

    def ends(self) -> str:
        """Wait until it has ended well; return its output."""
        assert self.process.wait(4 * PATIENCE) == 0, self.err.read_text()[-4000:]
        return self.out.read_text()
