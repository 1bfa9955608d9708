"""Models behind HTTP: the answers of ``dl4j predict``, through real sockets, whatever clients send and files become."""

from __future__ import annotations

import contextlib
import errno
import gc
import gzip
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openapi_spec_validator import validate
from PIL import Image
from uvicorn.protocols.http.h11_impl import H11Protocol

from dl4jlegacy import DataSet, ImageRecordReader, NormalizerMinMaxScaler, load_model
from dl4jlegacy.cli import main
from dl4jlegacy.datasets import Reading
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.errors import ConfError, ModelError, NotAuthorisedError, UsageError
from dl4jlegacy.models.prediction import predict_blocks, rows_in
from dl4jlegacy.models.queue import Batching
from dl4jlegacy.nn import DenseLayer, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer, write_model
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.zoo import char_lstm, mlp
from dl4jlegacy.serving import predictions as predictions_module
from dl4jlegacy.serving.answers import Limits
from dl4jlegacy.serving.models import ServedModel, named_paths
from dl4jlegacy.serving.server import ModelServer, token_for
from dl4jlegacy.serving.service import Service
from dl4jlegacy.system import http_connections
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.listening import bind
from tests.support import REPOSITORY, open_sockets
from tests.support.cluster_commands import until
from tests.support.image_contents import png

NAMES, COUNT, PATIENCE = ("red", "green", "blue"), ROWS + 300, 60.0
CSV, NPY = {"content-type": "text/csv"}, {"content-type": "application/x-npy"}


def write_plain(path: Path, seed: int) -> None:
    values = np.random.default_rng(3).normal(0, 3, (50, 4))
    layers = (DenseLayer(n_in=4, n_out=16, activation="tanh"), OutputLayer(n_out=3, activation="softmax"))
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=5), layers=layers))
    network.set_params(np.random.default_rng(seed).normal(0, 1, network.num_params).astype(np.float32))
    write_model(network, path, normalizer=NormalizerMinMaxScaler().fit(DataSet(values)), label_names=NAMES)


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as leave:
        main.main([*words])
    assert not leave.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each kind, and a file for each: ``plain.zip`` and ``plain.csv``, and so on."""
    made = tmp_path_factory.mktemp("serving")
    write_plain(made / "plain.zip", 4)
    rows = np.random.default_rng(9).normal(0, 3, (COUNT, 4)).round(3)
    (made / "plain.csv").write_text("".join(",".join(map(repr, row)) + "\n" for row in rows.tolist()))
    cars = [f"{'oil' if i % 3 else 'gas'},{i * 7 % 20},{9000 + 700 * (i * 7 % 20)}" for i in range(60)]
    (made / "cars-all.csv").write_text("\n".join(["fuel,age,price", *cars]) + "\n")
    short = ("--epochs", "2", "--workers", "1", "--jobs-per-round", "1", "--format", "json")
    run(
        "train", str(made / "cars-all.csv"), "--label", "price", "--regression", *short, "--out", str(made / "cars.zip")
    )
    (made / "cars.csv").write_text("fuel,age\noil,3\ngas,11\n,4\n")
    (made / "cars.jsonl").write_text(
        '{"fuel": "oil", "age": 3}\n{"fuel": "gas", "age": 11}\n{"fuel": null, "age": 4}\n'
    )
    (made / "weather").mkdir()
    for number in range(6):
        hours = [f"{hour},{'wet' if (number + hour) % 3 else 'dry'}" for hour in range(5 + number)]
        (made / "weather" / f"{number}.csv").write_text("\n".join(["hour,rain", *hours]) + "\n")
    run("train", str(made / "weather"), "--sequences", "--label", "rain", *short, "--out", str(made / "weather.zip"))
    (made / "weather.csv").write_text((made / "weather" / "3.csv").read_text())
    letters = tuple("\n abcd")
    write_model(
        MultiLayerNetwork(char_lstm(8 * 6, 6, hidden=(5,))),
        made / "text.zip",
        label_names=letters,
        reading=Reading(text=TextReader()),
    )
    (made / "text.txt").write_text("abc\n\nbad cab\n")
    reader = ImageRecordReader(height=4, width=4, channels=1)
    write_model(MultiLayerNetwork(mlp(16, 3)), made / "image.zip", label_names=NAMES, reading=Reading(images=reader))
    pixels = np.random.default_rng(2).integers(0, 256, (9, 7), np.uint8)
    Image.fromarray(pixels).save(made / "image.png")
    return made


@contextlib.contextmanager
def serving(
    *paths: Path | str,
    token: str | None = None,
    every: float = 3600,
    batching: Batching | None = None,
    connections: int = 100,
    drain: float = 30.0,
    **limits: Any,
) -> Iterator[Any]:
    """A server of models on a free port; yields a client of it, which has the service as ``service``."""
    named = named_paths([str(path) for path in paths])
    models = {name: ServedModel(name, path, batching) for name, path in named.items()}
    service = Service(models, Limits(**limits), token)
    with (
        ModelServer(
            service,
            bind("127.0.0.1", 0, "the models"),
            reload_seconds=every,
            drain_seconds=drain,
            connections=connections,
        ) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False) as client,
    ):
        client.service, client.server = service, server  # type: ignore[attr-defined]
        yield client


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ModelServer]:
    """A server of a model of each kind."""
    with serving(*(folder / f"{name}.zip" for name in ("plain", "cars", "weather", "text", "image"))) as client:
        yield client.server


@pytest.fixture
def every(server: ModelServer) -> Iterator[httpx.Client]:
    """A client of that server, whose connections are closed on both sides at the end."""
    before = open_sockets()
    with httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False) as client:
        yield client
    until(lambda: open_sockets() <= before, what="the server's sockets are closed")


def predicted(folder: Path, model: str, file: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``dl4j predict --format json`` prints, without what only a command line or a file has."""
    capsys.readouterr()
    run("predict", str(folder / f"{model}.zip"), str(folder / file), "--format", "json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {name: value for name, value in found.items() if name not in ("model", "files")}


def answered(response: httpx.Response, model: str) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    assert found.pop("model") == model
    return found


# -- the same answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "file", "media"),
    [
        ("plain", "plain.csv", "text/csv"),
        ("cars", "cars.csv", "text/csv; charset=utf-8"),
        ("cars", "cars.jsonl", "application/x-ndjson"),
        ("weather", "weather.csv", "text/csv"),
        ("text", "text.txt", "text/plain"),
        ("image", "image.png", "image/png"),
    ],
)
def test_a_body_is_answered_as_dl4j_predict_answers_a_file(
    folder: Path, every: httpx.Client, capsys: pytest.CaptureFixture[str], model: str, file: str, media: str
) -> None:
    body = (folder / file).read_bytes()
    response = every.post(f"/v1/models/{model}/predict", content=body, headers={"content-type": media})
    expected = predicted(folder, model, file, capsys)
    assert expected["examples"] >= 1
    assert {k: v for k, v in answered(response, model).items() if k != "files"} == expected
    assert response.headers["dl4j-model-version"] == "1"


