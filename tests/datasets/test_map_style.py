"""MapDataSetIterator: data sets that give examples by number, as PyTorch's and Hugging Face's, by stand-ins of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy import ActorNetworkRunner, Conf, ParallelWrapper
from dl4jlegacy.datasets import DataSet, DataSetIterator, ListDataSetIterator, MapDataSetIterator, read_iris
from dl4jlegacy.datasets.batches import batches_of
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.datasets.map_style import gives_examples
from dl4jlegacy.errors import DataError
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork

IRIS = read_iris()


class Tensor:
    """What NumPy needs of a ``torch.Tensor``."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._values if dtype is None else self._values.astype(dtype)


class Pairs:
    """A map-style ``torch.utils.data.Dataset``: ``len()`` and ``[]``, no iteration; notes what it is asked."""

    def __init__(self, features: Any, labels: Any) -> None:
        self._features, self._labels = features, labels
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, number: int) -> Any:
        self.asked.append(number)
        return Tensor(self._features[number]), self._labels[number]


class Described(Pairs):
    """One of torchvision's, which names its classes."""

    classes = ("setosa", "versicolor", "virginica")


class ClassLabel:
    names = ("setosa", "versicolor", "virginica")


class Rows:
    """A ``datasets.Dataset``: rows of columns, several at once by ``__getitems__``, described by ``features``."""

    def __init__(self, features: dict[str, Any] | None = None, **columns: Any) -> None:
        self.features = features
        self._columns = columns
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __iter__(self) -> Any:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: values[number] for name, values in self._columns.items()}

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        self.calls.append(numbers)
        return [self[number] for number in numbers]


class Picture:
    """What is asked of an image of Pillow."""

    def __init__(self, pixels: Any) -> None:
        self._pixels = np.asarray(pixels, np.uint8)
        self.__array_interface__ = self._pixels.__array_interface__

    def getbands(self) -> tuple[str, ...]:
        return ("R", "G", "B")


def iris_pairs() -> Pairs:
    return Described(IRIS.features, [int(number) for number in IRIS.classes])


def iris_rows() -> Rows:
    columns = {name: IRIS.features[:, column].tolist() for column, name in enumerate(("a", "b", "c", "d"))}
    return Rows({"label": ClassLabel()}, **columns, label=IRIS.classes.tolist())


def same(one: DataSetIterator, other: DataSetIterator) -> bool:
    return all(
        one.batch(epoch, index) == other.batch(epoch, index)
        for epoch in (0, 1, 5)
        for index in range(one.total_batches)
    )


@pytest.mark.parametrize("dataset", [iris_pairs(), iris_rows()], ids=["pairs", "rows"])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"drop_last": True, "seed": 9}])
def test_its_batches_are_those_of_the_same_examples_in_memory(dataset: Any, options: dict[str, Any]) -> None:
    mapped = MapDataSetIterator(dataset, 16, **options)
    assert isinstance(mapped, DataSetIterator)
    expected = ListDataSetIterator(IRIS, 16, **options)
    assert same(mapped, expected)
    for name in ("batch_size", "total_examples", "total_batches", "input_columns", "total_outcomes"):
        assert getattr(mapped, name) == getattr(expected, name), name
    assert mapped.label_names == ("setosa", "versicolor", "virginica")


def test_only_the_examples_of_a_batch_are_read() -> None:
    pairs, rows = iris_pairs(), iris_rows()
    first, second = MapDataSetIterator(pairs, 16, shuffle=False), MapDataSetIterator(rows, 16, shuffle=False)
    pairs.asked.clear()
    rows.calls.clear()
    first.batch(3, 2)
    second.batch(3, 2)
    assert pairs.asked == [*range(32, 48)]
    assert rows.calls == [[*range(32, 48)]]


def test_it_goes_on_where_it_is_put() -> None:
    iterator = MapDataSetIterator(iris_pairs(), 32)
    everything = [iterator.batch(epoch, index) for epoch in (0, 1) for index in range(iterator.total_batches)]
    iterator.seek(1, 2)
    assert [iterator.next(), iterator.next()] == everything[7:9]


