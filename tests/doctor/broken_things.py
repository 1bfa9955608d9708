"""What a check must notice: for each one ways to break its condition on purpose, and what it must say then."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.doctor import Settings

__all__ = ["CASES", "Case", "Thing", "answering", "breaks", "script"]


@dataclass
class Thing:
    """What a case may change: everything is as before after the test.

    Attributes:
        patch: changes attributes and variables.
        folder: an empty folder of the test's own.
        stack: closed at the end.
    """

    patch: pytest.MonkeyPatch
    folder: Path
    stack: contextlib.ExitStack

    def settings(self, **fields: Any) -> Settings:
        """Return settings with the environment as it is now."""
        return Settings(environ=dict(os.environ), **fields)

    def returns(self, place: str, value: Any) -> None:
        """Let a function return ``value``, or raise it if it is an exception."""

        def stand_in(*args: Any, **options: Any) -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

        self.patch.setattr(place, stand_in)


Break = Callable[[Thing], Settings]


@dataclass(frozen=True)
class Case:
    """A way to break what a check looks at.

    Attributes:
        check: its name.
        make: breaks it, and returns the settings to look with.
        status: what the check must find.
        words: must be in what it says.
    """

    check: str
    make: Break = field(repr=False)
    status: str = "failed"
    words: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The test's name."""
        return f"{self.check}: {self.make.__name__}"


CASES: list[Case] = []


def breaks(check: str, status: str, *words: str) -> Callable[[Break], Break]:
    """Declare a function that breaks what a check looks at."""

    def declare(make: Break) -> Break:
        CASES.append(Case(check, make, status, words))
        return make

    return declare


def script(path: Path, text: str) -> Path:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that says ``answer`` to everybody who has said something, and ends the connection; yields its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):  # the server was closed
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(5)
                    if connection.recv(4096):
                        connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(timeout=30)
