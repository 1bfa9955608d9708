"""Configurations as JSON or YAML text; errors name the place, the problem and the nearest known name.

msgspec checks the types; this module turns its complaints into ``ConfError`` and looks up, in the types themselves, the
fields and kinds that would have been allowed at that place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import inspect

from dl4jlegacy.decoding import described
from dl4jlegacy.errors import ConfError, nearest

__all__ = ["decode_json", "decode_yaml", "encode_json", "encode_yaml", "load_yaml", "top_level_keys"]

T = TypeVar("T")

_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_VALUE = re.compile(r"Invalid value '?(?P<name>[^']*)'?")
_AT = re.compile(r" - at (?:`key` in )?`(?P<path>\$[^`]*)`")
_BRACKET = re.compile(r"[\[\]{}]")
_MOST_NESTED = 100
_MERGE = "tag:yaml.org,2002:merge"
_SEGMENT = re.compile(r"\.(?P<field>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")


def encode_json(conf: msgspec.Struct) -> str:
    """Return canonical JSON: sorted keys, so that equal configurations give equal text."""
    return msgspec.json.encode(_plain(conf), order="sorted").decode()


def encode_yaml(conf: msgspec.Struct) -> str:
    """Return YAML with sorted keys."""
    return msgspec.yaml.encode(_plain(conf), order="sorted").decode()


def _plain(conf: msgspec.Struct) -> Any:
    """Return dicts and lists; integer keys (schedules) as strings, which msgspec cannot sort otherwise."""
    return msgspec.to_builtins(conf, str_keys=True)


def decode_json(text: str | bytes, kind: type[T]) -> T:
    """Return the ``kind`` that the JSON ``text`` describes.

    Raises:
        ConfError: no JSON, an unknown field, a wrong type, a value out of range.
    """
    return _decode(text, kind, "JSON", _json, strict=True)


def decode_yaml(text: str | bytes, kind: type[T]) -> T:
    """Return the ``kind`` that the YAML ``text`` describes; raises like ``decode_json``."""
    # YAML 1.1 reads 1e-4 (no dot) as a string: strings that spell a number are taken for the number.
    return _decode(text, kind, "YAML", load_yaml, strict=False)


def top_level_keys(text: str) -> frozenset[str]:
    """Return the keys at the top of a text of JSON or YAML, none if it is neither or no map."""
    try:
        raw = load_yaml(text)  # JSON is YAML
    except yaml.YAMLError:
        return frozenset()
    return frozenset(map(str, raw)) if isinstance(raw, dict) else frozenset()


def load_yaml(text: str | bytes) -> Any:
    """Parse YAML; raises ``YAMLError``, also for brackets that are nested so deep that parsing them takes minutes.

    What holds itself (``a: &a [*a]``), what aliases and merges make many times larger than the text, and a date that
    there is not are such errors, too.
    """
    depth = 0
    for bracket in _BRACKET.findall(text if isinstance(text, str) else text.decode(errors="replace")):
        depth += 1 if bracket in "[{" else -1
        if depth > _MOST_NESTED:
            raise yaml.YAMLError(f"brackets are nested more than {_MOST_NESTED} deep")
    try:
        found = _BoundedLoader(text).get_single_data()
        _check_bounds(found, len(text))
    except yaml.YAMLError:
        raise
    except RecursionError as exc:
        raise yaml.YAMLError(
            "its maps and lists are nested, or its merges (<<) lead from one to the next, too deep"
        ) from exc
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as exc:  # its constructors raise any
        raise yaml.YAMLError(f"a value cannot be read: {exc}") from exc
    return found


class _BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader, for which ``<<`` copies no more entries than the text has characters."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self._may_copy = len(text) + _MOST_NESTED
        self._merging = set[int]()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """See ``SafeConstructor``; counts before it copies, since each map of a chain copies all those before it."""
        if id(node) in self._merging:
            raise ValueError("a map merges itself (<<)")
        self._merging.add(id(node))
        for value in [value for key, value in node.value if key.tag == _MERGE]:
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(source, yaml.MappingNode):
                    self.flatten_mapping(source)
                    self._may_copy -= len(source.value)
        self._merging.discard(id(node))
        if self._may_copy < 0:
            raise ValueError("its merges (<<) make it larger than its text; write out what they stand for")
        super().flatten_mapping(node)


def _check_bounds(tree: Any, text_length: int) -> None:
    """Raise ``ValueError`` for a tree that is nested too deep, as what holds itself is, or has more than its text."""
    most, waiting, count = text_length + _MOST_NESTED, [(tree, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
        count += len(parts)
        if depth > _MOST_NESTED:
            raise ValueError(f"it is nested more than {_MOST_NESTED} deep, or holds itself")
        if count > most:
            raise ValueError("its aliases make it larger than its text; write out what they stand for")
        waiting += ((part, depth + 1) for part in parts if isinstance(part, (dict, list, tuple, set)))


def _json(text: str | bytes) -> Any:
    found = json.loads(text)
    _check_bounds(found, len(text))
    return found


def _decode(text: str | bytes, kind: type[T], language: str, parse: Callable[[Any], Any], *, strict: bool) -> T:
    try:
        raw = parse(text)
    except (ValueError, yaml.YAMLError, RecursionError) as exc:
        raise ConfError(f"{kind.__name__}: this is no {language}: {_first_line(exc)}") from exc
    try:
        conf = msgspec.convert(raw, described(kind), strict=strict, str_keys=True)
        msgspec.json.encode(conf)  # text that came as "\\ud800" could be written nowhere
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
        return f"unknown field {found['name']!r} at {path}{nearest(found['name'], _fields(_walk(raw, kind, path)))}"
    wrong = _VALUE.search(what)
    if wrong and path.endswith(".type"):
        kinds = [str(s.tag) for s in _walk(raw, kind, path.removesuffix(".type"))]
        return f"unknown type {wrong['name']!r} at {path}{nearest(wrong['name'], kinds)}"
    return f"{what} at {path}"


def _fields(structs: list[inspect.StructType]) -> list[str]:
    names = {field.encode_name for struct in structs for field in struct.fields}
    return sorted(names | {struct.tag_field for struct in structs if struct.tag_field})


def _walk(raw: Any, kind: Any, path: str) -> list[inspect.StructType]:
    """Return the struct types allowed at ``path``; where the data's tag decides, only that one."""
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
