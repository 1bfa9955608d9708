"""Variables of the environment: every one that a command reads, with every kind of value."""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer

from dl4jlegacy.cli.commands.doctor import variables
from dl4jlegacy.cli.main import declared
from dl4jlegacy.nn import MultiLayerNetwork, write_model, zoo
from tests.fuzz.commands import OUT, Attempt, answer
from tests.support import REPOSITORY

__all__ = ["VALUES", "names", "with_environment"]

_READ = re.compile(r"environ(?:\.get\(|\[)\"([A-Z][A-Z0-9_]+)\"")
_OF_LIBRARIES = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_CA_BUNDLE", "AWS_RETRY_MODE"),
    *("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_MAX_ATTEMPTS", "AWS_DEFAULTS_MODE", "AWS_USE_FIPS_ENDPOINT"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_STS_REGIONAL_ENDPOINTS"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"),
    *("COLUMNS", "LINES", "TERM", "NO_COLOR", "TMPDIR", "HOME", "PATH", "LANG", "LC_ALL", "TZ", "XDG_CACHE_HOME"),
    *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME", "CUDA_VISIBLE_DEVICES"),
)
"""Those that libraries read at the time of use; what they read while they are imported is tried in new processes."""
VALUES = (
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "x",
        "1e3",
        "nan",
        "inf",
        "9" * 40,
        "true",
        "maybe",
        "/",
        ".",
        "/dev/null",
        "no/such/file",
    ),
    *(
        "localhost:9000",
        "http://[::",
        "://",
        "http://127.0.0.1:1",
        "hazelcast://",
        "[]",
        "{}",
        "null",
        "\udcff",
        "\x1b[2J",
    ),
    *("a\nb", "%s", "~nobody-of-this-name/x", "../..", "a,b,,", "ü", "x" * 5000, "cupy", "gpu:99", "\uff11", "1_0"),
)


def names() -> list[str]:
    """Return the names of all variables that the package, and what it uses, reads at the time of a command."""
    found = set(variables(typer.main.get_command(declared()))) | set(_OF_LIBRARIES)
    for path in (REPOSITORY / "dl4jlegacy").rglob("*.py"):
        found |= set(_READ.findall(path.read_text(encoding="utf-8")))
    return sorted(found - {"NOTIFY_SOCKET"})


_COMMANDS = (
    ("train", "iris.csv", "--epochs", "1", "--workers", "1", "--out", f"{OUT}/m.zip"),
    ("train", "iris.csv", "--epochs", "1", "--workers", "1", "--checkpoint-dir", "s3://bucket/key"),
    ("data", "inspect", "numbers.csv"),
    ("predict", "mlp.zip", "numbers.csv"),
    ("evaluate", "mlp.zip", "--dataset", "iris"),
    ("summary", "mlp"),
    ("aws", "status", "x"),
    ("services", "status", "--folder", "none"),
)
_REACHED = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}


@contextlib.contextmanager
def _set(given: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def with_environment() -> Iterator[Attempt]:
    """Yield what sets one variable or two, and runs a command."""
    known = names()
    write_model(MultiLayerNetwork(zoo.mlp(4, 3, hidden=(3,))), "mlp.zip", label_names=("a", "b", "c"))
    Path("numbers.csv").write_text("1,2,3,4\n5,6,7,8\n")
    Path("iris.csv").write_text("".join(f"{i / 7},{i % 5},{i % 2}\n" for i in range(24)))
    for name in [name for name in os.environ if name.startswith(("DL4J_", "AWS_"))]:
        del os.environ[name]
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "eu-west-1", **_REACHED}

    def attempt(rng: random.Random) -> tuple[int, str]:
        Path(OUT).mkdir(exist_ok=True)
        given = {rng.choice(known): rng.choice(VALUES) for _ in range(rng.choice((1, 1, 2)))}
        command = [*rng.choice(_COMMANDS), "--format", rng.choice(("text", "json"))]
        if "DL4J_FORMAT" in given:
            command = command[:-2]
        with _set(keys | given):
            found = answer(command)
        return found.status, f"{given} {command}: {found.fault}: {found.err[-3000:]}" if found.fault else ""

    yield attempt
