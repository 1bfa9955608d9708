"""The dashboard's interface: the original's eleven routes, the OpenAPI document, and everything hostile sent to it."""

from __future__ import annotations

import errno
import itertools
import random
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
import openapi_spec_validator
import pytest

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.ui import legacy_routes as legacy
from dl4jlegacy.ui.run_sources import FolderSource
from dl4jlegacy.ui.server import ENDPOINTS
from tests.support.dashboards import HOSTILE, KeptRun, TrackedRun, bearer, history, served

HOSTILE_VALUES = [
    *(
        "",
        " ",
        "0",
        "-1",
        "-0",
        "1",
        "00",
        "1e3",
        "1.0",
        "0x10",
        "\u0661",
        "1_000",
        "true",
        "null",
        "NaN",
        "[]",
        "{}",
        "9" * 18,
    ),
    *(
        "9" * 19,
        "-" + "9" * 18,
        "9" * 5000,
        "--1",
        "../../etc/passwd",
        "%00",
        "%2e%2e",
        "\x00",
        "\n\r",
        "\ud7ff",
        "\U0010ffff",
    ),
    *(
        HOSTILE,
        "' OR 1=1 --",
        "${jndi:ldap://x}",
        "a" * 4000,
        "log/",
        "worker_gone",
        "*",
        "|",
        "\\",
        ";",
        "#",
        "é" * 100,
    ),
]


def full_run() -> TrackedRun:
    source = TrackedRun()
    source.set_head(3)
    source.set_worker(0, job="3/0", jobs_done=6)
    source.set_worker(1)
    source.set_job(3, 0, worker="host-0")
    source.set_job(3, 1, state="done", worker="host-1", seconds=0.5, version=3)
    source.journal.write("worker_joined", worker=HOSTILE)
    source.entries = history(25)
    return source


# --- the original's routes --------------------------------------------------------------------------------------------


def test_there_are_the_eleven_routes_of_the_original() -> None:
    assert [(each.method, each.path.removeprefix("/statetracker")) for each in legacy.ENDPOINTS] == [
        ("GET", "/minibatch"),
        ("POST", "/minibatch/{num}"),
        ("GET", "/numbatchessofar"),
        ("GET", "/jobs"),
        ("GET", "/phase"),
        ("GET", "/workers"),
        ("GET", "/workers/num"),
        ("GET", "/updates/num"),
        ("GET", "/printmodel"),
        ("GET", "/model.ser"),
        ("PUT", "/save"),
    ]


def test_they_answer_from_the_run(tmp_path: Path) -> None:
    source = full_run()
    with served(source, folder=str(tmp_path)) as (client, panel):

        def get(path: str) -> Any:
            return client.get(f"/statetracker/{path}").json()

        assert get("minibatch") == {"minibatch": 25} and get("numbatchessofar") == {"numbatches": 6}
        assert get("jobs") == ["host-0"] and get("workers") == ["host-0", "host-1"]
        assert (get("workers/num"), get("updates/num"), get("phase")) == (2, 1, {"phase": "finetune"})
        assert "softmax" in get("printmodel")["model"] or "output" in get("printmodel")["model"]
        serialized = client.get("/statetracker/model.ser")
        assert serialized.status_code == 410 and "dl4j export" in serialized.json()["error"]["message"]
        changed = client.post("/statetracker/minibatch/64", headers=bearer(panel))
        assert changed.status_code == 409 and "--batch-size 64" in changed.json()["error"]["message"]
        assert get("minibatch") == {"minibatch": 25}
        saved = client.put("/statetracker/save", headers=bearer(panel)).json()
        assert saved == {"status": "saved", "message": f"saved in {tmp_path}/r1-round-3.zip"}
        for method, path in (("POST", "minibatch/64"), ("PUT", "save")):
            assert client.request(method, f"/statetracker/{path}").status_code == 401
        source.set_gone(host="killed")
        panel.watcher.look()
        assert (get("workers"), get("workers/num")) == ([], 0)


