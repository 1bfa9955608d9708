"""The device tests: the same networks and commands on a real GPU, wherever there is one (marker ``gpu``).

What is short runs on the stand-in too, so that these tests are themselves tested where there is no GPU; there the
summary names what was not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.arrays import devices
from tests.nn.test_device_networks import CASES
from tests.support.device_twins import Twins
from tests.support.standin_commands import REAL, STANDIN, Place
from tests.training.test_end_to_end import exact, kill_after_a_checkpoint

FEW = ("--dataset", "digits", "--jobs-per-round", "4", "--seed", "7", "--pretrain-epochs", "1")


both = pytest.mark.parametrize(
    "place",
    [pytest.param(REAL, marks=pytest.mark.gpu, id="gpu"), pytest.param(STANDIN, marks=pytest.mark.long, id="stand-in")],
)


# -- networks: on the stand-in they are test_device_networks -----------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(("test", "given"), CASES)
def test_a_network_on_the_gpu_does_what_it_does_on_the_cpu(
    test: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients against central differences in float64, and every number in float32 within 1e-4 of the CPU's."""
    monkeypatch.setitem(test.__globals__, "GradientCheckUtil", Twins)
    test(**given)


@pytest.mark.gpu
def test_the_gpu_has_a_name_and_a_uuid_of_its_own() -> None:
    found = devices.choose("gpu")
    assert all(device.name and device.uuid.startswith("GPU-") and device.memory > 0 for device in found)
    assert len({device.uuid for device in found}) == len(found)


# -- commands ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("model", ["mlp", "dbn"])
def test_two_runs_give_the_same_bits_whatever_the_number_of_workers(place: Place, model: str) -> None:
    same = ("train", "--model", model, *FEW, "--epochs", "2", "--device", "gpu:0")
    reports = place.side_by_side(*((*same, "--workers", workers) for workers in ("1", "1", "2")))
    assert len({report["params_sha256"] for report in reports}) == 1
    for report in reports:
        assert (report["kernels"], report["device"], report["precision"]) == ("cupy", "gpu:0", "float32")
        exact(report, 1280 * 2 if model == "mlp" else 1344 * 4)  # the others validate


@both
@pytest.mark.parametrize("model", ["mlp", "dbn"])
def test_a_short_run_is_as_good_as_on_the_cpu(place: Place, model: str) -> None:
    same = ("train", "--model", model, *FEW, "--epochs", "3", "--workers", "2")
    there, here = place.side_by_side(*((*same, "--device", device) for device in ("gpu:0", "cpu")))
    assert (there["kernels"], here["kernels"]) == ("cupy", "numba")
    # Both draw the same random numbers; in a DBN a sample that rounding tips over makes its own way from there.
    assert there["score"] == pytest.approx(here["score"], rel=1e-4 if model == "mlp" else 0.1)
    assert there["accuracy"] == pytest.approx(here["accuracy"], abs=0.005 if model == "mlp" else 0.05)


@both
def test_a_run_killed_in_the_middle_resumes_to_the_same_bits(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    same = ["--model", "mlp", *FEW, "--epochs", "12", "--device", "gpu:0", "--workers", "1"]
    undisturbed = place.dl4j("train", *same)
    kept = ["--checkpoint-dir", str(folder), "--checkpoint-every", "5"]
    kill_after_a_checkpoint(["train", *same, *kept], folder, place.command, place.environment)
    kill_after_a_checkpoint(["resume", str(folder)], folder, place.command, place.environment)
    elsewhere = place.run("resume", str(folder), "--device", "cpu")
    assert elsewhere.returncode == 3 and "this run computes on GPUs (its kernels are cupy)" in elsewhere.stderr
    report = place.dl4j("resume", str(folder), "--workers", "2")
    assert report["params_sha256"] == undisturbed["params_sha256"] and report["kernels"] == "cupy"
    exact(report, undisturbed["examples"])


@both
def test_a_saved_model_is_evaluated_on_either_device(place: Place, tmp_path: Path) -> None:
    out = str(tmp_path / "model.zip")
    place.dl4j("train", *FEW, "--epochs", "1", "--device", "gpu:0", "--out", out)
    same = ("evaluate", out, "--dataset", "digits", "--device")
    there, here = place.side_by_side((*same, "gpu:0"), (*same, "cpu"))
    assert (there["device"], here["device"]) == ("gpu:0", "cpu")
    assert there["loss"] == pytest.approx(here["loss"], rel=1e-5)


@both
def test_the_run_names_its_precision(place: Place) -> None:
    report = place.dl4j("train", *FEW, "--epochs", "1", "--device", "gpu:0", "--precision", "tf32")
    assert report["precision"] == "tf32"


@pytest.mark.gpu
@pytest.mark.parametrize(("model", "accuracy"), [("dbn", 0.96), ("mlp", 0.97), ("sda", 0.96)])
def test_digits_are_learned_on_the_gpu(model: str, accuracy: float) -> None:
    report = REAL.dl4j("train", "--model", model, "--dataset", "digits", "--seed", "42", "--device", "gpu")
    assert report["accuracy"] >= accuracy
    exact(report, 1438 * (report["examples"] // 1438))


@pytest.mark.gpu
@pytest.mark.mnist
@pytest.mark.parametrize(("model", "epochs", "accuracy"), [("lenet", 5, 0.985), ("mlp", 10, 0.978), ("dbn", 10, 0.975)])
def test_the_whole_mnist_is_learned_on_the_gpu(model: str, epochs: int, accuracy: float, mnist_dir: str) -> None:
    where = ["--data-dir", mnist_dir] if mnist_dir else []
    same = ["train", "--model", model, "--dataset", "mnist", "--epochs", str(epochs), "--jobs-per-round", "4", *where]
    reports = [REAL.dl4j(*same, "--device", "gpu", timeout=900) for _ in range(2 if model == "lenet" else 1)]
    assert reports[0]["accuracy"] >= accuracy
    assert len({report["params_sha256"] for report in reports}) == 1


@pytest.mark.gpu
def test_char_lstm_learns_the_sonnets_on_the_gpu() -> None:
    same = ["--model", "char-lstm", "--dataset", "sonnets", "--jobs-per-round", "2", "--epochs", "8"]
    reports = [REAL.dl4j("train", *same, "--device", "gpu", timeout=600) for _ in range(2)]
    assert reports[0]["loss"] / 64 < 2.5 and reports[0]["accuracy"] > 0.27
    assert reports[0]["params_sha256"] == reports[1]["params_sha256"]
