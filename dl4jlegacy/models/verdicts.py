"""The verdict on a model, from its evaluation and the data set: see ``nn.evaluation.verdict``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.datasets.reading import Reading
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.batch_evaluation import NetworkEvaluation
from dl4jlegacy.nn.class_weights import class_counts, output_layer
from dl4jlegacy.nn.evaluation.binary import EvaluationBinary
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.probe import has_pattern
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.nn.evaluation.verdict import (
    Baseline,
    ClassFacts,
    Course,
    Facts,
    NumberFacts,
    Verdict,
    judge,
    macro_f1,
)
from dl4jlegacy.nn.networks import NetworkConfiguration

__all__ = ["verdict_on"]


def verdict_on(
    evaluation: NetworkEvaluation,
    network: NetworkConfiguration,
    train: DataSet,
    test: DataSet,
    reading: Reading,
    *,
    course: Course | None = None,
    has_had_enough: bool = False,
) -> Verdict:
    """Return the verdict on an evaluated network.

    Args:
        evaluation: on ``test``, in the units of the labels.
        network: its configuration.
        train, test: the training examples and the evaluated ones, scaled, with the labels that the network learns.
        reading: how they were read.
        course, has_had_enough: as in ``Facts``; for an evaluation without a training the defaults.
    """
    facts = Facts(course=course, has_had_enough=has_had_enough, loss=evaluation.loss)
    if evaluation.classification is not None:
        facts = _with_classes(facts, evaluation.classification, train)
        facts = dataclasses.replace(facts, can_weigh=reading.text is None and _can_weigh(network))
    elif evaluation.binary is not None:
        facts = _with_labels(facts, evaluation.binary, train)
    elif evaluation.regression is not None:
        facts = _with_numbers(facts, evaluation.regression, train, test, reading)
        facts = dataclasses.replace(facts, begins_fitted=zoo.is_residual(network))
    found = judge(facts)
    if found.is_constant and has_had_enough and evaluation.binary is None:
        outputs = len(facts.numbers) if facts.classes is None else len(facts.classes.trained)
        pattern = has_pattern(train, test, outputs, classifies=facts.classes is not None)
        found = judge(dataclasses.replace(facts, has_pattern=pattern))
    return found


# -- classes -----------------------------------------------------------------------------------------------------------


def _with_classes(facts: Facts, found: Evaluation, train: DataSet) -> Facts:
    confusion = found.confusion
    names = found.label_names or tuple(map(str, range(len(confusion))))
    try:
        trained = _counts(train, len(confusion))
    except DataError:  # labels are probabilities: their commonest class is unknown
        return dataclasses.replace(facts, classes=ClassFacts(confusion, names, confusion.sum(axis=1)))
    classes = ClassFacts(confusion, names, trained)
    always = np.zeros_like(confusion)
    always[:, classes.commonest] = confusion.sum(axis=1)
    baseline = Baseline(
        answer=f"always {names[classes.commonest]!r}",
        accuracy=float(always.trace() / max(1, always.sum())),
        macro_f1=macro_f1(always),
    )
    steps = int(trained.sum()) / max(1, train.num_examples)
    return dataclasses.replace(facts, classes=classes, baseline=baseline, steps=steps)


def _counts(train: DataSet, classes: int) -> Array:
    """Return the number of training examples of each class; a single column of 0 and 1 is two classes."""
    if train.labels.shape[1] == 1 and classes == 2:
        kept = train.labels[:, 0].reshape(-1)
        kept = kept if train.labels_mask is None else kept[train.labels_mask.reshape(-1) != 0]
        return np.bincount((kept > 0.5).astype(np.int64), minlength=2)
    return class_counts(train, classes)


def _can_weigh(network: NetworkConfiguration) -> bool:
    """Return whether ``--class-weights`` could be given to a run of the network, and were not."""
    try:
        return output_layer(network).loss_weights is None
    except ConfError:
        return False


def _with_labels(facts: Facts, found: EvaluationBinary, train: DataSet) -> Facts:
    names = found.label_names or tuple(map(str, range(found.num_labels)))
    usual = (train.labels.mean(axis=0) > 0.5).tolist()
    labels, hits, f1 = [], [], []
    for i, name in enumerate(names):
        hit, miss = (found.true_positives(i), found.false_negatives(i))
        confusion = np.array([[found.true_negatives(i), found.false_positives(i)], [miss, hit]])
        labels.append(ClassFacts(confusion, (name,), confusion.sum(axis=1)))
        yes, no = hit + miss, found.total_count(i) - hit - miss
        hits.append((yes if usual[i] else no) / max(1, yes + no))
        f1.append(2 * yes / (2 * yes + no) if usual[i] and yes else 0.0)
    count = max(1, len(names))
    answer = "always each label's commoner answer"
    baseline = Baseline(answer=answer, accuracy=sum(hits) / count, macro_f1=sum(f1) / count)
    return dataclasses.replace(facts, labels=tuple(labels), baseline=baseline)


# -- numbers -----------------------------------------------------------------------------------------------------------


def _with_numbers(facts: Facts, found: RegressionEvaluation, train: DataSet, test: DataSet, reading: Reading) -> Facts:
    answer, usual = _baseline_of(train, test, reading)
    numbers = tuple(
        NumberFacts(
            name=name,
            count=found.count(i),
            mse=found.mse(i),
            mae=found.mae(i),
            baseline_mse=usual.mse(i),
            baseline_mae=usual.mae(i),
            correlation=found.pc(i),
            spread=found.output_spread(i),
            output_mean=found.output_mean(i),
        )
        for i, name in enumerate(found.columns or ())
    )
    baseline = Baseline(answer=answer, **{name: usual.average(name) for name in ("mse", "rmse", "mae", "r2")})
    return dataclasses.replace(facts, numbers=numbers, baseline=baseline)


def _evaluated(labels: Array, answers: Array, mask: Array | None) -> RegressionEvaluation:
    found = RegressionEvaluation()
    found.eval(labels, answers, mask)
    return found


def _baseline_of(train: DataSet, test: DataSet, reading: Reading) -> tuple[str, RegressionEvaluation]:
    """Return the baseline's answer in words and its evaluation, in the units of the labels."""
    known, asked = (_in_units(part.labels, reading.label_scale) for part in (train, test))
    itself = _evaluated(known, known, train.labels_mask)
    means = [itself.output_mean(i) for i in range(itself.num_columns)]
    usual = np.reshape(means, (1, -1, 1) if asked.ndim == 3 else (1, -1))
    last = _last_value(reading, means[0], float(known.std()))
    if last is not None:
        name, value = last
        errors = float(((value(train) - known) ** 2).mean())
        if errors < ((known - usual) ** 2).mean():
            return f"the last value, in column {name!r}", _evaluated(asked, value(test), test.labels_mask)
    answer = f"always the mean, {means[0]:.6g}" if len(means) == 1 else "always the means"
    return answer, _evaluated(asked, np.broadcast_to(usual, asked.shape), test.labels_mask)


