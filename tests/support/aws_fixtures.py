"""AWS for tests: moto's server, and a proxy before it that fails requests on their way there or back."""

from __future__ import annotations

import gc
import http.client
import http.server
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, urlencode

import pytest

from dl4jlegacy.aws.cluster_spec import BOUNDARY
from tests.support import REPOSITORY, open_sockets

__all__ = [
    "IMAGE",
    "Fault",
    "FaultProxy",
    "Request",
    "aws",
    "aws_environment",
    "environment",
    "fault_proxy",
    "image",
    "impatient",
    "moto_server",
    "reset_moto",
    "serve_moto",
    "session_proxy",
    "shared_loader",
]

REGION = "us-east-1"
IMAGE = "ami-0debian12"
_LONG_AGO = "Thu, 01 Jan 2026 00:00:00 GMT"
_IMAGES = [
    {
        "ami_id": ami,
        "name": f"debian-12-{name}-20260901-2222",
        "architecture": architecture,
        "owner_id": "136693071363",
        "image_location": f"136693071363/debian-12-{name}-20260901-2222",
        "description": "Debian 12",
        "state": "available",
        "public": True,
        "image_type": "machine",
        "virtualization_type": "hvm",
        "hypervisor": "xen",
        "root_device_name": "/dev/xvda",
        "root_device_type": "ebs",
        "sriov": "simple",
    }
    for ami, name, architecture in ((IMAGE, "amd64", "x86_64"), ("ami-0debian12arm", "arm64", "arm64"))
]
"""The images that moto's EC2 has: Debian's, as Debian names them."""
_SERVE = """
import functools, sys
import moto.backends, moto.core.responses, moto.core.utils
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
# asked anew for every request, though nothing changes in them; a third of moto's time
backends = tuple(moto.backends.list_of_moto_modules())
moto.backends.list_of_moto_modules = lambda: iter(backends)
moto.core.responses.method_names_from_class = functools.cache(moto.core.utils.method_names_from_class)
# as AWS does, the address of an instance that has ended is free for whoever asks for it
from moto.ec2.models.instances import Instance
def terminate(self, *given, end=Instance.terminate, **more):
    ended = end(self, *given, **more)
    for address in self._private_ips:
        self.ec2_backend.get_subnet(self.subnet_id)._subnet_ips.pop(address, None)
    return ended
Instance.terminate = terminate
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True)
class Request:
    """One call of an API: service, action, and its parameters (of the query protocols) or body."""

    number: int
    service: str
    action: str
    parameters: dict[str, str]
    body: bytes
    headers: dict[str, str]
    path: str


@dataclass(frozen=True)
class Fault:
    """What becomes of a request: an error in AWS's words, or a reset connection before or after it took effect.

    ``stale``: EC2 shows nothing; ``says``: it shows another word, as in ``Fault("says", "terminated=shutting-down")``.
    ``old``: S3 says that it was written long ago.
    """

    kind: str
    code: str = ""
    status: int = 400


class FaultProxy:
    """A reverse proxy before moto's server. ``judge`` says what becomes of a request; all are recorded."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.requests: list[Request] = []
        self.judge: Callable[[Request], Fault | None] = lambda request: None
        self.cut: Callable[[Request, int], int | None] = lambda request, size: None
        self._lock, self._one_writer = threading.Lock(), threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            timeout = 30  # of an idle connection: whoever closes one races with a request on its way

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def log_message(self, *args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, address: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)

    def reset(self) -> None:
        self.requests = []
        self.judge = lambda request: None
        self.cut = lambda request, size: None

    def calls(self, action: str) -> list[Request]:
        return [request for request in self.requests if request.action == action]

    def handle(self, handler: Any) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        request = self._request(handler, b"" if not length else None)
        limit = self.cut(request, length)
        if limit is not None:
            handler.rfile.read(min(limit, length))
            reset(handler)
            return
        body = handler.rfile.read(length) if length else b""
        request = self._request(handler, body)
        with self._lock:
            self.requests.append(request)
        fault = self.judge(request)
        if fault is not None and fault.kind == "reset-before":
            reset(handler)
            return
        if fault is not None and fault.kind == "error":
            answer_with_error(handler, request, fault)
            return
        conditional = {"if-match", "if-none-match"} & set(request.headers)  # moto compares, and then writes
        with self._one_writer if conditional else nullcontext():
            status, headers, content = self._forward(handler, body)
        if fault is not None and fault.kind == "old":
            headers = [*((k, v) for k, v in headers if k.lower() != "last-modified"), ("Last-Modified", _LONG_AGO)]
        if fault is not None and fault.kind == "reset-after":
            reset(handler)
            return
        if fault is not None and fault.kind == "stale":
            content = stale(content)
        if fault is not None and fault.kind == "says":
            content = content.replace(*(f"<name>{word}</name>".encode() for word in fault.code.split("=")))
        respond(handler, status, headers, content, self.cut_response(request, len(content)))

    cut_response: Callable[[Request, int], int | None] = staticmethod(lambda request, size: None)

    def _request(self, handler: Any, body: bytes | None) -> Request:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        scope = re.search(r"Credential=[^/]+/\d+/[^/]+/([a-z0-9]+)/", headers.get("authorization", ""))
        service = scope[1] if scope else ""
        parameters: dict[str, str] = {}
        action = headers.get("x-amz-target", "").rpartition(".")[2]
        if body and "form-urlencoded" in headers.get("content-type", ""):
            parameters = {key: values[0] for key, values in parse_qs(body.decode()).items()}
            action = parameters.get("Action", "")
        if not action:
            action = f"{handler.command} {service}"
        return Request(len(self.requests), service, action, parameters, body or b"", headers, handler.path)

    def _forward(self, handler: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.target, timeout=60)
        try:
            headers = {k: v for k, v in handler.headers.items() if k.lower() not in ("connection", "expect")}
            connection.request(handler.command, handler.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


def respond(handler: Any, status: int, headers: list[tuple[str, str]], content: bytes, limit: int | None) -> None:
    handler.send_response_only(status)
    is_head = handler.command == "HEAD"
    kept = () if is_head else ("content-length",)
    for name, value in headers:
        if name.lower() not in ("connection", "transfer-encoding", *kept):
            handler.send_header(name, value)
    if not is_head:
        handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    if limit is not None:
        handler.wfile.write(content[:limit])
        reset(handler)
    elif not is_head:
        handler.wfile.write(content)


def reset(handler: Any) -> None:
    """End the connection with a reset, not with a farewell."""
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def answer_with_error(handler: Any, request: Request, fault: Fault) -> None:
    message = f"injected into {request.action}"
    if request.service == "ssm":
        body, kind = json.dumps({"__type": fault.code, "message": message}), "application/x-amz-json-1.1"
    elif request.service == "s3":
        body, kind = f"<Error><Code>{fault.code}</Code><Message>{message}</Message></Error>", "application/xml"
    elif request.service == "ec2":
        error = f"<Error><Code>{fault.code}</Code><Message>{message}</Message></Error>"
        body, kind = f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>", "text/xml"
    else:
        error = f"<Error><Type>Sender</Type><Code>{fault.code}</Code><Message>{message}</Message></Error>"
        body, kind = f"<ErrorResponse>{error}<RequestId>1</RequestId></ErrorResponse>", "text/xml"
    respond(handler, fault.status, [("Content-Type", kind)], b"" if handler.command == "HEAD" else body.encode(), None)


def stale(content: bytes) -> bytes:
    """What EC2 describes before it has noticed what was just made: nothing."""
    for name in ("reservationSet", "securityGroupInfo", "keySet", "spotInstanceRequestSet"):
        content = re.sub(rf"<{name}>.*</{name}>".encode(), f"<{name}/>".encode(), content, flags=re.S)
    return content


@contextmanager
def serve_moto(folder: Path) -> Iterator[tuple[str, int]]:
    """moto's server, in a process of its own that ends when this one does, on a free port."""
    images = folder / "images.json"
    images.write_text(json.dumps(_IMAGES), encoding="utf-8")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "MOTO_AMIS_PATH": str(images)}
    with subprocess.Popen([sys.executable, "-c", _SERVE], env=environment, **pipes) as server:  # type: ignore[call-overload]
        assert server.stdout is not None
        port = int(server.stdout.readline() or 0)
        assert port, "moto's server did not start"
        threading.Thread(target=_swallow, args=(server.stdout,), daemon=True).start()
        try:
            yield "127.0.0.1", port
        finally:
            server.stdin.close()
            server.wait(timeout=60)


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    with serve_moto(tmp_path_factory.mktemp("moto")) as target:
        yield target


