import contextlib
import copy
import struct
import tracemalloc
import zlib
from enum import StrEnum

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dl4jlegacy.arrays import wire
from dl4jlegacy.errors import WireError

DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]
HEADER = {"run": "r1", "round": 3, "slot": 2, "score": 0.25, "phase": None, "done": False, "list": [1, [2, {"k": "v"}]]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def example_frame() -> bytearray:
    arrays = {"params": np.arange(7, dtype=np.float32), "state": np.ones((2, 3)), "mask": np.array([True, False])}
    return bytearray(wire.encode(HEADER, arrays))


def forged(header: object, table: object, body: bytes = b"", *, total: int | None = None) -> bytes:
    """A frame whose prefix and checksum are right and whose contents are whatever the test wants."""
    packed = msgspec.msgpack.encode((header, table))
    length = 24 + len(packed) + len(body) if total is None else total
    checked = struct.pack("<4sHHIQ", b"DL4J", wire.VERSION, 0, len(packed), length)
    return checked + struct.pack("<I", zlib.crc32(packed, zlib.crc32(checked))) + packed + body


def assert_refused(frame: object) -> str:
    with pytest.raises(WireError) as caught:
        wire.decode(frame)  # type: ignore[arg-type]
    return str(caught.value)


@given(header=st.dictionaries(st.text(), json_values, max_size=5))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_every_json_header_comes_back(header: dict) -> None:
    decoded, arrays = wire.decode(wire.encode(header))
    assert decoded == header
    assert arrays == {}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (3, 4), (0, 7), (2, 3, 4, 5)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
    _, arrays = wire.decode(wire.encode({}, {"a": array, "b": array}))
    for name in ("a", "b"):
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == shape
        assert arrays[name].tobytes() == array.tobytes()


def test_not_a_number_and_infinities_survive_in_header_and_body() -> None:
    array = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    header, arrays = wire.decode(wire.encode({"score": float("nan"), "best": float("-inf")}, {"a": array}))
    assert np.isnan(header["score"]) and header["best"] == float("-inf")
    assert arrays["a"].tobytes() == array.tobytes()


def test_fortran_order_big_endian_and_strided_arrays_arrive_in_c_order() -> None:
    array = np.arange(12.0).reshape(3, 4)
    strided = np.repeat(array, 2, axis=1)[:, ::2]
    originals = {"f": np.asfortranarray(array), "big": array.astype(">f8"), "strided": strided}
    _, arrays = wire.decode(wire.encode({}, originals))
    for decoded in arrays.values():
        assert decoded.flags.c_contiguous and decoded.dtype == np.dtype("<f8")
        np.testing.assert_array_equal(decoded, array)


def test_decoded_arrays_are_read_only_views_of_the_frame_on_cache_lines() -> None:
    frame = wire.encode({}, {"a": np.zeros(3, np.float32), "b": np.zeros(100_000, np.float64)})
    _, arrays = wire.decode(frame)
    whole = np.frombuffer(frame, np.uint8)
    for array in arrays.values():
        assert not array.flags.writeable
        assert np.shares_memory(array, whole)
        assert array.ctypes.data % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_frame_at_an_odd_address_is_still_read_and_read_only() -> None:
    frame = example_frame()
    shifted = memoryview(b"x" + bytes(frame))[1:]
    _, arrays = wire.decode(shifted)
    assert all(array.flags.aligned and not array.flags.writeable for array in arrays.values())
    np.testing.assert_array_equal(arrays["params"], np.arange(7, dtype=np.float32))


def test_a_producer_writes_straight_into_an_allocated_frame() -> None:
    frame, views = wire.allocate(HEADER, {"params": (np.float32, (4,)), "state": ("f8", (2, 2))})
    views["params"][...] = 1.5
    views["state"][...] = np.eye(2)
    assert frame == wire.encode(HEADER, {"params": np.full(4, 1.5, np.float32), "state": np.eye(2)})


def test_a_header_of_the_same_length_is_replaced_in_place() -> None:
    frame, views = wire.allocate({"tau": 0.5, "count": 1}, {"params": (np.float32, (4,))})
    views["params"][...] = 1.5
    assert not wire.replace_header(frame, {"tau": 0.25, "count": 1000})
    assert wire.decode(frame)[0] == {"tau": 0.5, "count": 1}
    assert wire.replace_header(frame, {"tau": 0.25, "count": 2})
    assert frame == wire.encode({"tau": 0.25, "count": 2}, {"params": np.full(4, 1.5, np.float32)})


def test_equal_contents_give_equal_frames_whatever_the_order_of_keys() -> None:
    array = np.arange(5, dtype=np.int16)
    first, second = wire.encode({"a": 1, "b": 2}, {"x": array}), wire.encode({"b": 2, "a": 1}, {"x": array.copy()})
    assert first == second and bytes(first) == second and bytearray(second) == first
    assert wire.digest(first) == wire.digest(bytes(second)) and len(wire.digest(first)) == 64


@pytest.mark.parametrize("nbytes", [1, 7, 64, 10_000])
def test_chunks_join_to_the_same_frame(nbytes: int) -> None:
    frame = example_frame()
    parts = wire.chunks(frame, nbytes)
    assert all(len(part) <= nbytes for part in parts)
    assert wire.join(parts) == frame
    assert wire.join(bytes(part) for part in parts) == frame


def test_chunks_of_no_bytes_are_refused() -> None:
    with pytest.raises(WireError, match="chunks of 0 bytes"):
        wire.chunks(example_frame(), 0)


def test_enums_tuples_and_numpy_scalars_in_a_header_become_plain_values() -> None:
    class Phase(StrEnum):
        FIT = "fit"

    header = {"phase": Phase.FIT, "shape": (1, 2), "n": np.int64(3), "s": np.float32(0.5), "ok": np.True_}
    decoded, _ = wire.decode(wire.encode(header))
    assert decoded == {"phase": "fit", "shape": [1, 2], "n": 3, "s": 0.5, "ok": True}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [0, b"raw"]}, r"header\.a\[1\]"),
        ({"a": {1: 2}}, r"header\.a has the key 1"),
        ({"a": np.zeros(2)}, r"header\.a"),
        ({"a": 2**70}, "header"),
        ({"a": "\ud800"}, "header"),
        ({"a": {1, 2}}, "type set"),
        ({"a": "x" * (1 << 20)}, "limit is 1048576"),
    ],
)
def test_a_header_that_is_not_json_is_refused_and_named(value: dict, path: str) -> None:
    with pytest.raises(WireError, match=path):
        wire.encode(value)


