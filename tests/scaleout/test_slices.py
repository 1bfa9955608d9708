"""Slices of a frame: put together they are the frame, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dl4jlegacy.errors import WireError
from dl4jlegacy.scaleout.protocol.frames import keys_of, read_frame, rewrite_frame, write_slices
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Manifest, decode_record, encode_record
from dl4jlegacy.scaleout.state.slices import cut, joined
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.tracker import drive


def frame(params: int, state: int) -> bytes:
    arrays = {"params": np.arange(params, dtype=np.float32), "updater_state": np.arange(state, dtype=np.float64)}
    return bytes(Result({"examples": 3, "score": 0.25}, arrays).encode())


@given(st.integers(0, 70), st.integers(0, 70), st.integers(1, 12))
def test_slices_put_together_are_the_frame(params: int, state: int, count: int) -> None:
    whole = frame(params, state)
    slices = [cut(whole, index, count) for index in range(count)]
    assert bytes(joined(slices)) == whole
    sizes = [Result.decode(each).arrays["params"].size for each in slices]
    assert sum(sizes) == params and max(sizes) - min(sizes) <= 1


def test_what_is_no_vector_is_not_cut() -> None:
    table = Result({}, {"codes": np.zeros((2, 3), np.float32)}).encode()
    with pytest.raises(WireError, match=r"array 'codes' of shape \(2, 3\) cannot be cut into 2 slices"):
        cut(table, 0, 2)


@pytest.mark.parametrize(
    "other",
    [
        Result({"examples": 4, "score": 0.25}, {"params": np.zeros(3, np.float32), "updater_state": np.zeros(1)}),
        Result({"examples": 3, "score": 0.25}, {"params": np.zeros(3, np.float32)}),
        Result({"examples": 3, "score": 0.25}, {"params": np.zeros(3), "updater_state": np.zeros(1)}),
        Result({"examples": 3, "score": 0.25}, {"params": np.zeros((1, 3), np.float32), "updater_state": np.zeros(1)}),
    ],
    ids=["values", "arrays", "type", "shape"],
)
def test_slices_of_two_frames_do_not_belong_together(other: Result) -> None:
    with pytest.raises(WireError, match="2 slices do not belong together"):
        joined([cut(frame(6, 2), 0, 2), other.encode()])


class SmallChunks(MemoryStore):
    """A store of small values, so that each slice has several."""

    chunk_nbytes = 100
    checksums = True


def test_a_frame_in_slices_is_read_like_any_other_and_written_again_to_the_same_places() -> None:
    store, whole = SmallChunks(), frame(50, 7)
    manifest = drive(write_slices(store, "model/3/w.1", whole, 4))
    assert (manifest.chunks, len(manifest.parts)) == (0, 4)
    assert manifest.nbytes == sum(part.nbytes for part in manifest.parts)
    assert decode_record(encode_record(manifest), Manifest) == manifest
    assert bytes(drive(read_frame(store, manifest))) == whole
    keys = keys_of(manifest)
    assert sorted(keys) == store.keys("") and all(key.startswith("model/3/w.1/") for key in keys)
    before = {key: bytes(store.get(key)) for key in keys}
    store.delete(keys[5])
    assert drive(read_frame(store, manifest)) is None
    drive(rewrite_frame(store, manifest, whole))
    assert {key: bytes(store.get(key)) for key in store.keys("")} == before


def test_slices_that_somebody_mixed_up_count_as_missing() -> None:
    store = SmallChunks()
    manifest = drive(write_slices(store, "model/3/w.1", frame(50, 7), 2))
    other = drive(write_slices(store, "model/3/w.2", Result({"examples": 1}, {}).encode(), 2))
    mixed = Manifest("model/3/x", 0, 0, parts=(manifest.parts[0], other.parts[1]))
    assert drive(read_frame(store, mixed)) is None
