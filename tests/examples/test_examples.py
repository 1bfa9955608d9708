"""Every example runs as a stranger would run it: as a script, in a process of its own, from the project's folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, *arguments: str, **environment: str) -> str:
    """What the example prints; the test fails with its stderr if it fails."""
    settings = {"PYTHONPATH": str(EXAMPLES.parent), "PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-W", "error", str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=settings)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, f"{script} is noisy on stderr: {done.stderr}"
    return done.stdout


def number_after(text: str, output: str) -> float:
    found = re.search(rf"{text}\s*([\d.]+)", output)
    assert found, f"no {text!r} in: {output}"
    return float(found[1])


@pytest.mark.long
def test_the_mnist_example_learns_and_loses_no_batch(tmp_path: Path) -> None:
    arguments = ("--examples", "1797", "--workers", "2", "--epochs", "10")
    refused = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}  # no download, at once
    output = run("mnist_multi_threaded.py", *arguments, DL4J_DATA_DIR=str(tmp_path), HOME=str(tmp_path), **refused)
    assert "so the bundled digits" in output
    assert " 0 batches lost" in output
    assert number_after("accuracy on the training examples:", output) > 0.9


@pytest.mark.long
@pytest.mark.mnist
def test_the_mnist_example_takes_mnist_where_it_is_found(mnist_dir: str) -> None:
    if not mnist_dir:
        pytest.skip("DL4J_DATA_DIR is not set")
    output = run("mnist_multi_threaded.py", "--examples", "1000", "--epochs", "10", DL4J_DATA_DIR=mnist_dir)
    assert "bundled digits" not in output
    assert output.startswith("13000 examples")  # three layers pretrained once, ten epochs of finetuning
    assert number_after("accuracy on the training examples:", output) > 0.9


@pytest.mark.long
@pytest.mark.mnist
def test_the_lenet_example_learns(mnist_dir: str) -> None:
    found = {"DL4J_DATA_DIR": mnist_dir} if mnist_dir else {}
    output = run("mnist_lenet.py", "--examples", "3000", "--epochs", "3", **found)
    assert "9000 examples" in output and ", 0 batches lost" in output
    assert number_after("Accuracy:", output) > 0.85


def test_the_iris_example_learns_saves_and_restores(tmp_path: Path) -> None:
    path = tmp_path / "iris.zip"
    output = run("iris_dbn.py", str(path))
    assert number_after("Accuracy:", output) >= 0.9
    assert "answers the same: True" in output
    assert path.is_file()


def test_the_word_count_example_counts_every_line_once(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b a\n" * 50 + "c\n", encoding="utf-8")
    output = run("custom_performer.py", str(text))
    assert output.split() == ["100", "a", "50", "b", "1", "c", *["51", "lines", "counted,", "0", "lost,", "0", "twice"]]


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_fits_on_a_page(script: Path) -> None:
    pages = 2 if script.name == "aws_cluster.py" else 1  # a tool to be run as it is, not only to be read
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60 * pages


@pytest.mark.long
def test_the_sonnets_example_learns_and_goes_on_with_the_text() -> None:
    output = run("char_lstm_sonnets.py", "--epochs", "3", "--characters", "120")
    assert number_after("epoch 3:", output) < 2.8
    assert "From fairest creatures we desire increas" in output
    assert len(output.split("From fairest", 1)[1]) > 120


@pytest.mark.long
def test_the_deep_autoencoder_example_rebuilds_digits_it_has_not_seen() -> None:
    output = run("deep_autoencoder_digits.py", "--epochs", "6", "--pretrain-epochs", "4")
    assert number_after("held-out pixel:", output) < 0.6 * number_after("mean image", output)
    assert sum("@" in line or "#" in line for line in output.splitlines()) >= 7


@pytest.mark.long
def test_the_vae_example_learns_and_draws() -> None:
    output = run("vae_digits.py", "--epochs", "8", "--draw", "3")
    assert number_after("after 8 epochs:", output) < 0.75 * number_after("before training:", output)
    drawn = output.splitlines()[2:]
    assert len(drawn) == 8 and {len(line) for line in drawn} == {3 * 16 + 2 * 3}


@pytest.mark.long
@pytest.mark.mnist
def test_the_alexnet_example_learns(mnist_dir: str) -> None:
    found = {"DL4J_DATA_DIR": mnist_dir} if mnist_dir else {}
    output = run("alexnet_mnist.py", "--examples", "1500", "--epochs", "2", "--workers", "2", **found)
    assert "3000 examples" in output and ", 0 batches lost" in output
    assert number_after("Accuracy:", output) > 0.5
