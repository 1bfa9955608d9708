"""Score calculators: the score of a network on held-out data, for early stopping.

Legacy: ``org.deeplearning4j.earlystopping.scorecalc``. All of them work for both kinds of network; for a graph with
several outputs the evaluations use the first output, and the loss uses all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from dl4jlegacy.datasets.batches import Data
from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.evaluate import do_evaluation
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.nn.evaluation.roc import ROC, ROCBinary, ROCMultiClass
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.networks import Network

__all__ = [
    "AutoencoderScoreCalculator",
    "ClassificationScoreCalculator",
    "DataSetLossCalculator",
    "ROCScoreCalculator",
    "RegressionScoreCalculator",
    "ScoreCalculator",
]


class ScoreCalculator(Protocol):
    """Computes the score of a network."""

    @property
    def minimize_score(self) -> bool:
        """Whether a lower score is better."""

    def calculate_score(self, network: Network) -> float:
        """Return the score of ``network``."""


class DataSetLossCalculator:
    """The loss over ``data`` with regularization: the mean over the examples, or the sum.

    Legacy: also ``DataSetLossCalculatorCG``.
    """

    minimize_score = True

    def __init__(self, data: Data, *, average: bool = True) -> None:
        self._data, self._average = data, average

    def calculate_score(self, network: Network) -> float:
        """See ``ScoreCalculator``."""
        total, examples = 0.0, 0
        for batch in network.batches(self._data):
            total += network.score(batch) * batch.num_examples
            examples += batch.num_examples
        return total / examples if self._average else total


class ClassificationScoreCalculator:
    """Accuracy, precision, recall, F1, g-measure or Matthews' correlation; higher is better."""

    minimize_score = False

    def __init__(
        self,
        metric: Literal["accuracy", "precision", "recall", "f1", "g_measure", "matthews_correlation"],
        data: Data,
    ) -> None:
        known = ("accuracy", "precision", "recall", "f1", "g_measure", "matthews_correlation")
        self._metric, self._data = _known("ClassificationScoreCalculator", metric, known), data

    def calculate_score(self, network: Network) -> float:
        """See ``ScoreCalculator``."""
        evaluation = Evaluation()
        do_evaluation(network, self._data, evaluation)
        metric: Callable[[], float] = getattr(evaluation, self._metric)
        return metric()


class RegressionScoreCalculator:
    """An average of ``RegressionEvaluation``; lower is better for errors, higher for pc and r2."""

    def __init__(self, metric: Literal["mse", "mae", "rmse", "rse", "pc", "r2"], data: Data) -> None:
        known = ("mse", "mae", "rmse", "rse", "pc", "r2")
        self._metric, self._data = _known("RegressionScoreCalculator", metric, known), data

    @property
    def minimize_score(self) -> bool:
        """Whether a lower score is better."""
        return self._metric not in ("pc", "r2")

    def calculate_score(self, network: Network) -> float:
        """See ``ScoreCalculator``."""
        evaluation = RegressionEvaluation()
        do_evaluation(network, self._data, evaluation)
        return evaluation.average(self._metric)


class ROCScoreCalculator:
    """Area under a curve of ``ROC`` (one output or two classes), or the average over outputs of the other kinds.

    Higher is better.

    Args:
        kind: "roc", "binary" or "multi_class".
        data: held out.
        metric: "auc" or "aucpr".
        steps: number of threshold steps; 0: exact.
    """

    minimize_score = False

    def __init__(
        self,
        kind: Literal["roc", "binary", "multi_class"],
        data: Data,
        *,
        metric: Literal["auc", "aucpr"] = "auc",
        steps: int = 0,
    ) -> None:
        self._kind = _known("ROCScoreCalculator", kind, ("roc", "binary", "multi_class"))
        self._metric = _known("ROCScoreCalculator", metric, ("auc", "aucpr"))
        self._data, self._steps = data, steps

    def calculate_score(self, network: Network) -> float:
        """See ``ScoreCalculator``."""
        if self._kind == "roc":
            roc = ROC(self._steps)
            do_evaluation(network, self._data, roc)
            return roc.calculate_auc() if self._metric == "auc" else roc.calculate_aucpr()
        columns = ROCBinary(self._steps) if self._kind == "binary" else ROCMultiClass(self._steps)
        do_evaluation(network, self._data, columns)
        return columns.calculate_average_auc() if self._metric == "auc" else columns.calculate_average_aucpr()


class AutoencoderScoreCalculator:
    """Mean squared (or absolute) error of the reconstruction by pretrain layer ``layer`` of a stack."""

    minimize_score = True

    def __init__(self, metric: Literal["mse", "mae"], data: Data, *, layer: int = 0) -> None:
        self._metric = _known("AutoencoderScoreCalculator", metric, ("mse", "mae"))
        self._data, self._layer = data, layer

    def calculate_score(self, network: Network) -> float:
        """See ``ScoreCalculator``."""
        if isinstance(network, ComputationGraph):
            raise ConfError("a ComputationGraph has no pretrain layers; use DataSetLossCalculator")
        evaluation = RegressionEvaluation()
        for batch in network.batches(self._data):
            x = batch.features
            below = x if self._layer == 0 else network.feed_forward(x)[self._layer]
            evaluation.eval(below, network.reconstruct(x, self._layer))
        return evaluation.average(self._metric)


def _known(kind: str, name: str, known: tuple[str, ...]) -> str:
    if name not in known:
        raise ConfError(f"{kind}: unknown {name!r}{nearest(name, known)}")
    return name
