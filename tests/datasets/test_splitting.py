"""Parts of a data set that have their share of every class, beside scikit-learn's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import StratifiedShuffleSplit

from dl4jlegacy.datasets import DataSet, ListDataSetIterator, Reading, load
from dl4jlegacy.datasets.splitting import Split, class_numbers, split_order, stratified
from dl4jlegacy.datasets.validation import split_off
from dl4jlegacy.errors import ConfError, DataError

SIZES = (90, 7, 2, 1)
CLASSES = np.repeat(np.arange(4), SIZES)


def counts(rows: np.ndarray, classes: np.ndarray = CLASSES) -> list[int]:
    return np.bincount(classes[rows], minlength=classes.max() + 1).tolist()


def test_each_part_has_its_share_in_the_order_that_the_seed_gives() -> None:
    plain = split_order(100, 0.8, 123)
    first, second = stratified(CLASSES, plain)
    assert counts(second) == [18, 1, 1, 0]  # of 90, 7, 2 and 1: the single one is learned from
    assert sorted([*first, *second]) == list(range(100))
    place = {row: index for index, row in enumerate(np.concatenate(plain))}
    for part in (first, second):
        assert [place[row] for row in part] == sorted(place[row] for row in part)
    for number in range(4):  # of each class those come first that the seed puts first
        rows = [row for row in np.concatenate(plain) if CLASSES[row] == number]
        assert rows == [row for part in (first, second) for row in part if CLASSES[row] == number]


@pytest.mark.parametrize("fraction", [0.5, 0.75, 0.8, 0.9])
def test_the_shares_are_scikit_learns(fraction: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        classes = rng.choice(4, 200, p=(0.6, 0.2, 0.15, 0.05))
        ours = stratified(classes, split_order(200, fraction, 1))
        splitter = StratifiedShuffleSplit(1, train_size=fraction, random_state=0)
        theirs = next(splitter.split(np.zeros((200, 1)), classes))
        assert [len(part) for part in ours] == [len(part) for part in theirs]
        for part, other in zip(ours, theirs, strict=True):  # which draws the class that gets the last row
            assert np.abs(np.subtract(counts(part, classes), counts(other, classes))).max() <= 1


def test_a_part_that_need_not_have_every_class_keeps_its_size_and_leaves_out_some_that_the_seed_chooses() -> None:
    classes = np.repeat(np.arange(300), 3)
    assert len(stratified(classes, split_order(900, 0.9, 1))[1]) == 300, "one of every class"
    second = stratified(classes, split_order(900, 0.9, 1), fewest=0)[1]
    found = counts(second, classes)
    assert (sum(found), max(found)) == (90, 1)
    assert 30 < sum(found[:150]) < 60, "not those that come first"
    assert found != counts(stratified(classes, split_order(900, 0.9, 2), fewest=0)[1], classes)
    assert counts(stratified(CLASSES, split_order(100, 0.8, 1), fewest=0)[1]) == [18, 2, 0, 0]
    alone = split_order(5, 0.8, 1)
    assert stratified(np.arange(5), alone, fewest=0) is alone


def test_without_a_seed_the_rows_keep_their_order() -> None:
    data = DataSet.of_classes(np.arange(10).reshape(10, 1), [0, 1] * 5)
    train, test = data.split_test_and_train(0.8, stratify=True)
    assert test.features.tolist() == [[8], [9]] and train.features[:, 0].tolist() == list(range(8))


def test_a_data_set_by_name_holds_out_the_same_rows_of_every_class_whenever_it_is_loaded() -> None:
    found, plain = load("iris", reading=Reading(stratified=True)), load("iris")
    assert found.reading.stratified and not plain.reading.stratified
    assert found.test.labels.sum(axis=0).tolist() == [10, 10, 10] != plain.test.labels.sum(axis=0).tolist()
    again = load("iris", reading=Reading(stratified=True))
    assert (again.train, again.test) == (found.train, found.test)


def test_a_class_with_a_single_example_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("1,a\n2,a\n3,b\n4,a\n5,a\n")
    for stratify in (True, False):
        with pytest.raises(DataError, match=r"t\.csv, line 3, column 2: label 'b' occurs once.*leave the row out"):
            load(path, reading=Reading(stratified=stratify))
    split, classes = Split(0.2, 1, True), np.array([0, 0, 1, 0, 0])
    with pytest.raises(DataError, match=r"class 'b' has a single example, number 2 \(from 0\).*leave that example out"):
        split.parts_of(classes, ("a", "b"), "points")
    known = load(path, reading=Reading(stratified=True, label_names=("a", "b")))  # of a model that is only evaluated
    assert known.train.labels.sum(axis=0).tolist() == [3, 1]
    with pytest.raises(DataError, match="5 examples of as many classes"):
        stratified(np.arange(5), split_order(5, 0.8, 1))


@pytest.mark.parametrize("labels", [[[0.5], [1.5]], [[1, 1], [0, 1]], [[0, 0], [0, 1]], np.ones((2, 1, 3))])
def test_labels_that_are_no_classes_are_refused(labels: list[list[float]]) -> None:
    with pytest.raises(DataError, match=r"labels of shape .* are not one class for each example"):
        class_numbers(np.array(labels, np.float32))


def test_what_has_no_classes_cannot_be_stratified() -> None:
    with pytest.raises(DataError, match="'sonnets' is a text, whose end is held out"):
        load("sonnets", reading=Reading(stratified=True))


def test_the_validation_part_has_its_share_and_says_which_class_it_has_none_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = DataSet.of_classes(np.arange(100).reshape(100, 1), CLASSES)
    iterator = ListDataSetIterator(data, 8, label_names=("a", "b", "c", "d"))
    parts = split_off(iterator, 0.2, 9, stratify=True)
    assert isinstance(parts.validation, DataSet)
    assert parts.validation.labels.sum(axis=0).tolist() == [18, 1, 1, 0]
    assert parts.training.total_examples == 80
    assert "1 class with a single example to learn from, which the validation therefore has none of: d" in caplog.text
    caplog.clear()
    split_off(iterator, 0.2, 9, stratify=True, fewest=0)
    assert not caplog.text
    with pytest.raises(ConfError, match="the validation part: labels of shape"):
        split_off(ListDataSetIterator(DataSet([[1.0], [2.0]], [[1.5], [2.5]]), 1), 0.5, 9, stratify=True)
