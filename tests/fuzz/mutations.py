"""Mutations: what a damaged or hostile input looks like, for bytes, texts, trees and archives; all are seeded."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

from tools.chaos.junk import VALUES

__all__ = [
    "HOSTILE",
    "mutated",
    "mutated_array",
    "mutated_header",
    "mutated_json",
    "mutated_numbers",
    "mutated_picture",
    "mutated_text",
    "mutated_tree",
    "mutated_yaml",
    "rezipped",
    "text_of",
]

Mutate = Callable[[bytes, random.Random], bytes]


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


def mutated_numbers(raw: bytes, rng: random.Random) -> bytes:
    """Return bytes in which one number, as formats of columns have them at aligned places, has an extreme value.

    Lengths, places, counts and kinds stand so in Arrow, Parquet, HDF5 and IDX: a mutation that changes nothing else
    comes past what would notice that the file is cut.
    """
    if len(raw) < 16 or rng.random() < 0.3:
        return mutated(raw, rng)
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2))):
        code = rng.choice("BHIQ")
        size = struct.calcsize(code)
        place = rng.randrange((len(data) - size) // size) * size
        (now,) = struct.unpack_from("<" + code, data, place)
        most = 256**size
        value = rng.choice((0, 1, now + 1, now - 1, now * 2, now ^ 1 << rng.randrange(8 * size), most - 1, most // 2))
        struct.pack_into(rng.choice("<<>") + code, data, place, value % most)
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


def mutated_json(raw: bytes, rng: random.Random) -> bytes:
    """Return JSON with a value replaced, a value nested very deep, or bytes changed."""
    kind = rng.random()
    try:
        tree = json.loads(raw)
    except ValueError:
        return mutated(raw, rng)
    if kind < 0.15:
        return mutated(raw, rng)
    if kind < 0.25:
        deep = rng.choice((90, 200, 990, 3000))
        opened, closed = rng.choice((("[", "]"), ('{"a":', "}")))
        hole = json.dumps(mutated_tree_with(tree, "@hole@", rng))
        return hole.replace('"@hole@"', opened * deep + "1" + closed * deep).encode()
    return text_of(mutated_tree(tree, rng))


def mutated_tree_with(tree: Any, value: Any, rng: random.Random) -> Any:
    """Return a JSON value in which one place has this value."""
    if isinstance(tree, dict) and tree and rng.random() < 0.8:
        name = rng.choice(list(tree))
        return {**tree, name: mutated_tree_with(tree[name], value, rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        place = rng.randrange(len(tree))
        return [*tree[:place], mutated_tree_with(tree[place], value, rng), *tree[place + 1 :]]
    return value


_YAML = (
    *("a: &a [*a]", "a: &a {b: *a}", "&a [*a, *a]", "a: *nowhere", "<<: {epochs: 1}", "<<: [1]", "? [1, 2]\n: 3"),
    *("!!python/object/apply:os.getcwd []", "!!binary '==='", "!!timestamp 9999-99-99", "!!int 'x'", "a: !!set {b}"),
    *(
        "a: 0o99",
        "a: 1:99:99",
        "a: .inf",
        "%YAML 9.9\n---\na: 1",
        "a: 1\n---\nb: 2",
        "a: \x85",
        "\ufeffa: 1",
        "a: |\n b",
    ),
    *("{" * 99 + "}" * 99, "- " * 500 + "1", "a: &a [1, 2]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]", "? " * 300, "a: '"),
    "a: 2001-99-01",
)


def mutated_yaml(raw: bytes, rng: random.Random) -> bytes:
    """Return YAML made of the JSON ``raw``, with a value replaced or with features that JSON lacks."""
    kind = rng.random()
    if kind < 0.5:
        return mutated_json(raw, rng)
    odd = rng.choice(_YAML)
    if kind < 0.7:
        return odd.encode("utf-8", "surrogatepass")
    tree = json.loads(raw)
    lines = [f"{name}: {json.dumps(value)}" for name, value in tree.items()]
    name = rng.choice([*tree, "epochs", "layers"])
    value = rng.choice(
        ("&a [*a]", "&a {b: *a}", "*a", "!!python/name:os.system", "!!binary zz", "[" * 90 + "]" * 90, "|")
    )
    lines[rng.randrange(len(lines) + 1) :] = [f"{name}: {value}"] if rng.random() < 0.5 else [odd]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


_CELLS = (
    *(
        "",
        " ",
        "nan",
        "NaN",
        "inf",
        "-inf",
        "1e999",
        "1_0",
        "\uff11",
        "0x1",
        "9" * 400,
        "-0",
        "1e-400",
        "\x1b[2J",
        "\0",
    ),
    *("\ufeff", '"', '""', '"a', "a\nb", "a\rb", "\u2028", "x" * 5000, "=1+1", "../../etc/passwd", "null", "{}", "[1]"),
)


def mutated_text(raw: bytes, rng: random.Random) -> bytes:
    """Return a text table with a hostile cell, a line lengthened, shortened, doubled or removed, or bytes changed."""
    kind = rng.random()
    if kind < 0.25:
        return mutated(raw, rng)
    lines = raw.decode("utf-8", "replace").split("\n")
    separator = next((each for each in "\t; ," if each in lines[0]), ",")
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(len(lines))
        cells = lines[place].split(separator)
        column = rng.randrange(len(cells))
        match rng.randrange(7):
            case 0 | 1 | 2:
                cells[column] = rng.choice(_CELLS)
            case 3:
                cells[column:column] = [rng.choice(_CELLS)] * rng.choice((1, 2, 40))
            case 4:
                del cells[column]
            case 5:
                lines[place:place] = [lines[place]] * rng.choice((1, 30))
            case _:
                del lines[place + 1 :]
                continue
        lines[place] = separator.join(cells)
    ending = rng.choice(("\n", "\n", "\r\n", "\r"))
    text = rng.choice(("", "", "\ufeff")) + ending.join(lines)
    return text.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16")), "surrogatepass")


_HEADERS = (
    *((b"<f4", b"<f9"), (b"<f8", b"|O"), (b"<f4", b"<U9"), (b"False", b"True"), (b"False", b"1"), (b"<f", b">c")),
    *((b"(", b"(" * 60), (b")", b""), (b"}", b"'"), (b"}", b"}\n (\n"), (b"shape", b"sh\xffpe"), (b"{", b"[")),
    *((b"(", b"(-"), (b"(", b"(9"), (b"(", b"(" + b"9" * 30 + b", "), (b")", b", 0)"), (b"<f4", b"|V0")),
    *((b"'<f4'", b"[('a', '<f4')]"), (b"'descr'", b"'des\0r'")),
)  # fmt: skip


def mutated_array(raw: bytes, rng: random.Random) -> bytes:
    """Return a ``.npy`` file with another header, sometimes of a wrong length."""
    if rng.random() < 0.3 or raw[:6] != b"\x93NUMPY":
        return mutated(raw, rng)
    (length,) = struct.unpack_from("<H", raw, 8)
    header, body = raw[10 : 10 + length], raw[10 + length :]
    header = mutated(header, rng) if rng.random() < 0.5 else header.replace(*rng.choice(_HEADERS), 1)
    if rng.random() < 0.8:
        header = header.ljust(length)[:length]
    told = len(header) if rng.random() < 0.9 else rng.choice((0, 1, 65535))
    version = rng.choice((b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\0\1"))
    size = struct.pack("<I", told) if version[0] > 1 else struct.pack("<H", min(told, 65535))
    return b"\x93NUMPY" + version + size + header + body


def mutated_header(raw: bytes, rng: random.Random) -> bytes:
    """Return a safetensors file whose header, JSON behind its length, is another one."""
    (length,) = struct.unpack_from("<Q", raw, 0)
    header, body = raw[8 : 8 + length], raw[8 + length :]
    if rng.random() < 0.4:
        return mutated(raw, rng)
    header = mutated_json(header, rng)
    return struct.pack("<Q", len(header)) + header + body


def mutated_picture(raw: bytes, rng: random.Random) -> bytes:
    """Return a picture with changed bytes; of a PNG the checksums fit, so that its decoder looks at them."""
    if raw[1:4] != b"PNG" or rng.random() < 0.4:
        return mutated_numbers(raw, rng)
    chunks, place = [], 8
    while place + 12 <= len(raw):
        (length,) = struct.unpack_from(">I", raw, place)
        chunks.append((raw[place + 4 : place + 8], raw[place + 8 : place + 8 + length]))
        place += 12 + length
    number = rng.randrange(len(chunks))
    name, data = chunks[number]
    changed = rng.choice(([(name, mutated(data, rng))], [(name, mutated(data, rng))], [], [(name, data)] * 2))
    chunks[number : number + 1] = changed
    if rng.random() < 0.2:
        chunks.insert(1, (rng.choice((b"zTXt", b"iCCP", b"tRNS", b"PLTE", b"acTL", b"eXIf")), mutated(data, rng)))
    parts = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return raw[:8] + b"".join(parts)


def rezipped(archive: bytes, rng: random.Random, mutate: Mutate = mutated) -> bytes:
    """Return a whole zip in which one entry is mutated, missing, there twice, or packed or called in another way.

    Args:
        archive: that it was.
        rng: draws what is changed.
        mutate: what is done to an entry that is no JSON.
    """
    with zipfile.ZipFile(io.BytesIO(archive)) as whole:
        entries = [(name, whole.read(name)) for name in whole.namelist()]
    place = rng.randrange(len(entries))
    name, data = entries[place]
    data = mutated_json(data, rng) if name.endswith(".json") and rng.random() < 0.7 else mutate(data, rng)
    other = rng.choice((f"../{name}", name.upper(), f"/{name}", "x" * 300, "\ud800", name + "\0x", "ü" + name))
    changed = [[(name, data)], [(name, data)], [(name, data)], [], [(name, data), (name, data)], [(other, data)]]
    out = io.BytesIO()
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(out, "w", rng.choice(kinds)) as made:
        for each, content in [*entries[:place], *rng.choice(changed), *entries[place + 1 :]]:
            made.writestr(each.encode("utf-8", "replace").decode(), content)
    return _renamed(out.getvalue(), rng) if rng.random() < 0.1 else out.getvalue()


def _renamed(archive: bytes, rng: random.Random) -> bytes:
    """Return a zip that declares its names UTF-8 while one is not."""
    data = bytearray(archive)
    place = data.find(b"PK\1\2")
    if place >= 0:
        (flags,) = struct.unpack_from("<H", data, place + 8)
        struct.pack_into("<H", data, place + 8, flags | 0x800)
        data[place + 46] = rng.choice((0xFF, 0xC3, 0x80))
    return bytes(data)
