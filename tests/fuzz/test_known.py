"""Inputs that once ended in a traceback, a status 500 or no answer, each with its error message."""

from __future__ import annotations

import json
import logging
import struct
import zipfile
from pathlib import Path

import pytest

from dl4jlegacy.system.console import open_console
from dl4jlegacy.ui.run_sources import FolderSource
from tests.fuzz.commands import answer
from tests.support import DATA
from tests.support.dashboards import KeptRun, served

CONF = {"model": "mlp", "dataset": "iris", "epochs": 1}
TRAIN, TUNE, SUMMARY = ("train", "{}", "--workers", "1"), ("tune", "{}", "--trials", "1"), ("summary", "{}")
TEXTS = {
    "recursive list": ("c.yaml", "epochs: &a [*a]", TRAIN, 3, "nested more than 100 deep, or holds itself"),
    "recursive map": ("c.yaml", "router_args: &a {b: *a}", TUNE, 3, "nested more than 100 deep, or holds itself"),
    "many aliases": (
        "c.yaml",
        "\n".join(
            ["a0: &a0 [1, 1, 1, 1, 1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
        ),
        *(TRAIN, 3, "aliases make it larger than its text"),
    ),
    "many merges": (
        "c.yaml",
        "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: *a{i - 1}, k{i}: 1}}\n" for i in range(1, 300)),
        *(TRAIN, 3, "merges (<<) make it larger than its text"),
    ),
    "merge of itself": ("c.yaml", "router_args: &a {<<: [{b: 1}, *a]}", TUNE, 3, "a map merges itself"),
    "long merge": (
        "c.yaml",
        "seed: &a0 {}\nx: [" + ", ".join(f"&a{i} {{<<: *a{i - 1}}}" for i in range(1, 2000)) + "]\n<<: *a1999",
        *(SUMMARY, 3, "lead from one to the next, too deep"),
    ),
    "a date is a text": ("c.yaml", "epochs: 2001-99-01", SUMMARY, 3, "Expected `int`, got `str` at $.epochs"),
    "deep JSON": ("c.json", '{"layers":' * 400 + "1" + "}" * 400, SUMMARY, 3, "nested more than 100 deep"),
    "epochs without number": (
        "c.json",
        json.dumps({**CONF, "epochs": 10**12, "validation": {"fraction": 0.2}}),
        *(TRAIN, 3, "a run at most 1,000,000"),
    ),
    "more epochs": (
        "c.yaml",
        json.dumps({**CONF, "epochs": 10**18, "search": {"batch_size": [8, 16]}}),
        *(TUNE, 1, "a run at most 1,000,000"),
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_conf_is_answered(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, text, command, status, said = TEXTS[name]
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(text)
    found = answer([word.replace("{}", file) for word in command])
    assert (found.status, found.fault) == (status, "") and said in found.err, found.err


def test_a_file_of_keras_whose_weights_are_said_to_be_huge_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(DATA / "keras" / "dense_3.keras") as whole, zipfile.ZipFile("huge.keras", "w") as made:
        for name in whole.namelist():
            content = bytearray(whole.read(name))
            if name.endswith(".h5"):
                struct.pack_into("<Q", content, 48, 0xB8FFFFFFFFFFFFFF)  # the address of the driver's block
            made.writestr(name, bytes(content))
    found = answer(["export", "huge.keras", "--out", "m.zip"])
    assert (found.status, found.fault) == (8, ""), found.err


def test_an_archive_whose_names_are_no_utf_8_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("names.zip", "w") as made:
        made.writestr("configurätion.json", "{}")
    content = Path("names.zip").read_bytes().replace("ä".encode(), b"\xff\xff")
    for file, command in (
        ("names.zip", ("export", "names.zip", "--out", "m.zip")),
        ("n.npz", ("data", "inspect", "n.npz")),
    ):
        Path(file).write_bytes(content)
        found = answer([word.replace("{}", file) for word in command])
        assert (found.status in (3, 8), found.fault) == (True, ""), found.err


VARIABLES = {
    "AWS_ENDPOINT_URL": "localhost:9000",
    "AWS_MAX_ATTEMPTS": "many",
    "AWS_STS_REGIONAL_ENDPOINTS": "x",
    "AWS_DEFAULTS_MODE": "x",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_of_aws_is_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv(name, VARIABLES[name])
    found = answer(["aws", "status", "x"])
    assert (found.status, found.fault) == (3, "") and "AWS_" in found.err, found.err


@pytest.mark.parametrize("damage", [{"validation": [1]}, {"batch_size": "x"}, {"images": {"height": "x", "width": 1}}])
def test_a_dashboard_of_a_conf_of_other_kinds_is_answered(tmp_path: Path, damage: dict[str, object]) -> None:
    run = KeptRun(tmp_path / "run")
    tree = json.loads((run.path / "conf.json").read_text())
    (run.path / "conf.json").write_text(json.dumps(tree | damage))
    with served(FolderSource(str(run.path))) as (client, panel):
        answers = [client.get(f"/api/v1/{path}").status_code for path in ("run", "network", "model", "history")]
        assert panel.watcher.view.away is not None and "conf.json" in panel.watcher.view.away.message
    assert max(answers) < 500


def test_the_log_of_a_bug_has_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for json_lines in (False, True):
        open_console(json_lines=json_lines)
        try:
            raise KeyError("nowhere")
        except KeyError:
            logging.getLogger("dl4jlegacy.test").exception("a request failed")
        said = capsys.readouterr().err
        assert "a request failed" in said and "Traceback" in said and "KeyError: 'nowhere'" in said
    assert json.loads(said)["message"] == "a request failed"


def test_a_bug_of_the_dashboard_is_logged_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = KeptRun(tmp_path / "run")
    with served(FolderSource(str(run.path))) as (client, panel):
        monkeypatch.setattr(type(panel.watcher), "history", property(lambda _: 1 / 0))
        found = client.get("/api/v1/history")
    assert found.status_code == 500 and found.json()["error"]["code"] == "DL4J-INTERNAL"
    assert "ZeroDivisionError" in caplog.text
