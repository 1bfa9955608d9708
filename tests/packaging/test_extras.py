"""Each extra alone brings what it is for, and what a message tells people to type is there."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

CALLED = {
    "scikit-learn": "sklearn",
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "hazelcast-python-client": "hazelcast",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "prometheus-client": "prometheus_client",
    "nvidia-cudnn-frontend": "cudnn",
    "mkdocs-material": "material",
    "tensorboardx": "tensorboardX",
}
"""The modules of distributions that have another name."""
NEEDS = {
    "boto3": "botocore",
    "paramiko": "cryptography",
    "optuna": "sqlalchemy",
    "mkdocstrings-python": "griffe",
    "numba": "llvmlite",
    "cupy-cuda12x": "cupyx",
    "cupy-cuda13x": "cupyx",
}
"""What they bring besides."""
PURPOSES = {
    "aws": ("dl4jlegacy/aws", "dl4jlegacy/storage/s3"),
    "bench": ("benchmarks",),
    "docs": ("tools/documentation",),
    "gpu": ("dl4jlegacy/kernels/cuda",),
    "gpu13": ("dl4jlegacy/kernels/cuda",),
    "images": ("dl4jlegacy/datasets/images/image_modes.py",),
    "keras": ("dl4jlegacy/nn/interchange/modelimport",),
    "metrics": ("dl4jlegacy/observing/prometheus.py",),
    "onnx": ("dl4jlegacy/nn/interchange/onnx",),
    "otel": ("dl4jlegacy/observing/opentelemetry.py",),
    "serve": ("dl4jlegacy/serving", "dl4jlegacy/observing/serving.py"),
    "services": ("dl4jlegacy/services",),
    "sklearn": ("dl4jlegacy/sklearn",),
    "tensorboard": ("dl4jlegacy/observing/tensorboard.py",),
    "tune": ("dl4jlegacy/tuning",),
    "ui": ("dl4jlegacy/ui",),
}
"""Where each extra's packages are used; ``dev`` is for the tests, which run with it."""
TABLES = {"": ("dl4jlegacy/datasets/tables/arrow_files.py", "dl4jlegacy/datasets/tables/csv_chunks.py")}
"""What an installation without an extra can read: Parquet and Arrow, too."""


def requirements(repository: Path) -> dict[str, str]:
    """Return what each extra asks for, and under "" what all have."""
    setup = configparser.ConfigParser()
    setup.read(repository / "setup.cfg", encoding="utf-8")
    return {"": setup["options"]["install_requires"], **setup["options.extras_require"]}


def modules(wanted: str) -> set[str]:
    """Return the modules that requirements bring, as far as they are imported here."""
    names = [line.lower() for line in re.findall(r"^([\w-]+)", wanted.strip(), flags=re.M)]
    return {CALLED.get(name, name.replace("-", "_")) for name in names} | {
        NEEDS[name] for name in names if name in NEEDS
    }


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports, wherever it does; also in the code that it hands to another Python."""
    text, found = path.read_text(encoding="utf-8"), set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "require":  # of benchmarks
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(re.findall(r"^from (\w+) import \w+(?:;|$)", node.value))
    return {name.partition(".")[0] for name in found}


def test_every_extra_is_known_here(repository: Path) -> None:
    assert {*PURPOSES, "dev", ""} == set(requirements(repository))


@pytest.mark.parametrize("extra", [*TABLES, *PURPOSES])
def test_an_extra_alone_brings_all_that_is_imported_where_it_is_used(extra: str, repository: Path) -> None:
    wanted, own = requirements(repository), {"dl4jlegacy", "tools", "tests"}
    files = [
        path
        for place in {**TABLES, **PURPOSES}[extra]
        for path in ([repository / place] if place.endswith(".py") else sorted((repository / place).rglob("*.py")))
    ]
    beside = {path.stem for path in files}
    there = modules(wanted[""]) | modules(wanted[extra]) | own | beside | set(sys.stdlib_module_names)
    missing = {f"{path.relative_to(repository)}: {name}" for path in files for name in imported(path) - there}
    assert missing == set()
    used = set().union(*(imported(path) for path in files))
    assert modules(wanted[extra]) & used, "it is used somewhere else"


def test_what_messages_tell_people_to_type_is_there(repository: Path) -> None:
    extras = set(requirements(repository))
    for path in sorted((repository / "dl4jlegacy").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(repository).as_posix()
        for words in re.findall(r'how_to_install\(((?:["\'][\w-]+["\'](?:, )?)+)\)', text):
            assert set(re.findall(r"[\w-]+", words)) <= extras, name
        if name != "dl4jlegacy/aws/user_data.py":  # there it is the pip of an environment that the script makes
            bare = re.findall(r".*(?<!-m )\bpip install.*", text)
            assert [line for line in bare if "``" not in line] == [], f"{name}: of which Python? say -m pip"


IMPORTS = """
import importlib, pathlib, sys
for place in sys.argv[1:]:
    found = [place] if place.endswith(".py") else sorted(pathlib.Path(place).rglob("*.py"))
    for path in found:
        name = ".".join(pathlib.Path(path).with_suffix("").parts).removesuffix(".__init__")
        if name.startswith("dl4jlegacy"):
            importlib.import_module(name)
"""
RECIPES = {
    "": "import dl4jlegacy",
    "aws": "from dl4jlegacy.aws.wheel import make_wheel; assert make_wheel()[0].endswith('.whl')",
    "services": "from dl4jlegacy.services.java import find_java; find_java()",
}
"""What each is tried with besides; aws: the first step of ``dl4j aws up``."""


@pytest.mark.release
@pytest.mark.parametrize("words", [(extra,) for extra in PURPOSES] + [("images", "keras")], ids=" ".join)
def test_a_fresh_clone_with_an_extra_alone_can_do_what_it_is_for(
    words: tuple[str, ...], repository: Path, tmp_path: Path
) -> None:
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=repository, capture_output=True, timeout=120, check=True)
    subprocess.run(["tar", "-x"], cwd=tmp_path, input=archive.stdout, timeout=120, check=True)
    done = subprocess.run(["sh", "install", *words], cwd=tmp_path, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    for name in ("pip", "dl4j", "actor-network-runner"):
        assert (tmp_path / ".venv" / "bin" / name).exists(), "a recipe of a page calls it"
    python, places = str(tmp_path / ".venv" / "bin" / "python"), [p for word in words for p in PURPOSES[word]]
    skipped = "cuda" in " ".join(places)  # they ask the driver as soon as they are imported
    for code, more in ((IMPORTS, [] if skipped else places), *((RECIPES.get(word, RECIPES[""]), []) for word in words)):
        tried = subprocess.run([python, "-c", code, *more], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert tried.returncode == 0, tried.stderr