def test_outputs_are_those_of_dl4j_predict_bit_for_bit(folder: Path, every: httpx.Client) -> None:
    model = load_model(folder / "plain.zip")
    expected = np.concatenate(
        [rows.outputs for rows in predict_blocks([model.answer], rows_in(model, str(folder / "plain.csv"))[0])]
    )
    assert len(expected) == COUNT > ROWS, "several blocks"
    body = (folder / "plain.csv").read_bytes()
    rows = [[float(cell) for cell in line.split(",")] for line in body.decode().splitlines()]
    array = io.BytesIO()
    np.save(array, np.array(rows))
    ways = {
        "text/csv": body,
        "application/json": json.dumps({"rows": rows}).encode(),
        NPY["content-type"]: array.getvalue(),
    }
    for media, content in ways.items():
        headers = {"content-type": media, "accept": "application/x-npy"}
        response = every.post("/v1/models/plain/predict", content=content, headers=headers)
        assert response.headers["content-type"] == "application/x-npy", response.text
        found = np.load(io.BytesIO(response.content), allow_pickle=False)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes(), media


def test_objects_and_texts_come_as_json_too(
    folder: Path, every: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (folder / "cars.jsonl").read_text().splitlines()]
    found = answered(every.post("/v1/models/cars/predict", json={"rows": rows}), "cars")
    assert found == predicted(folder, "cars", "cars.jsonl", capsys)
    spread = json.dumps({"rows": rows}, indent=2).encode()
    json_body = {"content-type": "application/json"}
    assert answered(every.post("/v1/models/cars/predict", content=spread, headers=json_body), "cars") == found
    lines = answered(every.post("/v1/models/text/predict", json={"rows": ["abc", "bad cab"]}), "text")
    assert lines == predicted(folder, "text", "text.txt", capsys)


@pytest.mark.parametrize("size", [1_000, 20_000, 200_000])
def test_a_body_may_come_in_parts(every: httpx.Client, size: int) -> None:
    x = np.random.default_rng(size).normal(0, 3, (9_000, 4)).astype(np.float32)
    whole, headers = npy(x), {**NPY, "accept": "application/x-npy"}
    parts = (whole[start : start + size] for start in range(0, len(whole), size))
    alone, in_parts = (
        every.post("/v1/models/plain/predict", content=content, headers=headers) for content in (whole, parts)
    )
    assert (alone.status_code, in_parts.status_code) == (200, 200), in_parts.text
    assert in_parts.content == alone.content
    assert len(np.load(io.BytesIO(alone.content), allow_pickle=False)) == 9_000


def test_while_models_are_served_threads_take_short_turns(folder: Path) -> None:
    before = sys.getswitchinterval()
    with serving(folder / "plain.zip"):
        assert sys.getswitchinterval() < 1e-3 and gc.get_freeze_count() > 0
    assert sys.getswitchinterval() == before and gc.get_freeze_count() == 0


def test_many_clients_at_a_time_get_each_their_own_answer(folder: Path, every: httpx.Client) -> None:
    lines = (folder / "plain.csv").read_text().splitlines()[:40]
    alone = [answered(every.post("/v1/models/plain/predict", content=line, headers=CSV), "plain") for line in lines]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda line: every.post("/v1/models/plain/predict", content=line, headers=CSV).json(), lines)
        assert [{k: v for k, v in each.items() if k != "model"} for each in found] == alone


