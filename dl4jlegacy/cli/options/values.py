"""Parsers of option values, from (label, text); the label is the option's name in messages."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dl4jlegacy.errors import UsageError, nearest

if TYPE_CHECKING:
    from dl4jlegacy.datasets.tables.transform_process import TransformProcess

__all__ = [
    "class_weights",
    "json_object",
    "not_empty",
    "one_of",
    "rate",
    "read_schema",
    "seconds",
    "share",
    "sizes",
    "text_or_json",
    "whole_number",
    "words",
]


def whole_number(label: str, text: str, least: int) -> int:
    """Return the whole number in ``text``; raises ``UsageError`` naming ``label`` if it is not one, or too small."""
    not_empty(label, text)
    try:
        value = int(_plain(text))
    except ValueError:
        value = least - 1
    if not least <= value < 2**63:
        allowed = "a whole number of 64 bits" if least == -(2**63) else f"a whole number, at least {least}"
        raise UsageError(f"{label} is {text!r}; it must be {allowed}")
    return value


def words(label: str, text: str) -> tuple[str, ...]:
    """Return the non-empty parts of ``text`` between commas; there may be none."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _plain(text: str) -> str:
    """Return ``text``; raises ``ValueError`` for numbers that only Python accepts: ``1_000``, other digits."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def rate(label: str, text: str) -> float:
    """Return the number in ``text``; raises ``UsageError`` if it is negative or not finite."""
    try:
        value = float(_plain(text))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"{label} is {text!r}; it must be a number, not negative")
    return value


def share(label: str, text: str) -> float:
    """Return the number from 0 to 1 in ``text``; raises ``UsageError``."""
    try:
        value = float(_plain(text))
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise UsageError(f"{label} is {text!r}; it must be a number from 0 to 1, the share that is kept")
    return value


def sizes(label: str, text: str) -> tuple[int, ...]:
    """Return the positive whole numbers between the commas of ``text``; raises ``UsageError``."""
    try:
        return tuple(whole_number(label, part.strip(), 1) for part in text.split(","))
    except UsageError as exc:
        raise UsageError(f"{label} is {text!r}; give the size of each layer, such as 256,128") from exc


def seconds(label: str, text: str) -> float:
    """Return the positive number of seconds in ``text``; raises ``UsageError``."""
    try:
        value = float(_plain(text))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise UsageError(f"{label} {text}: give a number of seconds, more than 0")
    return value


def one_of(label: str, text: str, known: tuple[str, ...]) -> str:
    """Return ``text`` if it is known; raises ``UsageError`` with the nearest known one otherwise."""
    if text not in known:
        raise UsageError(f"{label} is {text!r}{nearest(text, known)}")
    return text


def text_or_json(label: str, text: str) -> str:
    """Return ``text`` or ``json``; raises ``UsageError``."""
    return one_of(label, text, ("text", "json"))


def not_empty(label: str, text: str) -> str:
    """Return ``text``; raises ``UsageError`` if it is empty."""
    if not text.strip():
        raise UsageError(f"{label} is empty; give a value or leave it out")
    return text


def class_weights(label: str, text: str) -> dict[str, float] | str:
    """Return ``balanced``, or the weights in ``NAME=X,NAME=X``; raises ``UsageError``."""
    if not_empty(label, text) == "balanced":
        return text
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = part.rpartition("=")
        if not equals or not name.strip():
            raise UsageError(f"{label} is {text!r}; give balanced, or weights such as yes=5,no=1")
        if name.strip() in found:
            raise UsageError(f"{label} is {text!r}; it names {name.strip()!r} twice")
        found[name.strip()] = rate(f"{label} {name.strip()}", weight)
    return found


def json_object(label: str, text: str) -> dict[str, Any]:
    """Return the JSON object in ``text``; raises ``UsageError``."""
    import msgspec

    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as exc:  # invalid UTF-8 arrives as lone surrogates
        raise UsageError(f"{label} is {text!r}; give a JSON object, such as '{{\"n\": 2}}': {exc}") from exc
    return found


def read_schema(path: Path) -> TransformProcess:
    """Return the schema in a JSON or YAML file; raises ``ConfError`` naming the file."""
    from dl4jlegacy.datasets.tables.transform_process import TransformProcess
    from dl4jlegacy.errors import ConfError
    from dl4jlegacy.nn.conf.text import decode_json, decode_yaml
    from dl4jlegacy.system import files

    with files.errors_as(ConfError, f"schema {path} cannot be read"):
        text = files.read(files.expand(path))
    try:
        return (decode_yaml if path.suffix in (".yaml", ".yml") else decode_json)(text, TransformProcess)
    except ConfError as exc:
        raise ConfError(f"{path}: {exc}") from exc