@pytest.mark.parametrize("dataset", [iris_pairs(), iris_rows()], ids=["pairs", "rows"])
def test_a_run_takes_the_data_set_itself(dataset: Any) -> None:
    def params(data: Any, workers: int) -> tuple[bytes, str]:
        conf = Conf(multi_layer_conf=zoo.mlp(4, 3), batch_size=16, epochs=2, jobs_per_round=2, seed=5, workers=workers)
        with ActorNetworkRunner("master", data) as runner:
            runner.setup(conf)
            result = runner.train()
            assert result is not None
            return runner.network(result).params.tobytes(), result.conf.data_fingerprint

    in_memory = ListDataSetIterator(IRIS, 16, seed=5)
    assert params(dataset, 1) == params(dataset, 3)
    assert params(dataset, 1)[0] == params(in_memory, 2)[0]
    assert params(dataset, 1)[1] == fingerprint(MapDataSetIterator(dataset, 16, seed=5))


def test_a_network_and_a_wrapper_train_on_it() -> None:
    iterator = MapDataSetIterator(iris_pairs(), 16)
    network = MultiLayerNetwork(zoo.mlp(4, 3))
    network.fit(iterator, epochs=2)
    with ParallelWrapper(network, workers=2) as wrapper:
        wrapper.fit(iterator, epochs=2)
        wrapper.fit(iris_rows())
    assert network.iteration == 2 * 10 + 2 * 5 + 3


def test_what_counts_as_examples_and_what_as_batches() -> None:
    class Batches(list[Any]):
        pass

    class Own:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, number: int) -> DataSet:
            return IRIS

        def __iter__(self) -> Any:
            return iter([IRIS])

    assert gives_examples(iris_pairs()) and gives_examples(iris_rows())
    assert not any(map(gives_examples, ([IRIS], Batches([IRIS]), Own(), IRIS.features, IRIS, "iris", {"a": 1})))
    assert not gives_examples(ListDataSetIterator(IRIS, 16))
    assert batches_of(Own()) is not None


# --- values -----------------------------------------------------------------------------------------------------------


def test_numbers_to_predict_are_labels_as_they_are() -> None:
    amounts = MapDataSetIterator(Pairs(np.eye(3), [0.5, 1.5, 2.5]), 3, shuffle=False)
    np.testing.assert_array_equal(amounts.batch(0, 0).labels, [[0.5], [1.5], [2.5]])
    whole = MapDataSetIterator(Pairs(np.eye(3), [4, 5, 6]), 3, shuffle=False, n_classes=0)
    np.testing.assert_array_equal(whole.batch(0, 0).labels, [[4], [5], [6]])
    several = MapDataSetIterator(Pairs(np.eye(3), [Tensor([1.0, 2.0])] * 3), 3)
    assert several.total_outcomes == 2


def test_columns_are_chosen_by_name_and_set_side_by_side() -> None:
    rows = Rows(None, id=[7, 8], size=[1.0, 2.0], place=[[3.0, 4.0], [5.0, 6.0]], kind=[1, 0])
    chosen = MapDataSetIterator(rows, 2, features=["place", "size"], label="kind", n_classes=2, shuffle=False)
    np.testing.assert_array_equal(chosen.batch(0, 0).features, [[3, 4, 1], [5, 6, 2]])
    np.testing.assert_array_equal(chosen.batch(0, 0).labels, [[0, 1], [1, 0]])
    assert MapDataSetIterator(rows, 2, features="size").total_outcomes == 0


def test_images_become_planes_from_0_to_1() -> None:
    pixels = np.arange(2 * 3 * 3).reshape(2, 3, 3)
    rows = Rows(None, image=[Picture(pixels)], label=[1.0])
    features = MapDataSetIterator(rows, 1).batch(0, 0).features
    assert features.shape == (1, 3, 2, 3)
    np.testing.assert_allclose(features[0, 1], pixels[:, :, 1] / 255, rtol=1e-6)


