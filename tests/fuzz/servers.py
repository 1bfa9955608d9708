"""Requests of strangers to the servers: model server, dashboard, metrics; and a dashboard that shows a mutated run."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dl4jlegacy.datasets import Reading
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.nn import MultiLayerNetwork, write_model, zoo
from dl4jlegacy.serving.answers import Limits
from dl4jlegacy.serving.models import ServedModel
from dl4jlegacy.serving.server import ModelServer
from dl4jlegacy.serving.service import Service
from dl4jlegacy.system.listening import bind
from dl4jlegacy.ui.run_sources import FolderSource
from dl4jlegacy.ui.server import ENDPOINTS
from tests.fuzz.commands import OUT, Attempt, answer, limited
from tests.fuzz.formats import EPOCH, FORMATS
from tests.fuzz.mutations import mutated, mutated_array, mutated_json, mutated_picture, mutated_text
from tests.support.dashboards import TrackedRun, served

__all__ = ["SERVERS"]

SECONDS = 20.0
Request = tuple[bytes, bool]


class Errors(logging.Handler):
    """Collects the errors that a server logs: each is a bug, or a traceback that a user would have to read."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.said.append(logging.Formatter().format(record)[-3000:])

    def fault(self) -> str:
        """Return the messages since the last call."""
        said, self.said = "\n".join(self.said), []
        return said


@contextlib.contextmanager
def _errors() -> Iterator[Errors]:
    found, logger = Errors(), logging.getLogger()
    logger.addHandler(found)
    try:
        yield found
    finally:
        logger.removeHandler(found)


def _status(address: tuple[str, int], request: bytes, is_whole: bool) -> int:
    """Send bytes, and no more if they are not whole; return the answer's status, 0: the server hung up without one."""
    with socket.create_connection(address, SECONDS) as connection:
        with contextlib.suppress(OSError):  # the server has hung up already
            connection.sendall(request)
            if not is_whole:
                connection.shutdown(socket.SHUT_WR)
        got = b""
        with contextlib.suppress(ConnectionError):
            while len(got) < 64 and (more := connection.recv(4096)):
                got += more
    first = got.split(b"\r\n", 1)[0].split(b" ")
    return int(first[1]) if len(first) > 1 and first[1].isdigit() else 0


_PATHS = (
    "/",
    "//",
    "/.",
    "/..",
    "/%00",
    "/%ff",
    "/%2e%2e/x",
    "/a?b",
    "*",
    "http://x/",
    "/" + "x" * 5000,
    "/\x7f",
    "/ü",
)
_HOSTS = ("127.0.0.1", "localhost:1", "evil.example", "", "[::1]", "\xff", "127.0.0.1, x", "a" * 5000)


def _request(rng: random.Random, methods: Sequence[str], paths: Sequence[str], kind: str, body: bytes) -> Request:
    """Return a request that is whole, or hostile in its first line, a header or its length; and whether it is whole."""
    is_whole = True
    method = rng.choice(methods) if rng.random() < 0.9 else rng.choice(("PUT", "HEAD", "OPTIONS", "x", "", "TRACE"))
    path = rng.choice(paths) if rng.random() < 0.85 else rng.choice((*_PATHS, rng.choice(paths) + "/"))
    if rng.random() < 0.2:
        path += "?" + rng.choice(
            ("after=-1", "after=x", "after=" + "9" * 40, "a&a&a", "%", "out=../x", "since=1e99", "=", "&" * 500)
        )
    headers = {"host": "127.0.0.1", "content-type": kind, "content-length": str(len(body)), "connection": "close"}
    if rng.random() < 0.2:
        is_whole = False
        name = rng.choice(
            (
                "host",
                "content-type",
                "content-length",
                "accept",
                "authorization",
                "transfer-encoding",
                "origin",
                "last-event-id",
                "expect",
            )
        )
        headers[name] = rng.choice(
            (*_HOSTS, "chunked", "-1", "9" * 30, "Bearer", "application/json", "Basic ////", "100-continue")
        )
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    whole = (head + "\r\n").encode("utf-8", "replace") + body
    return (mutated(whole, rng), False) if rng.random() < 0.1 else (whole, is_whole)


def _asked(port: int, errors: Errors, draw: Callable[[random.Random], Request]) -> Attempt:
    """Return what sends a request and looks at its answer: no status 500, nothing logged as an error."""

    def attempt(rng: random.Random) -> tuple[int, str]:
        request, is_whole = draw(rng)
        with limited():
            status = _status(("127.0.0.1", port), request, is_whole)
        fault = errors.fault() or ("status 500" if status == 500 else "")
        return status, f"{request[:300]!r}: {fault}" if fault else ""

    return attempt


# --- models -----------------------------------------------------------------------------------------------------------


