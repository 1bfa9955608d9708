"""What ``import dl4jlegacy`` gives, and what it costs."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import keyword
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dl4jlegacy

HEAVY = {"numba", "llvmlite", "numpy", "msgspec", "pykka", "rich", "typer", "yaml", "safetensors", "sklearn", "optuna"}
SERVERS = {"hazelcast", "kazoo", "boto3", "cupy", "starlette", "uvicorn", "pyspark"}
PACKAGES = [
    "dl4jlegacy",
    "dl4jlegacy.datasets",
    "dl4jlegacy.nn",
    "dl4jlegacy.scaleout",
    "dl4jlegacy.scaleout.zookeeper",
    "dl4jlegacy.kernels",
    "dl4jlegacy.testing",
]


def in_a_fresh_process(code: str) -> Any:
    """What ``code`` prints, as JSON, in an interpreter that has loaded nothing yet."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None, f"{package}.{name}"


@pytest.mark.parametrize("package", PACKAGES[1:])  # the first takes its names from its stub
def test_exported_names_are_sorted_and_unique(package: str) -> None:
    names = importlib.import_module(package).__all__

    def kind(name: str) -> int:  # constants, classes, functions, as the linter sorts them
        return 0 if name.isupper() else 1 if name[0].isupper() else 2

    assert list(names) == sorted(set(names), key=lambda name: (kind(name), name))


def test_every_public_class_and_function_has_a_docstring() -> None:
    objects = [getattr(dl4jlegacy, name) for name in dl4jlegacy.__all__]
    assert not [o.__name__ for o in objects if not inspect.getdoc(o)]


def test_type_checkers_see_the_names_that_are_loaded_lazily() -> None:
    stub = ast.parse(Path(dl4jlegacy.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    aliases = [alias for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases), "a stub exports only A as A"
    by_name = {alias.name for alias in aliases} - set(dl4jlegacy.__all__)
    of_servers = {"HazelcastStateTracker", "ZooKeeperConfigurationRegister", "ZookeeperConfigurationRetriever"}
    assert by_name == {*of_servers, "__version__"}
    assert [name for name in by_name if f"``{name}``" not in (dl4jlegacy.__doc__ or "")] == [], "not documented"
    assert set(dl4jlegacy.__all__) <= {alias.name for alias in aliases}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_star_brings_no_module_and_hides_nothing_of_the_program(package: str) -> None:
    brought: dict[str, Any] = {}
    exec(f"from {package} import *", brought)  # noqa: S102 - what it does is what is tested
    names = brought.keys() - {"__builtins__"}
    assert names == set(importlib.import_module(package).__all__)
    assert [n for n in names if hasattr(builtins, n) or keyword.iskeyword(n) or n.startswith("_")] == []
    assert [n for n in names if inspect.ismodule(brought[n])] == []


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="MultiLayerNetwrok"):
        dl4jlegacy.MultiLayerNetwrok  # noqa: B018


def test_dir_shows_the_lazy_names() -> None:
    assert set(dl4jlegacy.__all__) <= set(dir(dl4jlegacy))


def test_a_script_beside_a_clone_of_this_name_gets_the_package(tmp_path: Path) -> None:
    """The folder of a clone is called dl4jlegacy, too, and whoever is in the folder above has it first on the path."""
    (tmp_path / "dl4jlegacy" / "dl4jlegacy").mkdir(parents=True)
    (tmp_path / "script.py").write_text("from dl4jlegacy import Conf")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_import_loads_nothing_heavy() -> None:
    loaded = in_a_fresh_process("import dl4jlegacy, sys, json; print(json.dumps(sorted(sys.modules)))")
    assert not (HEAVY | SERVERS) & set(loaded)


def test_the_public_names_load_no_compiler_and_no_terminal_library() -> None:
    loaded = in_a_fresh_process("from dl4jlegacy import *; import sys, json; print(json.dumps(sorted(sys.modules)))")
    assert not ({"numba", "llvmlite", "rich", "typer", "sklearn", "optuna"} | SERVERS) & set(loaded)


def test_import_takes_less_of_the_processor_than_that_of_asyncio() -> None:
    code = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
    ours, theirs = (
        min(in_a_fresh_process(code.format(module)) for _ in range(3)) for module in ("dl4jlegacy", "asyncio")
    )
    assert ours < theirs, f"{ours:.3f} s, {theirs:.3f} s"


def test_help_loads_nothing_that_only_training_needs() -> None:
    """What makes `dl4j --help` answer within half a second: NumPy alone takes a fifth of that."""
    run = "from dl4jlegacy.cli.main import main; main(['--help'])"
    code = f"""import contextlib, io, json, sys
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    {run}
print(json.dumps(sorted(sys.modules)))"""
    loaded = in_a_fresh_process(code)
    assert "typer" in loaded, "the help was not printed"
    assert not ((HEAVY | SERVERS) - {"msgspec", "rich", "typer"}) & set(loaded)