def _in_units(labels: Array, scale: LabelScale | None) -> Array:
    labels = np.asarray(labels, np.float64)
    return labels if scale is None else scale.in_units(labels, limited=False)


def _last_value(reading: Reading, mean: float, std: float) -> tuple[str, Callable[[DataSet], Array]] | None:
    """Return the column of the series' last value, and a function that returns it for examples; None: there is none.

    A table has it if the schema's step ``linear`` begins at it, or if the names of two columns say that they are lags:
    ``lag_1`` and ``lag_2``, ``t-1`` and ``t-2``, or the label's name with these, or with 1 and 2. ``mean`` and ``std``
    are those of the label.
    """
    schema = reading.transform
    if schema is None or len(schema.label_columns) != 1 or reading.sequences is not None:
        return None
    of_label = re.escape(schema.label_columns[0].casefold())
    form = rf"(?:{of_label}[\W_]*(?:lag|t)?|lag|t[\W_]*-)[\W_]*0*(?P<lag>[12])\W*"
    numbers = [column.name for column in schema.columns if column.type == "number"]
    lags = {match["lag"]: name for name in numbers if (match := re.fullmatch(form, name.casefold()))}
    if reading.linear is not None and reading.linear.base:
        lags = {"1": reading.linear.base}
    elif set(lags) != {"1", "2"}:
        return None
    values, gaps = np.array([mean - std, mean, mean + std]), np.full(3, "", object)
    columns = {column.name: values if column.type == "number" else gaps for column in schema.columns}
    try:
        made = schema.apply(Table("lags", columns, np.arange(3), {}), new_rows=True).columns
        low, middle, high = np.asarray(made[lags["1"]], np.float64).tolist()
    except (ConfError, DataError, KeyError):  # a step takes no gaps, or the column is removed
        return None
    if not high > low or abs(low + high - 2 * middle) > 1e-6 * (high - low):
        return None  # the column is not only scaled
    at, normalizer = schema.feature_names.index(lags["1"]), reading.normalizer

    def value(part: DataSet) -> Array:
        features = (part if normalizer is None else normalizer.revert(part)).features
        found: Array = mean + 2 * std * (features[:, at : at + 1].astype(np.float64) - middle) / (high - low)
        return found

    return lags["1"], value
