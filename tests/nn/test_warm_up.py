"""Kernels are compiled beforehand: models of the zoo train on a made-up batch; the command says where it is kept."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.compilation import report_missing
from dl4jlegacy.nn import MultiLayerNetwork
from dl4jlegacy.nn.compiling import compile_ahead
from dl4jlegacy.nn.compiling.warm_up import RUNS, made_up_batch, warm_up
from dl4jlegacy.nn.zoo import ZOO

ON_REAL_DATA = {"dbn": "digits", "sda": "digits", "vae": "digits", "char-lstm": "sonnets", "word-lstm": "sonnets"}
ON_REAL_DATA |= dict.fromkeys(("lenet", "alexnet-small", "cnn", "deep-autoencoder"), "mnist")


def dl4j(*arguments: str, command: str = "warm-up", **env: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "dl4jlegacy", command, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **env})


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the kernels of a perceptron."""
    return warmed_up(tmp_path_factory.mktemp("kernels"), "mlp")


@pytest.fixture(scope="module")
def all_warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the kernels of all models."""
    return warmed_up(tmp_path_factory.mktemp("kernels"))


def warmed_up(cache: Path, *models: str) -> Path:
    done = dl4j(*models, NUMBA_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stderr
    return cache


def check_nothing_is_compiled(cache: Path, *arguments: str) -> None:
    before = set(cache.rglob("*.nbc"))
    done = dl4j(*arguments, "--workers", "2", command="train", NUMBA_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stderr
    assert before and {path.name for path in set(cache.rglob("*.nbc")) - before} == set()


def test_every_model_of_the_zoo_is_warmed_up_in_order_and_then_what_any_run_needs() -> None:
    ticks = itertools.count()
    done = list(warm_up(clock=lambda: float(next(ticks))))
    assert [each.name for each in done] == [*ZOO, RUNS]
    assert {(each.seconds, each.again) for each in done} == {(1.0, 1.0)}


def test_where_a_kernel_is_missing_other_processes_compile_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []
    monkeypatch.setattr(compile_ahead, "_start", lambda conf, ended: found.append(conf))
    monkeypatch.setattr(MultiLayerNetwork, "fit", lambda *_: report_missing())
    assert [each.name for each in warm_up(["mlp"])] == ["mlp", RUNS]
    assert found == [ZOO["mlp"].build(*made_up_batch("mlp")[:2])]


def test_the_other_processes_have_ended_when_a_model_is_said_to_be_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    others = []

    @contextlib.contextmanager
    def compiling_ahead(conf: object, kernels: object) -> Iterator[None]:
        others.append(conf)
        yield
        others.clear()

    monkeypatch.setattr("dl4jlegacy.nn.compiling.warm_up.compiling_ahead", compiling_ahead)
    assert [(each.name, others[:]) for each in warm_up(["mlp"])] == [("mlp", []), (RUNS, [])]


@pytest.mark.parametrize("model", ZOO)
def test_a_made_up_batch_is_the_same_at_every_call_and_fits_its_builder(model: str) -> None:
    (n_in, n_out, batch), again = made_up_batch(model), made_up_batch(model)[2]
    np.testing.assert_array_equal(batch.features, again.features)
    assert len(batch.features) == 17 and ZOO[model].build(n_in, n_out).layers


def test_an_unknown_model_is_named_before_anything_is_compiled() -> None:
    with pytest.raises(ConfError, match=r"unknown model 'lenett'.*lenet"):
        next(warm_up(["mlp", "lenett"]))


def test_what_was_compiled_is_kept_where_the_command_says(warm: Path) -> None:
    done = dl4j("mlp", "--format", "json", NUMBA_CACHE_DIR=str(warm))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [each["model"] for each in said["models"]] == ["mlp"] and said["cache"].startswith(str(warm))
    assert said["runs"].keys() == {"seconds", "again"}
    assert list(Path(said["cache"]).glob("*.nbc"))


@pytest.mark.parametrize("router", ["iterative-reduce", "easgd", "gradient-sharing"])
@pytest.mark.everyday(1)
def test_after_it_a_run_compiles_nothing(router: str, warm: Path) -> None:
    check_nothing_is_compiled(warm, *("--model", "mlp", "--dataset", "digits", "--epochs", "1", "--router", router))


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "dataset"),
    [
        pytest.param(*each, marks=() if each[0] in ("dbn", "word-lstm", "lenet") else pytest.mark.release)
        for each in ON_REAL_DATA.items()
    ],
)
def test_after_it_no_model_compiles_anything_on_data_that_come_along(
    model: str, dataset: str, all_warm: Path, request: pytest.FixtureRequest
) -> None:
    if dataset == "mnist":
        request.getfixturevalue("mnist_dir")
    words = ["--tokens", "words"] if model == "word-lstm" else []
    check_nothing_is_compiled(all_warm, "--model", model, "--dataset", dataset, "--max-seconds", "6", *words)


def test_a_wrong_model_and_kernels_that_are_not_compiled_are_said() -> None:
    wrong = dl4j("lenett")
    assert wrong.returncode != 0 and "unknown model 'lenett'" in wrong.stderr and "Traceback" not in wrong.stderr
    plain = dl4j("mlp", DL4J_KERNELS="numpy")
    assert plain.returncode == 0 and "kept nowhere" in plain.stdout
