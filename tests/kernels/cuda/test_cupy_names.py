"""Every name of the stand-in for CuPy is in the real CuPy too, and can be called the same way; no GPU is needed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.support import REPOSITORY, standin
from tests.support.standin.real_cupy import parameters
from tests.support.standin.ufuncs import ufunc

SCRIPT = Path(standin.__file__).with_name("real_cupy.py")
OUR_OWN = {  # guards are for kernels that write where they must not; ufuncs are made by nobody else
    "cupy.cuda.MemoryPointer.check_guards",
    "cupy.cuda.memory.MemoryPointer.check_guards",
    "cupy.ufunc",
}
PACKAGE = REPOSITORY / "dl4jlegacy"
ROOTS = {"cupy", "cupyx", "xp"}
LIBRARIES = {"cupy.cuda.cublas"}  # asked for to see whether the library is there; here none is
LATE = ("RawKernel", "RawModule")


def _names() -> dict[str, Any]:
    """All public names of the stand-in, ``cupy.cuda.Stream.record`` too, and what they mean."""
    found: dict[str, Any] = {}
    for module in standin.MODULES.values():
        for name, value in [*vars(module).items(), *((n, getattr(module, n)) for n in LATE if module is standin.cupy)]:
            if name.startswith("_") or (isinstance(value, ModuleType) and value not in standin.MODULES.values()):
                continue
            found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type) and value.__module__.startswith("tests.support.standin."):
                found |= {f"{module.__name__}.{name}.{k}": v for k, v in vars(value).items() if _public(k)}
    return {path: value for path, value in found.items() if path not in OUR_OWN}


def _used() -> dict[str, str]:
    """Where the package says ``xp.zeros``, ``cupy.cuda.Device``, ``self.xp.empty`` and the like: name to file."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"{root}." in text for root in ROOTS):
            continue
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            while isinstance(node, ast.Attribute) and node.attr.lstrip("_") not in ROOTS:
                names.insert(0, node.attr)
                node = node.value
            root = getattr(node, "id", getattr(node, "attr", "")) if isinstance(node, ast.Name | ast.Attribute) else ""
            if names and root.lstrip("_") in ROOTS:
                found[".".join(("cupyx" if root == "cupyx" else "cupy", *names))] = path.name
    return found


def _public(name: str) -> bool:
    kept_from_python = {"__init__", "__module__", "__doc__", "__slots__", "__weakref__", "__annotations__", "__dict__"}
    return not name.startswith("_") or (name.startswith("__") and name not in kept_from_python)


NAMES, USED = _names(), _used()


@cache
def real() -> dict[str, Any]:
    """What the real CuPy says about all names; asked once, in a process of its own."""
    if find_spec("cupy") is None:
        pytest.skip("cupy is not installed; ./install dev brings it, and a GPU is not needed")
    done = subprocess.run([sys.executable, SCRIPT], input=json.dumps([*NAMES]), capture_output=True, text=True,
                          timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["version"].startswith("14."), f"the stand-in is made after CuPy 14, not {answer['version']}"
    return answer["names"]


def _misfit(ours: list[list[str]], theirs: list[list[str]]) -> str:
    """Say which of our parameters cannot be given to the real one, "" for none."""
    anything = {kind for kind, _, _ in theirs if kind.startswith("*")}
    by_place = [name for kind, name, _ in theirs if not kind]
    defaults = {name: default for _, name, default in theirs}
    place = 0
    for kind, name, default in ours:
        if kind.startswith("*"):
            continue
        if name not in defaults:
            if not anything:
                return f"it has no parameter {name}"
        elif default and defaults[name] and default != defaults[name].strip("'\"") != default.strip("'\""):
            return f"{name} is {default} by default, not {defaults[name]}"
        elif not kind and "*" not in anything and (place >= len(by_place) or by_place[place] != name):
            return f"parameter {place + 1} is not {name}: {by_place}"
        place += not kind
    needed = {name for kind, name, default in theirs if not kind.startswith("*") and not default}
    lacking = needed - {name for _, name, _ in ours}
    if lacking and not any(kind.startswith("*") for kind, _, _ in ours):
        return f"it needs {sorted(lacking)}"
    return ""


@pytest.mark.parametrize("path", sorted(NAMES))
def test_a_name_of_the_stand_in_is_cupys(path: str) -> None:
    ours, theirs = NAMES[path], real()[path]
    assert theirs["there"], f"CuPy has no {path}"
    name = path.rpartition(".")[2]
    if isinstance(ours, ufunc):
        assert (ours.nin, ours.nout) == (theirs["nin"], theirs["nout"])
    elif isinstance(ours, type) and issubclass(ours, BaseException):
        builtin = next(c.__name__ for c in ours.__mro__ if c.__module__ == "builtins")
        assert builtin in theirs["ancestors"]
    elif isinstance(ours, int):
        assert theirs["value"] == ours
    elif callable(ours) and ours is not getattr(np, name, None) and not name.startswith("__"):
        known = theirs["parameters"]
        if known is not None and (found := parameters(ours)) is not None:
            assert not (wrong := _misfit(found, known)), f"{path}: {wrong}"


def test_what_the_package_uses_of_cupy_is_in_the_stand_in() -> None:
    assert {"cupy.where", "cupy.exp", "cupy.zeros"} <= set(USED)
    for path, place in USED.items():
        found: Any = standin.MODULES[path.partition(".")[0]]
        for name in path.split(".")[1:]:
            if path not in LIBRARIES:
                assert hasattr(found, name), f"{place} uses {path}, which the stand-in has not"
                found = getattr(found, name)


def test_a_parameter_that_cupy_has_not_is_noticed() -> None:
    theirs = [["", "a", ""], ["", "axis", "None"], ["", "out", "None"]]

    def ours(a: Any, out: Any = None, axis: Any = None) -> None: ...
    def more(a: Any, axis: Any = None, initial: Any = None) -> None: ...
    def other(a: Any, axis: Any = 0) -> None: ...
    def less(axis: Any = None) -> None: ...

    assert not _misfit(theirs, theirs)
    wrong = [_misfit(parameters(f) or [], theirs) for f in (ours, more, other, less)]
    assert wrong[0].startswith("parameter 2 is not out") and wrong[1] == "it has no parameter initial"
    assert wrong[2] == "axis is 0 by default, not None" and wrong[3].startswith("parameter 1 is not axis")
