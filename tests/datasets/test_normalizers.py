import json

import numpy as np
import pytest

from dl4jlegacy.datasets import (
    DataSet,
    ImagePreProcessingScaler,
    ListDataSetIterator,
    NormalizerMinMaxScaler,
    NormalizerStandardize,
    normalizer_from_json,
    read_iris,
)
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.datasets.columns.transforms import MinMax, Standardize
from dl4jlegacy.errors import DataError
from dl4jlegacy.sklearn import DL4JRegressor

ALL = [NormalizerStandardize, NormalizerMinMaxScaler, ImagePreProcessingScaler]

WRITTEN_DOWN = ["0x1.fbe65fcd0369dp-2", "0x1.03133826d3a07p-1", "0x1.2a005aa2f369fp-2", "0x1.28ee137588614p-2"]


def with_a_constant_column() -> DataSet:
    x = np.random.default_rng(3).normal(5, 2, (200, 4))
    x[:, 2] = 0.1
    return DataSet(x, np.zeros((200, 1)))


def test_standardized_columns_have_mean_0_and_deviation_1() -> None:
    dataset = with_a_constant_column()
    x = NormalizerStandardize().fit(dataset).transform(dataset).features
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(x.std(axis=0), [1, 1, 0, 1], atol=1e-12)


def test_min_max_scaled_columns_fill_the_range_and_a_constant_one_its_lower_end() -> None:
    dataset = with_a_constant_column()
    x = NormalizerMinMaxScaler(-1, 3).fit(dataset).transform(dataset).features
    np.testing.assert_allclose(x.min(axis=0), -1)
    np.testing.assert_allclose(x.max(axis=0), [3, 3, -1, 3])


CONSTANTS = np.array([-0.1, 0.1, 1 / 3, 0.7, 1e7 + 0.1, 123.456, 1e15 + 0.125, -3e-9])


@pytest.mark.parametrize("rows", [10, 1000, 100_000])
@pytest.mark.parametrize("rounding", [0, 2])
def test_a_column_that_never_varies_rounding_aside_is_divided_by_1(rows: int, rounding: int) -> None:
    ulps = np.random.default_rng(rows).integers(-rounding, rounding + 1, (rows, 1))
    x = CONSTANTS + ulps * np.spacing(CONSTANTS)
    for data in (DataSet(x), list(DataSet(x).batch_by(32))):
        normalizer = NormalizerStandardize().fit(data)
        np.testing.assert_array_equal(normalizer.std, 1)
        np.testing.assert_allclose(normalizer.mean, CONSTANTS, rtol=1e-15)
        new = DataSet(x[:1] + 1e-3)
        for fitted in (normalizer, NormalizerMinMaxScaler().fit(data)):
            assert np.abs(fitted.transform(new).features).max() < 0.6  # what it is off, and not that over 1e-16
    for step in (Standardize(), MinMax()):
        table = Table("rows", dict(zip("abcdefgh", x.T, strict=True)), np.arange(rows), {})
        assert max(np.abs(column).max() for column in step.fit(table).apply(table).columns.values()) < 0.6
    assert list(DL4JRegressor(epochs=1).fit(x[:100, :2], x[:100]).target_scale_) == [1] * 8


def test_pixels_are_scaled_without_learning() -> None:
    pixels = DataSet(np.array([[0, 51, 255]], np.uint8), [[1]])
    np.testing.assert_allclose(ImagePreProcessingScaler().transform(pixels).features, [[0, 0.2, 1]])
    np.testing.assert_allclose(ImagePreProcessingScaler(-1, 1).transform(pixels).features, [[-1, -0.6, 1]], atol=1e-7)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("make", [with_a_constant_column, read_iris])
def test_revert_undoes_transform_and_keeps_shape_dtype_and_labels(kind: type, make: object) -> None:
    dataset = make()  # type: ignore[operator]
    normalizer = kind().fit(dataset)
    transformed = normalizer.transform(dataset)
    assert transformed.features.dtype == dataset.features.dtype
    np.testing.assert_array_equal(transformed.labels, dataset.labels)
    np.testing.assert_allclose(normalizer.revert(transformed).features, dataset.features, rtol=1e-5)


@pytest.mark.parametrize("kind", ALL)
def test_fitting_batches_equals_fitting_the_whole(kind: type) -> None:
    dataset = with_a_constant_column()
    whole = kind().fit(dataset).transform(dataset).features
    batches = kind().fit(ListDataSetIterator(dataset, 7)).transform(dataset).features
    np.testing.assert_allclose(batches, whole, atol=1e-12)


@pytest.mark.parametrize("kind", ALL)
def test_json_brings_back_the_same_normalizer(kind: type) -> None:
    dataset = read_iris()
    normalizer = kind().fit(dataset)
    restored = normalizer_from_json(normalizer.to_json())
    assert type(restored) is kind
    assert restored.transform(dataset) == normalizer.transform(dataset)
    assert restored.to_json() == normalizer.to_json()


def test_images_are_scaled_pixel_by_pixel() -> None:
    images = DataSet(np.random.default_rng(0).random((5, 1, 3, 2), np.float32), np.zeros((5, 1)))
    assert NormalizerStandardize().fit(images).transform(images).features.shape == (5, 1, 3, 2)