@pytest.mark.parametrize("array", [np.array(["x"]), np.array([None]), np.zeros(2, complex), np.zeros(1, "M8[s]")])
def test_an_array_of_another_dtype_is_refused(array: np.ndarray) -> None:
    with pytest.raises(WireError, match="'a' has dtype"):
        wire.encode({}, {"a": array})


def test_a_frame_cut_at_any_byte_or_longer_by_one_is_refused() -> None:
    frame = bytes(example_frame())
    for length in range(len(frame)):
        assert_refused(frame[:length])
    assert "padded" in assert_refused(frame + b"\0")


def test_every_flipped_bit_of_prefix_and_header_is_noticed() -> None:
    frame = example_frame()
    header_end = 24 + struct.unpack_from("<I", frame, 8)[0]
    for bit in range(header_end * 8):
        frame[bit // 8] ^= 1 << bit % 8
        assert_refused(frame)
        frame[bit // 8] ^= 1 << bit % 8
    wire.decode(frame)


@given(data=st.binary(max_size=300))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_random_bytes_raise_wire_errors_only(data: bytes) -> None:
    assert_refused(data)
    assert_refused(b"DL4J" + data)


@given(position=st.integers(0, 2000), data=st.binary(min_size=1, max_size=9))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_overwritten_frames_raise_wire_errors_or_decode(position: int, data: bytes) -> None:
    frame = example_frame()
    position %= len(frame)
    frame[position : position + len(data)] = data
    with contextlib.suppress(WireError):
        wire.decode(frame)


@given(packed=st.binary(max_size=200))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_random_msgpack_behind_a_right_checksum_raises_wire_errors_or_decodes(packed: bytes) -> None:
    checked = struct.pack("<4sHHIQ", b"DL4J", wire.VERSION, 0, len(packed), 24 + len(packed))
    frame = checked + struct.pack("<I", zlib.crc32(packed, zlib.crc32(checked))) + packed
    with contextlib.suppress(WireError):
        wire.decode(frame)


@given(
    table=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", ""]),
            st.sampled_from(["f4", "b1", "u8", "O", "V8", "f4,f4", "object", ""]),
            st.lists(st.sampled_from([0, 1, 2, -1, 2**31, 2**62, 2**63 - 1]), max_size=20),
        ),
        max_size=4,
    ),
    body=st.binary(max_size=200),
)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_forged_array_tables_raise_wire_errors_or_decode(table: list, body: bytes) -> None:
    try:
        _, arrays = wire.decode(forged({}, table, body))
    except WireError:
        return
    assert sum(array.nbytes for array in arrays.values()) <= len(body)


