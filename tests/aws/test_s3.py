"""S3, against moto's server: big files over connections that break, thousands of keys, models, checkpoints, data."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.errors import CloudError, ConfError, DataError
from dl4jlegacy.storage.s3.cache import fetch
from dl4jlegacy.storage.s3.downloader import BucketIterator, S3Downloader
from dl4jlegacy.storage.s3.locations import Location, legacy_bucket_name
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.storage.s3.uploader import SHA256, S3Uploader
from tests.support.aws_fixtures import Fault, FaultProxy

MIB = 1 << 20


@pytest.fixture
def bucket(aws: Aws) -> str:
    S3Uploader(aws).ensure_bucket("some-bucket")
    return "some-bucket"


def random_file(path: Path, nbytes: int) -> str:
    """Write a file that does not compress; return its SHA-256."""
    generator, digest = np.random.default_rng(7), hashlib.sha256()
    with path.open("wb") as file:
        for start in range(0, nbytes, 16 * MIB):
            part = generator.bytes(min(16 * MIB, nbytes - start))
            digest.update(part)
            file.write(part)
    return digest.hexdigest()


class Breaks:
    """Breaks a connection once for each of these offsets: within the body of a part, or of an answer."""

    def __init__(self, times: int, after: int) -> None:
        self.left, self.after, self.lock, self.done = times, after, threading.Lock(), 0

    def __call__(self, applies: bool) -> int | None:
        with self.lock:
            if not applies or not self.left:
                return None
            self.left -= 1
            self.done += 1
            return self.after


@pytest.mark.long
def test_200_mb_go_up_and_down_over_connections_that_break(
    aws: Aws, bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    digest = random_file(tmp_path / "big", 200_000_000)
    up = Breaks(2, 3 * MIB)
    fault_proxy.cut = lambda request, size: up(size > 4 * MIB and "partNumber=12" in request.path)
    S3Uploader(aws).multi_part_upload(tmp_path / "big", bucket, "models/big")
    assert up.done == 2
    head = S3Downloader(aws).head(Location(bucket, "models/big"))
    assert (head["ContentLength"], head["Metadata"][SHA256]) == (200_000_000, digest)
    assert head["ETag"].strip('"').endswith("-24")
    down = Breaks(1, 77 * MIB + 13)
    fault_proxy.cut_response = lambda request, size: down(size > 100 * MIB)
    fault_proxy.requests.clear()
    S3Downloader(aws).download(bucket, "models/big", tmp_path / "back")
    with (tmp_path / "back").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest
    ranges = [request.headers["range"] for request in fault_proxy.requests if "range" in request.headers]
    assert down.done == 1
    assert ranges[0] == "bytes=0-"
    assert int(ranges[1][6:-1]) > 50 * MIB  # what had arrived is not asked for again
    assert len(ranges) == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["back", "big"]


def test_a_broken_upload_is_gone_on_with_by_the_next_call(
    aws: Aws, bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    digest = random_file(tmp_path / "file", 21 * MIB)
    fault_proxy.judge = lambda request: Fault("reset-before") if "partNumber=3" in request.path else None
    uploader = S3Uploader(aws, part_nbytes=5 * MIB)
    with pytest.raises(CloudError, match=r"s3://some-bucket/file: AWS could not be reached"):
        uploader.multi_part_upload(tmp_path / "file", bucket)
    assert [uploader.abort(bucket), uploader.abort(bucket)] == [1, 0]  # an upload that is given up costs nothing more
    with pytest.raises(CloudError):
        uploader.multi_part_upload(tmp_path / "file", bucket)
    fault_proxy.reset()
    uploader.multi_part_upload(tmp_path / "file", bucket)
    sent = [request.path for request in fault_proxy.requests if "partNumber=" in request.path]
    assert [path for path in sent if "partNumber=3" in path]
    assert len(sent) < 5
    assert hashlib.sha256(S3Downloader(aws).object_for_key(bucket, "file")).hexdigest() == digest
    assert uploader.abort(bucket) == 0


def test_a_broken_download_is_gone_on_with_unless_the_object_has_changed(
    aws: Aws, bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    first, second = np.random.default_rng(1).bytes(24 * MIB), np.random.default_rng(2).bytes(3 * MIB)
    uploader, downloader = S3Uploader(aws), S3Downloader(aws)
    uploader.put(first, Location(bucket, "key"))
    gone = Breaks(1, 20 * MIB)
    fault_proxy.cut_response = lambda request, size: gone(size > MIB)
    fault_proxy.judge = lambda request: Fault("reset-before") if gone.done and "range" in request.headers else None
    with pytest.raises(CloudError):
        downloader.download(bucket, "key", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    fault_proxy.reset()
    downloader.download(bucket, "key", tmp_path / "copy")
    [request] = [r for r in fault_proxy.requests if "range" in r.headers]
    assert int(request.headers["range"][6:-1]) >= MIB
    assert (tmp_path / "copy").read_bytes() == first
    (tmp_path / ".copy.part").write_bytes(first[:MIB])
    (tmp_path / ".copy.part.json").write_text(json.dumps({"etag": '"of-before"', "size": 3 * MIB}))
    uploader.put(second, Location(bucket, "key"))
    downloader.download(bucket, "key", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == second


def test_content_that_is_not_what_was_uploaded_is_refused(aws: Aws, bucket: str, tmp_path: Path) -> None:
    aws.client("s3").put_object(Bucket=bucket, Key="key", Body=b"changed", Metadata={SHA256: "0" * 64})
    with pytest.raises(CloudError, match="upload it again"):
        S3Downloader(aws).download(bucket, "key", tmp_path / "copy")
    with pytest.raises(CloudError, match="upload it again"):
        S3Downloader(aws).object_for_key(bucket, "key")
    assert list(tmp_path.glob("*copy*")) == []
    assert str(S3Uploader(aws).upload(io.BytesIO(b"content"), "name", "new-bucket")) == "s3://new-bucket/name"
    back = io.BytesIO()
    S3Downloader(aws).download("new-bucket", "name", back)
    assert back.getvalue() == b"content"


@pytest.mark.long
def test_a_bucket_of_1100_keys_is_iterated_page_by_page(aws: Aws, bucket: str, fault_proxy: FaultProxy) -> None:
    s3, expected = aws.client("s3"), [f"keys/{number:04d}" for number in range(1100)]
    for key in expected:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    s3.put_object(Bucket=bucket, Key="other", Body=b"")
    fault_proxy.requests.clear()
    iterator = BucketIterator(aws, bucket, "keys/")
    assert list(iterator) == expected
    assert len(fault_proxy.requests) == 2
    assert next(iter(iterator)) == "keys/0000"
    assert len(fault_proxy.requests) == 3
    heard: list[str] = []
    S3Downloader(aws).paginate(bucket, lambda client, name, key: heard.append(f"{name}/{key}"), "keys/10")
    assert len(heard) == 100
    assert len(S3Downloader(aws).keys_for_bucket(bucket)) == 1101
    assert S3Downloader(aws).buckets() == [bucket]


def test_what_is_not_there_is_named(aws: Aws, bucket: str, tmp_path: Path) -> None:
    for call in (
        lambda: list(BucketIterator(aws, "no-such-bucket-at-all")),
        lambda: S3Downloader(aws).download(bucket, "no-key", tmp_path / "x"),
        lambda: S3Downloader(aws).object_for_key(bucket, "no-key"),
        lambda: fetch("s3://some-bucket/nothing/here"),
    ):
        with pytest.raises(DataError, match="spelt right"):
            call()
    with pytest.raises(ConfError, match="is no place in S3"):
        Location.parse("s3://A_B/x")
    assert legacy_bucket_name("My Data.set-") == "my-datadset"


# --- s3:// wherever a path is accepted --------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leave:
        main.main([*arguments, "--format", "json"])
    return int(leave.value.code or 0)


@pytest.mark.long
def test_a_run_reads_its_data_from_s3_and_leaves_checkpoints_and_model_there(
    aws: Aws, capsys: pytest.CaptureFixture[str], repository: Path, tmp_path: Path
) -> None:
    iris = repository / "dl4jlegacy" / "datasets" / "data" / "iris.csv"
    S3Uploader(aws).upload(iris, "data/iris.csv", "my-things")
    places = ("--dataset", "s3://my-things/data/iris.csv", "--checkpoint-dir", "s3://my-things/runs/one")
    flags = ("--model", "mlp", "--epochs", "3", "--checkpoint-every", "2", "--seed", "7")
    assert run("train", *places, *flags, "--out", "s3://my-things/models/iris.zip") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model_path"] == "s3://my-things/models/iris.zip"
    assert report["dataset"] == "s3://my-things/data/iris.csv"
    keys = S3Downloader(aws).keys_for_bucket("my-things")
    assert "runs/one/conf.json" in keys
    assert sum(key.startswith("runs/one/checkpoint-") for key in keys) >= 2
    assert run("logs", "s3://my-things/runs/one", "--history") == 0
    assert json.loads(capsys.readouterr().out)["history"][-1]["examples"] == report["examples"]
    assert run("evaluate", "s3://my-things/models/iris.zip", "--dataset", "s3://my-things/data/") == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == report["accuracy"]
    assert run("train", *places, *flags) == 8  # checkpoints of a run are there
    assert "already holds checkpoints" in capsys.readouterr().err
    assert run("resume", "s3://my-things/runs/one") == 0
    assert json.loads(capsys.readouterr().out)["params_sha256"] == report["params_sha256"]
    assert run("train", "--dataset", str(iris), *flags, "--checkpoint-dir", str(tmp_path / "here")) == 0
    assert json.loads(capsys.readouterr().out)["params_sha256"] == report["params_sha256"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("evaluate", "s3://no-such-bucket-here/m.zip", "--dataset", "iris"), 3, ("no bucket no-such-bucket-here",)),
        (("train", "--dataset", "s3://Not-A-Bucket/x"), 3, ("s3://Not-A-Bucket/x", "no place in S3")),
        (("resume", "s3://no-such-bucket-here/run"), 8, ("holds no run",)),
        (("train", "--dataset", "iris", "--out", "s3://a-bucket/"), 8, ("names no object",)),
    ],
)
def test_bad_places_are_refused(arguments, status, words, aws, capsys) -> None:
    assert run(*arguments) == status
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for word in words:
        assert word in error
