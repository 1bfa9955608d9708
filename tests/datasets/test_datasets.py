import threading
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import (
    DataSet,
    DataSetIterator,
    DigitsDataSetIterator,
    IrisDataSetIterator,
    ListDataSetIterator,
    one_hot,
    read_digits,
    read_iris,
)
from dl4jlegacy.errors import DataError


def numbered(examples: int, columns: int = 3, classes: int = 2) -> DataSet:
    """Row i holds i in its first column."""
    features = np.zeros((examples, columns), np.float32)
    features[:, 0] = np.arange(examples)
    return DataSet.of_classes(features, np.arange(examples) % classes, classes)


def rows_of(dataset: DataSet) -> list[int]:
    return dataset.features[:, 0].astype(int).tolist()


def test_arrays_are_float32_contiguous_and_read_only() -> None:
    dataset = DataSet(np.asfortranarray(np.arange(6).reshape(2, 3)), [[1, 0], [0, 1]])
    for array in (dataset.features, dataset.labels):
        assert array.dtype == np.float32 and array.flags.c_contiguous and not array.flags.writeable
    assert (dataset.num_examples, len(dataset), dataset.n_in, dataset.n_out) == (2, 2, 3, 2)
    with pytest.raises(ValueError, match="read-only"):
        dataset.features[0, 0] = 1
    with pytest.raises(AttributeError):
        dataset.features = np.zeros((2, 3))  # type: ignore[misc]


def test_float64_is_kept_and_labels_follow_the_features() -> None:
    dataset = DataSet(np.zeros((2, 3)), np.ones((2, 1), np.float32))
    assert dataset.features.dtype == dataset.labels.dtype == np.float64


def test_a_float32_array_is_not_copied_and_stays_writable_for_its_owner() -> None:
    x = np.zeros((2, 3), np.float32)
    dataset = DataSet(x, np.zeros((2, 1)))
    assert np.shares_memory(dataset.features, x)
    assert x.flags.writeable