@pytest.mark.parametrize(
    "shape", [[2**62], [2**40] * 2, [-1], [-2, -2], [0, 2**62, 2**62], [0, 2**63 - 1], [1] * 33, [2**63 - 1] * 9, [2.0]]
)
def test_huge_and_negative_shapes_are_refused_without_allocating(shape: list[int]) -> None:
    frame = forged({}, [("a", "f4", shape)])
    tracemalloc.start()
    with contextlib.suppress(WireError):
        wire.decode(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


def test_lengths_that_the_frame_merely_claims_allocate_nothing() -> None:
    for total in (2**40, 2**63, 2**64 - 1):
        assert_refused(forged({}, [("a", "f4", [2**38])], total=total))


@pytest.mark.parametrize(
    ("header", "table"),
    [
        ([], []),
        ({}, {}),
        ({1: 2}, []),
        ({"a": b"raw"}, []),
        ({"a": msgspec.msgpack.Ext(5, b"x")}, []),
        ({}, [("a", "f4", [0]), ("a", "f4", [0])]),
        ({}, [("a", "O", [0])]),
        ({}, [("a", ">f4", [0])]),
        ({}, [("a", "f4")]),
        ({}, [("a", "f4", [0], 7)]),
        ({}, [(7, "f4", [0])]),
    ],
)
def test_forged_headers_are_refused(header: object, table: object) -> None:
    assert_refused(forged(header, table))


def test_a_nested_bomb_is_refused() -> None:
    for opener in (b"\x91", b"\x81\xa1a"):
        packed = b"\x92\x81\xa1a" + opener * 300_000
        checked = struct.pack("<4sHHIQ", b"DL4J", wire.VERSION, 0, len(packed), 24 + len(packed))
        assert_refused(checked + struct.pack("<I", zlib.crc32(packed, zlib.crc32(checked))) + packed)
    deep: dict = {}
    for _ in range(100):
        deep = {"a": copy.copy(deep)}
    assert "levels deep" in assert_refused(forged(deep, []))
    with pytest.raises(WireError, match="levels deep"):
        wire.encode(deep)


def test_a_frame_of_another_version_names_both_versions() -> None:
    frame = example_frame()
    frame[4] = 9
    message = assert_refused(frame)
    assert "version 9" in message and "reads version 1" in message


def test_booleans_other_than_0_and_1_and_stray_bytes_are_refused() -> None:
    frame = example_frame()
    frame[-1] = 7
    assert "boolean" in assert_refused(frame)
    frame = bytearray(wire.encode({}, {"a": np.zeros(1, np.uint8)}))
    frame[-2] = 1
    assert "stray" in assert_refused(frame)


def test_what_is_not_a_block_of_bytes_is_refused() -> None:
    assert_refused("text")
    assert_refused(None)
    assert_refused(memoryview(bytes(example_frame()))[::2])
    released = memoryview(b"DL4J")
    released.release()
    assert_refused(released)