# -- what else can be asked --------------------------------------------------------------------------------------------


def test_models_say_what_they_take_and_answer(every: httpx.Client) -> None:
    assert every.get("/health").json() == {"status": "ok"}
    assert every.get("/ready").json()["models"] == ["cars", "image", "plain", "text", "weather"]
    listed = {each["name"]: each for each in every.get("/v1/models").json()["models"]}
    plain = every.get("/v1/models/plain").json()
    assert plain == listed["plain"]
    assert (plain["version"], plain["n_in"], plain["n_out"], plain["problem"]) == (1, 4, 3, "")
    assert plain["label_names"] == list(NAMES) and plain["predicts"] == "classes"
    assert listed["cars"]["columns"] == ["fuel", "age"] and listed["cars"]["predicts"] == "values"
    assert "image/png" in listed["image"]["accepts"] and listed["weather"]["accepts"] == ["text/csv"]


def test_the_openapi_document_is_one_and_has_every_address(folder: Path, every: httpx.Client) -> None:
    found = every.get("/openapi.json").json()
    validate(found)
    assert "/predict" not in found["paths"] and "/v1/models/cars/predict" in found["paths"]
    for path, methods in found["paths"].items():
        for method in methods.keys() & {"get", "post"}:
            status = every.request(method, path.replace("{name}", "plain")).status_code
            assert status == (200 if method == "get" else 415), path
    with serving(folder / "plain.zip", token="a" * 20) as client:
        alone = client.get("/openapi.json", headers={"authorization": f"Bearer {'a' * 20}"}).json()
    validate(alone)
    assert "/predict" in alone["paths"] and alone["security"] == [{"token": []}]


def test_a_single_model_needs_no_name(folder: Path, every: httpx.Client) -> None:
    with serving(f"mine={folder / 'plain.zip'}") as client:
        assert answered(client.post("/predict", json={"rows": [[1, 2, 3, 4]]}), "mine")["examples"] == 1
    refused = every.post("/predict", json={"rows": [[1, 2, 3, 4]]})
    assert refused.status_code == 404 and "there are several models, cars" in refused.json()["error"]["message"]


# -- what is refused ---------------------------------------------------------------------------------------------------


def npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, np.array(array), allow_pickle=True)
    return content.getvalue()


ONES = npy(np.ones((2, 4)))
HUGE = ONES.replace(b"(2, 4)", b"(9999999999, 4)").replace(b" " * 8 + b"\n", b"\n", 1)


