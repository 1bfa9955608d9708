"""Digests of the source of a user's own parts and modules, to detect that the code of a run has changed.

The source of a part is its definition and all functions, classes and constants of its module that the part uses,
directly or indirectly. The rest of the module does not count (comments, other functions, ``if __name__ ==
"__main__"``). So a program may be edited to resume its run, and a class has the same digest in ``python program.py``
and ``--use program``. Imported modules in the same folder, as in ``from mine import rate``, count as whole files;
installed packages do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

__all__ = ["code_digest", "module_digest"]

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_MAIN = "if __name__ == "


def module_digest(module: ModuleType) -> str:
    """Return the SHA-256 of a module's file, or of all files of a package; "" if it has none."""
    file = getattr(module, "__file__", None)
    if file is None:
        return ""
    path, whole = Path(file), hashlib.sha256()
    for each in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
        whole.update(f"{each.relative_to(path.parent)}\n".encode() + each.read_bytes())
    return whole.hexdigest()


def code_digest(part: Any) -> str:
    """Return the SHA-256 of the source of a part: a class, a function, or an object with its attributes.

    If a part has a ``version``, as text, ``version TEXT`` is returned instead. "": the part belongs to this package,
    or its source could not be read.
    """
    version = getattr(part, "version", None)
    if isinstance(version, str) and version:
        return f"version {version}"
    found = sorted(set(_sources(part, set())))
    return hashlib.sha256("\n\0".join(found).encode()).hexdigest() if found else ""


def _sources(part: Any, seen: set[int]) -> Iterator[str]:
    """Yield the pieces of source of a part, each as normalized text."""
    if id(part) in seen or isinstance(part, ModuleType | BuiltinFunctionType):
        return
    seen.add(id(part))
    if isinstance(part, functools.partial):
        yield from _sources(part.func, seen)
        for value in (*part.args, *part.keywords.values()):
            yield from _sources(value, seen)
        return
    if isinstance(part, MethodType):
        yield from _sources(part.__self__, seen)
        part = part.__func__
    is_definition = isinstance(part, type | FunctionType)
    kind = part if is_definition else type(part)
    for each in kind.__mro__ if isinstance(kind, type) else (kind,):
        if _is_of_a_program(each):
            yield from _definition(each)
    if isinstance(part, FunctionType):
        for cell in part.__closure__ or ():
            try:
                yield from _sources(cell.cell_contents, seen)
            except ValueError:
                continue  # the cell is not bound yet
    elif not is_definition and hasattr(part, "__dict__") and not isinstance(part, type):
        for name, value in vars(part).items():
            if callable(value):
                yield from _sources(value, seen)
            elif isinstance(value, bool | int | float | str) and _is_of_a_program(kind):
                yield f"{name} = {value!r}"


def _is_of_a_program(kind: Any) -> bool:
    """Return whether a class or function is the user's own, and not from an installed package."""
    name = getattr(kind, "__module__", None) or ""
    module = sys.modules.get(name)
    if module is None or name.partition(".")[0] in ("dl4jlegacy", "builtins"):
        return False
    file = getattr(module, "__file__", None)
    return name == "__main__" if file is None else not str(Path(file).resolve()).startswith(_INSTALLED)


def _definition(kind: Any) -> Iterator[str]:
    """Yield the definition of a class or function, and of the names of its module that it uses, recursively."""
    module, name = sys.modules[kind.__module__], kind.__qualname__
    try:
        bound = _bound_names(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        bound = {}
    if name in bound:
        names = {name}
    else:
        text, names = _inner_definition(kind)
        yield text
    reached = set[str]()
    while names:
        name = names.pop()
        reached.add(name)
        for node in bound.get(name, ()):
            yield ast.unparse(node)
            yield from _beside(node, module)
            names |= _named_in(node) - reached


def _inner_definition(kind: Any) -> tuple[str, set[str]]:
    """Return the definition of a nested or interactively typed class or function, and the names in it."""
    code = getattr(kind, "__code__", None)
    if code is not None and kind.__name__ == "<lambda>":  # its source would be the whole enclosing statement
        return "\n".join(_code(code)), {*code.co_names}
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return ("", set()) if code is None else ("\n".join(_code(code)), {*code.co_names})
    return ast.unparse(node), _named_in(node)


def _code(code: CodeType) -> Iterator[str]:
    """Yield the bytecode, constants and names of a compiled function, without its position."""
    yield code.co_code.hex()
    for const in code.co_consts:
        yield from _code(const) if isinstance(const, CodeType) else (repr(const),)
    yield from code.co_names


def _named_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


@functools.lru_cache(maxsize=16)
def _bound_names(source: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of a module by the names that they bind, except those under ``if __name__ == ...``."""
    bound: dict[str, list[ast.stmt]] = {}
    statements = list(ast.parse(source).body)
    while statements:
        node = statements.pop(0)
        if isinstance(node, ast.If | ast.Try | ast.With):
            inner = [] if ast.unparse(node).startswith(_MAIN) else ast.iter_child_nodes(node)
            statements += [each for each in inner if isinstance(each, ast.stmt)]
            continue
        for name in _names_of(node):
            bound.setdefault(name, []).append(node)
    return bound


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def _beside(node: ast.stmt, module: ModuleType) -> Iterator[str]:
    """Yield the digests of modules that an import statement loads from this module's folder or below."""
    if not isinstance(node, ast.Import | ast.ImportFrom) or not getattr(module, "__file__", None):
        return
    folder = Path(str(module.__file__)).resolve().parent
    package = module.__name__.rpartition(".")[0]
    first = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    for name in first:
        full = f"{package}.{name}".strip(".") if getattr(node, "level", 0) else name
        other = sys.modules.get(full)
        file = getattr(other, "__file__", None)
        if other is not None and file and Path(file).resolve().is_relative_to(folder):
            yield f"{name} {module_digest(other)}"
