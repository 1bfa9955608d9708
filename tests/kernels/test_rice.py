"""Golomb-Rice messages: compiled code writes NumPy's bytes, reads what NumPy reads, and refuses what NumPy refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dl4jlegacy.errors import ShapeError, WireError
from dl4jlegacy.kernels import load

OURS, ORACLE = "numba", "numpy"


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@st.composite
def messages(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Codes and the size of their vector: spread, dense, in heaps, none; planes that end within bytes and words."""
    size = draw(st.one_of(st.integers(1, 200), st.sampled_from([4096, 70_000, 2**31 - 1])))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    if size > 70_000:
        places = np.unique(rng.integers(1, size, draw(st.integers(0, 150)), endpoint=True))
    else:
        places = np.flatnonzero(rng.random(size) < draw(st.sampled_from([0, 0.001, 0.01, 0.3, 1.0]))) + 1
        places = places[places > draw(st.sampled_from([0, size // 2, size - 1]))]
    return np.where(rng.random(places.size) < 0.5, places, -places).astype(np.int32), size


@settings(max_examples=150, deadline=None)
@given(messages())
@example((i32(2**31 - 1), 2**31 - 1))
@example((i32(1, -(2**31 - 1)), 2**31 - 1))
@example((-np.arange(1, 65, dtype=np.int32), 64))
@example((np.arange(1, 130, dtype=np.int32), 200))
def test_bytes_are_numpys_and_codes_come_back(message: tuple[np.ndarray, int]) -> None:
    codes, size = message
    payload = load(ORACLE).rice_encode(codes, size)
    ours = load(OURS).rice_encode(codes, size)
    assert ours.dtype == np.uint8 and ours.tobytes() == payload.tobytes()
    payload.flags.writeable = False  # as a frame's
    for name in (OURS, ORACLE):
        found = load(name).rice_decode(payload, codes.size, size)
        assert found.dtype == np.int32 and found.tolist() == codes.tolist()
    spread = np.repeat(codes, 2)[::2], np.repeat(payload, 2)[::2]
    assert load(OURS).rice_encode(spread[0], size).tobytes() == payload.tobytes()
    assert load(OURS).rice_decode(spread[1], codes.size, size).tolist() == codes.tolist()


def answer(name: str, payload: np.ndarray, count: int, size: int) -> list[int] | str:
    try:
        return load(name).rice_decode(payload, count, size).tolist()
    except WireError as refused:
        return str(refused)


@settings(max_examples=300, deadline=None)
@given(messages(), st.data())
def test_what_nobody_packed_is_refused_in_the_same_words(message: tuple[np.ndarray, int], data: st.DataObject) -> None:
    codes, size = message
    raw = bytearray(load(ORACLE).rice_encode(codes, size).tobytes())
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.sampled_from([len(raw), len(raw), len(raw) - 1]))]
    raw += bytes(data.draw(st.sampled_from([0, 0, 1])))
    count = codes.size + data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    if count >= 0:
        payload = np.frombuffer(bytes(raw), np.uint8)
        assert answer(OURS, payload, count, size) == answer(ORACLE, payload, count, size)


@pytest.mark.parametrize(
    "raw",
    [
        [1, 0b01100100, 0b00101000],  # right
        [1, 0b01000100, 0b00101000],
        [1, 0b01100110, 0b00101000],
        [1, 0b01100100, 0, 0b00101000],
        [1, 0b01100100, 0b00101001],
        [1, 0b01100001, 0b00101000],
        [1, 0b00000111, 0b00101000],
        [31, 0b01100100, 0b00101000],
        [],
    ],
)
def test_each_way_to_be_wrong_has_the_same_words(raw: list[int]) -> None:
    payload = np.array(raw, np.uint8)
    expected = answer(ORACLE, payload, 3, 12)
    assert answer(OURS, payload, 3, 12) == expected
    assert (expected == [3, -4, 10]) == (raw == [1, 0b01100100, 0b00101000])


@pytest.mark.parametrize("codes", [[0], [13], [-13], [2, 1], [1, -1], [-(2**31)], [5, 0]], ids=str)
def test_codes_that_nobody_encoded_are_not_packed(codes: list[int]) -> None:
    for name in (OURS, ORACLE):
        with pytest.raises(ShapeError, match="the codes do not fit a vector of 12 elements"):
            load(name).rice_encode(i32(*codes), 12)