@pytest.mark.parametrize(
    ("model", "media", "body", "status", "says"),
    [
        ("plain", "application/json", b"{", 400, 'the body is not {"rows": [...]} in JSON'),
        ("plain", "application/json", b"", 400, "the body is not"),
        ("plain", "application/json", b"[[1, 2, 3, 4]]", 400, "Expected `object`"),
        ("plain", "application/json", b'{"row": []}', 400, "unknown field `row`"),
        (
            "plain",
            "application/json",
            gzip.compress(b'{"rows": [[1, 2, 3, 4]]}', mtime=0),
            400,
            "the body is packed by gzip",
        ),
        ("plain", "application/json", b'{"rows": []}', 422, "rows is empty"),
        ("plain", "application/json", b'{"rows": [[1, 2, 3, NaN]]}', 400, "the body is not"),
        ("plain", "application/json", b'{"rows": [[1, 2, 3, 1e999]]}', 400, "rows[0] must be a list of numbers"),
        (
            "plain",
            "application/json",
            b'{"rows": [[1, 2, 3, 4], [1, 2, 3, "x"]]}',
            400,
            "rows[1] must be a list of numbers",
        ),
        ("plain", "application/json", b'{"rows": [[1, 2, 3, true]]}', 400, "rows[0] must be a list of numbers"),
        ("plain", "application/json", b'{"rows": [[]]}', 400, "rows[0] must be a list of numbers: it is empty"),
        ("plain", "application/json", b'{"rows": [1]}', 400, "rows[0] must be a list of numbers"),
        ("plain", "application/json", b'{"rows": ' + b"[" * 100_000, 413, "the body has more than"),
        ("plain", "application/json", b'{"rows": [[1, 2, 3]]}', 422, "model plain takes 4 features, the body has 3"),
        ("plain", "application/json", b'{"rows": [[1, 2, 3, 4], [1, 2, 3]]}', 422, "the body, line 2"),
        ("plain", "application/json", b'{"rows": [[1, 2, 3, 1e39]]}', 422, "the body"),
        ("plain", "application/json", b"\xff\xfe", 400, "the body is not"),
        ("plain", "text/csv", b"", 422, "the body"),
        ("plain", "text/csv", b"1,2,3,nan\n", 422, "the body, line 1"),
        ("plain", "text/csv", b"1,2,3,4\n1,2,x,4\n", 422, "the body, line 2"),
        ("plain", "text/csv", b"\xff\xfe\x00\x01", 422, "the body"),
        ("plain", "text/csv", b"1,2,3\n", 422, "model plain takes 4 features, the body has 3"),
        ("plain", NPY["content-type"], b"no array", 400, "the body is no .npy file"),
        ("plain", NPY["content-type"], ONES[:-3], 400, "that is cut off"),
        ("plain", NPY["content-type"], ONES + b"x", 400, "or has more behind it"),
        ("plain", NPY["content-type"], HUGE, 400, "the body is"),
        ("plain", NPY["content-type"], npy(np.ones(4)), 422, "an array of shape (4,) and type float64"),
        ("plain", NPY["content-type"], npy([["a"]]), 422, "an array of shape (1, 1) and type <U1"),
        ("plain", NPY["content-type"], npy(np.array([[{}]], object)), 422, "type object"),
        ("plain", NPY["content-type"], npy(np.zeros((0, 4))), 422, "the body holds no rows"),
        ("plain", NPY["content-type"], npy([[1, 2, np.inf, 4]]), 422, "are inf"),
        ("plain", NPY["content-type"], npy(np.ones((2, 5))), 422, "model plain takes 4 features, the body has 5"),
        ("plain", "text/html", b"1,2,3,4", 415, "model plain takes no text/html: send text/csv, application/json"),
        ("plain", "", b"1,2,3,4", 415, "takes no body without content-type"),
        ("plain", "image/png", b"1,2,3,4", 415, "model plain takes no image/png"),
        ("cars", "application/json", b'{"rows": [[1, 2]]}', 400, "rows[0] must be an object of columns and values"),
        ("cars", "application/json", b'{"rows": [{"fuel": "oil"}]}', 422, "age"),
        ("cars", "application/json", b'{"rows": [{"fuel": "oil", "age": "old"}]}', 422, "'old'"),
        ("cars", "application/x-ndjson", b"{", 422, "the body, line 1"),
        ("cars", "text/csv", b"fuel,age\noil\n", 422, "the body, line 2"),
        (
            "text",
            "text/plain",
            b"abz\n",
            422,
            "the body, line 1: the text has 1 character that the alphabet of 6 lacks",
        ),
        ("text", "text/plain", b"\n", 422, "the body holds no text"),
        ("text", "text/plain", b"\xff", 422, "the body is no text in UTF-8"),
        ("text", "application/json", b'{"rows": ["a\\nb"]}', 400, "rows[0] must be a text of one line"),
        ("text", "application/json", b'{"rows": [3]}', 400, "rows[0] must be a text of one line"),
        ("weather", "text/csv", b"a,b,c\n1,2,3\n", 422, "the body"),
        ("image", "image/png", b"no image", 422, "the body is no image that can be read"),
        ("image", "image/png", png(np.zeros((8, 8, 3), np.uint16), 2), 422, "has mode RGB with 16 bits a channel"),
        ("image", "image/jpeg", b"", 422, "the body is empty"),
        ("nothing", "text/csv", b"1", 404, "there is no model 'nothing'; there are cars, image, plain"),
    ],
)
@pytest.mark.everyday(23)
def test_a_body_that_cannot_be_answered_is_refused_with_the_reason(
    every: httpx.Client, model: str, media: str, body: bytes, status: int, says: str
) -> None:
    headers = {"content-type": media} if media else {}
    response = every.post(f"/v1/models/{model}/predict", content=body, headers=headers)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["status"] == status and error["code"].startswith("DL4J-")
    assert says in error["message"], error["message"]
    assert "dl4j-serve-" not in error["message"], "where the body was kept is nobody's business"
    assert every.get("/health").status_code == 200


def test_whatever_is_sent_is_answered_and_never_with_a_server_error(folder: Path, every: httpx.Client) -> None:
    """Bodies that are nearly right, and some of no sense, of all types to all models."""
    rng = np.random.default_rng(6)
    files = ("plain.csv", "cars.csv", "cars.jsonl", "weather.csv", "text.txt", "image.png")
    bodies = [
        *((folder / file).read_bytes()[:400] for file in files),
        ONES,
        b'{"rows": [[1, 2, 3, 4], {"age": 3}, "abc"]}',
    ]
    seen = set()
    for listed in every.get("/v1/models").json()["models"]:
        for media in listed["accepts"]:
            for body in bodies if not media.startswith("image/") or media == "image/png" else bodies[-1:]:
                broken = bytearray(body)
                for place in rng.integers(0, len(broken), 3):
                    broken[place] = rng.integers(0, 256)
                for sent in (body, bytes(broken), bytes(broken[: rng.integers(0, len(broken))])):
                    path = f"/v1/models/{listed['name']}/predict"
                    response = every.post(path, content=sent, headers={"content-type": media})
                    assert response.status_code < 500, (path, media, sent, response.text)
                    assert "dl4j-serve-" not in response.text
                    seen.add(response.status_code)
    assert seen == {200, 400, 422}


def test_addresses_and_methods_that_are_not_there_are_named(every: httpx.Client) -> None:
    assert every.get("/nothing").json()["error"]["message"].startswith("there is nothing here; /openapi.json")
    refused = every.get("/v1/models/plain/predict")
    assert refused.status_code == 405 and "there is no GET here" in refused.json()["error"]["message"]
    assert every.get("/v1/models/nothing").status_code == 404