def _swallow(stream: IO[bytes]) -> None:
    """Read what moto prints, so that it never waits for a reader."""
    while stream.read1(65536):  # type: ignore[attr-defined]
        pass


@pytest.fixture(scope="session")
def session_proxy(moto_server: tuple[str, int]) -> Iterator[FaultProxy]:
    proxy = FaultProxy(moto_server)
    yield proxy
    proxy.close()


def reset_moto(target: tuple[str, int]) -> None:
    """Empty moto; its account has the permissions boundary, as an administrator makes it once."""
    connection = http.client.HTTPConnection(*target, timeout=30)
    connection.request("POST", "/moto-api/reset")
    assert connection.getresponse().read()
    boundary = {
        "PolicyName": BOUNDARY,
        "PolicyDocument": (REPOSITORY / "docs/aws-iam-boundary.json").read_text("utf-8"),
    }
    body = urlencode({"Action": "CreatePolicy", "Version": "2010-05-08", **boundary})
    signed = f"AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/20260101/{REGION}/iam/aws4_request, SignedHeaders=, Signature="
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": signed}
    connection.request("POST", "/", body, headers)
    answer = connection.getresponse()
    assert (answer.status, bool(answer.read())) == (200, True)
    connection.close()


@pytest.fixture
def fault_proxy(session_proxy: FaultProxy) -> FaultProxy:
    """The way to an empty moto, which lets everything pass until told otherwise."""
    reset_moto(session_proxy.target)
    session_proxy.reset()
    session_proxy.cut_response = lambda request, size: None
    return session_proxy


