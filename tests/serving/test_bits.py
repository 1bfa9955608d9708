"""However requests are batched, each is answered with the bits that ``dl4j predict`` computes of its rows."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dl4jlegacy import MultiLayerNetwork, load_model, write_model
from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.models.prediction import predict_blocks, rows_in
from dl4jlegacy.models.queue import Batching
from dl4jlegacy.nn.zoo import lenet, mlp
from tests.serving.test_serving import Held, serving
from tests.support.cluster_commands import until

SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 1, 31, 32, 4, 1, 1, 9, 64)
PATIENCE = 60.0


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held(monkeypatch)
    yield found
    found.may_go.set()


def npy(array: Array) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


@pytest.mark.parametrize("name", ["mlp", "lenet"])
@pytest.mark.parametrize(
    "batching",
    [
        Batching(batch_limit=8),
        Batching(batch_limit=32),
        Batching(batch_limit=200),
        Batching(batch_limit=64, workers=2),
        Batching(mode="sequential"),
    ],
    ids=lambda batching: f"{batching.mode}-{batching.batch_limit}-{batching.workers}",
)
@pytest.mark.everyday(2)
def test_each_answer_equals_dl4j_predict_however_requests_are_batched(
    tmp_path: Path, held: Held, name: str, batching: Batching
) -> None:
    network = MultiLayerNetwork(mlp(784, 10) if name == "mlp" else lenet(784, 10))
    write_model(network, tmp_path / "model.zip")
    rows = np.random.default_rng(3).random((sum(SIZES), 784), dtype=np.float32).round(3)
    file = tmp_path / "rows.csv"
    file.write_text("".join(",".join(map(repr, row)) + "\n" for row in rows.tolist()))
    model = load_model(tmp_path / "model.zip")
    predicted = predict_blocks([model.answer], rows_in(model, str(file))[0])  # as the command does
    expected = np.concatenate([block.outputs for block in predicted])
    starts = np.cumsum([0, *SIZES])
    asked = [rows[start:stop] for start, stop in itertools.pairwise(starts)]
    headers = {"content-type": "application/x-npy", "accept": "application/x-npy"}
    with serving(tmp_path / "model.zip", batching=batching) as client, ThreadPoolExecutor(len(SIZES)) as pool:
        served = client.service.models["model"]

        def ask(part: Array) -> httpx.Response:
            answer: Any = client.post("/predict", content=npy(part), headers=headers)
            return answer

        answers = [pool.submit(ask, part) for part in asked]
        until(lambda: served.pending == len(SIZES))
        held.may_go.set()
        contents = [each.result(PATIENCE).content for each in answers]
        found = [np.load(io.BytesIO(each)) for each in contents]  # not while the server reads headers: see answers.py
    for part, start, stop in zip(found, starts[:-1], starts[1:], strict=True):
        assert part.tobytes() == expected[start:stop].tobytes(), f"{stop - start} rows from {start} on"