def test_too_large_a_body_and_too_many_rows_are_refused(folder: Path) -> None:
    with serving(folder / "plain.zip", body_bytes=1000, rows=5) as client:
        declared = client.post("/predict", content=b"1" * 1001, headers=CSV)
        assert declared.status_code == 413 and "1,001 bytes, 1,000 are allowed" in declared.text
        chunks = client.post("/predict", content=iter([b"1" * 600, b"1" * 600]), headers=CSV)
        assert chunks.status_code == 413 and "more than 1,000 bytes" in chunks.text
        rows = client.post("/predict", content=b"1,2,3,4\n" * 6, headers=CSV)
        assert rows.status_code == 413 and "more than 5 rows" in rows.text
        assert client.post("/predict", content=b"1,2,3,4\n" * 5, headers=CSV).status_code == 200


BEGUN = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/csv\r\ncontent-length: 8\r\n\r\n1,2"


def raw(client: Any, text: bytes, later: bytes = b"") -> bytes:
    """What comes back on a socket of its own until the server closes it; ``later`` is sent once something has."""
    host, port = client.server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as own:
        own.sendall(text)
        received = b""
        while part := own.recv(65536):
            received += part
            own.sendall(later)
            later = b""
    return received


@pytest.mark.parametrize("library", ["httptools", "h11"])
def test_slow_clients_are_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    if library == "httptools":
        pytest.importorskip("httptools")
    else:
        monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
        monkeypatch.setitem(sys.modules, "uvloop", None)
    assert issubclass(http_connections.connection_type(), H11Protocol) == (library == "h11")
    monkeypatch.setattr(http_connections, "HEADER_SECONDS", 0.2)
    with serving(folder / "plain.zip", body_seconds=0.2) as client:
        answer = raw(client, BEGUN)
        assert answer.startswith(b"HTTP/1.1 408") and b"did not come within 0.2 s" in answer
        assert raw(client, BEGUN[:40]) == b"", "headers that do not end"
        assert raw(client, b"") == b"", "nothing at all"
        twice = raw(client, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /hea")
        assert twice.startswith(b"HTTP/1.1 200") and twice.count(b"HTTP/1.1") == 1
        assert raw(client, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
        assert client.post("/predict", content=b"1,2,3,4", headers=CSV).status_code == 200
        assert client.service.models["plain"].pending == 0


class Held:
    """Holds the computing of requests, once they have come to it, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go = threading.Event(), threading.Event()
        read_body = predictions_module.read_body

        def held(*arguments: Any) -> Iterator[Any]:
            self.begun.set()
            assert self.may_go.wait(PATIENCE)
            yield from read_body(*arguments)

        monkeypatch.setattr(predictions_module, "read_body", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held(monkeypatch)
    yield found
    found.may_go.set()


def post(client: Any) -> httpx.Response:
    return client.post("/predict", content=b"1,2,3,4", headers=CSV)


def test_a_client_that_leaves_takes_no_place(folder: Path, held: Held) -> None:
    with serving(folder / "plain.zip", queue=1) as client:
        host, port = client.server.url.removeprefix("http://").split(":")
        served = client.service.models["plain"]
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as own:
            own.sendall(b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/csv\r\n")
            own.sendall(b"content-length: 7\r\n\r\n1,2,3,4")
            until(lambda: served.pending == 1)
        held.may_go.set()
        until(lambda: served.pending == 0)
        assert post(client).status_code == 200


def test_requests_beyond_the_queue_are_sent_away_and_the_others_answered(folder: Path, held: Held) -> None:
    with serving(folder / "plain.zip", queue=2) as client, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(post, client) for _ in range(2)]
        until(lambda: client.service.models["plain"].pending == 2)
        refused = post(client)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert "2 requests wait for model plain" in refused.text
        assert client.get("/health").status_code == 200
        held.may_go.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
        assert post(client).status_code == 200


def test_slow_bodies_take_no_place_at_a_model(folder: Path) -> None:
    with serving(folder / "plain.zip", queue=2, body_seconds=PATIENCE) as client, contextlib.ExitStack() as stack:
        host, port = client.server.url.removeprefix("http://").split(":")
        slow = [stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE)) for _ in range(80)]
        for line in slow:
            line.sendall(BEGUN)
        assert all(post(client).status_code == 200 for _ in range(5))
        assert client.service.models["plain"].pending == 0


def test_bodies_that_come_in_part_have_a_bound_together(folder: Path) -> None:
    limits = {"body_bytes": 1 << 16, "body_seconds": PATIENCE}
    with serving(folder / "plain.zip", **limits) as client, contextlib.ExitStack() as stack:
        host, port = client.server.url.removeprefix("http://").split(":")
        begun = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/csv\r\ncontent-length: 65536\r\n\r\n"
        slow = [stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE)) for _ in range(9)]
        for line in slow:
            line.sendall(begun + b"1" * 65_000)
        assert slow[0].recv(100).startswith(b"HTTP/1.1 408"), "the first gives way"
        assert post(client).status_code == 200


def test_a_connection_beyond_the_limit_takes_the_place_of_an_idle_one_or_is_sent_away(folder: Path, held: Held) -> None:
    with serving(folder / "plain.zip", connections=2) as client, contextlib.ExitStack() as stack:
        others = [stack.enter_context(httpx.Client(base_url=client.base_url, trust_env=False)) for _ in range(3)]
        assert [each.get("/health").status_code for each in (client, *others)] == [200, 200, 200, 200]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        waiting = []
        for count, each in enumerate(others[:2], 1):  # one by one: a place is taken from whoever is about to ask
            waiting.append(pool.submit(post, each))
            until(lambda count=count: client.service.models["plain"].pending == count)
        assert others[2].get("/health").status_code == 503
        held.may_go.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
        until(lambda: others[2].get("/health").status_code == 200)


def test_requests_that_wait_together_are_computed_together_and_answered_each(folder: Path, held: Held) -> None:
    lines = (folder / "plain.csv").read_text().splitlines()[:12]
    model = load_model(folder / "plain.zip")
    expected = [model.predict([[float(cell) for cell in line.split(",")]])[0] for line in lines]
    with serving(folder / "plain.zip") as client, ThreadPoolExecutor(12) as pool:
        served, passes = client.service.models["plain"], list[tuple[int, int]]()
        served.queue.told = lambda requests, rows, seconds: passes.append((requests, rows))
        first = pool.submit(client.post, "/predict", content=lines[0], headers=CSV)
        assert held.begun.wait(PATIENCE)
        others = [pool.submit(client.post, "/predict", content=line, headers=CSV) for line in lines[1:]]
        until(lambda: served.pending == 12 and served.queue.waiting == 11)
        held.may_go.set()
        found = [each.result().json() for each in (first, *others)]
    assert [each["predictions"] for each in found] == [[number] for number in expected]
    assert passes == [(12, 12)], "the first is read, and those that came meanwhile go with it"


def test_who_waits_for_too_long_is_told(folder: Path, held: Held) -> None:
    with serving(folder / "plain.zip", seconds=0.3) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, client)
        assert held.begun.wait(PATIENCE)
        second = pool.submit(post, client)
        until(lambda: client.service.models["plain"].pending == 2)
        until(Deadline(0.4).passed)
        held.may_go.set()
        answers = [first.result(), second.result()]
    assert [each.status_code for each in answers] == [503, 503]
    assert "took longer than 0.3 s" in answers[0].text and "others took all of its 0.3 s" in answers[1].text
    assert answers[0].headers["retry-after"] == "5"


def test_a_bug_is_answered_too(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any) -> Iterator[Any]:
        raise ZeroDivisionError("secret of the house")
        yield

    with serving(folder / "plain.zip") as client:
        with monkeypatch.context() as patched:
            patched.setattr(predictions_module, "read_body", broken)
            failed = post(client)
        assert failed.status_code == 500 and failed.json()["error"]["code"] == "DL4J-INTERNAL"
        assert "secret of the house" not in failed.text and "secret of the house" in caplog.text
        assert post(client).status_code == 200


# -- who may ask -------------------------------------------------------------------------------------------------------


def test_a_token_is_demanded_of_everything_but_the_signs_of_life(folder: Path) -> None:
    token = "0123456789abcdef-token"
    with serving(folder / "plain.zip", token=token) as client:
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": token},
            {"authorization": "Bearer \xff"},
        ):
            for method, path in (("POST", "/predict"), ("GET", "/v1/models"), ("GET", "/openapi.json")):
                encoded = {name: value.encode("latin-1") for name, value in headers.items()}
                refused = client.request(method, path, headers=encoded)
                assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        allowed = {"authorization": f"Bearer {token}", "host": "models.example"}
        assert client.post("/predict", content=b"1,2,3,4", headers=CSV | allowed).status_code == 200
        assert token not in repr(client.service)


def test_without_a_token_only_names_of_loopback_are_answered(every: httpx.Client) -> None:
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]", "[::1]:9"):
        assert every.get("/health", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "[::2]:80"):
        refused = every.get("/v1/models", headers={"host": host})
        assert refused.status_code == 403 and "is no name of this machine's loopback" in refused.text


def test_the_token_comes_from_the_environment_or_a_file_and_is_needed_beyond_loopback(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-a-file-0123\n")
    file.chmod(0o600)
    assert token_for("127.0.0.1", {}) is None and token_for("localhost", {}) is None
    assert token_for("0.0.0.0", {"DL4J_SERVE_TOKEN": "a-token-of-the-environment"}) == "a-token-of-the-environment"
    assert (
        token_for("0.0.0.0", {}, file)
        == token_for("::", {"DL4J_SERVE_TOKEN_FILE": str(file)})
        == "a-token-of-a-file-0123"
    )
    for host in ("0.0.0.0", "::", "192.0.2.7", "models.example"):
        with pytest.raises(NotAuthorisedError, match=r"beyond this machine's loopback, and there is no token"):
            token_for(host, {})
    with pytest.raises(ConfError, match="the token"):
        token_for("127.0.0.1", {"DL4J_SERVE_TOKEN": ""})
    with pytest.raises(ConfError, match=r"the token .*gone"):
        token_for("127.0.0.1", {}, tmp_path / "gone")
    for environ in ({"DL4J_SERVE_TOKEN": "x"}, {"DL4J_SERVE_TOKEN": "a" * 15}, {"DL4J_SERVE_TOKEN_FILE": ""}):
        with pytest.raises(ConfError, match="DL4J_SERVE_TOKEN") as refused:
            token_for("127.0.0.1", environ)
        assert "DL4J_SECRET" not in str(refused.value)


def test_a_path_with_a_slash_behind_it_leads_nowhere_else(every: httpx.Client) -> None:
    for path in ("/health/", "/ready/", "/metrics/", "/v1/models/", "/v1/models/plain/"):
        found = every.get(path, headers={"host": "evil.example"}, follow_redirects=False)
        assert found.status_code in (403, 404) and "location" not in found.headers, path


# -- models that change ------------------------------------------------------------------------------------------------


def replace_by(path: Path, seed: int) -> None:
    write_plain(path.with_name(f"new-{seed}"), seed)
    os.replace(path.with_name(f"new-{seed}"), path)


def test_a_changed_file_is_served_and_a_broken_one_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "plain.zip"
    write_plain(path, 1)
    with serving(path, every=0.02) as client:
        first = post(client)
        replace_by(path, 2)
        until(lambda: client.get("/v1/models/plain").json()["version"] == 2)
        second = post(client)
        assert second.headers["dl4j-model-version"] == "2" and second.json() != first.json()
        path.write_bytes(b"no model")
        until(lambda: client.get("/v1/models/plain").json()["problem"])
        metadata = client.get("/v1/models/plain").json()
        assert metadata["version"] == 2 and "no model at all" in metadata["problem"]
        assert "plain.zip is not used, version 2 goes on: " in caplog.text
        assert post(client).json() == second.json()
        path.unlink()
        until(lambda: "does not exist" in client.get("/v1/models/plain").json()["problem"])
        assert post(client).json() == second.json() and client.get("/ready").status_code == 200
        replace_by(path, 1)
        until(lambda: client.get("/v1/models/plain").json()["version"] == 3)
        assert post(client).json() == first.json() and not client.get("/v1/models/plain").json()["problem"]


def test_a_model_that_could_not_be_read_for_want_of_files_is_read_when_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = MultiLayerNetwork(mlp(4, 3))
    write_model(network, tmp_path / "m.zip", label_names=("a", "b", "c"))
    served = ServedModel("m", str(tmp_path / "m.zip"))
    write_model(network, tmp_path / "m.zip", label_names=("a", "b", "d"))
    for error in (OSError(errno.EMFILE, "Too many open files"), MemoryError()):
        with monkeypatch.context() as patch:

            def fails(*_: object, error: BaseException = error) -> None:
                raise ModelError("it cannot be read") from error

            patch.setattr("dl4jlegacy.serving.models.load_model", fails)
            assert not served.reload() and not served.reload() and "cannot be read" in served.problem
    assert served.reload() and served.problem == "" and served.reloads == {"done": 1, "failed": 1}
    served.close()


def test_a_model_that_cannot_answer_takes_no_place(tmp_path: Path) -> None:
    path = tmp_path / "plain.zip"
    write_plain(path, 1)
    served = ServedModel("plain", str(path))
    network = MultiLayerNetwork(mlp(4, 3))
    network.params[...] = np.nan
    with contextlib.suppress(ModelError):
        write_model(network, path)
    assert not served.reload() and served.current.version == 1
    write_model(MultiLayerNetwork(mlp(4, 3)), path, label_names=("one", "two"))
    assert not served.reload() and served.current.version == 1
    assert "2 label names" in served.problem
    assert served.close()


def test_a_request_under_way_is_answered_by_the_model_that_it_came_to(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "plain.zip"
    write_plain(path, 1)
    with serving(path, every=0.02) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, client)
        assert held.begun.wait(PATIENCE)
        replace_by(path, 2)
        until(lambda: client.get("/v1/models/plain").json()["version"] == 2)
        held.may_go.set()
        assert waiting.result().headers["dl4j-model-version"] == "1"
        assert post(client).headers["dl4j-model-version"] == "2"


def test_reloads_under_load_lose_no_request_and_mix_no_answers(tmp_path: Path) -> None:
    path, wanted = tmp_path / "plain.zip", 8
    write_plain(path, 1)
    over, found = threading.Event(), list[tuple[int, str, str]]()

    def ask(client: Any) -> None:
        while not over.is_set():
            response = post(client)
            found.append((response.status_code, response.headers.get("dl4j-model-version", ""), response.text))

    with serving(path, every=0.02) as client, ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask, client) for _ in range(3)]
        try:
            for version in range(2, wanted + 1):
                replace_by(path, version)
                until(lambda version=version: client.service.models["plain"].current.version == version)
            count = len(found)
            until(lambda: len(found) > count + 6)
        finally:
            over.set()
        for each in asking:
            each.result()
    assert {status for status, _, _ in found} == {200}
    answers = {version: {text for _, of, text in found if of == version} for _, version, _ in found}
    assert all(len(texts) == 1 for texts in answers.values()), "each version has one answer"
    assert str(wanted) in answers and len(set.union(*answers.values())) == len(answers) > 2


# -- its end, and the command ------------------------------------------------------------------------------------------


def test_what_has_come_is_answered_at_the_end_and_nothing_else(folder: Path, held: Held) -> None:
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        client = stack.enter_context(serving(folder / "plain.zip"))
        waiting = pool.submit(post, client)
        assert held.begun.wait(PATIENCE)
        server = client.server

        def leave() -> None:
            server.__exit__(None, None, None)
            ended.set()

        thread = threading.Thread(target=leave)
        thread.start()
        until(lambda: _refuses(server.url), what="the server takes no connections")
        assert not ended.is_set() and not waiting.done()
        held.may_go.set()
        assert waiting.result().status_code == 200
        thread.join(PATIENCE)
        assert ended.is_set()
        stack.pop_all()
        client.close()


def test_a_computation_that_does_not_end_does_not_hold_up_the_end(
    folder: Path, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with serving(folder / "plain.zip", drain=0.1) as client:
            waiting = pool.submit(post, client)
            assert held.begun.wait(PATIENCE)
        assert not held.may_go.is_set() and "model plain still computes after 0.1 s" in caplog.text
        held.may_go.set()
        with contextlib.suppress(httpx.TransportError):
            assert waiting.result(PATIENCE).status_code >= 500
    assert client.service.models["plain"].close(PATIENCE)


def _refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=PATIENCE, trust_env=False)
    except httpx.TransportError:
        return True
    return False


@pytest.fixture
def command(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``dl4j serve`` as a process."""
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "dl4jlegacy", "serve", *words, "--format", "json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        begun.append(
            subprocess.Popen(line, text=True, cwd=folder, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, **pipes)
        )
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.everyday(1)
def test_the_command_serves_until_a_signal(
    command: Callable[..., subprocess.Popen[str]], number: signal.Signals, status: int
) -> None:
    process = command("plain.zip", "autos=cars.zip", "--port", "0", "--workers", "2", "--batch-delay", "0.001")
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert said["models"] == ["plain", "autos"] and said["url"].startswith("http://127.0.0.1:")
    with httpx.Client(base_url=said["url"], timeout=PATIENCE, trust_env=False) as client:
        assert client.post("/v1/models/plain/predict", content=b"1,2,3,4", headers=CSV).status_code == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == status and f"stopped by {number.name}" in err
    assert "Traceback" not in err and json.loads(out)["error"]["code"] == f"DL4J-{number.name}"


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("gone.zip",), 8, "gone.zip does not exist"),
        (("plain.csv",), 8, "no model at all"),
        (("plain.zip", "x/plain.zip"), 2, "two models are called 'plain'"),
        (("a b.zip",), 2, "write NAME=a b.zip"),
        (("plain.zip", "--port", "70000"), 2, "--port is 70000"),
        (("plain.zip", "--host", "0.0.0.0", "--port", "0"), 6, "there is no token"),
        (("plain.zip", "--host", "no.such.host.invalid", "--port", "0"), 6, "there is no token"),
        (("plain.zip", "--timeout", "0"), 2, "--timeout 0"),
        (("plain.zip", "--max-queue", "0"), 2, "--max-queue is '0'"),
        (("plain.zip", "--batch-limit", "0"), 2, "--batch-limit is '0'"),
        (("plain.zip", "--workers", "two"), 2, "--workers is 'two'"),
        (("plain.zip", "--batch-delay", "-1"), 2, "--batch-delay is '-1'"),
        (("plain.zip", "--batch-delay", "100"), 2, "batch_delay is 100.0; it must be from 0 to 60 seconds"),
        (("plain.zip", "--inference-mode", "inplace"), 2, "--inference-mode is 'inplace'"),
        (("plain.zip", "--token-file", "gone"), 3, "gone cannot be read"),
    ],
)
def test_a_command_that_cannot_serve_says_why(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: Any,
    status: int,
    says: str,
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as leave:
        main.main(["serve", *words])
    err = capsys.readouterr().err
    assert leave.value.code == status and says in err, err


def test_a_port_that_is_taken_and_a_library_that_is_missing_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with bind("127.0.0.1", 0, "the models") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"cannot be served at 127.0.0.1:{port}: address already in use"):
            bind("127.0.0.1", port, "the models")
    with pytest.raises(UsageError, match="no address of this machine is known by that name"):
        bind("no.such.host.invalid", 0, "the models")
    monkeypatch.delitem(sys.modules, "dl4jlegacy.serving.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit) as leave:
        main.main(["serve", str(folder / "plain.zip")])
    assert leave.value.code == 3
    assert "dl4j serve needs uvicorn: type './install serve'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/csv", "age,colour,fuel\n3,red,oil\n"),
        ("application/x-ndjson", '{"colour": "red", "fuel": "oil", "age": 3}\n'),
        ("application/json", '{"rows": [{"colour": "red", "fuel": "oil", "age": 3}]}'),
    ],
)
def test_an_answer_names_columns_that_the_model_does_not_know(every: httpx.Client, kind: str, body: str) -> None:
    def ask(content: str) -> dict[str, Any]:
        answer = every.post("/v1/models/cars/predict", content=content, headers={"content-type": kind})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    known = body.replace(",colour", "").replace(",red", "").replace('"colour": "red", ', "")
    assert ask(body) == {**ask(known), "unknown_columns": ["colour"]}
