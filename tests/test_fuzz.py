"""Frames, model files and Confs of strangers: a million mutated ones raise this project's own errors, or nothing.

The long suite tries the share ``DL4J_FUZZ_SHARE`` of the full counts. All of them take a quarter of an hour:

    DL4J_FUZZ_SHARE=1 python -m pytest -m long -n 0 -s tests/test_fuzz.py
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import resource
import signal
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec
import numpy as np
import psutil
import pytest

from dl4jlegacy import wire
from dl4jlegacy.errors import Dl4jError, ModelError, WireError
from dl4jlegacy.nn.dl4j.serializer import restore_label_names, restore_model, restore_normalizer, write_model
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.scaleout.conf import Conf
from tests.nn.dl4j.test_serializer import image_variant, sequence_variant, small, trained
from tests.support import DATA
from tools.chaos.junk import VALUES

SHARE = float(os.environ.get("DL4J_FUZZ_SHARE", "0.03"))
FRAMES, MODELS, CONFS = 10**6, 10**4, 10**4
MOST_GROWTH_NBYTES = 2 << 30
HANG_SECONDS = 60.0

Reader = Callable[[bytes], object]


@pytest.fixture
def bounded() -> Iterator[None]:
    """Let a case fail that takes more than a bounded amount of memory, or does not end."""

    def on_alarm(number: int, frame: FrameType | None) -> NoReturn:
        raise AssertionError(f"a case was not done within {HANG_SECONDS:g} s")

    memory, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, on_alarm)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + MOST_GROWTH_NBYTES, memory[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, memory)
        signal.signal(signal.SIGALRM, handler)


def fuzz(cases: Iterator[bytes], count: int, read: Reader, allowed: type[Dl4jError]) -> None:
    """Read ``count`` cases and print how many were read and refused; any error but an ``allowed`` one is an escape."""
    outcomes: Counter[str] = Counter()
    for number in range(count):
        case = next(cases)
        signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
        try:
            read(case)
        except allowed:
            outcomes["refused"] += 1
        except Exception as exc:  # every other kind is what is looked for
            raise AssertionError(f"case {number}, {case[:200]!r} ... ({len(case)} bytes), is an escape") from exc
        else:
            outcomes["read"] += 1
    print(f"{count} cases: {outcomes['read']} read, {outcomes['refused']} refused with {allowed.__name__}, 0 escapes")
    assert outcomes["read"] and outcomes["refused"]


# --- mutations --------------------------------------------------------------------------------------------------------


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few bits, bytes or stretches changed, or an end or a middle missing."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place, length = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 16))
        match rng.randrange(6):
            case 0 if place < len(data):
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                data[place : place + length] = rng.randbytes(length)
            case 2:
                data[place:place] = rng.choice(VALUES)[: rng.randrange(64)]
            case 3:
                del data[place : place + length]
            case 4:
                data[place : place + length] = rng.choice((b"\0", b"\x7f", b"\xff")) * length
            case _:
                del data[place:]
    return bytes(data)


HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 10**12, 2**63 - 1, -(2**63), 10**30, 0.5, 1e308, -0.0, "", "x", "nan", "\x1b[2J", "\ud800"),
    *([], {}, [[]], {"": {}}, [1, "a", None], "a" * 5000, "../..", "relu", "adam", [10**9] * 4),
)


def mutated_tree(tree: Any, rng: random.Random) -> Any:
    """Return a JSON value in which one place has another value, is missing, or is there under another name."""
    if isinstance(tree, dict) and tree and rng.random() < 0.92:
        name = rng.choice(list(tree))
        rest = {key: value for key, value in tree.items() if key != name}
        match rng.randrange(12):
            case 0:
                return rest
            case 1:
                return {**rest, rng.choice(("x", name.upper(), f"{name}s", "@class", "")): tree[name]}
            case _:
                return {**tree, name: mutated_tree(tree[name], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.9:
        place = rng.randrange(len(tree))
        return [
            *tree[:place],
            *([mutated_tree(tree[place], rng)] * rng.choice((1, 1, 1, 0, 2, 50))),
            *tree[place + 1 :],
        ]
    return rng.choice(HOSTILE)


def text_of(tree: Any) -> bytes:
    """Return the JSON of a mutated value, which may hold what no text in UTF-8 can."""
    return json.dumps(tree).encode()


# --- frames -----------------------------------------------------------------------------------------------------------


def genuine_frames() -> list[bytes]:
    """Return frames like those of models, updates, jobs and data."""
    rng = np.random.default_rng(1)
    arrays = {code: rng.integers(0, 2, (2, 3)).astype(code) for code in ("f2", "f4", "f8", "i4", "u1", "?")}
    header = {"run": "r", "round": 3, "score": 0.5, "phase": None, "list": [1, [2, {"k": "v"}]]}
    shapes = {"empty": np.zeros((0, 4)), "scalar": np.float32(2), "long": np.arange(300.0)}
    return [bytes(wire.encode({})), *(bytes(wire.encode(header, given)) for given in (arrays, shapes, {}))]


def resealed(frame: bytes, rng: random.Random) -> bytes:
    """Return a frame whose header is mutated and whose lengths and checksum are right: all depends on the decoder."""
    (length,) = struct.unpack_from("<I", frame, 8)
    packed, body = frame[24 : 24 + length], frame[24 + length :]
    if rng.random() < 0.5:
        packed = mutated(packed, rng)
    else:
        header, table = msgspec.msgpack.decode(packed)
        tree = mutated_tree([header, table], rng)
        with contextlib.suppress(OverflowError, UnicodeEncodeError):  # what MessagePack cannot hold stays as it was
            packed = msgspec.msgpack.encode(tree)
    checked = struct.pack("<4sHHIQ", b"DL4J", wire.VERSION, 0, len(packed), 24 + len(packed) + len(body))
    return checked + struct.pack("<I", zlib.crc32(packed, zlib.crc32(checked))) + packed + body


def frames(rng: random.Random) -> Iterator[bytes]:
    genuine = genuine_frames()
    while True:
        frame = rng.choice(genuine)
        match rng.randrange(8):
            case 0:
                yield rng.randbytes(rng.randrange(200))
            case 1:
                yield rng.choice(VALUES) + frame[rng.randrange(len(frame)) :]
            case 2 | 3:
                yield mutated(frame, rng)
            case _:
                yield resealed(frame, rng)


def decode(frame: bytes) -> None:
    """Decode a frame; what comes of it is no larger than the frame itself."""
    _, arrays = wire.decode(frame)
    assert sum(array.nbytes for array in arrays.values()) <= len(frame)


@pytest.mark.long
@pytest.mark.usefixtures("bounded")
def test_no_frame_escapes_the_decoder() -> None:
    fuzz(frames(random.Random(1)), int(FRAMES * SHARE), decode, WireError)


# --- model files ------------------------------------------------------------------------------------------------------


def genuine_models(folder: Path) -> list[bytes]:
    """Return model files of this package, and those that Deeplearning4j wrote."""
    networks = (trained(small()), MultiLayerNetwork(image_variant()), MultiLayerNetwork(sequence_variant()))
    for number, network in enumerate(networks):
        write_model(network, folder / f"{number}.zip")
    files = (*sorted(folder.glob("*.zip")), *sorted((DATA / "dl4j").glob("*.zip")))
    return [file.read_bytes() for file in files]


def rezipped(model: bytes, rng: random.Random) -> bytes:
    """Return a whole zip in which one entry is mutated, missing, there twice, or packed in another way."""
    with zipfile.ZipFile(io.BytesIO(model)) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    place = rng.randrange(len(entries))
    name, data = entries[place]
    if name.endswith(".json") and rng.random() < 0.7:
        data = text_of(mutated_tree(json.loads(data), rng))
    else:
        data = mutated(data, rng)
    changed = [[(name, data)], [(name, data)], [(name, data)], [], [(name, data), (name, data)], [(f"../{name}", data)]]
    out = io.BytesIO()
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(out, "w", rng.choice(kinds)) as archive:
        for each, content in [*entries[:place], *rng.choice(changed), *entries[place + 1 :]]:
            archive.writestr(each, content)
    return out.getvalue()


def models(genuine: Sequence[bytes], rng: random.Random) -> Iterator[bytes]:
    while True:
        model = rng.choice(genuine)
        match rng.randrange(8):
            case 0 | 1:
                yield mutated(model, rng)
            case 2:
                yield mutated(rezipped(model, rng), rng)
            case _:
                yield rezipped(model, rng)


@pytest.mark.long
@pytest.mark.usefixtures("bounded")
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_no_model_file_escapes_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"

    def read(model: bytes) -> None:
        path.write_bytes(model)
        restore_label_names(path)
        restore_normalizer(path)
        assert np.isfinite(restore_model(path).params).all()

    genuine = tmp_path / "genuine"
    genuine.mkdir()
    fuzz(models(genuine_models(genuine), random.Random(2)), int(MODELS * SHARE), read, ModelError)


# --- Confs ------------------------------------------------------------------------------------------------------------


def confs(rng: random.Random) -> Iterator[bytes]:
    genuine = [Conf(), Conf(multi_layer_conf=small()), Conf(multi_layer_conf=image_variant(), run="r", model="mlp")]
    texts = [conf.to_json().encode() for conf in genuine]
    while True:
        text = rng.choice(texts)
        yield mutated(text, rng) if rng.random() < 0.3 else text_of(mutated_tree(json.loads(text), rng))


@pytest.mark.long
@pytest.mark.usefixtures("bounded")
def test_no_conf_escapes_its_reader(tmp_path: Path) -> None:
    suffixes = itertools.cycle(("json", "json", "json", "yaml"))

    def read(text: bytes) -> None:
        path = tmp_path / f"conf.{next(suffixes)}"
        path.write_bytes(text)
        conf = Conf.read(path)
        assert Conf.from_json(conf.to_json()) == conf
        conf.phases()
        conf.digest()

    fuzz(confs(random.Random(3)), int(CONFS * SHARE), read, Dl4jError)
