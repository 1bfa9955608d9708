"""Crowds of strangers at the ports of a process: what it does goes on, ends in the same bits, and costs no more."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_commands import until
from tests.support.strangers import FEW, HTTP, MANY, PATIENCE, Crowd, Strangers, Watched

DL4J = (sys.executable, "-m", "dl4jlegacy")
TRAIN = (*DL4J, "train", "--model", "mlp", "--dataset", "digits", "--workers", "2", "--seed", "7", "--format", "json")
MORE_NBYTES, MORE_SAID = 64 << 20, 64 << 10


def answered(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        found: bytes = answer.read()
        return found


def port_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    return host, int(port)


def trained(folder: Path, epochs: int, files: int, crowd: Crowd | None, *flags: str) -> tuple[dict[str, Any], int, int]:
    """Train with a dashboard and metrics, among strangers or not; return the result, and its memory and its stderr."""
    words = (*TRAIN, "--epochs", str(epochs), "--log-format", "json", "--checkpoint-dir", "kept", "--ui", *flags)
    with Watched([*words, "--checkpoint-every", "50"], folder, files, {"DL4J_UI_PORT": "0"}) as run:
        urls = [
            json.loads(run.says(f'"event": "{what}"'))["url"] for what in (("dashboard", "metrics")[: 1 + bool(flags)])
        ]
        asked = [f"{urls[0]}api/v1/run", *urls[1:]]
        run.says('"event": "progress"')
        before = [answered(url) for url in asked] and run.footprint()
        if crowd is not None:
            with Strangers({port_of(url): HTTP for url in urls}, crowd) as strangers:
                assert strangers.all_came.wait(PATIENCE)
                assert all(answered(url) for url in asked)
            assert run.process.poll() is None, "it has ended before the strangers left: give it more epochs"
            until(lambda: run.footprint().files <= before.files, PATIENCE, "as many open files as before")
        result = json.loads(run.ends())
        return result, run.most_nbytes, run.err.stat().st_size


@pytest.mark.parametrize(
    ("epochs", "files", "crowd"),
    [(60, 256, FEW), pytest.param(200, 1024, MANY, marks=pytest.mark.release)],
    ids=["few", "many"],
)
@pytest.mark.parametrize("flags", [()], ids=["dashboard"])
def test_strangers_at_the_ports_of_a_training_change_nothing(
    epochs: int, files: int, crowd: Crowd, flags: tuple[str, ...], tmp_path: Path, record_property: Callable[..., None]
) -> None:
    quiet, nbytes, said = trained(tmp_path / "quiet", epochs, files, None, *flags)
    found, more_nbytes, more_said = trained(tmp_path / "crowded", epochs, files, crowd, *flags)
    record_property("more_nbytes", more_nbytes - nbytes)
    record_property("more_said", more_said - said)
    assert found["params_sha256"] == quiet["params_sha256"]
    assert more_nbytes - nbytes < MORE_NBYTES and more_said - said < MORE_SAID
