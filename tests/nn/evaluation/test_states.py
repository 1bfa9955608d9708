"""Evaluations as values and arrays: what another process makes of them is what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays import wire
from dl4jlegacy.errors import WireError
from dl4jlegacy.nn import (
    ROC,
    Evaluation,
    EvaluationBinary,
    EvaluationCalibration,
    RegressionEvaluation,
    ROCBinary,
    ROCMultiClass,
)
from dl4jlegacy.nn.batch_evaluation import BatchEvaluation
from dl4jlegacy.nn.evaluation.packed import empty, joined, packed, unpacked
from dl4jlegacy.scaleout.state.aggregate import evaluation_in, result_of
from dl4jlegacy.scaleout.state.job import Result

EVERY = {
    "Evaluation": lambda: Evaluation(label_names=["no", "yes"], top_n=2, binary_positive_class=None),
    "EvaluationBinary": lambda: EvaluationBinary(["a", "b"], thresholds=[0.25, 0.5]),
    "EvaluationBinary with a ROC": lambda: EvaluationBinary(roc_steps=7),
    "EvaluationCalibration": lambda: EvaluationCalibration(7, 9, exclude_empty_bins=False),
    "RegressionEvaluation": lambda: RegressionEvaluation(["x", "y"], digits=3),
    "ROC": lambda: ROC(remove_redundant=False),
    "ROC of steps": lambda: ROC(10),
    "ROCBinary": lambda: ROCBinary(0, ["a", "b"]),
    "ROCMultiClass of steps": lambda: ROCMultiClass(5, remove_redundant=False),
}


def batches() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return labels, outputs and masks of batches of different sizes; one is masked altogether."""
    rng = np.random.default_rng(3)
    sizes = (50, 1, 200)
    outputs = [rng.dirichlet([0.3, 0.2], size).astype(np.float32) for size in sizes]
    masks = [(rng.random(size) > 0.2 if size > 1 else np.zeros(size)).astype(np.float32) for size in sizes]
    return [(np.eye(2)[rng.integers(0, 2, len(y))], y, mask) for y, mask in zip(outputs, masks, strict=True)]


def of_each_batch(kind: str) -> list[Any]:
    parts = [EVERY[kind]() for _ in batches()]
    for part, batch in zip(parts, batches(), strict=True):
        part.eval(*batch)
    return parts


@pytest.mark.parametrize("kind", EVERY)
def test_what_travels_merges_to_the_bits_of_one_process(kind: str) -> None:
    expected, found = EVERY[kind](), EVERY[kind]()
    for batch in batches():
        expected.eval(*batch)
    description, arrays = packed(joined(of_each_batch(kind)))
    for part in unpacked(*wire.decode(bytes(wire.encode(description, arrays)))):
        found.merge(part)
    assert found.to_dict() == expected.to_dict()
    assert found.stats() == expected.stats()
    found.eval(*batches()[0])  # it goes on, as any other
    assert [part.to_dict() for part in unpacked(*packed([EVERY[kind]()]))] in ([], [EVERY[kind]().to_dict()])


@pytest.mark.parametrize("kind", EVERY)
def test_a_state_that_is_none_is_a_wire_error(kind: str) -> None:
    description, arrays = packed(joined(of_each_batch(kind)))
    for without in arrays if len(arrays) > 1 else ():
        with pytest.raises(WireError, match="are not those of"):
            unpacked(description, {name: array for name, array in arrays.items() if name != without})
    for wrong, text in (({"kind": "Pickle"}, "no evaluation of the kind 'Pickle'"), ({"no": 1}, "cannot be made")):
        with pytest.raises(WireError, match=text):
            empty({**description, **wrong})


def test_a_result_without_an_evaluation_is_a_wire_error() -> None:
    good = result_of([BatchEvaluation((1.0,), 50, {"0": tuple(of_each_batch("ROC"))})])
    assert evaluation_in(good).examples == 50
    for values, arrays in (({}, good.arrays), (good.values, {}), ({**good.values, "evaluations": 7}, good.arrays)):
        with pytest.raises(WireError, match=r"is incomplete|are not those of"):
            evaluation_in(Result(values, arrays))


def test_the_losses_of_a_million_batches_fit_into_a_frame() -> None:
    many = BatchEvaluation(tuple(np.random.default_rng(1).random(1_000_000).tolist()), 1_000_000)
    found = evaluation_in(Result.decode(result_of([many]).encode()))
    assert (found.losses, found.examples) == (many.losses, many.examples)