def test_a_float32_array_in_a_mapped_file_is_not_read_into_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((6, 2), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    dataset = DataSet.of_classes(mapped, [0, 1, 2] * 2)
    assert np.shares_memory(dataset.features, mapped)


def test_images_keep_their_dimensions() -> None:
    assert DataSet(np.zeros((4, 8, 8)), np.zeros((4, 2))).n_in == 64


def test_a_data_set_without_labels_has_no_outcomes() -> None:
    dataset = DataSet(np.zeros((4, 2)))
    assert dataset.n_out == 0
    with pytest.raises(DataError, match="no labels"):
        _ = dataset.classes


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros(3), np.zeros((3, 1)), r"features have shape \(3,\)"),
        (np.zeros((3, 2)), np.zeros(3), "of_classes"),
        (np.zeros((3, 2)), np.zeros((3, 2, 2)), "expected"),
        (np.zeros((3, 2)), np.zeros((4, 1)), "3 examples and labels have 4"),
        ([["a", "b"]], [[1]], "dtype"),
        ([[1, 2], [3]], [[1], [2]], "rectangular"),
        (np.array([[1, 2], [3, np.nan]]), np.zeros((2, 1)), "features of example 1, column 1 .* nan"),
        (np.array([[1, 2], [np.inf, -np.inf]]), np.zeros((2, 1)), "features of example 1, column 0 .* inf; 2 values"),
        (np.zeros((2, 1)), np.array([[np.nan], [1]]), "labels of example 0, column 0"),
        ([[2**200]], [[1]], "features"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_and_named(features: object, labels: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        DataSet(features, labels)  # type: ignore[arg-type]


def test_large_finite_values_whose_sum_overflows_are_accepted() -> None:
    x = np.full((4, 4), np.finfo(np.float32).max)
    assert DataSet(x, np.zeros((4, 1))).num_examples == 4


def test_one_hot_puts_a_one_into_the_column_of_each_class() -> None:
    np.testing.assert_array_equal(one_hot([2, 0], 4), [[0, 0, 1, 0], [1, 0, 0, 0]])
    assert one_hot([2, 0]).shape == (2, 3)
    assert one_hot(np.array([], int)).shape == (0, 0)
    np.testing.assert_array_equal(numbered(4).classes, [0, 1, 0, 1])


@pytest.mark.parametrize("classes", [[0, 3], [0, -1], [0, 1.5], [0, np.nan]])
def test_a_label_out_of_range_names_row_value_and_range(classes: list[float]) -> None:
    with pytest.raises(DataError, match=rf"label {classes[1]} of example 1 is out of range: classes are 0 to 2"):
        one_hot(classes, 3)


def test_labels_with_far_too_many_classes_are_refused_before_memory_is_asked_for() -> None:
    with pytest.raises(DataError, match="too many to be one-hot"):
        one_hot(np.arange(100_000))


def test_rows_and_batches_are_views() -> None:
    dataset = numbered(10)
    parts = list(dataset.batch_by(4))
    assert [rows_of(part) for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(np.shares_memory(part.features, dataset.features) for part in parts)
    assert DataSet.merge(parts) == dataset
    for start, stop in ((-1, 2), (3, 2), (0, 11)):
        with pytest.raises(DataError, match="outside"):
            dataset.rows(start, stop)
    with pytest.raises(DataError, match="batches of 0"):
        dataset.batch_by(0)


def test_data_sets_of_different_columns_do_not_merge() -> None:
    with pytest.raises(DataError, match="agree"):
        DataSet.merge([numbered(3), numbered(3, columns=4)])
    with pytest.raises(DataError, match="none"):
        DataSet.merge([])


def test_equality_is_by_content_and_dtype() -> None:
    assert numbered(5) == numbered(5)
    assert numbered(5) != numbered(6)
    assert DataSet(np.zeros((1, 1)), [[1.0]]) != DataSet(np.zeros((1, 1), np.float32), [[1.0]])
    assert numbered(5) != "something else"
    with pytest.raises(TypeError):
        hash(numbered(5))


def test_shuffling_is_a_permutation_that_the_stream_decides() -> None:
    dataset = numbered(50)
    first, again, other = (dataset.shuffle(Stream.of(seed)) for seed in (1, 1, 2))
    assert first == again and first != other
    assert sorted(rows_of(first)) == list(range(50))
    np.testing.assert_array_equal(first.classes, np.array(rows_of(first)) % 2)


def test_a_split_is_disjoint_complete_and_repeatable() -> None:
    dataset = numbered(11)
    train, test = dataset.split_test_and_train(0.8, seed=3)
    assert (len(train), len(test)) == (9, 2)
    assert sorted(rows_of(train) + rows_of(test)) == list(range(11))
    assert dataset.split_test_and_train(0.8, seed=3).test == test
    assert rows_of(dataset.split_test_and_train(0.5).train) == [0, 1, 2, 3, 4, 5]
    assert [len(part) for part in numbered(2).split_test_and_train(0.99)] == [1, 1]


@pytest.mark.parametrize(("examples", "fraction"), [(10, 0.0), (10, 1.0), (10, -1), (10, float("nan")), (1, 0.5)])
def test_a_split_that_leaves_a_part_empty_is_refused(examples: int, fraction: float) -> None:
    with pytest.raises(DataError):
        numbered(examples).split_test_and_train(fraction)


def test_every_epoch_visits_every_example_once_in_another_order() -> None:
    iterator = ListDataSetIterator(numbered(10), 4, seed=5)
    assert isinstance(iterator, DataSetIterator)
    assert (iterator.batch_size, iterator.total_examples, iterator.total_batches) == (4, 10, 3)
    assert (iterator.input_columns, iterator.total_outcomes, len(iterator)) == (3, 2, 3)
    epochs = [[row for batch in iterator for row in rows_of(batch)] for _ in range(3)]
    assert all(sorted(rows) == list(range(10)) for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_batch_is_a_function_of_its_position() -> None:
    iterator, other = ListDataSetIterator(numbered(10), 3), ListDataSetIterator(numbered(10), 3)
    walked = {(epoch, index): batch for epoch in range(4) for index, batch in enumerate(iterator)}
    for epoch, index in reversed(walked):
        assert other.batch(epoch, index) == walked[epoch, index]
    assert other.position == (0, 0)


def test_dropping_the_last_batch_leaves_whole_batches_only() -> None:
    iterator = ListDataSetIterator(numbered(10), 4, drop_last=True)
    assert (iterator.total_batches, iterator.total_examples) == (2, 8)
    assert [len(batch) for batch in iterator] == [4, 4]


def test_without_shuffling_batches_are_views_in_order() -> None:
    dataset = numbered(5)
    iterator = ListDataSetIterator(dataset, 2, shuffle=False)
    assert [rows_of(batch) for batch in iterator] == [[0, 1], [2, 3], [4]]
    assert np.shares_memory(iterator.batch(7, 0).features, dataset.features)


def test_the_cursor_walks_seeks_and_resets() -> None:
    iterator = ListDataSetIterator(numbered(5), 2)
    iterator.reset()
    assert iterator.position == (0, 0)
    iterator.seek(3, 1)
    assert iterator.next() == iterator.batch(3, 1)
    assert iterator.has_next() and iterator.position == (3, 2)
    iterator.next()
    assert not iterator.has_next()
    with pytest.raises(DataError, match="reset"):
        iterator.next()
    iterator.reset()
    assert iterator.position == (4, 0)
    iterator.seek(1, 3)
    assert not iterator.has_next()


@pytest.mark.parametrize(("epoch", "index"), [(-1, 0), (0, -1), (0, 3)])
def test_a_position_that_does_not_exist_is_refused(epoch: int, index: int) -> None:
    with pytest.raises(DataError, match=f"batch {index} of epoch {epoch}"):
        ListDataSetIterator(numbered(5), 2).batch(epoch, index)


def test_a_batch_size_of_zero_and_a_data_set_without_a_batch_are_refused() -> None:
    with pytest.raises(DataError, match="batch size is 0"):
        ListDataSetIterator(numbered(5), 0)
    with pytest.raises(DataError, match="0 examples"):
        ListDataSetIterator(numbered(5).rows(0, 0), 2)
    with pytest.raises(DataError, match="5 examples"):
        ListDataSetIterator(numbered(5), 6, drop_last=True)


def test_a_pre_processor_sees_every_batch() -> None:
    iterator = ListDataSetIterator(numbered(5), 2, shuffle=False, pre_processor=lambda part: part.rows(0, 1))
    assert [rows_of(batch) for batch in iterator] == [[0], [2], [4]]


def test_batches_asked_for_by_many_threads_at_once_are_the_same() -> None:
    iterator, oracle = ListDataSetIterator(numbered(100), 7), ListDataSetIterator(numbered(100), 7)
    positions = [(epoch, index) for epoch in range(6) for index in range(iterator.total_batches)]
    expected = {position: oracle.batch(*position) for position in positions}
    wrong: list[tuple[int, int]] = []

    def ask(offset: int) -> None:
        for position in positions[offset:] + positions[:offset]:
            if iterator.batch(*position) != expected[position]:
                wrong.append(position)

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(0, 80, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert wrong == []


def test_digits_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    digits, expected = read_digits(), datasets.load_digits()
    np.testing.assert_array_equal(digits.features, expected.data.astype(np.float32) / 16)
    np.testing.assert_array_equal(digits.classes, expected.target)


def test_iris_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    iris, expected = read_iris(), datasets.load_iris()
    np.testing.assert_array_equal(iris.features, expected.data.astype(np.float32))
    np.testing.assert_array_equal(iris.classes, expected.target)


def test_the_named_iterators_have_names_and_sizes() -> None:
    digits, iris = DigitsDataSetIterator(100, 1000), IrisDataSetIterator(10)
    assert (digits.total_examples, digits.input_columns, digits.total_outcomes, len(digits)) == (1000, 64, 10, 10)
    assert (iris.total_examples, iris.input_columns, iris.total_outcomes) == (150, 4, 3)
    assert digits.label_names[9] == "9" and iris.label_names == ("setosa", "versicolor", "virginica")
    with pytest.raises(DataError, match="1 to 150"):
        IrisDataSetIterator(10, 151)