def test_they_say_so_while_nothing_is_known_of_the_run() -> None:
    source = TrackedRun()
    source.is_away = True
    with served(source) as (client, _):
        for each in legacy.ENDPOINTS:
            if each.method == "GET":
                answer = client.get(each.path)
                assert answer.status_code == 409 and "nothing is known" in answer.json()["error"]["message"], each.path
        assert client.get("/api/v1/run").json()["run"] is None


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_document_is_valid_and_names_every_endpoint_that_is_served() -> None:
    with served(full_run()) as (client, _):
        document = client.get("/api/v1/openapi.json").json()
    openapi_spec_validator.validate(document)
    named = {(method.upper(), path) for path, of in document["paths"].items() for method in of}
    assert named == {(each.method, each.path) for each in ENDPOINTS} and len(named) == 27
    for method, path in named:
        assert ("security" in document["paths"][path][method.lower()]) == (method != "GET"), path


@pytest.mark.parametrize("kind", ["tracker", "folder", "away"])
def test_answers_have_the_shape_that_the_document_says(kind: str, tmp_path: Path) -> None:
    kept = KeptRun(tmp_path / "run")
    kept.write(history(25))
    source = FolderSource(str(kept.path)) if kind == "folder" else full_run()
    if isinstance(source, TrackedRun):
        source.fail_job(3, 1, "RuntimeError: x")
        source.is_away = kind == "away"
    with served(source, folder=str(tmp_path)) as (client, panel):
        document = client.get("/api/v1/openapi.json").json()
        for each in ENDPOINTS:
            if each.media != "application/json" or each.path == "/api/v1/stop":
                continue
            answer = client.request(each.method, each.path.replace("{num}", "5"), headers=bearer(panel))
            responses = document["paths"][each.path][each.method.lower()]["responses"]
            assert str(answer.status_code) in responses, (each.path, answer.status_code, answer.text)
            schema = responses[str(answer.status_code)]["content"]["application/json"]["schema"]
            jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())


# --- what is hostile --------------------------------------------------------------------------------------------------


