"""Models that are served from S3: a new object, or a new checkpoint below a prefix, takes the place of the old one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.storage.s3.uploader import S3Uploader
from tests.serving.test_serving import post, run, serving, write_plain
from tests.support.aws_fixtures import Fault, FaultProxy
from tests.support.cluster_commands import until

BUCKET = "dl4j-served-models"
URL = f"s3://{BUCKET}/served/plain.zip"
Put = Callable[[str, bytes], None]


@pytest.fixture
def put(aws_environment: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Writes an object below ``served/``."""
    monkeypatch.setenv("DL4J_S3_CACHE", str(tmp_path / "copies"))

    def write(name: str, content: bytes) -> None:
        with Aws() as aws:
            uploader = S3Uploader(aws)
            uploader.ensure_bucket(BUCKET)
            uploader.put(content, Location(BUCKET, f"served/{name}"))

    return write


def model(folder: Path, seed: int) -> bytes:
    write_plain(folder / f"of-{seed}.zip", seed)
    return (folder / f"of-{seed}.zip").read_bytes()


def problem(client: Any) -> str:
    found: str = client.get("/v1/models/plain").json()["problem"]
    return found


def test_a_new_object_is_served_and_a_broken_or_missing_one_is_not(
    put: Put, tmp_path: Path, aws_environment: FaultProxy
) -> None:
    put("plain.zip", model(tmp_path, 1))
    with serving(URL, every=0.005) as client:
        first = post(client)
        assert (first.status_code, first.headers["dl4j-model-version"]) == (200, "1")
        put("plain.zip", model(tmp_path, 2))
        until(lambda: client.get("/v1/models/plain").json()["version"] == 2)
        second = post(client)
        assert second.json()["probabilities"] != first.json()["probabilities"]
        put("plain.zip", b"no model")
        until(lambda: "no model at all" in problem(client))
        with Aws() as aws:
            aws.client("s3").delete_object(Bucket=BUCKET, Key="served/plain.zip")
        until(lambda: f"there is nothing at {URL}" in problem(client))
        assert post(client).json() == second.json()
        put("plain.zip", model(tmp_path, 1))
        until(lambda: client.get("/v1/models/plain").json()["version"] == 3)
        assert post(client).json() == first.json() and not problem(client)


def test_s3_that_is_away_leaves_the_model_where_it_is_and_is_asked_again(
    put: Put, tmp_path: Path, aws_environment: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    put("plain.zip", model(tmp_path, 1))
    with serving(URL, every=0.005) as client:
        first = post(client)
        aws_environment.judge = lambda request: Fault("error", "InternalError", 500)
        until(lambda: "served/plain.zip" in problem(client))
        assert post(client).json() == first.json()
        aws_environment.judge = lambda request: None
        put("plain.zip", model(tmp_path, 2))
        until(lambda: not problem(client) and post(client).json() != first.json())
    assert sum("version 1 goes on" in record.message for record in caplog.records) == 1, "it is said once"


def test_the_newest_checkpoint_below_a_prefix_is_served(put: Put, tmp_path: Path) -> None:
    def trained(epochs: int) -> None:
        folder = tmp_path / f"checkpoints-{epochs}"
        words = ("train", "--dataset", "iris", "--model", "mlp", "--workers", "1", "--epochs", str(epochs))
        run(*words, "--checkpoint-dir", str(folder), "--format", "json")
        for file in sorted(folder.iterdir(), key=lambda file: file.name.startswith("checkpoint-")):
            if not file.name.startswith("."):
                put(f"run/{file.name}", file.read_bytes())

    trained(1)
    with serving(f"run=s3://{BUCKET}/served/run", every=0.005) as client:
        before = post(client)
        assert before.status_code == 200, before.text
        put("run/notes.txt", b"nothing of a model")
        trained(3)
        until(lambda: post(client).json() != before.json())
        assert client.get("/v1/models/run").json()["problem"] == ""
