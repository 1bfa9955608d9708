"""Limits of what is in a body, which are found before anything is made of it."""

from __future__ import annotations

import tracemalloc

import pytest

from dl4jlegacy import MultiLayerNetwork, load_model, write_model
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.nn.zoo import mlp
from dl4jlegacy.serving.answers import CSV, JSON, Limits, RefusedError, read_body
from dl4jlegacy.serving.body_limits import TooMuchError, check_json, check_lines
from dl4jlegacy.system.clock import Deadline

NBYTES = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    path = tmp_path_factory.mktemp("model") / "m.zip"
    write_model(MultiLayerNetwork(mlp(4, 3)), path, label_names=("a", "b", "c"))
    found = load_model(str(path))
    list(read_body(found, CSV, b"1,2,3,4\n", Limits(), Deadline(60.0)))
    return found


@pytest.mark.parametrize(
    ("media", "body"),
    [
        (JSON, b'{"rows":[' + b"[1]," * (NBYTES // 4) + b"[1]]}"),
        (JSON, b'{"rows":[[' + b"1," * (NBYTES // 2) + b"1]]}"),
        (JSON, b'{"rows":' + b"[" * NBYTES + b"}"),
        (JSON, b'{"rows":[' + b"{}," * (NBYTES // 3) + b"{}]}"),
        (JSON, b'{"rows":[' + b'"",' * (NBYTES // 3) + b'""]}'),
        (CSV, b"1,2,3,4\n" * (NBYTES // 8)),
        (CSV, b"1," * (NBYTES // 2) + b"1\n"),
        (CSV, b"\n" * NBYTES),
    ],
    ids=["short rows", "a long row", "deep", "objects", "texts", "lines", "a long line", "empty lines"],
)
def test_what_has_too_much_in_it_is_refused_before_anything_is_made_of_it(
    media: str, body: bytes, model: TrainedModel
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(
            RefusedError, match=r"the body has more than (10,000 rows|[0-9,]+ values); send it in parts"
        ):
            list(read_body(model, media, body, Limits(), Deadline(60.0)))
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


def test_what_texts_hold_is_no_row_and_no_value() -> None:
    check_json(b'{"rows": ["[[[[,,,,{{{{", "\\"[,[", "\\\\"]}', 3, 1)
    check_lines(b'a,b\n"1\n\n\n\n\n2",",,,,,,,,,,,,,,,,,,,,,,"\n', 1, 2)
    check_lines(b'{"a": "x\\",,,,,,,,,,,,,,,,,,,,,,,"}\n', 1, 2, is_json=True)
    with pytest.raises(TooMuchError, match="3 rows"):
        check_json(b'{"rows": [["[[[["], [1], [2], [3]]}', 3, 4)
    with pytest.raises(TooMuchError, match="2 values"):
        check_json(b'{"rows": [[1,2,3,4]]}', 1, 2)


def test_a_text_without_an_end_takes_no_longer_than_its_length() -> None:
    body = b'{"rows": ["' + b'\\"' * NBYTES + b"[" * 20
    check_json(body, 5, 5)
    check_json(body + b"\\", 5, 5)
