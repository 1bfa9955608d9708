"""Configurations as JSON or YAML text; errors name the place, the problem and the nearest known name.

msgspec checks the types; this module turns its errors into ``ConfError``, and looks up the allowed fields and kinds of
the place in the types.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import msgspec
from msgspec import inspect

from dl4jlegacy.errors import ConfError, closest, nearest
from dl4jlegacy.nn.arguments import Described, replaced
from dl4jlegacy.nn.conf.yaml_text import YAMLError, check_bounds, load_yaml, write_yaml
from dl4jlegacy.system.decoding import decodable

__all__ = ["ConfText", "decode_json", "decode_yaml", "encode_json", "encode_yaml", "load_yaml", "top_level_keys"]

T = TypeVar("T")

_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_VALUE = re.compile(r"Invalid value '?(?P<name>[^']*)'?")
_AT = re.compile(r" - at (?:`key` in )?`(?P<path>\$[^`]*)`")
_SEGMENT = re.compile(r"\.(?P<field>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class ConfText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=Described):
    """Base of the network configurations: conversion to and from text, and copies with changes."""

    positional: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, so that equal configurations give equal text."""
        return encode_json(self)

    def to_yaml(self) -> str:
        """Return YAML with sorted keys."""
        return encode_yaml(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the configuration in ``text``.

        Raises:
            ConfError: not JSON, an unknown field (the message names the nearest), a wrong type, a value out of range.
        """
        return decode_json(text, cls)

    @classmethod
    def from_yaml(cls, text: str | bytes) -> Self:
        """Return the configuration in ``text``; raises like ``from_json``."""
        return decode_yaml(text, cls)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, checked like a new one."""
        return replaced(self, changes)


def encode_json(conf: msgspec.Struct) -> str:
    """Return canonical JSON: sorted keys, so that equal configurations give equal text."""
    return msgspec.json.encode(_plain(conf), order="sorted").decode()


def encode_yaml(conf: msgspec.Struct) -> str:
    """Return YAML with sorted keys, which YAML 1.1 and 1.2 parsers read alike."""
    return write_yaml(_plain(conf))


def _plain(conf: msgspec.Struct) -> Any:
    """Return dicts and lists; integer keys (of schedules) become strings, since msgspec cannot sort them otherwise."""
    return msgspec.to_builtins(conf, str_keys=True)


def decode_json(text: str | bytes, kind: type[T]) -> T:
    """Return the ``kind`` that the JSON ``text`` describes.

    Raises:
        ConfError: not JSON, an unknown field, a wrong type, a value out of range.
    """
    return _decode(text, kind, "JSON", _json, strict=True)


def decode_yaml(text: str | bytes, kind: type[T]) -> T:
    """Return the ``kind`` that the YAML 1.2 ``text`` describes; raises like ``decode_json``."""
    return _decode(text, kind, "YAML", load_yaml, strict=False)


def top_level_keys(text: str) -> frozenset[str]:
    """Return the top-level keys of a JSON or YAML text; empty if it is neither, or not a map."""
    try:
        raw = load_yaml(text)  # JSON is YAML
    except YAMLError:
        return frozenset()
    return frozenset(map(str, raw)) if isinstance(raw, dict) else frozenset()


def _json(text: str | bytes) -> Any:
    found = json.loads(text)
    check_bounds(found, len(text))
    return found


def _decode(text: str | bytes, kind: type[T], language: str, parse: Callable[[Any], Any], *, strict: bool) -> T:
    try:
        raw = parse(text)
    except (ValueError, YAMLError, RecursionError) as exc:
        raise ConfError(f"{kind.__name__}: this is no {language}: {_first_line(exc)}") from exc
    try:
        conf = msgspec.convert(raw, decodable(kind), strict=strict, str_keys=True)
        msgspec.json.encode(conf)  # a text that came as "\\ud800" could not be written anywhere
    except msgspec.ValidationError as exc:
        raise ConfError(f"{kind.__name__}: {_explain(str(exc), raw, kind)}") from exc
    except UnicodeEncodeError as exc:
        half = exc.object[exc.start : exc.start + 1]
        raise ConfError(f"{kind.__name__}: {half!r} is half a character; texts must be whole in UTF-8") from exc
    return conf


def _first_line(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:200] or type(exc).__name__


def _explain(message: str, raw: Any, kind: Any) -> str:
    at = _AT.search(message)
    path = at["path"] if at else "$"
    what = _AT.sub("", message)
    found = _UNKNOWN.search(what)
    if found:
        name, fields = found["name"], _fields(_walk(raw, kind, path))
        places = _paths(kind)
        close = closest(name, fields, places)
        hint = nearest(name, fields) if close in fields or not close else f"; did you mean {places[close]}?"
        return f"unknown field {name!r} at {path}{hint}"
    wrong = _VALUE.search(what)
    if wrong and path.endswith(".type"):
        kinds = [str(s.tag) for s in _walk(raw, kind, path.removesuffix(".type"))]
        return f"unknown type {wrong['name']!r} at {path}{nearest(wrong['name'], kinds)}"
    return f"{what} at {path}"


def _fields(structs: list[inspect.StructType]) -> list[str]:
    names = {field.encode_name for struct in structs for field in struct.fields}
    return sorted(names | {struct.tag_field for struct in structs if struct.tag_field})


def _paths(kind: Any) -> dict[str, str]:
    """Return all fields of a type and of its nested types by name, each with its shortest path."""
    paths = dict[str, str]()
    waiting, seen = deque([(inspect.type_info(kind), "$")]), set[type]()
    while waiting:
        here, path = waiting.popleft()
        if isinstance(here, inspect.UnionType):
            waiting += ((each, path) for each in here.types)
        elif isinstance(here, inspect.StructType) and here.cls not in seen:
            seen.add(here.cls)
            for field in here.fields:
                at = f"{path}.{field.encode_name}"
                paths.setdefault(field.encode_name, at)
                waiting.append((field.type, at))
        elif (items := getattr(here, "item_type", None)) is not None:
            waiting.append((items, f"{path}[...]"))
        elif (values := getattr(here, "value_type", None)) is not None:
            waiting.append((values, f"{path}.NAME"))
    return paths


def _walk(raw: Any, kind: Any, path: str) -> list[inspect.StructType]:
    """Return the struct types allowed at ``path``; if the data has a tag, only the tagged type."""
    allowed = _structs(inspect.type_info(kind), raw)
    here: Any = inspect.type_info(kind)
    for segment in _SEGMENT.finditer(path):
        name, index = segment["field"], segment["index"]
        if name:
            raw = raw.get(name) if isinstance(raw, dict) else None
            here = next((f.type for s in allowed for f in s.fields if f.encode_name == name), inspect.AnyType())
        else:
            raw = raw[int(index)] if index != "..." and isinstance(raw, list) else None
            here = getattr(here, "item_type", getattr(here, "value_type", inspect.AnyType()))
        allowed = _structs(here, raw)
    return allowed


def _structs(kind: inspect.Type, raw: Any) -> list[inspect.StructType]:
    types = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    structs = [t for t in types if isinstance(t, inspect.StructType)]
    tag = raw.get("type") if isinstance(raw, dict) else None
    return [s for s in structs if s.tag == tag] or structs