@cache
def shared_loader(search_path: str | None = None) -> Any:
    from botocore.loaders import create_loader

    return create_loader(search_path)


@pytest.fixture
def image(aws_environment: FaultProxy) -> str:
    """The image that instances start from."""
    return IMAGE


def environment(url: str, home: Path) -> dict[str, str]:
    """The variables with which boto3 finds moto, and no configuration of whoever runs the tests."""
    return {
        "HOME": str(home),
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "the-secret-of-the-tests",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }


@pytest.fixture
def aws_environment(fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultProxy]:
    """An environment in which boto3 finds moto."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    for name, value in environment(fault_proxy.url, home).items():
        monkeypatch.setenv(name, value)
    # the descriptions of AWS's services are megabytes of JSON, read once and not by every session anew
    monkeypatch.setattr("botocore.session.create_loader", shared_loader)
    before = open_sockets()
    yield fault_proxy
    if open_sockets() - before:  # looking through all objects takes longer than many a test
        gc.collect()  # the traceback of a connection that was reset holds its socket


class FakeClock:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.time = 0.0
        self.lock = threading.Lock()

    def wait(self, seconds: float) -> None:
        with self.lock:
            self.time += seconds

    def now(self) -> float:
        with self.lock:
            self.time += 0.01
            return self.time


@pytest.fixture
def aws(aws_environment: FaultProxy) -> Iterator[Any]:
    with impatient() as session:
        yield session


def impatient(wait: Callable[[float], None] | None = None, **arguments: Any) -> Any:
    """Return an ``Aws`` whose waits take no time, or as long as ``wait`` takes."""
    from dl4jlegacy.storage.s3.session import Aws, Clock

    clock = FakeClock()
    return Aws(REGION, clock=Clock(now=clock.now, wait=wait or clock.wait), **arguments)
