"""The other evaluations, against Deeplearning4j 1.0.0-M2.1 (tests/data/dl4j), scikit-learn and explicit formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from dl4jlegacy.errors import ConfError, DataError, NotFiniteError, ShapeError
from dl4jlegacy.nn.evaluation.binary import EvaluationBinary
from dl4jlegacy.nn.evaluation.calibration import EvaluationCalibration
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.evaluate import java_fixed, java_scientific
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.nn.evaluation.roc import ROC, ROCBinary, ROCMultiClass
from tests.support import DATA

GOLDEN: dict[str, Any] = json.loads((DATA / "dl4j/evaluation_family.json").read_text())
STEPS = (0, 10, 32)
MAKERS: dict[str, Callable[[], Any]] = {
    "Evaluation": Evaluation,
    "EvaluationBinary": lambda: EvaluationBinary(roc_steps=8),
    "RegressionEvaluation": RegressionEvaluation,
    "ROCBinary": ROCBinary,
    "ROCMultiClass thresholded": lambda: ROCMultiClass(12),
    "EvaluationCalibration": EvaluationCalibration,
}


def grid(m: int, n: int, value: Callable[[int, int], float]) -> np.ndarray:
    """The same numbers as tests/data/dl4j/EvaluationFamilyGolden.java."""
    return np.array([[value(i, j) for j in range(n)] for i in range(m)], np.float32)


def labels(m: int, n: int) -> np.ndarray:
    return grid(m, n, lambda i, j: (i * 3 + j * 5 + i * j + i * i) % 7 < 3)


def output(m: int, n: int) -> np.ndarray:
    return grid(m, n, lambda i, j: ((i * 37 + j * 13) % 101) / 101)


def classes(m: int, n: int) -> np.ndarray:
    return np.eye(n, dtype=np.float32)[[(i * i + i * 3) // 2 % n for i in range(m)]]


def mask(m: int, n: int) -> np.ndarray:
    return grid(m, n, lambda i, j: (i + j) % 4 != 0)


def targets(m: int, n: int) -> np.ndarray:
    return grid(m, n, lambda i, j: ((i * 5 + j * 2) % 13 - 6) * 0.25)


def guesses(m: int, n: int) -> np.ndarray:
    return targets(m, n) + grid(m, n, lambda i, j: ((i * 3 + j) % 7 - 3) * 0.125)


# -- against Deeplearning4j ------------------------------------------------------------------------------------------


def test_binary_tables_are_dl4js_character_for_character() -> None:
    e = EvaluationBinary()
    e.eval(labels(60, 3), output(60, 3))
    assert e.stats() == GOLDEN["binary_stats"]
    e = EvaluationBinary(thresholds=(0.25, 0.5, 0.75))
    e.eval(labels(60, 3), output(60, 3))
    assert e.stats() == GOLDEN["binary_threshold_stats"]
    e = EvaluationBinary(("cat", "a rather long name", "dog"), roc_steps=0)
    e.eval(labels(60, 3), output(60, 3), mask(60, 3))
    assert e.stats() == GOLDEN["binary_roc_stats"]
    rates = {"mcc": e.matthews_correlation, "g": e.g_measure}
    rates |= {"fpr": e.false_positive_rate, "fnr": e.false_negative_rate}
    for name, metric in rates.items():
        assert [metric(i) for i in range(3)] == pytest.approx(GOLDEN[f"binary_{name}"])


def test_regression_tables_are_dl4js_character_for_character() -> None:
    e = RegressionEvaluation()
    e.eval(targets(40, 3), guesses(40, 3))
    assert e.stats() == GOLDEN["regression_stats"]
    e = RegressionEvaluation(("height", "w", "depth"))
    e.eval(targets(40, 3), guesses(40, 3), mask(40, 3))
    e.eval(targets(15, 3), guesses(15, 3))
    assert e.stats() == GOLDEN["regression_masked_stats"]
    found = [e.average(name) for name in ("mse", "mae", "rmse", "rse", "pc", "r2")]
    assert found == pytest.approx(GOLDEN["regression"], rel=1e-6)


@pytest.mark.parametrize("steps", STEPS)
def test_curves_and_areas_are_dl4js(steps: int) -> None:
    roc = ROC(steps)
    roc.eval(labels(90, 1), output(90, 1))
    curve, pr = roc.roc_curve(), roc.precision_recall_curve()
    assert roc.calculate_auc() == pytest.approx(GOLDEN[f"roc{steps}_auc"], abs=1e-6)
    assert roc.calculate_aucpr() == pytest.approx(GOLDEN[f"roc{steps}_aucpr"], abs=1e-6)
    for found, expected in (
        ((curve.threshold, curve.false_positive_rate, curve.true_positive_rate), GOLDEN[f"roc{steps}_curve"]),
        ((pr.threshold, pr.precision, pr.recall), GOLDEN[f"roc{steps}_pr"]),
    ):
        np.testing.assert_allclose(np.stack(found), np.array(expected), atol=1e-6)
    for name, point in (
        ("precision", pr.at_precision(0.5)),
        ("recall", pr.at_recall(0.5)),
        ("threshold", pr.at_threshold(0.4)),
    ):
        expected = GOLDEN[f"roc{steps}_at_{name}"]
        assert (point.threshold, point.precision, point.recall) == pytest.approx(expected, abs=1e-6)
    counts = (point.true_positives, point.false_positives, point.false_negatives, point.true_negatives)
    assert list(counts) == GOLDEN[f"roc{steps}_confusion"]
    numbers = [line.split(":")[0] for line in roc.stats().splitlines()]
    assert numbers == [line.split(":")[0] for line in GOLDEN[f"roc{steps}_stats"].splitlines()]


@pytest.mark.parametrize("steps", STEPS)
def test_tables_of_several_rocs_are_dl4js(steps: int) -> None:
    binary, multi = ROCBinary(steps), ROCMultiClass(steps)
    binary.eval(labels(90, 2), output(90, 2))
    multi.eval(classes(90, 4), output(90, 4))
    assert binary.stats() == GOLDEN[f"roc_binary{steps}_stats"]
    assert multi.stats().replace("\nAverage AUC", "Average AUC") == GOLDEN[f"roc_multi{steps}_stats"]
    averages = [multi.calculate_average_auc(), multi.calculate_average_aucpr()]
    assert averages == pytest.approx(GOLDEN[f"roc_multi{steps}_average"], abs=1e-6)


def test_calibration_is_dl4js() -> None:
    e = EvaluationCalibration(10, 20)
    e.eval(classes(90, 3), output(90, 3))
    assert e.stats() == GOLDEN["calibration_stats"]
    for i in range(3):
        diagram, expected = e.reliability_diagram(i), np.array(GOLDEN[f"calibration_diagram{i}"])
        np.testing.assert_allclose(np.stack([diagram.mean_predicted, diagram.fraction_positives]), expected, atol=1e-6)
        assert e.residual_plot(i).counts.tolist() == GOLDEN[f"calibration_residual{i}"]
        assert e.probability_histogram(i).counts.tolist() == GOLDEN[f"calibration_probability{i}"]
    assert e.residual_plot().counts.tolist() == GOLDEN["calibration_residual"]
    assert e.probability_histogram().counts.tolist() == GOLDEN["calibration_probability"]
    assert e.label_counts().tolist() == GOLDEN["calibration_labels"]
    assert e.prediction_counts().tolist() == GOLDEN["calibration_predictions"]


# -- against scikit-learn and formulas -------------------------------------------------------------------------------


def test_areas_with_ties_equal_scikit_learns_whatever_the_order() -> None:
    rng = np.random.default_rng(3)
    y, p = rng.integers(0, 2, (200, 1)).astype(np.float64), rng.integers(0, 12, (200, 1)) / 12
    for order in (np.arange(200), rng.permutation(200)):
        roc = ROC()
        roc.eval(y[order], p[order])
        assert roc.calculate_auc() == pytest.approx(metrics.roc_auc_score(y, p))
    precision, recall, _ = metrics.precision_recall_curve(y[:, 0], p[:, 0])
    assert roc.calculate_aucpr() == pytest.approx(metrics.auc(recall, precision))
    two = ROC()
    two.eval(np.hstack([1 - y, y]), np.hstack([1 - p, p]))
    assert two.calculate_auc() == roc.calculate_auc()


def test_binary_and_regression_metrics_equal_scikit_learns() -> None:
    rng = np.random.default_rng(4)
    y, p = rng.integers(0, 2, (150, 2)), rng.random((150, 2))
    e = EvaluationBinary()
    e.eval(y.astype(float), p)
    for i in range(2):
        guess = p[:, i] > 0.5
        assert e.f1(i) == pytest.approx(metrics.f1_score(y[:, i], guess))
        assert e.matthews_correlation(i) == pytest.approx(metrics.matthews_corrcoef(y[:, i], guess))
        assert e.f_beta(2, i) == pytest.approx(metrics.fbeta_score(y[:, i], guess, beta=2))
    assert e.average(e.accuracy) == pytest.approx((y == (p > 0.5)).mean())
    r = RegressionEvaluation()
    r.eval(p + 1000, p + 1000 + 0.1 * rng.normal(size=p.shape))
    x, z = p[:, 0] + 1000, rng.normal(size=150)
    one = RegressionEvaluation(("a",))
    one.eval(x[:, None], (x + z)[:, None])
    assert one.r2(0) == pytest.approx(metrics.r2_score(x, x + z))
    assert one.mae(0) == pytest.approx(metrics.mean_absolute_error(x, x + z))
    assert one.pc(0) == pytest.approx(np.corrcoef(x, x + z)[0, 1], rel=1e-9)
    assert one.rse(0) == pytest.approx(1 - one.r2(0))


def test_calibration_error_is_the_formula() -> None:
    e = EvaluationCalibration(4)
    y, p = classes(40, 3), output(40, 3)
    e.eval(y, p)
    bins = np.minimum((p * 4).astype(int), 3)
    gap = sum(abs(p[:, c][bins[:, c] == b].sum() - y[:, c][bins[:, c] == b].sum()) for b in range(4) for c in range(3))
    assert e.expected_calibration_error() == pytest.approx(gap / p.size, rel=1e-6)


# -- merging, sequences, masks, round trips --------------------------------------------------------------------------


def batch() -> tuple[np.ndarray, np.ndarray]:
    p = output(60, 3) + 0.01
    return classes(60, 3), p / p.sum(axis=1, keepdims=True)


def same(a: Any, b: Any) -> None:
    left, right = a.to_dict(), b.to_dict()
    if isinstance(a, ROCBinary | EvaluationBinary):  # exact curves keep examples in the order they came
        assert a.stats() == b.stats()
        return
    assert json.dumps(left) == json.dumps(left)
    for name, value in left.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            np.testing.assert_allclose(value, right[name], rtol=1e-9, atol=1e-9)
        elif isinstance(value, float):
            assert value == pytest.approx(right[name])
        elif name not in ("sums",):
            assert value == right[name], name


def whole_numbers(report: Any) -> Any:
    """The counts in a report, in their places; floating-point sums are left out."""
    if isinstance(report, dict):
        return {name: whole_numbers(value) for name, value in report.items() if not isinstance(value, float)}
    if isinstance(report, list):
        return [whole_numbers(value) for value in report if not isinstance(value, float)]
    return report


@pytest.mark.parametrize("kind", MAKERS)
def test_counts_of_parts_that_travelled_are_those_of_the_whole_to_the_last_one(kind: str) -> None:
    """In any order, in an empty evaluation and in one that has some already; the parts stay what they were."""
    y, p = batch()
    whole = MAKERS[kind]()
    whole.eval(y, p)
    parts = [MAKERS[kind]() for _ in range(3)]
    for part, rows in zip(parts, (slice(0, 7), slice(7, 30), slice(30, 60)), strict=True):
        part.eval(y[rows], p[rows])
    sent = [json.dumps(part.to_dict(), allow_nan=False) for part in parts]
    assert [type(whole).from_dict(json.loads(text)).stats() for text in sent] == [part.stats() for part in parts]
    for merged, rest in ((MAKERS[kind](), sent[::-1]), (type(whole).from_dict(json.loads(sent[0])), sent[1:])):
        for text in rest:
            merged.merge(type(whole).from_dict(json.loads(text)))
        merged.merge(MAKERS[kind]())
        assert whole_numbers(merged.to_dict()) == whole_numbers(whole.to_dict())
        same(merged, whole)
    assert [json.dumps(part.to_dict()) for part in parts] == sent


@pytest.mark.parametrize("kind", MAKERS)
def test_time_steps_count_like_examples_and_masked_ones_do_not(kind: str) -> None:
    y, p = batch()
    whole, sequences = MAKERS[kind](), MAKERS[kind]()
    kept = np.arange(60) % 5 != 4  # of every five time steps the last is masked
    whole.eval(y[kept], p[kept])
    y3, p3 = (a.reshape(12, 5, 3).transpose(0, 2, 1).copy() for a in (y, p))
    p3[:, :, 4] = np.nan  # what is masked may be anything
    sequences.eval(y3, p3, np.tile([1, 1, 1, 1, 0], (12, 1)))
    same(sequences, whole)
    examples = MAKERS[kind]()
    examples.eval(y, p, kept.astype(float)[:, None])
    same(examples, whole)


def test_masks_of_single_outputs_leave_only_them_out() -> None:
    y, p, m = labels(30, 2), output(30, 2), mask(30, 2)
    e, r, roc = EvaluationBinary(), RegressionEvaluation(), ROCBinary()
    for evaluation in (e, r, roc):
        evaluation.eval(y, p, m)
    for i in range(2):
        kept = m[:, i] != 0
        assert e.total_count(i) == r.count(i) == kept.sum()
        assert roc.calculate_auc(i) == pytest.approx(metrics.roc_auc_score(y[kept, i], p[kept, i]))
        assert r.mse(i) == pytest.approx(((y - p)[kept, i] ** 2).mean(), rel=1e-6)
    with pytest.raises(ShapeError, match="single outputs"):
        ROCMultiClass().eval(y, p, m)


# -- what can be wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKERS)
def test_wrong_batches_are_refused_with_the_sizes(kind: str) -> None:
    e = MAKERS[kind]()
    with pytest.raises(ShapeError, match=r"\(4, 3\).*\(5, 3\)"):
        e.eval(np.zeros((4, 3)), np.zeros((5, 3)))
    with pytest.raises(ShapeError, match=r"mask has shape \(4, 2\).*expected \(4, 5\)"):
        e.eval(np.zeros((4, 3, 5)), np.zeros((4, 3, 5)), np.ones((4, 2)))
    with pytest.raises(NotFiniteError, match="example 1, class 2"):
        e.eval(np.eye(3), np.where(np.arange(9).reshape(3, 3) == 5, np.nan, 0.3))
    e.eval(*batch())
    with pytest.raises(ShapeError, match=r"3 (classes|outputs|columns).*has 4"):
        e.eval(np.eye(4), np.eye(4))


@pytest.mark.parametrize("kind", [*MAKERS, "ROC"])
def test_labels_that_are_no_numbers_belong_to_no_class(kind: str) -> None:
    """They counted as class 0, or were in the mean; what a mask leaves out may be anything."""
    columns = 2 if kind == "ROC" else 3
    for wrong in (np.nan, np.inf):
        e = ROC() if kind == "ROC" else MAKERS[kind]()
        labels = np.eye(columns)[[0, 1, 1]]
        labels[1] = wrong
        with pytest.raises(DataError, match=f"the label of example 1, column 0, is {wrong}"):
            e.eval(labels, np.full((3, columns), 0.5))
        e.eval(labels, np.full((3, columns), 0.5), np.array([1, 0, 1]))


def test_evaluations_that_differ_do_not_merge() -> None:
    with pytest.raises(ConfError, match="10 threshold steps into one of 0"):
        ROC().merge(ROC(10))
    y, p = batch()
    fine, coarse = EvaluationCalibration(5), EvaluationCalibration(10)
    fine.eval(y, p)
    with pytest.raises(ConfError, match="bins"):
        coarse.merge(fine)
    with pytest.raises(ConfError, match="no data yet"):
        ROC().calculate_auc()
    with pytest.raises(ConfError, match=r"outputs|columns"):
        e = EvaluationBinary()
        e.eval(y, p)
        e.f1(3)


def test_numbers_are_rounded_as_java_rounds_them() -> None:
    assert java_fixed(0.12345, 4) == "0.1235"
    assert java_fixed(0.00005, 4) == "0.0001"
    assert java_scientific(1.234565, 5) == "1.23457e+00"
    assert java_scientific(0.0, 5) == "0.00000e+00"
    assert [java_fixed(v, 4) for v in (np.nan, np.inf)] == ["NaN", "Infinity"]


# -- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 20])
def test_a_class_that_is_missing_has_no_area_and_enters_no_average(steps: int) -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    y = np.eye(3)[[0, 1, 1, 0]]  # never the third
    multi = ROCMultiClass(steps)
    multi.eval(y, p)
    areas = [multi.calculate_auc(i) for i in range(3)]
    assert math.isnan(areas[2]) and multi.calculate_average_auc() == pytest.approx((areas[0] + areas[1]) / 2)
    precise = [multi.calculate_aucpr(i) for i in range(3)]
    assert math.isnan(precise[2]) and multi.calculate_average_aucpr() == pytest.approx(sum(precise[:2]) / 2)
    assert multi.roc(2).to_dict()["auc"] is None and "NaN" in multi.stats()
    assert ROCMultiClass.from_dict(json.loads(json.dumps(multi.to_dict(), allow_nan=False))).stats() == multi.stats()
    for value in (0.0, 1.0):
        one = ROC(steps)
        one.eval(np.full((4, 1), value), p[:, :1])
        assert math.isnan(one.calculate_auc()) and "NaN" in one.stats()
        assert math.isnan(one.calculate_aucpr()) == (value == 0)
    binary = ROCBinary(steps)
    binary.eval(np.zeros((4, 3)), p)
    assert math.isnan(binary.calculate_average_auc())


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4, 1e-12])
def test_relative_squared_error_does_not_depend_on_the_unit(size: float) -> None:
    x, y = targets(40, 2).astype(float), guesses(40, 2).astype(float)
    wanted, found = RegressionEvaluation(), RegressionEvaluation()
    wanted.eval(x, y)
    found.eval(x * size, y * size)
    for name in ("rse", "pc", "r2"):
        assert found.average(name) == pytest.approx(wanted.average(name), rel=1e-9)
    alike = RegressionEvaluation()
    for _ in range(7):
        alike.eval(np.full((3, 1), 0.1 * size), np.full((3, 1), 0.3 * size))
    assert alike.rse(0) == math.inf and alike.r2(0) == 0 and alike.pc(0) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bins", [3, 5, 6, 7, 10, 20, 49])
def test_a_probability_of_k_nths_begins_bin_k_and_passes_threshold_k(bins: int, dtype: Any) -> None:
    p = (np.arange(bins) / bins).astype(dtype)[:, None]
    e, roc = EvaluationCalibration(bins, bins), ROC(bins)
    e.eval(np.ones_like(p), p)
    assert e.probability_histogram(0).counts.tolist() == [1] * bins
    assert len(e.reliability_diagram(0).mean_predicted) == bins
    roc.eval(np.ones_like(p), p)
    assert roc.roc_curve().true_positive_rate.tolist() == [(bins - k) / bins for k in range(bins)] + [0]


def test_a_probability_of_one_half_is_negative_in_every_evaluation() -> None:
    half, yes = np.full((4, 1), 0.5), np.ones((4, 1))
    one, two, binary = Evaluation(), Evaluation(), EvaluationBinary()
    one.eval(yes, half)
    two.eval(np.hstack([1 - yes, yes]), np.hstack([half, half]))
    binary.eval(yes, half)
    assert one.confusion[1].tolist() == two.confusion[1].tolist() == [4, 0]
    assert binary.false_negatives(0) == 4
