"""The formats that commands read: genuine files of each, how they are mutated, and which commands read them."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dl4jlegacy.nn import MultiLayerNetwork, write_model, zoo
from dl4jlegacy.scaleout.conf import Conf
from tests.fuzz.commands import OUT, answer
from tests.fuzz.mutations import (
    Mutate,
    mutated,
    mutated_array,
    mutated_header,
    mutated_json,
    mutated_numbers,
    mutated_picture,
    mutated_text,
    mutated_yaml,
    rezipped,
)
from tests.support import DATA

__all__ = ["FORMATS", "Format"]

ROWS = 24
EPOCH = ("--epochs", "1", "--batch-size", "8", "--workers", "1", "--out", f"{OUT}/m.zip")
Command = Sequence[str]


@dataclass(frozen=True)
class Format:
    """How the files of a format come to be, and are read.

    Attributes:
        genuine: returns sound files by their names, made in a folder.
        mutate: returns a mutated one.
        commands: that read ``{}``, the mutated file, or the folder with it among sound files; ``{name}`` is the file's
            name without its folder.
        weight: how many of the inputs are of this format, beside others.
    """

    genuine: Callable[[Path], Mapping[str, bytes]]
    mutate: Mutate
    commands: Sequence[Command]
    weight: int = 4


def columns() -> dict[str, list[Any]]:
    """Return the columns of a small table: numbers, gaps, words and a label."""
    rng = random.Random(5)
    return {
        "age": [rng.choice((1, 2, 7, None)) for _ in range(ROWS)],
        "power": [round(rng.gauss(0, 1), 3) for _ in range(ROWS)],
        "fuel": [rng.choice(("gas", "oil", "a longer text with ä")) for _ in range(ROWS)],
        "label": [("yes", "no")[i % 2] for i in range(ROWS)],
    }


def _lines(separator: str) -> bytes:
    table = columns()
    rows = [separator.join("" if v is None else str(v) for v in row) for row in zip(*table.values(), strict=True)]
    return "\n".join([separator.join(table), *rows, ""]).encode()


def _csv(_: Path) -> dict[str, bytes]:
    numbers = "".join(f"{i / 7},{i % 5},{i % 2}\n" for i in range(ROWS)).encode()
    return {"t.csv": _lines(","), "t.tsv": _lines("\t"), "numbers.csv": numbers}


def _packed(_: Path) -> dict[str, bytes]:
    return {"t.csv.gz": gzip.compress(_lines(",")), "t.jsonl.gz": gzip.compress(_json_lines(_)["t.jsonl"])}


def _json_lines(_: Path) -> dict[str, bytes]:
    table = columns()
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return {"t.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()}


def _mutated_lines(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.split(b"\n")
    place = rng.randrange(len(lines) - 1)
    lines[place] = mutated_json(lines[place], rng)
    return b"\n".join(lines)


def _svmlight(_: Path) -> dict[str, bytes]:
    rows = "".join(f"{i % 2} 1:{i / 3:.3f} 4:{i} # {i}\n" for i in range(ROWS))
    ranked = "".join(f"{i % 3}.5 qid:{i} 2:{i}\n" for i in range(ROWS))
    return {"t.svm": rows.encode(), "ranked.svmlight": ranked.encode(), "several.libsvm": b"0,2 1:3\n1 2:4\n" * 9}


def _arrow(_: Path) -> dict[str, bytes]:
    import pyarrow as pa

    table = pa.table(columns())
    odd = table.append_column("word", table["fuel"].dictionary_encode())
    odd = odd.append_column("view", table["fuel"].cast(pa.string_view()))
    found = {}
    for compression in (None, "lz4", "zstd"):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        for form, kind in ((pa.ipc.new_file, "file"), (pa.ipc.new_stream, "stream")):
            for name, each in (("t", table), ("odd", odd)):
                content = io.BytesIO()
                with form(content, each.schema, options=options) as written:
                    for batch in each.to_batches(max_chunksize=10):
                        written.write_batch(batch)
                found[f"{name}-{kind}-{compression}.{'feather' if compression == 'lz4' else 'arrow'}"] = content
    return {name: content.getvalue() for name, content in found.items()}


def _parquet(_: Path) -> dict[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet

    table, found = pa.table(columns()), {}
    encodings = {"age": "DELTA_BINARY_PACKED", "power": "BYTE_STREAM_SPLIT", "fuel": "DELTA_BYTE_ARRAY"}
    forms: dict[str, dict[str, Any]] = {
        **{f"{kind}.parquet": {"compression": kind} for kind in ("none", "snappy", "zstd", "gzip")},
        "plain.parquet": {"compression": "none", "use_dictionary": False},
        "delta.pq": {
            "compression": "none",
            "use_dictionary": False,
            "column_encoding": encodings,
            "data_page_version": "2.0",
        },
    }
    for name, options in forms.items():
        content = io.BytesIO()
        pa.parquet.write_table(table, content, row_group_size=10, **options)
        found[name] = content.getvalue()
    return found


def _numpy(_: Path) -> dict[str, bytes]:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(ROWS, 3)).astype(np.float32), np.arange(ROWS) % 2
    named = np.array([(i / 3, "ab"[i % 2]) for i in range(ROWS)], [("a", "<f4"), ("label", "<U3")])
    with_label = np.column_stack([x, y]).astype(np.float32)
    found = {}
    for name, array in {"x.npy": with_label, "columns.npy": np.asfortranarray(with_label), "named.npy": named}.items():
        content = io.BytesIO()
        np.save(content, array)
        found[name] = content.getvalue()
    return found


def _archives(_: Path) -> dict[str, bytes]:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(ROWS, 3)).astype(np.float32), np.arange(ROWS) % 2
    found = {}
    for name, save in (("plain.npz", np.savez), ("packed.npz", np.savez_compressed)):
        content = io.BytesIO()
        save(content, x=x, y=y, fuel=np.array(columns()["fuel"]))
        found[name] = content.getvalue()
    return found


def _mutated_archive(raw: bytes, rng: random.Random) -> bytes:
    return mutated(raw, rng) if rng.random() < 0.25 else rezipped(raw, rng, mutated_array)


def _pictures(folder: Path) -> dict[str, bytes]:
    from PIL import Image

    rng, found = np.random.default_rng(3), {}
    for label in "ab":
        (folder / label).mkdir(parents=True)
        for number in range(4):
            picture = Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8))
            picture.save(folder / label / f"{number}.png")
    for ending in ("png", "jpg", "gif", "bmp", "webp", "tif"):
        content = io.BytesIO()
        picture.save(content, {"jpg": "jpeg", "tif": "tiff"}.get(ending, ending))
        found[f"a/x.{ending}"] = content.getvalue()
    return found


def _idx(folder: Path) -> dict[str, bytes]:
    rng, found = np.random.default_rng(3), {}
    for part, count in (("train", 40), ("t10k", 20)):
        images, labels = rng.integers(0, 255, (count, 4, 4), np.uint8), np.arange(count, dtype=np.uint8) % 10
        found[f"{part}-images-idx3-ubyte"] = struct.pack(">4B3I", 0, 0, 8, 3, count, 4, 4) + images.tobytes()
        found[f"{part}-labels-idx1-ubyte"] = struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes()
    return _among(folder, found)


def _among(folder: Path, found: dict[str, bytes]) -> dict[str, bytes]:
    """Return files that are read together, and write them, since one of them alone is mutated."""
    for name, content in found.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return found


def _sequences(folder: Path) -> dict[str, bytes]:
    found = {}
    for number in range(12):
        lines = [f"{t},{t * number},{number % 2}" for t in range(3 + number % 3)]
        found[f"{number}.csv"] = "\n".join(["a,b,label", *lines, ""]).encode()
    return _among(folder, found)


def _texts(_: Path) -> dict[str, bytes]:
    return {"t.txt": ("Shall I compare thee to a summer's day?\nThou art more lovely\n" * 20).encode()}


def _schema(folder: Path) -> dict[str, bytes]:
    from dl4jlegacy.datasets import guess_schema, inspect_csv

    _among(folder, {"good.csv": _lines(",")})
    schema = guess_schema(inspect_csv(folder / "good.csv"))
    return {"schema.json": schema.to_json().encode()}


def _confs(_: Path) -> dict[str, bytes]:
    network = zoo.mlp(4, 3, hidden=(3,))
    plain = {"model": "mlp", "dataset": "iris", "epochs": 1, "router_args": {}, "validation": {"fraction": 0.2}}
    whole = json.loads(Conf(multi_layer_conf=network, dataset="iris", epochs=1).to_json())
    images = json.loads(Conf(multi_layer_conf=zoo.lenet(784, 10), dataset="digits", epochs=1).to_json())
    return {
        f"{name}.{ending}": json.dumps(tree).encode()
        for name, tree in (("plain", plain), ("whole", whole), ("images", images))
        for ending in ("json", "yaml")
    }


def _searches(_: Path) -> dict[str, bytes]:
    space = {
        "updater.learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
        "batch_size": [16, 32],
        "layers[0].n_out": {"low": 2, "high": 8, "step": 2},
    }
    tree = {"model": "mlp", "dataset": "iris", "epochs": 1, "validation": {"fraction": 0.3}, "search": space}
    return {f"search.{ending}": json.dumps(tree).encode() for ending in ("json", "yaml")}


def _models(folder: Path) -> dict[str, bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "own.zip"
    write_model(MultiLayerNetwork(zoo.mlp(2, 2, hidden=(2,))), path, label_names=("a", "b"))
    found = {"own.zip": path.read_bytes()}
    path.unlink()
    return found | {file.name: file.read_bytes() for file in sorted((DATA / "dl4j").glob("*.zip"))[:4]}


def _mutated_model(raw: bytes, rng: random.Random) -> bytes:
    return mutated(raw, rng) if rng.random() < 0.25 else rezipped(raw, rng, mutated_numbers)


def _safetensors(folder: Path) -> dict[str, bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "own.safetensors"
    write_model(MultiLayerNetwork(zoo.mlp(2, 2, hidden=(2,))), path, label_names=("a", "b"))
    content = path.read_bytes()
    path.unlink()
    return {"own.safetensors": content}


def _keras(_: Path) -> dict[str, bytes]:
    names = ("dense_3.keras", "convolution_3.keras", "both_3.keras", "dense_2.h5", "several_2.h5")
    return {name: (DATA / "keras" / name).read_bytes() for name in names}


def _mutated_keras(raw: bytes, rng: random.Random) -> bytes:
    if raw[:2] == b"PK" and rng.random() < 0.8:
        return rezipped(raw, rng, mutated_numbers)
    return mutated_numbers(raw, rng)


def _runs(folder: Path) -> dict[str, bytes]:
    run = folder / "run"
    options = ("--epochs", "2", "--batch-size", "30", "--checkpoint-every", "1", "--collect-training-stats")
    conf = folder / "conf.json"
    folder.mkdir(parents=True, exist_ok=True)
    conf.write_text(Conf(multi_layer_conf=zoo.mlp(4, 3, hidden=(3,)), dataset="iris").to_json())
    made = answer(["train", str(conf), *options, "--validation", "0.2", "--checkpoint-dir", str(run)])
    assert not made.status, made.err
    conf.unlink()
    return {f"run/{path.name}": path.read_bytes() for path in sorted(run.iterdir()) if path.stat().st_size}


def _mutated_run(raw: bytes, rng: random.Random) -> bytes:
    if raw[:1] != b"{":
        return mutated_header(raw, rng)
    return _mutated_lines(raw, rng) if raw.count(b"\n") > 1 else mutated_json(raw, rng)


_LOOK = (("data", "inspect", "{}"), ("data", "validate", "{}"))
_USE = (("train", "{}", *EPOCH), ("predict", "mlp.zip", "{}"), ("evaluate", "mlp.zip", "--dataset", "{}"))
_TABLE = (*_LOOK * 4, *_USE)
_READ_RUN = (
    *(("logs", "run"), ("logs", "run", "--history"), ("stats", "run"), ("plot", "run", "--out", f"{OUT}/x.svg")),
    *(("resume", "run", "--workers", "1"), ("export", "run", "--out", f"{OUT}/m.zip"), ("summary", "run")),
    ("evaluate", "run", "--dataset", "iris"),
)
_MODEL = (
    *(("summary", "{}"), ("export", "{}", "--out", f"{OUT}/m.zip"), ("export", "{}", "--out", f"{OUT}/m.onnx")),
    *(("predict", "{}", "numbers.csv"), ("evaluate", "{}", "--dataset", "iris")),
)
FORMATS: Mapping[str, Format] = {
    "CSV": Format(_csv, mutated_text, _TABLE, 6),
    "gzip": Format(_packed, mutated, _TABLE, 2),
    "JSON lines": Format(_json_lines, _mutated_lines, _TABLE),
    "SVMLight": Format(_svmlight, mutated_text, _TABLE),
    "Arrow": Format(_arrow, mutated_numbers, _TABLE, 12),
    "Parquet": Format(_parquet, mutated_numbers, _TABLE, 12),
    "npy": Format(_numpy, mutated_array, _TABLE, 8),
    "npz": Format(_archives, _mutated_archive, _TABLE, 6),
    "pictures": Format(_pictures, mutated_picture, (*_LOOK, ("data", "inspect", "."), ("train", ".", *EPOCH)), 6),
    "IDX": Format(_idx, mutated_numbers, (("train", ".", *EPOCH), ("evaluate", "mlp.zip", "--dataset", ".")), 2),
    "sequences": Format(_sequences, mutated_text, (("train", ".", "--sequences", "--model", "lstm", *EPOCH),), 1),
    "text": Format(_texts, mutated, (("train", "{}", "--model", "char-lstm", *EPOCH),), 1),
    "schema": Format(_schema, mutated_json, (("train", "good.csv", "--schema", "{}", *EPOCH),)),
    "Conf": Format(
        _confs, mutated_yaml, (("train", "{}", "--workers", "1"), ("summary", "{}"), ("tune", "{}", "--trials", "1")), 6
    ),
    "search": Format(_searches, mutated_yaml, (("tune", "{}", "--trials", "1", "--workers", "1"),), 2),
    "model": Format(_models, _mutated_model, _MODEL, 6),
    "safetensors": Format(_safetensors, mutated_header, _MODEL),
    "Keras": Format(_keras, _mutated_keras, (_MODEL[1],), 6),
    "run": Format(_runs, _mutated_run, _READ_RUN, 6),
}
