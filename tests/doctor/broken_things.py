"""Broken machines and servers for the checks: tables of (check, status, words of the finding, what breaks it)."""

from __future__ import annotations

import contextlib
import http.server
import importlib
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dl4jlegacy.system import resources

__all__ = ["Broken", "Case", "answering"]


@dataclass
class Broken:
    """Breaks things for one test.

    Attributes:
        patch: changes attributes and variables until the end of the test.
        folder: an empty folder of the test's own; the current one, and the user's home.
        stack: closed at the end.
    """

    patch: pytest.MonkeyPatch
    folder: Path
    stack: contextlib.ExitStack

    def returns(self, place: str, value: Any) -> None:
        """Let a function return ``value``, or raise it if it is an exception."""

        def stand_in(*args: Any, **options: Any) -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

        self.patch.setattr(place, stand_in)

    def environ(self, **variables: str) -> None:
        """Set variables; ``@`` in a value is the folder."""
        for name, value in variables.items():
            self.patch.setenv(name, value.replace("@", str(self.folder)))

    def write(self, name: str, content: str | bytes = "", mode: int = 0o644) -> Path:
        """Write a file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    def installed(self, name: str, version: str) -> None:
        """Let a version of a library be installed, before all others."""
        self.write(f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        self.patch.syspath_prepend(self.folder)
        importlib.invalidate_caches()

    def missing(self, *names: str) -> None:
        """Let libraries not be installed."""
        found = metadata.version
        absent = metadata.PackageNotFoundError()
        self.patch.setattr(metadata, "version", lambda name: _raise(absent) if name in names else found(name))

    def container(self, **limits: str) -> None:
        """A container with these limits: ``memory_max`` is the file ``memory.max``."""
        for name, value in limits.items():
            self.write(name.replace("_", "."), value)
        self.patch.setattr(resources, "_CGROUP", self.folder)

    def limit(self, kind: int, soft: int) -> None:
        """A limit of the system, of what is not limited here."""
        before = resource.getrlimit
        self.patch.setattr(resource, "getrlimit", lambda which: (soft, soft) if which == kind else before(which))

    def space(self, nbytes: int) -> None:
        """Every disk has so much room."""
        self.returns("os.statvfs", SimpleNamespace(f_bavail=nbytes // 4096, f_frsize=4096))

    def server(self, answer: bytes) -> str:
        """The address of a server that gives everybody this answer."""
        return f"127.0.0.1:{self.stack.enter_context(answering(answer))}"

    def web(self, ahead: float | None, status: int = 200) -> dict[str, Any]:
        """A server of the Web whose clock is so many seconds ahead; None: it says no time."""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response_only(status)
                if ahead is not None:
                    self.send_header("Date", self.date_time_string(int(time.time() + ahead)))
                self.end_headers()

        server = self.stack.enter_context(http.server.HTTPServer(("127.0.0.1", 0), Handler))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(server.shutdown)
        return {"clock_url": f"http://127.0.0.1:{server.server_port}"}

    def services(self, is_running: bool) -> None:
        """A folder of local services in which one server was started, and ended or does not answer."""
        one = {"name": "zookeeper", "port": 1, "command": ["java"], "process": {"pid": 1, "mark": "another start"}}
        self.write("services.json", json.dumps({"cluster_name": "x", "folder": str(self.folder), "servers": [one]}))
        self.environ(DL4J_SERVICES="@")
        if is_running:
            self.patch.setattr("dl4jlegacy.services.servers.Server.is_running", property(lambda server: True))

    def java(self, **variables: str) -> None:
        """No Java but that which variables name."""
        self.patch.delenv("JAVA_HOME", raising=False)
        self.environ(PATH="/nowhere", **variables)
        self.patch.setattr("dl4jlegacy.services.java._from_wheel", lambda: None)

    def attributes(self, place: str, **values: Any) -> None:
        """Let a function return a context manager with these attributes."""
        self.returns(place, contextlib.nullcontext(SimpleNamespace(close=lambda: None, **values)))


Case = tuple[str, str, str, Callable[[Broken], dict[str, Any] | None]]
"""The check; the status that it must find; words of the finding, with " ... " between them; what breaks it.

The last returns fields of the settings.
"""


def _raise(exc: Exception) -> Any:
    raise exc


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
