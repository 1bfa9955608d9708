"""What is built and installed holds everything, and the linter and the type checker are content."""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

PACKAGED = {
    "dl4jlegacy/aws/requirements.txt",
    "dl4jlegacy/py.typed",
    "dl4jlegacy/datasets/data/NOTICE",
    "dl4jlegacy/datasets/data/digits.csv.gz",
    "dl4jlegacy/datasets/data/iris.csv",
    "dl4jlegacy/kernels/cuda/prelude.cuh",
    "dl4jlegacy/kernels/cuda/vectors.cu",
    "dl4jlegacy/scaleout/protocol/master.py",
    "dl4jlegacy/services/jars.json",
    "dl4jlegacy/ui/page/index.html",
}

HOOKS = (["validate-config"], ["install"])


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is to be packaged, so that building leaves nothing in the project's folder."""
    root, target = Path(__file__).parents[2], tmp_path_factory.mktemp("source")
    files = [root / name for name in ("setup.py", "setup.cfg", "README.md", "LICENSE", "MANIFEST.in")]
    folders = ("dl4jlegacy", "benchmarks", "examples", "tools")
    found = [path for folder in folders for path in (root / folder).rglob("*")]
    files += [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    for path in files:
        (target / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        (target / path.relative_to(root)).write_bytes(path.read_bytes())
    return target


def build(kind: str, source: Path, target: Path) -> Path:
    """Build with setuptools alone, so that nothing is fetched."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(target)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = target.iterdir()
    return built


def test_the_wheel_holds_data_licence_notice_and_type_marker(copy: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="70.1")
    names = set(zipfile.ZipFile(build("wheel", copy, tmp_path)).namelist())
    assert not PACKAGED - names
    licences = {name.rpartition("/")[2] for name in names if ".dist-info/" in name}
    assert {"LICENSE", "NOTICE"} <= licences
    assert not [name for name in names if name.startswith(("tests/", "examples/", "benchmarks/", "tools/"))]


def test_the_source_distribution_builds_the_same(copy: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="70.1")
    with tarfile.open(build("sdist", copy, tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not (PACKAGED | {"LICENSE", "README.md", "setup.cfg", "setup.py"}) - names


def test_both_commands_are_entry_points_that_exist() -> None:
    try:
        entries = importlib.metadata.distribution("dl4jlegacy").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed, only on the path")
    commands = {entry.name: entry.load() for entry in entries if entry.group == "console_scripts"}
    assert set(commands) == {"dl4j", "actor-network-runner"}
    assert all(callable(command) for command in commands.values())


@pytest.mark.parametrize(
    "tool", [pytest.param(["ruff", "check", "."], id="ruff"), pytest.param(["mypy"], marks=pytest.mark.long, id="mypy")]
)  # before a commit both look at what it changes: .pre-commit-config.yaml
def test_the_tools_have_nothing_to_say(tool: list[str], repository: Path) -> None:
    pytest.importorskip(tool[0])
    done = subprocess.run([sys.executable, "-m", *tool], cwd=repository, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{' '.join(tool)}:\n{done.stdout}{done.stderr}"


def committed(repository: Path) -> dict[str, str]:
    """The texts of the committed files, but for this one, by their names."""
    suffixes = {".py", ".pyi", ".md", ".cfg", ".toml", ".json", ".yaml", ".yml", ".sh", ""}
    if shutil.which("git") is None:
        pytest.skip("there is no git to list the committed files")
    listed = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True, timeout=60)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [repository / name for name in listed.stdout.splitlines()]
    return {
        path.relative_to(repository).as_posix(): path.read_text(encoding="utf-8", errors="replace")
        for path in paths
        if path.suffix in suffixes and path.is_file() and path != Path(__file__)
    }


def test_the_hooks_before_a_commit_can_be_installed(repository: Path, tmp_path: Path) -> None:
    shutil.copy(repository / ".pre-commit-config.yaml", tmp_path)
    for command in (["git", "init", "--quiet"], *([sys.executable, "-m", "pre_commit", *words] for words in HOOKS)):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / ".git" / "hooks" / "pre-commit").exists()


def test_nobody_is_told_to_install_the_package_from_an_index(repository: Path) -> None:
    setup = configparser.ConfigParser()
    setup.read(repository / "setup.cfg", encoding="utf-8")
    extras = set(setup["options.extras_require"])
    for name, text in committed(repository).items():
        assert "dl4jlegacy[" not in text, f"{name}: the package is on no index; './install EXTRA' in the clone works"
        assert not re.search(r"pip3? install [^\n]*dl4jlegacy\b(?!\.)", text), f"{name}: the package is on no index"
        named = set(re.findall(r"\./install (\w+)['`\"]", text))
        assert named <= {*extras, "EXTRA"}, f"{name}: there is no extra {named - extras}"


OF_EVERY_DEBIAN = {"apt-get", "bash", "cat", "chroot", "cp", "dpkg-deb", "git", "sh", "sleep", "tar", "unshare"}


def programs(text: str) -> set[str]:
    """The programs that a module calls by name: first in a list for ``subprocess``, or given to ``shutil.which``."""
    found = set()
    for call in ast.walk(ast.parse(text)):
        if not (isinstance(call, ast.Call) and call.args and isinstance(call.func, ast.Attribute)):
            continue
        what, name = call.args[0], call.func.attr
        if name in ("run", "Popen", "check_output", "check_call", "call"):
            what = what.elts[0] if isinstance(what, ast.List) and what.elts else None
        elif name != "which":
            continue
        if isinstance(what, ast.Constant) and isinstance(what.value, str):
            found.add(what.value.rpartition("/")[2])
    return found


def test_tests_call_no_program_that_install_dev_does_not_bring(repository: Path) -> None:
    called = {
        path.relative_to(repository).as_posix(): programs(path.read_text(encoding="utf-8"))
        for path in (repository / "tests").rglob("*.py")
        if "docker" not in path.parts  # Docker's engine is asked for by name: -m docker
    }
    assert called["tests/packaging/test_packaging.py"] == {"git"}, "the calls are no longer recognised"
    foreign = {name: names - OF_EVERY_DEBIAN for name, names in called.items() if names - OF_EVERY_DEBIAN}
    assert not foreign, f"let './install dev' bring a Python package for these: {foreign}"


def test_no_committed_text_names_the_place_where_it_was_written(repository: Path) -> None:
    place = re.compile(r"(?<![\w>}])/(work|tmp|root)/")  # inside a longer path it is a node of Zookeeper's
    for name, text in committed(repository).items():
        assert not place.search(text), f"{name} names a folder of somebody's machine"