def test_a_channel_of_images_has_one_mean_and_one_deviation() -> None:
    """Also in sets so large that they are summed in parts; a channel of one colour is shifted only."""
    rng = np.random.default_rng(3)
    images = rng.normal(0.5, [[[0.1]], [[0.3]], [[0.0]]], (700, 3, 20, 30)).astype(np.float32)
    data = DataSet(images.reshape(700, -1), np.zeros((700, 1)))
    found = NormalizerStandardize().fit_channels(data, 3)
    scaled = found.transform(data).features.reshape(images.shape)
    np.testing.assert_allclose(scaled.mean(axis=(0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=(0, 2, 3)), [1, 1, 0], atol=1e-5)
    assert found.mean.shape == (1800,) and list(found.std[[0, 599, 1799]]) == [found.std[0], found.std[0], 1]
    np.testing.assert_allclose(found.revert(found.transform(data)).features, data.features, atol=1e-6)
    whole = NormalizerStandardize().fit_channels(DataSet(images, data.labels), 3)
    assert whole.to_json() == found.to_json() and whole.transform(DataSet(images, data.labels)).features.ndim == 4


def test_a_channels_statistics_are_the_same_bits_on_every_machine_and_saved_once() -> None:
    values = (np.arange(2 * 3 * 50, dtype=np.int64) * 7919 % 1000).astype(np.float32) / 999
    data = DataSet(values.reshape(3, 100), np.zeros((3, 1)))
    found = NormalizerStandardize().fit_channels(data, 2)
    assert [value.hex() for value in (*found.mean[[0, 99]], *found.std[[0, 99]])] == WRITTEN_DOWN
    text = found.to_json()
    assert json.loads(text)["pixels"] == 50 and len(json.loads(text)["mean"]) == 2
    restored = normalizer_from_json(text)
    assert restored.to_json() == text and restored.transform(data) == found.transform(data)
    assert '"pixels"' not in found.fit(data).to_json()


def test_a_normalizer_that_was_not_fitted_or_to_other_columns_says_so() -> None:
    with pytest.raises(DataError, match="not fitted yet"):
        NormalizerStandardize().transform(read_iris())
    with pytest.raises(DataError, match="4 columns, the data set has 1"):
        NormalizerMinMaxScaler().fit(read_iris()).transform(DataSet([[1.0]], [[1.0]]))
    with pytest.raises(DataError, match="no examples"):
        NormalizerStandardize().fit([])


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(DataError, match=r"1\.0 to 1\.0"):
        NormalizerMinMaxScaler(1.0, 1.0)
    with pytest.raises(DataError, match="range"):
        ImagePreProcessingScaler(max_pixel=float("nan"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        b"\xff",
        '{"type": "Pickle"}',
        '{"type": "NormalizerStandardize", "mean": [1], "std": [1, 2]}',
        '{"type": "NormalizerStandardize", "mean": [1], "std": [0]}',
        '{"type": "NormalizerStandardize", "mean": [NaN], "std": [1]}',
        '{"type": "NormalizerStandardize", "mean": ["a"], "std": [1]}',
        '{"type": "NormalizerStandardize", "mean": [1], "std": [1], "more": 1}',
        '{"type": "NormalizerStandardize", "mean": [1], "std": [1], "pixels": 0}',
        '{"type": "NormalizerStandardize", "mean": [1], "std": [1], "pixels": 1.0}',
        '{"type": "NormalizerStandardize", "mean": [1], "std": [1], "pixels": 1000000000000}',
        '{"type": "NormalizerMinMaxScaler", "min": [2], "max": [1], "min_range": 0, "max_range": 1}',
        '{"type": "ImagePreProcessingScaler", "min_range": 0, "max_range": 1}',
    ],
)
def test_a_damaged_saved_normalizer_is_a_data_error(text: str | bytes) -> None:
    with pytest.raises(DataError):
        normalizer_from_json(text)


def test_saved_normalizers_are_canonical_json() -> None:
    text = ImagePreProcessingScaler().to_json()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("kind", [NormalizerStandardize, NormalizerMinMaxScaler])
def test_sequences_have_one_scale_a_column_and_padding_counts_nowhere(kind: type) -> None:
    """As the rows of all time steps in a table; from batches of any length."""
    rng = np.random.default_rng(4)
    steps = [rng.normal((1, 50), (1, 9), (count, 2)) for count in (4, 2, 6)]
    rows = kind().fit(DataSet(np.concatenate(steps)))
    padded, mask = np.full((2, 2, 4), 0.0), np.zeros((2, 4))
    for number in range(2):
        padded[number, :, : len(steps[number])], mask[number, : len(steps[number])] = steps[number].T, 1
    batches = [DataSet(padded, features_mask=mask), DataSet(steps[2].T[None])]
    found = kind().fit(batches)
    learned = json.loads(found.to_json())
    for name, values in json.loads(rows.to_json()).items():
        assert learned[name] == (values if name == "type" else pytest.approx(values, rel=1e-5))
    scaled = found.transform(batches[0])
    np.testing.assert_allclose(scaled.features[1, :, :2].T, rows.transform(DataSet(steps[1])).features, atol=1e-6)
    assert not scaled.features[1, :, 2:].any()
    np.testing.assert_allclose(found.revert(scaled).features, padded, atol=1e-5)
    with pytest.raises(DataError, match="was fitted to 2 columns, the data set has 3"):
        found.transform(DataSet(np.zeros((1, 3, 4))))
