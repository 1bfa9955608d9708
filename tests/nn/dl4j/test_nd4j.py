"""ND4J arrays against files written by Deeplearning4j 0.9.1 and 1.0.0-M2.1 (tests/data/dl4j), and against garbage."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.interchange.dl4j import nd4j
from tests.support import DATA

GOLDEN = DATA / "dl4j"
NUMPY = {"BOOL": "?", "BYTE": "i1", "UBYTE": "u1", "SHORT": "i2", "INT": "i4", "LONG": "i8"}
NUMPY |= {"HALF": "f2", "FLOAT": "f4", "DOUBLE": "f8", "BFLOAT16": "f4"}
WRITABLE = st.sampled_from(["?", "i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8"])


def golden(name: str) -> bytes:
    return (GOLDEN / f"array_{name}.bin").read_bytes()


@pytest.mark.parametrize("name", NUMPY)
def test_every_type_that_1_0_0_writes_is_read(name: str) -> None:
    array = nd4j.read(golden(f"{name}_m21"))
    assert array.dtype == np.dtype(NUMPY[name])
    np.testing.assert_array_equal(array, np.arange(6).reshape(2, 3).astype(NUMPY[name]))


@pytest.mark.parametrize("name", ["BOOL", "BYTE", "UBYTE", "SHORT"])
def test_types_unknown_to_0_9_1_are_written_as_1_0_0_writes_them(name: str) -> None:
    assert nd4j.write(nd4j.read(golden(f"{name}_m21"))) == golden(f"{name}_m21")


def test_shapes_and_orders_that_1_0_0_writes_are_read() -> None:
    np.testing.assert_array_equal(nd4j.read(golden("scalar_m21")), np.float32(2.5))
    np.testing.assert_array_equal(nd4j.read(golden("vector_m21")), np.array([1, 2, 3], np.float32))
    rank3 = nd4j.read(golden("rank3_m21"))  # linspace of ND4J is off by a rounding
    np.testing.assert_allclose(rank3, np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4), rtol=1e-6)
    np.testing.assert_allclose(nd4j.read(golden("f_m21")), np.arange(1, 7, dtype=np.float32).reshape(2, 3), rtol=1e-6)
    np.testing.assert_allclose(nd4j.read(golden("view_m21")), [[8, 9, 10], [14, 15, 16]], rtol=1e-6)
    assert nd4j.read(golden("empty_m21")).size == 0


@pytest.mark.parametrize("name", ["FLOAT_c", "FLOAT_f", "FLOAT_row", "DOUBLE_c", "DOUBLE_f", "DOUBLE_row"])
def test_what_0_9_1_writes_is_read_and_written_byte_for_byte(name: str) -> None:
    array = nd4j.read(golden(f"{name}_091"))
    assert array.dtype == (np.float32 if name.startswith("FLOAT") else np.float64)
    shape = (1, 6) if name.endswith("row") else (2, 3)
    np.testing.assert_allclose(array, np.arange(1.0, 7.0).reshape(shape), rtol=1e-12 if "DOUBLE" in name else 1e-6)
    assert nd4j.write(array) == golden(f"{name}_091")


@given(npst.arrays(dtype=WRITABLE, shape=npst.array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=4)))
def test_arrays_survive_a_round_trip(array: np.ndarray) -> None:
    for x in (array, np.asfortranarray(array), array.astype(array.dtype.newbyteorder(">"))):
        back = nd4j.read(nd4j.write(x))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_vectors_and_scalars_become_rows_as_in_nd4j_0_x() -> None:
    assert nd4j.read(nd4j.write(np.arange(3.0))).shape == (1, 3)
    assert nd4j.read(nd4j.write(np.array(3.0))).shape == (1, 1)


def test_several_arrays_follow_each_other_in_one_stream() -> None:
    stream = io.BytesIO(nd4j.write(np.arange(3.0)) + nd4j.write(np.arange(2, dtype=np.int64)) + b"rest")
    assert nd4j.read(stream).tolist() == [[0.0, 1.0, 2.0]]
    assert nd4j.read(stream).tolist() == [[0, 1]]
    assert stream.read() == b"rest"


def test_a_large_array_survives_a_round_trip() -> None:
    array = np.random.default_rng(3).standard_normal((1, 700_001)).astype(np.float32)
    np.testing.assert_array_equal(nd4j.read(nd4j.write(array)), array)


def test_a_dtype_that_nd4j_lacks_is_refused() -> None:
    with pytest.raises(ModelError, match="complex128"):
        nd4j.write(np.zeros(3, np.complex128))


@pytest.mark.parametrize("name", ["FLOAT_c_091", "FLOAT_m21", "empty_m21", "scalar_m21"])
def test_a_file_cut_short_at_any_byte_is_a_model_error(name: str) -> None:
    whole = golden(name)
    for stop in range(len(whole)):
        with pytest.raises(ModelError):
            nd4j.read(whole[:stop])


@pytest.mark.parametrize("name", ["FLOAT_c_091", "FLOAT_m21", "BOOL_m21"])
def test_a_flipped_bit_gives_an_array_or_a_model_error(name: str) -> None:
    whole = golden(name)
    for position in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        with contextlib.suppress(ModelError):
            assert isinstance(nd4j.read(damaged), np.ndarray)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_model_error(data: bytes) -> None:
    with pytest.raises(ModelError):
        nd4j.read(data)


def test_memory_is_not_taken_because_a_length_field_says_so() -> None:
    whole = bytearray(nd4j.write(np.zeros((1, 4), np.float32)))
    huge = 2**31 - 1
    at = whole.index(struct.pack(">i", 4), 15)
    whole[at : at + 4] = struct.pack(">i", huge)
    at = whole.rindex(struct.pack(">i", 4))
    whole[at : at + 4] = struct.pack(">i", huge)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=f"{huge * 4} bytes"):
            nd4j.read(whole)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_more_data_than_expected_is_refused_before_it_is_read() -> None:
    with pytest.raises(ModelError, match="expected at most 8"):
        nd4j.read(nd4j.write(np.zeros((1, 4), np.float32)), max_nbytes=8)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b.replace(b"JAVACPP", b"JAVACPQ"), "allocation mode"),
        (lambda b: b.replace(b"FLOAT", b"FLOAX"), "data type 'FLOAX'"),
        (lambda b: b.replace(b"\x00\x63", b"\x00\x64", 1), "impossible shape information"),
        (lambda b: b[:13] + b"\x00\xff" + b[15:], "not an ND4J array"),
        (lambda b: b.replace(b"\x00\x06\x00\x05FLOAT", b"\x00\x05\x00\x05FLOAT"), "announces 5 elements instead of 6"),
    ],
)
def test_the_message_says_what_is_wrong(damage: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        nd4j.read(damage(golden("FLOAT_c_091")))  # type: ignore[operator]
