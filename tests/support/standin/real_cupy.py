"""Says what the real CuPy has under given names: read as JSON from stdin, answered as JSON; run in its own process."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from typing import Any

__all__ = ["describe", "parameters"]


def find(path: str) -> Any:
    """Return what ``cupy.cuda.Stream.record`` and the like mean; raises ``AttributeError``."""
    names = path.split(".")
    found, rest = importlib.import_module(names[0]), names[1:]
    for name in rest:
        found = getattr(found, name)
    return found


def parameters(found: Any) -> list[list[str]] | None:
    """Return ``[kind, name, default]`` for every parameter, self left out; None if that is not known.

    ``kind`` is "" or one of "*" and "**", or "keyword" for what can only be given by name; ``default`` is "" for none.
    """
    text = (getattr(found, "__doc__", None) or "").partition("\n")[0]
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        match = re.match(r"[\w.]+\((.*)\)(?: -> .*)?$", text)
        return None if match is None else _parsed(match[1])
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**",
             inspect.Parameter.KEYWORD_ONLY: "keyword"}  # fmt: skip
    return [
        [kinds.get(p.kind, ""), p.name, "" if p.default is p.empty else _plain(p.default)]
        for p in signature.parameters.values()
        if p.name not in ("self", "cls")
    ]


def _plain(default: Any) -> str:
    return default.__name__ if isinstance(default, type) else repr(default)


def _parsed(text: str) -> list[list[str]]:
    """The parameters in the first line of a docstring, as Cython writes it: C types come before the names."""
    found, keyword = [], ""
    for part in re.split(r",\s*(?![^()]*\))", text):
        left, _, default = part.partition("=")
        words = left.split()
        if not words or words[-1] in ("self", "cls", "/"):
            continue
        if words[-1] == "*":
            keyword = "keyword"
        elif words[-1].startswith("*"):
            stars = "**" if words[-1].startswith("**") else "*"
            found.append([stars, words[-1].lstrip("*"), ""])
            keyword = "keyword"
        else:
            found.append([keyword, words[-1], default])
    return found


def describe(path: str) -> dict[str, Any]:
    """Return what there is under ``path``."""
    try:
        found = find(path)
    except (AttributeError, ImportError):
        return {"there": False}
    answer = {"there": True, "callable": callable(found), "parameters": parameters(found) if callable(found) else None}
    if type(found).__name__ == "ufunc":
        answer |= {"nin": found.nin, "nout": found.nout, "parameters": None}
    if isinstance(found, type):
        answer["ancestors"] = [c.__name__ for c in found.__mro__]
    if isinstance(found, (bool, int, float)):
        answer["value"] = found
    return answer


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules must not be taken for others
    asked = json.load(sys.stdin)
    import cupy

    json.dump({"version": cupy.__version__, "names": {path: describe(path) for path in asked}}, sys.stdout)
