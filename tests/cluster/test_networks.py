"""The parameters of image and recurrent networks do not depend on the cluster: embedded, over processes, with kills."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.cluster_commands import COMMAND, REPOSITORY, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SAME = ["--jobs-per-round", "4", "--batch-size", "8", "--seed", "7"]


def images(folder: Path) -> str:
    """Write 128 images of 28 x 28 with a bar at one of four places, as a CSV file; return its path."""
    rng = np.random.default_rng(5)
    classes = np.arange(128) % 4
    pixels = rng.integers(0, 120, (128, 28, 28))
    for image, place in zip(pixels, classes, strict=True):
        image[4 + 6 * place : 8 + 6 * place] += 130
    rows = np.column_stack([pixels.reshape(128, -1), classes])
    path = folder / "bars.csv"
    np.savetxt(path, rows, fmt="%d", delimiter=",")
    return str(path)


def text(folder: Path) -> str:
    """Write some 4,000 characters of Shakespeare's; return the file's path."""
    sonnets = (REPOSITORY / "dl4jlegacy" / "datasets" / "data" / "sonnets.txt").read_text(encoding="utf-8")
    path = folder / "some.txt"
    path.write_text(sonnets[-4000:], encoding="utf-8")
    return str(path)


def embedded(run: list[str], workers: int) -> dict:
    """Return what ``dl4j train`` with so many workers says."""
    command = [*COMMAND, "train", *run, "--workers", str(workers), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("model", "data", "epochs"), [("lenet", images, "4"), ("char-lstm", text, "4"), ("word-lstm", text, "4")]
)
def test_a_network_comes_out_the_same_embedded_and_on_the_cluster_with_a_worker_killed(
    model: str, data: Callable[[Path], str], epochs: str, cluster: Cluster, tmp_path: Path
) -> None:
    run = ["--model", model, "--dataset", data(tmp_path), "--epochs", epochs, *SAME]
    run += ["--tokens", "words"] if model == "word-lstm" else []
    expected = embedded(run, 4)
    cluster.hold(1)
    master = cluster.master(run=run)
    doomed, other = cluster.worker(), cluster.worker()
    cluster.wait_for_round(1)
    doomed.process.kill()
    cluster.worker().says("joined")
    cluster.let_go()
    assert master.wait(120) == 0, master.err()
    report = json.loads(master.out())
    assert report["params_sha256"] == expected["params_sha256"]
    assert report["examples"] == expected["examples"]
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert other.wait() == 0, other.err()
    assert doomed.wait() == -9, "the worker was gone before it could be killed"
    assert cluster.left_at_end() == []


def listed(folder: Path) -> str:
    """Write 64 small images with a bar at one of two places, and a table that lists them; return its path."""
    rng = np.random.default_rng(5)
    rows = ["file,place,width"]
    for number in range(64):
        pixels = rng.integers(0, 120, (8, 8)).astype(np.uint8)
        pixels[number % 2 * 4] = 250
        (folder / "bars").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / "bars" / f"{number:02}.png")
        rows.append(f"bars/{number:02}.png,{'low' if number % 2 else 'high'},8")
    path = folder / "list.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return str(path)


def sequences(folder: Path) -> str:
    """Write 64 sequences of different lengths, in a file each, with a class at each step; return their folder."""
    rng, path = np.random.default_rng(6), folder / "sequences"
    path.mkdir()
    for number in range(64):
        rows = [f"{x:.3f},{'up' if x > 0 else 'down'}" for x in rng.normal(size=3 + number % 5)]
        (path / f"{number}.csv").write_text("\n".join(rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (text, ["--tokens", "words"]),
        (sequences, ["--sequences"]),
        (listed, ["--model", "mlp", "--images", "file", "--label", "place"]),
    ],
)
def test_workers_of_a_cluster_read_texts_sequences_and_listed_images_themselves(
    data: Callable[[Path], str], options: list[str], cluster: Cluster, tmp_path: Path
) -> None:
    run = ["--dataset", data(tmp_path), *options, "--epochs", "3", *SAME]
    expected = embedded(run, 2)
    master = cluster.master(run=[*run, "--data-by-reference"])
    workers = [cluster.worker(), cluster.worker()]
    assert master.wait(120) == 0, master.err()
    assert json.loads(master.out())["params_sha256"] == expected["params_sha256"]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert cluster.left_over() == []