def test_images_with_a_palette_have_its_colours_and_deep_ones_are_scaled_too() -> None:
    """Of Pillow's own: the pixels of the first are numbers of colours, and those of the second go up to 65,535."""
    colours = Image.new("RGB", (2, 2), (200, 100, 0))
    colours.putpixel((1, 0), (0, 0, 255))
    flat = colours.convert("P", palette=Image.Palette.ADAPTIVE)
    assert flat.mode == "P"
    features = MapDataSetIterator(Rows(None, image=[flat], label=[1.0]), 1).batch(0, 0).features
    np.testing.assert_allclose(features[0], np.moveaxis(np.asarray(colours), 2, 0) / 255, atol=0.02)
    deep = Image.fromarray(np.array([[0, 65535], [13107, 1]], np.uint16))
    assert deep.mode.startswith("I;16")
    features = MapDataSetIterator(Rows(None, image=[deep], label=[1.0]), 1).batch(0, 0).features
    np.testing.assert_allclose(features[0, 0], [[0, 1], [0.2, 1 / 65535]], rtol=1e-6)


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P", "CMYK", "HSV"])
def test_ink_is_black_on_white_whatever_the_mode_of_an_image(mode: str) -> None:
    """Transparent ones lie on white, as those of files do; none has more channels than its colours."""
    ink = np.zeros((4, 6), np.uint8)
    ink[1:3, 2:5] = 255
    image = Image.merge("LA", (Image.new("L", (6, 4), 0), Image.fromarray(ink)))
    if mode == "P":
        image = Image.fromarray((ink > 0).astype(np.uint8))
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.info["transparency"] = 0
    elif mode in ("CMYK", "HSV"):
        image = Image.fromarray(255 - ink).convert("RGB").convert(mode)
    else:
        image = image.convert(mode)
    assert image.mode == mode
    features = MapDataSetIterator(Rows(None, image=[image], label=[1.0]), 1).batch(0, 0).features
    assert features.shape == (1, 1 if mode == "LA" else 3, 4, 6)
    assert np.abs(features[0] - (255 - ink) / 255).max() < 0.01


# --- what is wrong ----------------------------------------------------------------------------------------------------


class Learned(Tensor):
    """A tensor with gradients, which NumPy cannot have."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


class Broken(Pairs):
    def __getitem__(self, number: int) -> Any:
        if number == 2:
            raise OSError("truncated file")
        return super().__getitem__(number)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (iter([1]), {}, "does not give examples by their number"),
        (Pairs([], []), {}, "Pairs has no example"),
        (Pairs(np.eye(3), [0, 1, 2]), {}, "label of example 0 is 0, and Pairs does not say how many classes"),
        (Pairs(np.eye(3), [0, 1, 2]), {"n_classes": 2}, "label 2 of example 2 is out of range"),
        (Pairs(np.eye(3), [0.0, 1.0, 2.0]), {"label": "kind"}, "examples are tuple and have no columns"),
        (
            Pairs([[1.0], [2.0, 3.0]], [0.0, 1.0]),
            {},
            "features of example 1 have shape (2,), those of example 0 (1,)",
        ),
        (Pairs(["word", "words"], [0.0, 1.0]), {}, "features of example 0 are Tensor with dtype <U4"),
        (Pairs(np.eye(2), [0.0, None]), {}, "example 1 has no label, and others have one"),
        (Broken(np.eye(3), [0.0, 1.0, 2.0]), {}, "Broken failed at example 0, 1, 2: OSError: truncated file"),
        (Rows(None, size=[1.0], label=[2.0]), {"features": "sise"}, "no column 'sise'; did you mean 'size'"),
        (Rows(None, size=[1.0], label=[2.0]), {"label": "lable"}, "no column 'lable'; did you mean 'label'"),
        (Rows(None, size=[1.0], age=[None], label=[2.0]), {}, "column 'age' of example 0 is missing; fill such gaps"),
        (Rows(None, size=[Learned(1.0)], label=[2.0]), {}, "column 'size' of example 0 cannot become an array: Can't"),
        (Rows(None, label=[2.0]), {}, "the only column is the label 'label'"),
    ],
)
def test_what_is_wrong_is_named(dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        MapDataSetIterator(dataset, 3, shuffle=False, **options).batch(0, 0)