def _bodies() -> Mapping[str, Sequence[tuple[str, bytes, Callable[[bytes, random.Random], bytes]]]]:
    """Return, for each model, media types, bodies of these, and how they are mutated."""
    rows = np.random.default_rng(3).normal(size=(3, 4)).round(3)
    content, picture = io.BytesIO(), io.BytesIO()
    np.save(content, rows.astype(np.float32))
    from PIL import Image

    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(picture, "png")
    plain = ("application/json", json.dumps({"rows": rows.tolist()}).encode(), mutated_json)
    cars = {"rows": [{"age": 1, "power": 2.5, "fuel": "gas"}, {"age": None, "power": -1, "fuel": "?"}]}
    return {
        "mlp": (
            plain,
            ("application/x-npy", content.getvalue(), mutated_array),
            ("text/csv", b"1,2,3,4\n5,6,7,8\n", mutated_text),
        ),
        "cars": (
            ("application/json", json.dumps(cars).encode(), mutated_json),
            ("application/x-ndjson", b"".join(json.dumps(row).encode() + b"\n" for row in cars["rows"]), mutated),
            ("text/csv", b"age,power,fuel\n1,2,gas\n", mutated_text),
        ),
        "pictures": (("image/png", picture.getvalue(), mutated_picture), plain),
    }


@contextlib.contextmanager
def _models() -> Iterator[Attempt]:
    """Model server: a model of rows, one of a table with a schema, one of pictures."""
    from dl4jlegacy.datasets import ImageRecordReader

    write_model(MultiLayerNetwork(zoo.mlp(4, 3, hidden=(3,))), "mlp.zip", label_names=("a", "b", "c"))
    reader = ImageRecordReader(height=4, width=4, channels=1)
    write_model(
        MultiLayerNetwork(zoo.mlp(16, 2, hidden=(3,))),
        "pictures.zip",
        label_names=("a", "b"),
        reading=Reading(images=reader),
    )
    Path("cars.csv").write_bytes(FORMATS["CSV"].genuine(Path())["t.csv"])
    Path(OUT).mkdir(exist_ok=True)
    Path("schema.json").write_bytes(FORMATS["schema"].genuine(Path("sound"))["schema.json"])
    made = answer(["train", "cars.csv", "--schema", "schema.json", *EPOCH[:-1], "cars.zip"])
    assert not made.status, made.err
    bodies = _bodies()
    service = Service(
        {name: ServedModel(name, f"{name}.zip") for name in bodies}, Limits(body_bytes=1 << 20, rows=5000)
    )
    paths = ["/health", "/ready", "/metrics", "/openapi.json", "/v1/models", "/predict"]

    def draw(rng: random.Random) -> Request:
        if rng.random() < 0.2:
            return _request(rng, ("GET", "POST"), paths, "text/plain", b"")
        name = rng.choice(sorted(bodies))
        kind, body, mutate = rng.choice(bodies[name])
        other = rng.choice(("text/plain", "application/x-npy", "image/gif", "")) if rng.random() < 0.05 else kind
        return _request(rng, ("POST",), (f"/v1/models/{name}/predict",), other, mutate(body, rng))

    with _errors() as errors, ModelServer(service, bind("127.0.0.1", 0, "the models"), connections=50) as server:
        yield _asked(int(server.url.rpartition(":")[2]), errors, draw)


# --- dashboard --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _dashboard() -> Iterator[Attempt]:
    """Dashboard of a run in a tracker."""
    run = TrackedRun()
    run.set_head(3)
    run.set_worker(1)
    paths = [endpoint.path for endpoint in ENDPOINTS if "stream" not in endpoint.path] + ["/", "/dashboard.js"]
    paths = [path.replace("{worker}", "host-1").replace("{num}", "3") for path in paths]
    with _errors() as errors, served(run) as (client, _):
        yield _asked(
            client.base_url.port or 0,
            errors,
            lambda rng: _request(
                rng, ("GET", "POST"), paths, "application/json", mutated_json(b'{"out": "x.zip"}', rng)
            ),
        )


_SHOWN = ("run", "workers", "jobs", "history", "events", "log", "network", "model", "evaluation")


@contextlib.contextmanager
def _shown_run() -> Iterator[Attempt]:
    """Dashboard of a folder of checkpoints with one file mutated."""
    form = FORMATS["run"]
    genuine = form.genuine(Path("sound"))
    names = sorted(name for name in genuine if not name.endswith(".safetensors"))

    def attempt(rng: random.Random) -> tuple[int, str]:
        shutil.rmtree("case", ignore_errors=True)
        shutil.copytree("sound/run", "case/run")
        name = rng.choice(names)
        Path("case", name).write_bytes(form.mutate(genuine[name], rng))
        try:
            source = FolderSource("case/run")
            source.read()
        except Dl4jError as exc:
            return exc.exit_status, ""
        with limited(), served(source) as (client, panel):
            panel.watcher.look()
            away = panel.watcher.view.away
            answers = {path: client.get(f"/api/v1/{path}").status_code for path in _SHOWN}
        fault = errors.fault() or (str(away) if away is not None and away.code == Dl4jError.code else "")
        bad = [path for path, status in answers.items() if status >= 500]
        return max(answers.values()), f"{name}: {bad} {fault}" if fault or bad else ""

    with _errors() as errors:
        yield attempt


SERVERS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Attempt]]] = {
    "model server": _models,
    "dashboard": _dashboard,
    "shown run": _shown_run,
}
