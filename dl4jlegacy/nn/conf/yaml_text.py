"""Reads YAML 1.2 within bounds, and writes YAML that 1.1 parsers read alike.

PyYAML implements 1.1, in which ``1e-3`` is a string, ``012`` is ten and ``no`` is false. Here plain scalars follow the
core schema of 1.2, keys are strings as written, and words that only 1.1 reads as booleans are an error.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml
from yaml import YAMLError

__all__ = ["YAMLError", "check_bounds", "load_yaml", "write_yaml"]

_BRACKET = re.compile(r"[\[\]{}]")
_MOST_NESTED = 100
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_CORE = (
    ("null", re.compile(r"~|null|Null|NULL|"), ("~", "n", "N", "")),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), tuple("tTfF")),
    ("int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), tuple("-+0123456789")),
    (
        "float",
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        tuple("-+.0123456789"),
    ),
    ("merge", re.compile("<<"), ("<",)),
)
"""The core schema of YAML 1.2.2 (10.3.2), and merges: tag, pattern of plain scalars, first characters."""
_OLD_BOOLEAN = re.compile("(?:yes|no|on|off)", re.IGNORECASE)


def load_yaml(text: str | bytes) -> Any:
    """Parse YAML; raises ``YAMLError``, also for brackets nested so deep that parsing would take minutes.

    A value that contains itself (``a: &a [*a]``), aliases and merges that expand to many times the size of the text,
    and an invalid date are errors, too.
    """
    depth = 0
    for bracket in _BRACKET.findall(text if isinstance(text, str) else text.decode(errors="replace")):
        depth += 1 if bracket in "[{" else -1
        if depth > _MOST_NESTED:
            raise YAMLError(f"brackets are nested more than {_MOST_NESTED} deep")
    try:
        found = _BoundedLoader(text).get_single_data()
        check_bounds(found, len(text))
    except YAMLError:
        raise
    except RecursionError as exc:
        raise YAMLError(
            "its maps and lists are nested, or its merges (<<) lead from one to the next, too deep"
        ) from exc
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as exc:  # its constructors raise any
        raise YAMLError(f"a value cannot be read: {exc}") from exc
    return found


class _BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of 1.2; ``<<`` copies at most one entry per character of the text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]  # filled below

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self._may_copy = len(text) + _MOST_NESTED
        self._merging = set[int]()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """See ``SafeConstructor``; counts before it copies, since each map in a chain copies all maps before it."""
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
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):  # a key is a string as written
                key.tag, key.style = f"{_TAG}str", "'"

    def construct_int(self, node: yaml.ScalarNode) -> int:
        """Return the integer value of a scalar, in the number bases of 1.2."""
        text = self.construct_scalar(node)
        base = {"0o": 8, "0x": 16}.get(text[:2])
        return int(text) if base is None else int(text[2:], base)

    def construct_str(self, node: yaml.ScalarNode) -> str:
        """Return the string of a scalar; raises ``ConstructorError`` for a plain one that 1.1 reads as a boolean."""
        text: str = self.construct_scalar(node)
        if node.style is None and _OLD_BOOLEAN.fullmatch(text):
            boolean = "true" if text.lower() in ("yes", "on") else "false"
            raise yaml.constructor.ConstructorError(
                problem=f"{text} is {boolean} in YAML 1.1 and a text in 1.2; write {boolean}, or '{text}' in quotes",
                problem_mark=node.start_mark,
            )
        return text


class _CarefulDumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes strings that either version would read as another type."""


for _name, _pattern, _first in _CORE:
    _whole = re.compile(f"(?:{_pattern.pattern})$")
    _BoundedLoader.add_implicit_resolver(f"{_TAG}{_name}", _whole, _first)
    if _name != "merge":
        _CarefulDumper.add_implicit_resolver(f"{_TAG}{_name}", _whole, _first)
_CarefulDumper.add_implicit_resolver(f"{_TAG}bool", re.compile("[yYnN]$"), tuple("yYnN"))
_BoundedLoader.add_constructor(f"{_TAG}int", _BoundedLoader.construct_int)
_BoundedLoader.add_constructor(f"{_TAG}str", _BoundedLoader.construct_str)


def write_yaml(value: Any) -> str:
    """Return YAML with sorted keys; strings that 1.1 or 1.2 would read as another type are quoted."""
    text: str = yaml.dump(value, Dumper=_CarefulDumper, sort_keys=True, allow_unicode=True)
    return text


def check_bounds(tree: Any, text_length: int) -> None:
    """Raise ``ValueError`` for a tree that is nested too deep (as a cyclic one is), or larger than its text allows."""
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
