"""``dl4j reconstruct`` and ``dl4j sample``: from a training to an image, and what they say of what cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy import load_model, write_model
from dl4jlegacy.cli import main
from dl4jlegacy.datasets import load
from dl4jlegacy.models.reconstruction import draw_samples, image_shape, sample_grid
from dl4jlegacy.nn import MultiLayerNetwork
from dl4jlegacy.nn.zoo import mlp, sda

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--workers", "1", "--jobs-per-round", "1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``vae.zip`` and ``dbn.zip``, which have seen digits for a little while."""
    folder = tmp_path_factory.mktemp("grids")
    for name, epochs in (("vae", "20"), ("dbn", "2")):
        words = ("--dataset", "digits", "--model", name, "--pretrain-epochs", epochs, "--epochs", "1", *SHORT)
        with pytest.raises(SystemExit) as leave:
            main.main(["train", *words, "--out", str(folder / f"{name}.zip")])
        assert not leave.value.code
    return folder


def pixels(name: str) -> np.ndarray:
    with Image.open(name) as image:
        return np.asarray(image)


def test_digits_are_drawn_above_what_the_model_gives_back(dl4j: Any, trained: Path) -> None:
    asked = ("reconstruct", str(trained / "vae.zip"), "digits", "--out", "grid.png", "--count", "4")
    found = dl4j.json(*asked)
    assert (found["out"], found["examples"], found["drawn"]) == ("grid.png", 359, 4)
    test = load("digits").test.features
    spread = float(((test - test.mean(axis=0)) ** 2).mean())
    assert 0 < found["mean_squared_error"] < 0.8 * spread, "better than the mean of all digits"
    grid = pixels("grid.png")
    assert grid.shape == (2 * 50 + 2, 4 * 50 + 2)
    for column in range(4):
        original = grid[2:50:6, 2 + column * 50 : 50 + column * 50 : 6]
        np.testing.assert_array_equal(original, np.round(255 * test[column].astype(float)).reshape(8, 8))
    said = dl4j(*asked)
    assert said.startswith("grid.png: 4 of 359 examples above their reconstructions; mean squared error 0.0")
    np.testing.assert_array_equal(pixels("grid.png"), grid)


def test_a_table_and_images_are_given_back_too(dl4j: Any, trained: Path) -> None:
    rows = load("digits").test.features[:6]
    np.savetxt("rows.csv", rows, delimiter=",")
    Path("images").mkdir()
    for number, row in enumerate(rows):
        Image.fromarray(np.round(255 * row).astype(np.uint8).reshape(8, 8)).save(f"images/{number}.png")
    for place in ("rows.csv", "images"):
        asked = ("reconstruct", str(trained / "vae.zip"), place, "--out", f"{place}.png", "--format", "json")
        assert dl4j.json(*asked)["examples"] == 6
    assert np.abs(pixels("rows.csv.png").astype(int) - pixels("images.png")).max() <= 2
    dl4j("reconstruct", str(trained / "dbn.zip"), "rows.csv", "--out", "dbn.png", "--layer", "0")
    assert not np.array_equal(pixels("dbn.png"), pixels("rows.csv.png"))


@pytest.mark.parametrize("name", ["vae", "dbn"])
def test_samples_are_drawn_in_rows_and_columns_the_same_for_a_seed(dl4j: Any, trained: Path, name: str) -> None:
    model = str(trained / f"{name}.zip")
    size = ("--rows", "2", "--columns", "5", "--gibbs-steps", "30")
    found = dl4j.json("sample", model, "--out", "a.png", *size, "--seed", "7")
    assert (found["out"], found["rows"], found["columns"], found["seed"]) == ("a.png", 2, 5, 7)
    loaded = load_model(model)
    samples = draw_samples(loaded, 10, seed=7, gibbs_steps=30)
    np.testing.assert_array_equal(pixels("a.png"), sample_grid(samples, image_shape(loaded), columns=5)[0])
    assert "b.png: 2 x 5 samples" in dl4j("sample", model, "--out", "b.png", *size, "--seed", "7")
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()
    dl4j("sample", model, "--out", "b.png", *size, "--seed", "8")
    assert Path("a.png").read_bytes() != Path("b.png").read_bytes()


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("reconstruct", "vae.zip", "digits"), 2, "--out is missing"),
        (("reconstruct", "vae.zip", "digits", "--out", "grid.jpg"), 2, "--out is 'grid.jpg'; give the name of a .png"),
        (("reconstruct", "vae.zip", "digits", "--out", "no/grid.png"), 8, "there is no folder"),
        (("reconstruct", "vae.zip", "iris", "--out", "x.png"), 3, "takes 64 features, iris has 4"),
        (("reconstruct", "vae.zip", "gone.csv", "--out", "x.png"), 3, "cannot read gone.csv"),
        (("reconstruct", "vae.zip", "text.png", "--out", "x.png"), 3, "text.png is no image that can be read"),
        (("reconstruct", "vae.zip", "digits", "--out", "x.png", "--count", "0"), 2, "--count is '0'"),
        (
            ("reconstruct", "vae.zip", "digits", "--out", "x.png", "--layer", "1"),
            3,
            "layer 1 is not among the layers 0 to 0",
        ),
        (("reconstruct", "vae.zip", "digits", "--out", "x.png", "--image-size", "9"), 3, "an image of 9x9 has 81"),
        (("reconstruct", "vae.zip", "digits", "--out", "x.png", "--image-size", "8x"), 2, "--image-size is '8x'"),
        (("reconstruct", "mlp.zip", "digits", "--out", "x.png"), 3, "model mlp.zip: a network of dense"),
        (("sample", "mlp.zip", "--out", "x.png"), 3, "model mlp.zip: a network of dense"),
        (("sample", "sda.zip", "--out", "x.png"), 3, "(autoencoder) has no distribution to draw from"),
        (("sample", "gone.zip", "--out", "x.png"), 8, "gone.zip does not exist"),
        (("sample", "vae.zip", "--out", "x.png", "--rows", "0"), 2, "--rows is '0'"),
        (("sample", "vae.zip", "--out", "x.png", "--gibbs-steps", "0"), 2, "--gibbs-steps is '0'"),
    ],
)
def test_what_cannot_be_is_named(dl4j: Any, trained: Path, words: tuple[str, ...], status: int, says: str) -> None:
    Path("vae.zip").symlink_to(trained / "vae.zip")
    write_model(MultiLayerNetwork(mlp(64, 10)), "mlp.zip")
    write_model(MultiLayerNetwork(sda(64, 10)), "sda.zip")
    Path("text.png").write_text("no image")
    assert says in dl4j(*words, fails=status)
    assert not Path("x.png").exists()


def test_without_pillow_it_says_how_to_get_it(dl4j: Any, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    said = dl4j("sample", str(trained / "vae.zip"), "--out", "x.png", fails=3)
    assert "images need Pillow, which is not installed: type './install images'" in said
