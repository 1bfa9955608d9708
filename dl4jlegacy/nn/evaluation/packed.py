"""Conversion of evaluations to plain values and arrays, for exchange between processes: ``described``, ``packed``.

Counts of several batches share one state. If sums are rounded, each batch has its own state, since they must be added
one after another, as in one process.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, Dl4jError, WireError
from dl4jlegacy.nn.evaluation.binary import EvaluationBinary
from dl4jlegacy.nn.evaluation.calibration import EvaluationCalibration
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.evaluate import Compared
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.nn.evaluation.roc import ROC, ROCBinary, ROCMultiClass

__all__ = ["AnyEvaluation", "check_evaluations", "described", "empty", "joined", "packed", "unpacked"]

AnyEvaluation = (
    Evaluation | EvaluationBinary | EvaluationCalibration | RegressionEvaluation | ROC | ROCBinary | ROCMultiClass
)
"""An evaluation of a kind that every process can create."""
_KINDS: dict[str, type[AnyEvaluation]] = {kind.__name__: kind for kind in get_args(AnyEvaluation)}


def check_evaluations(evaluations: Sequence[Any], found: Compared) -> None:
    """Raise unless several processes can contribute to each of the evaluations, and each accepts the network's outputs.

    Args:
        evaluations: made by a user; they are not changed.
        found: labels and outputs of some example.

    Raises:
        ConfError: an evaluation is of another kind, or is given twice. ShapeError: the outputs do not fit it.
    """
    for number, evaluation in enumerate(evaluations, 1):
        name = type(evaluation).__name__
        what = f"evaluation {number} of {len(evaluations)}, {name},"
        if type(evaluation) is not _KINDS.get(name):
            is_class = isinstance(evaluation, type) and evaluation in _KINDS.values()
            remedy = f"give {evaluation.__name__}()" if is_class else f"give {', '.join(_KINDS)}"
            raise ConfError(f"{what} is of no kind that other processes know: {remedy}")
        if any(evaluation is other for other in evaluations[: number - 1]):
            raise ConfError(f"{what} is given twice, and would count every example twice; make one for each")
        try:
            copy.deepcopy(evaluation).eval(*found)
        except Dl4jError as exc:
            raise type(exc)(f"{what} does not fit the network's output: {exc}") from exc


def described(evaluation: AnyEvaluation) -> dict[str, Any]:
    """Return the kind and the settings of an evaluation as JSON values."""
    settings = evaluation.settings().items()
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in settings}
    return {"kind": type(evaluation).__name__, **plain}


def empty(description: Mapping[str, Any]) -> AnyEvaluation:
    """Return a new evaluation with the kind and settings of a ``described`` one.

    Raises:
        WireError: there is no such kind, or it has other settings.
    """
    settings = {name: value for name, value in description.items() if name != "kind"}
    kind = _KINDS.get(str(description.get("kind")))
    if kind is None:
        raise WireError(
            f"there is no evaluation of the kind {description.get('kind')!r}; there are {', '.join(_KINDS)}"
        )
    try:
        return kind(**settings)
    except (TypeError, ValueError, Dl4jError) as exc:
        raise WireError(f"{kind.__name__} cannot be made with {settings}: {exc}") from exc


def joined(parts: Iterable[AnyEvaluation]) -> tuple[AnyEvaluation, ...]:
    """Return evaluations of consecutive batches joined where possible; they merge to the same bits."""
    given = tuple(parts)
    if not given or not given[0].merges_exactly:
        return given
    whole: Any = empty(described(given[0]))
    for part in given:
        whole.merge(part)
    return (whole,)


def packed(parts: Sequence[AnyEvaluation]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the description and the state arrays of evaluations of one kind, for ``unpacked``."""
    states = [state for part in parts if (state := part.state())]
    arrays = {name: np.stack([state[name] for state in states]) for name in (states[0] if states else ())}
    return described(parts[0]), arrays


def unpacked(description: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[AnyEvaluation, ...]:
    """Return the evaluations that were ``packed``, with their own arrays; raises ``WireError`` for invalid data."""
    try:
        count = max((len(array) for array in arrays.values()), default=0)
        states = [{name: array[index].copy() for name, array in arrays.items()} for index in range(count)]
        return tuple(empty(description).restore(state) for state in states)
    except (KeyError, IndexError, TypeError, ValueError, Dl4jError) as exc:
        raise WireError(
            f"an evaluation's arrays {sorted(arrays)} are not those of {dict(description)}: {exc!r}"
        ) from exc
