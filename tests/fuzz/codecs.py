"""What is decoded without a command: frames of the wire, model files and Confs."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from dl4jlegacy.arrays import wire
from dl4jlegacy.errors import Dl4jError, ModelError, WireError
from dl4jlegacy.nn.interchange.dl4j.serializer import (
    restore_label_names,
    restore_model,
    restore_normalizer,
    write_model,
)
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.scaleout.conf import Conf
from tests.fuzz.commands import Attempt, limited
from tests.fuzz.mutations import mutated, mutated_numbers, mutated_tree, mutated_yaml, rezipped
from tests.nn.dl4j.test_serializer import image_variant, sequence_variant, small, trained
from tests.support import DATA
from tools.chaos.junk import VALUES

__all__ = ["CODECS"]


def _attempt(
    draw: Callable[[random.Random], bytes], read: Callable[[bytes], object], allowed: type[Dl4jError]
) -> Attempt:
    """Return what draws a case and reads it; any error but an allowed one is a fault."""

    def attempt(rng: random.Random) -> tuple[int, str]:
        content = draw(rng)
        try:
            with limited():
                read(content)
        except allowed as exc:
            return exc.exit_status, ""
        except Exception as exc:  # noqa: BLE001  # every other kind is what is looked for
            return 70, f"{type(exc).__name__}: {exc}, of {content[:200]!r} ({len(content)} bytes)"
        return 0, ""

    return attempt


# --- frames -----------------------------------------------------------------------------------------------------------


def _genuine_frames() -> list[bytes]:
    """Return frames like those of models, updates, jobs and data."""
    rng = np.random.default_rng(1)
    arrays = {code: rng.integers(0, 2, (2, 3)).astype(code) for code in ("f2", "f4", "f8", "i4", "u1", "?")}
    header = {"run": "r", "round": 3, "score": 0.5, "phase": None, "list": [1, [2, {"k": "v"}]]}
    shapes = {"empty": np.zeros((0, 4)), "scalar": np.float32(2), "long": np.arange(300.0)}
    return [bytes(wire.encode({})), *(bytes(wire.encode(header, given)) for given in (arrays, shapes, {}))]


def _resealed(frame: bytes, rng: random.Random) -> bytes:
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


def _decode(frame: bytes) -> None:
    """Decode a frame; what comes of it is no larger than the frame itself."""
    _, arrays = wire.decode(frame)
    assert sum(array.nbytes for array in arrays.values()) <= len(frame)


@contextlib.contextmanager
def _frames() -> Iterator[Attempt]:
    genuine = _genuine_frames()

    def draw(rng: random.Random) -> bytes:
        frame = rng.choice(genuine)
        match rng.randrange(8):
            case 0:
                return rng.randbytes(rng.randrange(200))
            case 1:
                return rng.choice(VALUES) + frame[rng.randrange(len(frame)) :]
            case 2 | 3:
                return mutated(frame, rng)
            case _:
                return _resealed(frame, rng)

    yield _attempt(draw, _decode, WireError)


# --- model files and Confs --------------------------------------------------------------------------------------------


def _genuine_models(folder: Path) -> Sequence[bytes]:
    """Return model files of this package, and those that Deeplearning4j wrote."""
    networks = (trained(small()), MultiLayerNetwork(image_variant()), MultiLayerNetwork(sequence_variant()))
    for number, network in enumerate(networks):
        write_model(network, folder / f"{number}.zip")
    files = (*sorted(folder.glob("*.zip")), *sorted((DATA / "dl4j").glob("*.zip")))
    return [file.read_bytes() for file in files]


@contextlib.contextmanager
def _models() -> Iterator[Attempt]:
    genuine, path = _genuine_models(Path()), Path("model.zip")

    def draw(rng: random.Random) -> bytes:
        model = rng.choice(genuine)
        whole = model if rng.random() < 0.25 else rezipped(model, rng, mutated_numbers)
        return whole if rng.random() < 0.6 else mutated(whole, rng)

    def read(model: bytes) -> None:
        path.write_bytes(model)
        restore_label_names(path)
        restore_normalizer(path)
        assert np.isfinite(restore_model(path).params).all()

    yield _attempt(draw, read, ModelError)


@contextlib.contextmanager
def _confs() -> Iterator[Attempt]:
    genuine = [Conf(), Conf(multi_layer_conf=small()), Conf(multi_layer_conf=image_variant(), run="r", model="mlp")]
    texts, path = [conf.to_json().encode() for conf in genuine], Path("conf.yaml")

    def read(text: bytes) -> None:
        path.write_bytes(text)
        conf = Conf.read(path)
        assert Conf.from_json(conf.to_json()) == conf
        conf.phases()
        conf.digest()

    yield _attempt(lambda rng: mutated_yaml(rng.choice(texts), rng), read, Dl4jError)


CODECS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Attempt]]] = {
    "frame": _frames,
    "model in memory": _models,
    "Conf in memory": _confs,
}
