"""What the package calls of CuPy, and what the stand-in offers, is in the real CuPy; that needs no GPU."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support import REPOSITORY, standin

ROOTS = {"cupy", "cupyx", "xp"}
LIBRARY = "cupy.cuda.cublas"
"""Asked for to see whether the library is there; without a GPU it need not be."""
DESCRIBE = """
import importlib, inspect, json, sys

def described(path):
    names = path.split(".")
    found = importlib.import_module(names[0])
    for name in names[1:]:
        if not hasattr(found, name):
            return None
        found = getattr(found, name)
    try:
        return str(inspect.signature(found))
    except (TypeError, ValueError):  # written in Cython: its first line has the parameters
        return (getattr(found, "__doc__", None) or "").partition("\\n")[0]

print(json.dumps({path: described(path) for path in json.load(sys.stdin)}))
"""


def calls() -> dict[str, set[str]]:
    """Return the names of CuPy in the package, ``xp.zeros`` or ``self.xp.cuda.Device``, and all keywords of calls."""
    found: dict[str, set[str]] = {}
    for path in sorted((REPOSITORY / "dl4jlegacy").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text))) if any(f"{root}." in text for root in ROOTS) else []
        keywords = {id(call.func): {k.arg or "" for k in call.keywords} for call in nodes if isinstance(call, ast.Call)}
        for whole in nodes:
            names: list[str] = []
            node: Any = whole
            while isinstance(node, ast.Attribute) and node.attr.lstrip("_") not in ROOTS:
                names.insert(0, node.attr)
                node = node.value
            root = getattr(node, "id", getattr(node, "attr", ""))
            if names and root.lstrip("_") in ROOTS:
                name = ".".join(("cupyx" if root == "cupyx" else "cupy", *names))
                found.setdefault(name, set()).update(keywords.get(id(whole), ()))
    return found


def offered() -> set[str]:
    """Return all public names of the stand-in, those of its classes too."""
    found = set()
    for module in standin.MODULES.values():
        for name, value in vars(module).items():
            members = vars(value) if isinstance(value, type) and value.__module__.startswith("tests.") else {}
            found |= {f"{module.__name__}.{name}"} | {f"{module.__name__}.{name}.{member}" for member in members}
    private = re.compile(r"\._|\.Event\.stream$|\.Event\.capture$")  # the stand-in's own
    return {name for name in found if not private.search(name)}


def test_what_the_package_calls_and_the_stand_in_offers_is_in_the_real_cupy() -> None:
    assert find_spec("cupy") is not None, "cupy is not installed: ./install dev"
    called = calls()
    del called[LIBRARY]
    assert "dtype" in called["cupy.zeros"] | called["cupy.eye"] and "cupy.where" in called
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE], input=json.dumps([*called, *offered()]), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    real = json.loads(done.stdout)
    assert not [name for name, signature in real.items() if signature is None], "CuPy has no such names"
    for name, keywords in called.items():
        accepted = re.findall(r"\w+", real.get(name, "")) or keywords
        assert keywords <= {*accepted}, f"{name}{real.get(name)} is called with {keywords}"


@pytest.mark.parametrize("name", sorted({*calls()} - {LIBRARY}))
def test_the_stand_in_has_what_the_package_calls(name: str) -> None:
    found: Any = standin.MODULES[name.partition(".")[0]]
    for part in name.split(".")[1:]:
        found = getattr(found, part)