def requests_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Every operation of a document with hostile values of each parameter, and of parameters that it does not have."""
    found = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            query = [each["name"] for each in operation["parameters"] if each["in"] == "query"]
            for value in HOSTILE_VALUES if operation["parameters"] else HOSTILE_VALUES[::6]:
                sent = quote(value, safe="", errors="replace")
                filled = path.replace("{num}", sent)
                found += [(method, f"{filled}?{name}={sent}") for name in (*query, "unknown", sent)]
                found.append((method, filled))
            for first, second in itertools.product(query, query):
                found.append((method, f"{path.replace('{num}', '1')}?{first}=1&{second}=1"))
    return found


@pytest.mark.long
@pytest.mark.parametrize("is_away", [False, True], ids=["known", "away"])
def test_no_parameter_of_the_interface_makes_the_server_fail(is_away: bool, tmp_path: Path) -> None:
    source = full_run()
    source.is_away = is_away
    source.stop = lambda: "stopped"  # type: ignore[method-assign]
    with served(source, folder=str(tmp_path)) as (client, panel):
        document = client.get("/api/v1/openapi.json").json()
        statuses = set()
        for method, url in requests_of(document)[:: 6 if is_away else 1]:
            with client.stream(method.upper(), url, headers=bearer(panel), timeout=10) as answer:
                statuses.add(answer.status_code)
                assert answer.status_code < 500, (method, url, answer.read())
                if answer.status_code >= 400:
                    assert set(answer.read() and answer.json()["error"]) == {"code", "message"}, (method, url)
        assert {200, 400} <= statuses <= {200, 400, 404, 405, 409, 410, 429}
        assert client.get("/api/v1/run").status_code == 200
    assert panel.streams == 0


@pytest.mark.long
def test_no_header_body_or_method_makes_the_server_fail() -> None:
    with served(full_run()) as (client, panel):
        headers = [
            {name: value}
            for name in ("host", "origin", "authorization", "cookie", "content-type", "accept", "range")
            for value in (
                "",
                "x",
                "a" * 8000,
                "\x7f",
                "é".encode().decode("latin-1"),
                "Basic ////",
                "Bearer",
                "[::1",
                "::",
                "http://",
            )
        ]
        for given, method in itertools.product(headers, ("GET", "POST", "TRACE")):
            encoded = {name: value.encode("latin-1") for name, value in given.items()}
            answer = client.request(method, "/api/v1/save", headers=encoded)
            assert 400 <= answer.status_code < 500, (method, given)
        for body in (b"", b"{", b"\x00" * 100_000):
            for endpoint in ENDPOINTS:
                if endpoint.method != "GET" and "stop" not in endpoint.path:
                    answer = client.request(endpoint.method, endpoint.path, content=body, headers=bearer(panel))
                    assert answer.status_code < 500


@pytest.mark.long
def test_bytes_that_are_no_http_are_refused_and_nobody_waits() -> None:
    chance = random.Random(7)
    lines = [
        b"GET / HTTP/9.9",
        b"GET  /",
        b"\x16\x03\x01\x02\x00",
        b"GET /%ff%fe HTTP/1.1\r\nHost: localhost",
        b"PRI * HTTP/2.0",
    ]
    lines += [bytes(chance.randrange(256) for _ in range(chance.randrange(1, 400))) for _ in range(30)]
    lines.append(b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost")
    lines.append(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(5000)))
    with served(full_run()) as (client, _):
        for line in lines:
            with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as raw:
                try:
                    raw.sendall(line + b"\r\n\r\n")
                    raw.shutdown(socket.SHUT_WR)
                    answer = raw.recv(1 << 16)
                except OSError as error:
                    # shutdown() of a connection that was reset before says that there is none, and that is no
                    # ConnectionError; a timeout is not among the refusals.
                    assert isinstance(error, ConnectionError) or error.errno == errno.ENOTCONN, (line[:60], error)
                    answer = b""
                assert not answer or answer.split()[1][:1] in b"24", (line[:60], answer[:60])
        assert client.get("/api/v1/run").status_code == 200


def test_a_run_with_hostile_texts_is_told_as_what_it_is(tmp_path: Path) -> None:
    source = TrackedRun()
    source.set_head(1, stopped_by=HOSTILE)
    source.set_worker(0, host=HOSTILE, device=HOSTILE)
    source.fail_job(1, 0, HOSTILE)
    with served(source) as (client, _):
        assert client.get("/api/v1/run").json()["run"]["stopped_by"] == HOSTILE
        assert client.get("/api/v1/workers").json()["workers"][0]["host"] == HOSTILE
        assert client.get("/api/v1/jobs").json()["jobs"][0]["failures"][0]["message"] == HOSTILE


def test_a_name_of_a_run_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    source = TrackedRun()
    with served(source, folder=str(tmp_path)) as (client, panel):
        for name in ("../../x", "..", "/etc/x", "a/b\x00c", ""):
            source.set_head(1)
            run = panel.watcher.view.run
            assert run is not None
            source.place = name
            reading = source.read()
            from msgspec.structs import replace

            panel.watcher.view = replace(panel.watcher.view, run=replace(reading.run, run=name))
            client.post("/api/v1/save", headers=bearer(panel))
        assert source.saved
        for out in source.saved:
            assert Path(out).resolve().parent == tmp_path.resolve() and not Path(out).name.startswith("."), out


def test_an_error_of_the_run_is_an_answer_with_its_code() -> None:
    source = TrackedRun()

    def fails() -> str:
        raise TrackerError("the grid is away")

    source.stop = fails  # type: ignore[method-assign]
    with served(source) as (client, panel):
        answer = client.post("/api/v1/stop", headers=bearer(panel))
        assert (answer.status_code, answer.json()["error"]) == (
            409,
            {"code": "DL4J-TRACKER", "message": "the grid is away"},
        )
