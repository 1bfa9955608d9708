"""Gradient messages: DL4J's exact words, the entropy bound, nothing lost, and nothing accepted that nobody packed."""

from __future__ import annotations

import contextlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dl4jlegacy.errors import ConfError, ShapeError, WireError
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.numpy.rice import best_k
from dl4jlegacy.scaleout.state import codec
from dl4jlegacy.scaleout.state.codec import (
    BITMAP,
    FLEXIBLE,
    FORMATS,
    RICE,
    bitmap_decode,
    bitmap_encode,
    entropy_bits,
    flexible_decode,
    flexible_encode,
    pack,
    unpack,
)

TAU = 1e-3
BITS = 981668463  # of 1e-3 as a float32
TAU32 = float(np.float32(TAU))


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def u8(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


def codes_of(size: int, share: float, seed: int = 0) -> np.ndarray:
    """Codes of elements at random places, with random signs."""
    rng = np.random.default_rng(seed)
    places = np.flatnonzero(rng.random(size) < share) + 1
    return np.where(rng.random(places.size) < 0.5, places, -places).astype(np.int32)


@st.composite
def messages(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Codes and the size of their vector: spread, in one place, all, none, the last one only."""
    size = draw(st.one_of(st.integers(0, 70), st.sampled_from([1000, 4096, 40_000, 2**31 - 1])))
    if size > 40_000:
        places = draw(st.lists(st.integers(1, size), max_size=20, unique=True).map(sorted))
        signs = draw(st.lists(st.sampled_from([-1, 1]), min_size=len(places), max_size=len(places)))
        return np.array([p * s for p, s in zip(places, signs, strict=True)], np.int32), size
    codes = codes_of(size, draw(st.sampled_from([0.0, 0.001, 0.02, 0.3, 1.0])), draw(st.integers(0, 99)))
    low = draw(st.sampled_from([0, 0, size // 2, size - 1]))
    return codes[np.abs(codes) > low], size


# -- every format: what was packed comes back ------------------------------------------------------------------------


@settings(max_examples=80)
@given(messages(), st.sampled_from([1e-30, TAU, 0.5, 3e38]))
@example((i32(2**31 - 1), 2**31 - 1), TAU)
@example((i32(1, -(2**31 - 1)), 2**31 - 1), TAU)
def test_codes_come_back_from_every_format(message: tuple[np.ndarray, int], tau: float) -> None:
    codes, size = message
    for name in FORMATS:
        if name == BITMAP and size > 40_000:
            continue
        payload = codec._pack_as(name, codes, size, tau)
        assert payload.dtype == (np.uint8 if name == RICE else np.int32) and payload.ndim == 1
        back = unpack(name, payload, count=codes.size, size=size, tau=tau)
        assert back.dtype == np.int32 and np.array_equal(back, codes)
        assert not np.shares_memory(back, payload)


@settings(max_examples=80)
@given(messages())
@example((codes_of(4096, 0.5), 4096))
@example((i32(1), 1))
@example((np.arange(1, 41, dtype=np.int32), 40))
def test_the_packed_message_is_the_smallest(message: tuple[np.ndarray, int]) -> None:
    codes, size = message
    name, payload = pack(codes, size, TAU)
    others = [FLEXIBLE] if size > 40_000 else [FLEXIBLE, BITMAP]
    assert name == RICE
    assert all(payload.nbytes < codec._pack_as(other, codes, size, TAU).nbytes for other in others)


@settings(max_examples=80)
@given(messages(), st.integers(0, 99))
def test_no_other_parameter_would_make_it_smaller(message: tuple[np.ndarray, int], seed: int) -> None:
    """For elements that are spread, and for such as lie in heaps with gaps of any two sizes between them."""
    codes, rng = message[0], np.random.default_rng(seed)
    spread = np.diff(np.abs(codes.astype(np.int64)), prepend=0) - 1
    heaps = np.where(rng.random(100) < rng.random() ** 3, *rng.integers(0, 2 ** rng.integers(1, 25, 2)))
    for gaps in (spread, heaps, np.array([2**31 - 2])):
        if gaps.size:
            bits = [int(np.sum(gaps >> k)) + k * gaps.size for k in range(31)]
            assert best_k(gaps.size, int(np.sum(gaps)), lambda k, gaps=gaps: int(np.sum(gaps >> k))) == (
                k := bits.index(min(bits)),
                int(np.sum(gaps >> k)),
            )


def test_rice_is_what_is_written_down() -> None:
    """Gaps 2, 0, 5 with k = 1: quotients 1, 0, 2 as 01 1 001, then the low bits 0 0 1, then the signs + - +."""
    assert pack(i32(3, -4, 10), 12, TAU)[1].tolist() == [1, 0b01100100, 0b00101000]
    assert pack(i32(), 12, TAU)[1].tolist() == [0]


def test_formats_are_what_kernels_encode() -> None:
    residual, codes = f32(1.5, 2.5, -3.5), i32(0, 0, 0)
    count = load("numpy").threshold_encode(residual, 0.5, codes)
    assert codec._pack_as(FLEXIBLE, codes[:count], 3, 0.5).tolist() == [3, 3, 1056964608, 0, 1, 2, -3]
    assert codec._pack_as(BITMAP, codes[:count], 3, 0.5).tolist() == [3, 3, 1056964608, 1, 0b111 | 0b100 << 16]


@pytest.mark.parametrize("share", [1e-4, 1e-3, 3.6e-3, 1e-2, 0.05])
def test_the_payload_is_near_the_entropy_bound(share: float) -> None:
    """Within 5 %, beside a constant: the byte of k, and up to 7 bits that fill each of the two sections."""
    size = 1_000_000
    for seed in range(3):
        codes = codes_of(size, share, seed)
        payload = pack(codes, size, TAU)[1]
        bound = entropy_bits(codes.size, size) / 8
        assert bound < payload.nbytes <= 1.05 * bound + 3


def test_the_entropy_bound() -> None:
    assert entropy_bits(0, 10) == entropy_bits(0, 0) == 0
    assert entropy_bits(5, 10) == pytest.approx(10 + 5, abs=1e-12)
    assert entropy_bits(10, 10) == 10
    assert entropy_bits(1, 4) == pytest.approx(4 * 0.8112781244591328 + 1, abs=1e-12)
    assert entropy_bits(3600, 1_000_000) / 3600 == pytest.approx(10.56, abs=0.005)


# -- what nobody packed is refused -----------------------------------------------------------------------------------

GOOD = {
    FLEXIBLE: codec._pack_as(FLEXIBLE, i32(3, -4, 10), 12, TAU),
    BITMAP: codec._pack_as(BITMAP, i32(3, -4, 10), 12, TAU),
    RICE: codec._pack_as(RICE, i32(3, -4, 10), 12, TAU),
}


@pytest.mark.parametrize(
    ("name", "payload", "said"),
    [
        ("zip", GOOD[RICE], "unknown format 'zip'"),
        (FLEXIBLE, GOOD[RICE], r"type uint8; it must be flat, of int32"),
        (RICE, GOOD[BITMAP], r"shape \[5\] and type int32; it must be flat, of uint8"),
        (FLEXIBLE, GOOD[FLEXIBLE].astype(">i4"), "type >i4"),
        (FLEXIBLE, GOOD[FLEXIBLE].reshape(1, -1), r"shape \[1, 7\]"),
        (FLEXIBLE, GOOD[BITMAP], "the type 1 in its header, where 0 is expected"),
        (BITMAP, i32(12, 12, BITS, 0, 0), "the type 0 in its header, where 1 is expected"),
        (FLEXIBLE, i32(), "0 words, fewer than its header"),
        (BITMAP, i32(12, 12, BITS), "3 words, fewer than its header"),
        (FLEXIBLE, i32(3, 13, BITS, 0, 3, -4, 10), "the size 13 in its header, where 12 is expected"),
        (BITMAP, i32(11, 12, BITS, 1, 0), "the size 11 and 12 in its header, where 12 is expected"),
        (BITMAP, i32(-12, -12, BITS, 1, 0), "the size -12 in its header"),
        (FLEXIBLE, i32(3, 12, 1056964608, 0, 3, -4, 10), r"a threshold of 0\.5 in its header, where 0\.001"),
        (FLEXIBLE, i32(3, 12, -BITS, 0, 3, -4, 10), "it must be positive and finite"),
        (FLEXIBLE, i32(3, 12, 0x7F800000, 0, 3, -4, 10), "the threshold inf in its header; it must be positive"),
        (FLEXIBLE, i32(3, 12, 0x7FC00000, 0, 3, -4, 10), "the threshold nan in its header; it must be positive"),
        (FLEXIBLE, i32(2, 12, BITS, 0, 3, -4, 10), "2 codes by its header and 3 in it, where 3 are expected"),
        (FLEXIBLE, i32(3, 12, BITS, 0, 3, -4), "3 codes by its header and 2 in it"),
        (FLEXIBLE, i32(3, 12, BITS, 0, 3, -4, 10, 11), "3 codes by its header and 4 in it"),
        (FLEXIBLE, i32(3, 12, BITS, 0, 3, -3, 10), "must ascend in absolute value, every one between 1 and 12"),
        (FLEXIBLE, i32(3, 12, BITS, 0, 0, -4, 10), "codes from 0 to 10"),
        (FLEXIBLE, i32(3, 12, BITS, 0, 3, -4, 13), "codes from 3 to 13"),
        (FLEXIBLE, i32(3, 12, BITS, 0, 3, -4, -(2**31)), "codes from 3 to 2147483648"),
        (BITMAP, i32(12, 12, BITS, 1, 7, 0), "6 words, where 5 are expected for 12 elements"),
        (BITMAP, i32(12, 12, BITS, 1), "4 words, where 5 are expected for 12 elements"),
        (BITMAP, i32(12, 12, BITS, 1, 3), "2 elements, where 3 are expected"),
        (BITMAP, i32(12, 12, BITS, 1, 0x1007), "bits that are not zero after its last element, 12"),
        (BITMAP, i32(12, 12, BITS, 1, 7 | 0x1000 << 16), "bits that are not zero after its last element, 12"),
        (BITMAP, i32(12, 12, BITS, 1, 7 | 8 << 16), r"1 element of half a quantum \(DL4J's -tau/2\)"),
        (RICE, u8(), "no bytes at all"),
        (RICE, u8(31, 0b01100100, 0b00101000), "the parameter 31; the largest is 30"),
        (RICE, u8(1, 0b00101000), "2 bytes, where 3 codes of 12 elements take 3 to 4 with the parameter 1"),
        (RICE, u8(1, 0b01100100, 0, 0, 0b00101000), "5 bytes, where 3 codes"),
        (RICE, u8(1, 0b01000100, 0b00101000), "2 gaps, where 3 are expected that end in byte 1"),
        (RICE, u8(1, 0b01100110, 0b00101000), "4 gaps, where 3"),
        (RICE, u8(1, 0b01100100, 0, 0b00101000), "3 gaps, where 3 are expected that end in byte 2"),
        (RICE, u8(1, 0b01100100, 0b00101001), "bits that are not zero after the last of its signs"),
        (RICE, u8(1, 0b01100001, 0b00101000), "codes from 3 to 14; they must ascend"),
    ],
)
def test_a_payload_that_nobody_packed_is_refused(name: str, payload: np.ndarray, said: str) -> None:
    with pytest.raises(WireError, match=said):
        unpack(name, payload, count=3, size=12, tau=TAU)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"count": 13}, "13 codes, and the vector 12 elements"),
        ({"count": -1}, "-1 codes"),
        ({"count": 1.0}, r"1\.0 codes of 12 elements; both must be whole numbers"),
        ({"count": None}, "None codes"),
        ({"size": 2**31}, "less than 2\\^31"),
        ({"size": -1}, "less than 2\\^31"),
        ({"size": "12"}, "'12' elements; both must be whole"),
        ({"tau": 0.0}, r"the threshold 0\.0; it must be positive"),
        ({"tau": float("nan")}, "the threshold nan"),
        ({"tau": float("inf")}, "the threshold inf"),
        ({"tau": 10**400}, "it must be positive, and a float32"),
        ({"tau": 1e39}, "it must be positive, and a float32"),
        ({"tau": 1e-50}, "it must be positive, and a float32"),
        ({"tau": None}, "the threshold None, which is no number"),
    ],
)
@pytest.mark.parametrize("name", FORMATS)
def test_claims_about_a_payload_are_checked(name: str, change: dict, said: str) -> None:
    with pytest.raises(WireError, match=said):
        unpack(name, GOOD[name], **{"count": 3, "size": 12, "tau": TAU} | change)


@settings(max_examples=120)
@given(messages(), st.sampled_from(FORMATS), st.data())
def test_garbage_is_refused_or_still_codes(message: tuple[np.ndarray, int], name: str, data: st.DataObject) -> None:
    codes, size = message
    if name == BITMAP and size > 40_000:
        return
    payload = codec._pack_as(name, codes, size, TAU)
    raw = bytearray(payload.tobytes())
    for _ in range(data.draw(st.integers(0, 3)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    raw = raw[: cut - cut % payload.itemsize] if data.draw(st.booleans()) else raw
    count = data.draw(st.sampled_from([codes.size, codes.size, 0, codes.size + 1, size]))
    try:
        found = unpack(name, np.frombuffer(bytes(raw), payload.dtype), count=count, size=size, tau=TAU)
    except WireError:
        return
    places = np.abs(found.astype(np.int64))
    assert found.dtype == np.int32 and found.shape == (count,)
    assert count == 0 or (places[0] > 0 and places[-1] <= size and (np.diff(places) > 0).all())


@pytest.mark.parametrize("name", FORMATS)
def test_every_byte_cut_off_is_noticed(name: str) -> None:
    """A shorter payload never passes for the same codes, and raises nothing but ``WireError``."""
    codes = codes_of(3000, 0.05)
    payload = codec._pack_as(name, codes, 3000, TAU)
    for length in range(payload.size):
        try:
            found = unpack(name, payload[:length], count=codes.size, size=3000, tau=TAU)
        except WireError:
            continue
        assert name == RICE and not np.array_equal(found, codes)


@pytest.mark.parametrize(
    ("name", "payload", "count", "size"),
    [
        (RICE, u8(30, *[0] * 50), 3, 2**31 - 1),
        (RICE, np.full(100_000, 255, np.uint8), 10, 2**31 - 1),
        (RICE, np.full(100_000, 255, np.uint8), 2**31 - 1, 2**31 - 1),
        (RICE, u8(0, *[255] * 100_000), 400_000, 2**31 - 1),
        (RICE, u8(0, *[255] * 100_000), 799_999, 2**31 - 1),
        (FLEXIBLE, i32(2**31 - 1, 2**31 - 1, BITS, 0, 1), 2**31 - 1, 2**31 - 1),
        (BITMAP, i32(2**31 - 1, 2**31 - 1, BITS, 1, 1), 2**31 - 1, 2**31 - 1),
        (BITMAP, np.r_[i32(800_000, 800_000, BITS, 1), np.full(50_001, -1, np.int32)], 1, 800_000),
    ],
)
def test_a_hostile_payload_takes_little_memory(name: str, payload: np.ndarray, count: int, size: int) -> None:
    tracemalloc.start()
    with contextlib.suppress(WireError):
        unpack(name, payload, count=count, size=size, tau=TAU)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000 + 200 * payload.nbytes


def test_codes_that_nobody_encoded_are_not_packed() -> None:
    for codes in (i32(0), i32(13), i32(-13), i32(2, 1), i32(1, -1), i32(-(2**31))):
        for name in FORMATS:
            with pytest.raises(ShapeError, match="do not fit a vector of 12 elements"):
                codec._pack_as(name, codes, 12, TAU)
    for codes, size in ((np.ones(1), 3), (i32(1).reshape(1, 1), 3), (i32(1), -1), (i32(1), 2**31)):
        with pytest.raises(ShapeError, match="flat vector of int32, for fewer than"):
            pack(codes, size, TAU)
    for tau in (0.0, -1.0, float("nan"), float("inf"), 1e-50, 1e39):
        with pytest.raises(ConfError, match="must be a positive number that a float32 can have"):
            pack(i32(1), 3, tau)


# -- DL4J's own tests ------------------------------------------------------------------------------------------------


def test_flexible_has_dl4js_words() -> None:
    """``DeclarableOpsTests19``: thresholdEncode."""
    residual = f32(1.5, 2.5, -3.5)
    message = flexible_encode(residual, 0.5)
    assert message.tolist() == [3, 3, 1056964608, 0, 1, 2, -3] and message.dtype == np.int32
    assert residual.tolist() == [1, 2, -3]


@pytest.mark.parametrize("sign", [1, -1])
def test_threshold_compression_2_and_3(sign: int) -> None:
    tau, residual = np.float32(TAU), f32(1, 2, 0, 0, -1, -1) * sign
    message = flexible_encode(residual, TAU)
    assert message.tolist() == [4, 6, BITS, 0, *(sign * code for code in (1, 2, -5, -6))]
    kept = f32(1, 2, 0, 0, -1, -1) * sign - np.array([1, 1, 0, 0, -1, -1], np.float32) * (sign * tau)
    assert np.array_equal(residual, kept)
    for copy in (message, message.copy()):
        target = np.zeros(6, np.float32)
        flexible_decode(copy, target)
        assert np.array_equal(target, np.array([1, 1, 0, 0, -1, -1], np.float32) * (sign * tau))


def test_threshold_compression_4() -> None:
    """Nothing is large enough, so that there is no message."""
    residual = f32(1e-4, -1e-4, 1e-4, -1e-4)
    before = residual.copy()
    assert flexible_encode(residual, TAU) is None and np.array_equal(residual, before)


def test_one_element_alone_makes_no_message() -> None:
    residual = f32(1, 0, 0)
    assert flexible_encode(residual, TAU) is None and residual.tolist() == [1, 0, 0]
    assert flexible_encode(np.ones(3, np.float32), TAU, boundary=1) is None
    assert flexible_encode(f32(), TAU) is None


@pytest.mark.parametrize(("size", "boundary", "words", "left"), [(10, 3, 7, 7), (1000, 100, 104, 900)])
def test_threshold_compression_5(size: int, boundary: int, words: int, left: int) -> None:
    residual = np.ones(size, np.float32)
    message = flexible_encode(residual, 1.0, boundary)
    assert message.size == words and residual.sum() == left
    assert message[4:].tolist() == list(range(1, boundary + 1))


@pytest.mark.parametrize(("encode", "decode"), [(flexible_encode, flexible_decode), (bitmap_encode, bitmap_decode)])
def test_decoding_twice_adds_twice(encode, decode) -> None:
    """``testThresholdCompression6`` and ``testBitmapEncoding3``."""
    residual = f32(1, 2, 0, -1, -1)
    message = encode(residual, 0.5)
    message = message if decode is flexible_decode else message[0]
    target = np.zeros(5, np.float32)
    for times in (1, 2):
        decode(message, target)
        assert target.tolist() == [0.5 * times, 0.5 * times, 0, -0.5 * times, -0.5 * times]


def test_bitmap_has_dl4js_values() -> None:
    """``testBitmapEncoding1``: whole quanta, and half ones of what is negative."""
    tau = np.float32(TAU)
    residual = f32(0, -6e-4, 1e-3, -1e-3, 0, 0)
    message, count = bitmap_encode(residual, TAU)
    assert count == 3
    assert message.tolist() == [6, 6, BITS, 1, 0b001100 | 0b001010 << 16]
    assert np.array_equal(residual, np.array([0, np.float32(-6e-4) + tau / 2, 0, 0, 0, 0], np.float32))
    assert np.allclose(residual, [0, -1e-4, 0, 0, 0, 0], rtol=0, atol=1e-9)
    target = np.zeros(6, np.float32)
    bitmap_decode(message, target)
    assert np.array_equal(target, np.array([0, -tau / 2, tau, -tau, 0, 0], np.float32))


@pytest.mark.parametrize(("size", "words"), [(0, 5), (1, 5), (15, 5), (16, 6), (31, 6), (32, 7), (1000, 67)])
def test_a_bitmap_has_a_word_for_every_16_elements(size: int, words: int) -> None:
    """``testBitmapEncoding2``, and ``DeclarableOpsTests19``: encodeBitmap."""
    residual = np.full(size, -1.0, np.float32)
    message, count = bitmap_encode(residual, 1.0)
    assert (message.size, count) == (words, size) and not residual.any()
    target = np.zeros(size, np.float32)
    bitmap_decode(message, target)
    assert (target == -1).all()
    assert np.array_equal(unpack(BITMAP, message, count=size, size=size, tau=1.0), -np.arange(1, size + 1))


@pytest.mark.parametrize("char", "fd")
@pytest.mark.parametrize("tau", [0.5, 0.75, 1.0])
def test_message_and_residual_add_up(char: str, tau: float) -> None:
    """Exactly, half quanta included, where the arithmetic is exact."""
    rng = np.random.default_rng(5)
    x = (rng.integers(-4096, 4096, 999) / 1024).astype(char)
    for encode, decode in (
        (lambda r: bitmap_encode(r, tau)[0], bitmap_decode),
        (lambda r: flexible_encode(r, tau), flexible_decode),
    ):
        residual = x.copy()
        message = encode(residual)
        sent = np.zeros_like(x)
        decode(message, sent)
        assert np.array_equal(sent + residual, x) and np.array_equal(np.abs(sent) > 0, sent != 0)
        whole = np.abs(x) >= tau
        assert np.array_equal(sent[whole], np.copysign(tau, x[whole]).astype(char))
        half = (x <= -tau / 2) & ~whole if decode is bitmap_decode else np.zeros(999, bool)
        assert (sent[half] == -tau / 2).all() and not sent[~(whole | half)].any()


def test_the_threshold_in_the_message_counts() -> None:
    """Workers with different thresholds understand each other."""
    target = np.zeros(3, np.float32)
    for tau in (0.5, 0.25):
        flexible_decode(flexible_encode(f32(1, 1, -1), tau), target)
        bitmap_decode(bitmap_encode(f32(1, 1, -1), tau)[0], target)
    assert target.tolist() == [1.5, 1.5, -1.5]


@pytest.mark.parametrize("density", [0.0, 0.001, 0.01, 0.05, 0.0624])
def test_encoding_limits(density: float) -> None:
    """``EncodedGradientsAccumulatorTest``: with a boundary of size / 16 a message has at most size / 16 + 5 words."""
    size = 10_000
    residual = np.where(np.random.default_rng(1).random(size) < 2 * density, 1.0, 0.0).astype(np.float32)
    message = flexible_encode(residual, TAU, boundary=size // 16)
    assert message is None or message.size < size // 16 + 6
    assert bitmap_encode(residual, TAU)[0].size < size // 16 + 6


def test_a_message_of_another_vector_is_refused_and_nothing_is_added() -> None:
    for message, decode in ((GOOD[FLEXIBLE], flexible_decode), (GOOD[BITMAP], bitmap_decode)):
        for wrong in (message[:-1], message[:3], message.astype(np.int64), np.r_[message, message[-1:]]):
            target = np.zeros(12, np.float32)
            with pytest.raises(WireError):
                decode(wrong, target)
            assert not target.any()
        with pytest.raises(WireError, match="the size 12 in its header, where 13 is expected"):
            decode(message, np.zeros(13, np.float32))
        with pytest.raises(ShapeError, match="must be flat"):
            decode(message, np.zeros((3, 4), np.float32))
        with pytest.raises(ShapeError, match="must be flat"):
            decode(message, np.zeros(12, np.int32))


def test_a_residual_that_is_none_is_refused() -> None:
    for encode in (flexible_encode, bitmap_encode):
        with pytest.raises(ShapeError, match="must be flat"):
            encode(np.ones((2, 2), np.float32), TAU)
        with pytest.raises(ConfError, match="positive number"):
            encode(np.ones(3, np.float32), 0.0)


def test_where_the_kernels_are_a_gpus_messages_are_packed_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.array([1, -5, 9], np.int32)
    format_, payload = pack(codes, 1000, 0.5)
    monkeypatch.setenv("DL4J_KERNELS", "cupy")
    again = pack(codes, 1000, 0.5)
    assert again[0] == format_ and again[1].tobytes() == payload.tobytes()
    assert unpack(format_, payload, count=3, size=1000, tau=0.5).tolist() == codes.tolist()
