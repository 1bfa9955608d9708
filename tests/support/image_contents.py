"""Contents of image files, byte by byte: Pillow does not write all that it reads."""

from __future__ import annotations

import struct
import zlib
from typing import Any


def png(pixels: Any, kind: int, transparent: bytes = b"") -> bytes:
    depth, (height, width) = pixels.dtype.itemsize * 8, pixels.shape[:2]

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + row.astype(f">u{depth // 8}").tobytes() for row in pixels)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    known = chunk(b"tRNS", transparent) if transparent else b""
    return b"\x89PNG\r\n\x1a\n" + head + known + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff(pixels: Any, photometric: int, *, extra: int | None = None, kind: int = 1) -> bytes:
    planes = pixels if pixels.ndim == 3 else pixels[..., None]
    height, width, count = planes.shape
    bits, data = [planes.dtype.itemsize * 8] * count, planes.astype(planes.dtype.newbyteorder("<")).tobytes()
    fields = [(256, 4, [width]), (257, 4, [height]), (258, 3, bits), (259, 3, [1]), (262, 3, [photometric])]
    fields += [(273, 4, [8]), (277, 3, [count]), (278, 4, [height]), (279, 4, [len(data)])]
    fields += [(320, 3, list(range(0, 65536, 257)) * 3)] if photometric == 3 else []
    fields += [(338, 3, [extra])] if extra is not None else []
    fields += [(339, 3, [kind] * count)]
    entries, after, at = b"", b"", 8 + len(data) + 2 + 12 * len(fields) + 4
    for tag, form, values in fields:
        packed = struct.pack(f"<{len(values)}{'H' if form == 3 else 'I'}", *values)
        place = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", at + len(after))
        after += packed if len(packed) > 4 else b""
        entries += struct.pack("<HHI", tag, form, len(values)) + place
    table = struct.pack("<H", len(fields)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + table + after


def ppm(kind: str, most: int, pixels: Any) -> bytes:
    height, width = pixels.shape[:2]
    head = f"{kind} {width} {height} {most}\n".encode()
    if kind in ("P2", "P3"):
        return head + " ".join(map(str, pixels.ravel())).encode()
    return head + pixels.astype(">u2" if most > 255 else "u1").tobytes()
