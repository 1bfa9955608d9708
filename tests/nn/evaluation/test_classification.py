"""Evaluation against text and numbers written by Deeplearning4j 1.0.0-M2.1 (tests/data/dl4j) and scikit-learn."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn import metrics

from dl4jlegacy.errors import ConfError, DataError, NotFiniteError, ShapeError
from dl4jlegacy.nn.evaluation.classification import Evaluation
from tests.support import DATA

GOLDEN = DATA / "dl4j"
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def ten() -> tuple[list[int], list[int]]:
    actual = [(i * i + 3 * i) % 10 for i in range(300)]
    return actual, [i % 10 if i % 7 == 0 else a for i, a in enumerate(actual)]


def many() -> tuple[list[int], list[int]]:
    actual = [i % 23 for i in range(50)]
    return actual, [(i % 23 + 1) % 25 if i % 11 == 0 else a for i, a in enumerate(actual)]


CASES = {
    "three": (3, None, 1, [0, 0, 1, 1, 1, 2, 2, 2, 2, 0], [0, 0, 1, 2, 1, 2, 2, 2, 0, 1]),
    "two": (2, ("no", "yes"), 1, [0, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 0, 0, 1]),
    "excluded": (5, None, 1, [0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 0, 4]),
    "ten_top3": (10, DIGITS, 3, *ten()),
    "many": (25, None, 1, *many()),
}


def batch(n: int, actual: list[int], predicted: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The same numbers as tests/data/dl4j/EvaluationGolden.java."""
    m = len(actual)
    labels = np.eye(n, dtype=np.float32)[actual]
    output = np.array([[(i * 7 + j * 3) % 5 * 0.01 for j in range(n)] for i in range(m)], np.float32)
    output[np.arange(m), predicted] = 0.9
    return labels, output


def evaluated(case: str) -> Evaluation:
    n, names, top_n, actual, predicted = CASES[case]
    evaluation = Evaluation(n, names, top_n=top_n)
    evaluation.eval(*batch(n, actual, predicted))
    return evaluation


@pytest.mark.parametrize("case", CASES)
def test_stats_text_is_dl4js_character_for_character(case: str) -> None:
    expected = (GOLDEN / f"evaluation_{case}.txt").read_text()
    expected = expected.replace("stats(false,true)", "stats(include_confusion=True)")
    assert evaluated(case).stats() == expected


@pytest.mark.parametrize("case", CASES)
def test_metrics_equal_dl4js(case: str) -> None:
    golden = json.loads((GOLDEN / f"evaluation_{case}.json").read_text())
    e = evaluated(case)
    assert e.accuracy() == pytest.approx(golden["accuracy"], abs=1e-12)
    assert e.top_n_accuracy() == pytest.approx(golden["topn"], abs=1e-12)
    assert e.false_alarm_rate() == pytest.approx(golden["far"], abs=1e-12)
    for name in ("precision", "recall", "f1"):
        assert getattr(e, name)() == pytest.approx(golden[name], abs=1e-12), name
    formulas = {"precision": e.precision, "recall": e.recall, "g": e.g_measure, "fpr": e.false_positive_rate}
    formulas |= {"mcc": e.matthews_correlation, "fnr": e.false_negative_rate}
    if case != "two":  # with two classes DL4J ignores the averaging asked of f1 and f_beta
        formulas |= {"f1": e.f1, "fbeta2": lambda averaging: e.f_beta(2.0, averaging=averaging)}
    for name, formula in formulas.items():
        for averaging in ("macro", "micro"):
            expected = golden[f"{name}_{averaging.capitalize()}"]
            if expected is None or (name, averaging) == ("fnr", "micro"):
                continue  # NaN in DL4J; or divided by the wrong count there
            assert formula(averaging=averaging) == pytest.approx(expected, abs=1e-12), (name, averaging)


@pytest.mark.parametrize(("classes", "missing"), [(40, 6), (60, 20), (9, 2)])
def test_every_warning_of_the_text_begins_a_line(classes: int, missing: int) -> None:
    actual = list(range(classes - missing)) * 2
    evaluation = Evaluation(classes)
    evaluation.eval(*batch(classes, actual, [0] * len(actual)))
    text = evaluation.stats()
    assert text.count("Warning: ") == 2 == sum(line.startswith("Warning: ") for line in text.splitlines())
    assert f"\nWarning: {missing} classes were never predicted" in text


def test_metrics_equal_scikit_learns() -> None:
    rng = np.random.default_rng(5)
    actual, predicted = rng.integers(0, 6, 500), rng.integers(0, 6, 500)
    e = Evaluation(6)
    e.eval_classes(actual, predicted)
    assert e.accuracy() == pytest.approx(metrics.accuracy_score(actual, predicted))
    assert e.f1() == pytest.approx(metrics.f1_score(actual, predicted, average="macro"))
    assert e.f_beta(0.5) == pytest.approx(metrics.fbeta_score(actual, predicted, beta=0.5, average="macro"))
    assert e.f1(averaging="micro") == pytest.approx(metrics.f1_score(actual, predicted, average="micro"))
    assert e.precision(3) == pytest.approx(metrics.precision_score(actual, predicted, average=None)[3])
    assert (e.confusion == metrics.confusion_matrix(actual, predicted)).all()
    rest = metrics.matthews_corrcoef(actual == 2, predicted == 2)
    assert e.matthews_correlation(2) == pytest.approx(rest)


@pytest.mark.parametrize("case", CASES)
def test_merging_the_parts_equals_evaluating_the_whole(case: str) -> None:
    n, names, top_n, actual, predicted = CASES[case]
    labels, output = batch(n, actual, predicted)
    parts = [Evaluation(top_n=top_n), Evaluation(n, names, top_n=top_n), Evaluation(top_n=top_n)]
    cut = [0, 2, 3, len(actual)]
    for part, start, stop in zip(parts, cut[:-1], cut[1:], strict=True):
        part.eval(labels[start:stop], output[start:stop])
    merged = Evaluation(top_n=top_n)
    for part in reversed(parts):
        merged.merge(Evaluation.from_dict(json.loads(json.dumps(part.to_dict()))))
    assert merged.stats() == evaluated(case).stats()
    assert merged.to_dict() == evaluated(case).to_dict()


def test_a_single_output_column_is_the_probability_of_class_one() -> None:
    e = Evaluation()
    e.eval(np.array([[1.0], [0.0], [1.0]]), np.array([[0.7], [0.6], [0.2]]))
    assert e.confusion.tolist() == [[0, 1], [1, 1]]


def test_an_empty_batch_and_no_batch_are_no_data() -> None:
    e = Evaluation(3)
    e.eval(np.zeros((0, 3)), np.zeros((0, 3)))
    assert e.examples == 0 and e.accuracy() == 0.0 and e.f1() == 0.0
    assert e.stats().startswith("Evaluation: No data available")


def test_wrong_shapes_name_both() -> None:
    e = Evaluation(3)
    with pytest.raises(ShapeError, match=r"\(4, 3\).*\(5, 3\)"):
        e.eval(np.zeros((4, 3)), np.zeros((5, 3)))
    with pytest.raises(ShapeError, match="3 classes, this batch has 4"):
        e.eval(np.zeros((4, 4)), np.zeros((4, 4)))
    with pytest.raises(ShapeError, match="mask has 3 entries"):
        e.eval(np.zeros((4, 3)), np.zeros((4, 3)), np.ones(3))
    with pytest.raises(ShapeError, match="2 names for 3 classes"):
        Evaluation(3, ["a", "b"])


@pytest.mark.parametrize("top_n", [2, 3])
def test_the_first_two_of_two_classes_are_always_right(top_n: int) -> None:
    output, labels = np.array([[0.9], [0.2], [0.5], [0.6]]), np.array([[0.0], [1.0], [1.0], [1.0]])
    one, two = Evaluation(top_n=top_n), Evaluation(top_n=top_n)
    one.eval(labels, output, np.array([1, 1, 1, 0]))
    two.eval(np.hstack([1 - labels, labels])[:3], np.hstack([1 - output, output])[:3])
    assert one.top_n_accuracy() == two.top_n_accuracy() == 1.0
    assert one.accuracy() == two.accuracy() == 0.0
    with pytest.raises(ConfError, match=f"which {top_n} classes"):
        one.eval_classes([0], [1])


def test_nan_output_names_the_example() -> None:
    output = np.zeros((4, 3))
    output[2, 1] = np.nan
    with pytest.raises(NotFiniteError, match="example 2, class 1"):
        Evaluation(3).eval(np.eye(3)[[0, 1, 2, 0]], output)


def test_bad_settings_and_classes_are_named() -> None:
    with pytest.raises(ConfError, match="n_classes=0"):
        Evaluation(0)
    with pytest.raises(ConfError, match="top_n=0"):
        Evaluation(2, top_n=0)
    with pytest.raises(ConfError, match="does not know its classes"):
        Evaluation().eval_classes([0], [1])
    with pytest.raises(DataError, match=r"predicted class 3 of example 1 is outside 0\.\.2"):
        Evaluation(3).eval_classes([0, 1], [0, 3])
    for wrong in ([0, np.nan], [0, 0.7], ["0", "1"]):
        with pytest.raises(DataError, match="no class numbers"):
            Evaluation(3).eval_classes(wrong, [0, 1])  # type: ignore[arg-type]
    with pytest.raises(ConfError, match="class 9 asked for"):
        evaluated("three").precision(9)
    with pytest.raises(ConfError, match="top 3 into one of top 1"):
        Evaluation(10).merge(evaluated("ten_top3"))


def test_the_confusion_matrix_cannot_be_changed_from_outside() -> None:
    e = evaluated("three")
    e.confusion[:] = 0
    assert e.examples == 10
