"""Random networks of all families against formulas in float64: gradient and score, with masks, weights, wild logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import ComputationGraph, MultiLayerConfiguration, MultiLayerNetwork, NeuralNetConfiguration
from tests.support.random_networks import Case, draw

H = 1e-40
EVERYDAY, LONG = 36, 1000
STATES = ("mean", "var", "vb")  # no part of the loss


def build(case: Case, dtype: str, kernels: str) -> Any:
    """Return the case as a network: every second one of rows and sequences as a graph."""
    if case.number % 4 < 2:
        conf = NeuralNetConfiguration(activation="tanh", seed=case.number, dtype=dtype)
        whole = MultiLayerConfiguration(conf=conf, layers=case.layers, input_type=case.input_type)
        return MultiLayerNetwork(whole, kernels=load(kernels))
    builder = NeuralNetConfiguration.builder().seed(case.number).activation("tanh").dtype(dtype).graph_builder()
    builder.add_inputs("in").set_input_types(case.input_type)
    below = "in"
    for index, layer in enumerate(case.layers):
        builder.add_layer(str(index), layer, below)
        below = str(index)
    return ComputationGraph(builder.set_outputs(below).build(), kernels=load(kernels))


def unsettle(net: Any, case: Case) -> None:
    """Move the parameters off their beginnings, and make the logits small, large or enormous."""
    last = f"{len(case.layers) - 1}_"
    for name, view in net.param_table.items():
        if name.split("_")[-1] not in STATES:
            view += 0.2 * case.rng.standard_normal(view.shape)
        if name.startswith(last):
            view *= case.size


def batch(case: Case, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return labels as the network takes them, as the formulas do, and their mask, for logits of the shape of ``z``."""
    rng, n = case.rng, z.shape[1]
    classes = rng.integers(0, n, (len(z), *z.shape[2:]))
    one_hot = np.moveaxis(np.eye(n)[classes], -1, 1)
    shown = rng.random(z.shape) if rng.random() < 0.4 and case.output.loss != "sparse_mcxent" else one_hot
    given = classes[:, None].astype(float) if case.output.loss == "sparse_mcxent" else shown
    if rng.random() < 0.5:
        return np.ascontiguousarray(given), shown, None
    if z.ndim == 3:
        return np.ascontiguousarray(given), shown, (rng.random((len(z), z.shape[2])) < 0.6).astype(float)
    shapes = [(len(z),), (len(z), 1)] + ([z.shape] if case.output.loss != "sparse_mcxent" else [])
    return np.ascontiguousarray(given), shown, (rng.random(shapes[int(rng.integers(len(shapes)))]) < 0.6).astype(float)


def check(number: int, kernels: str) -> None:
    """Compare a case's gradient, parameter by parameter, with the loss's derivative along a random direction."""
    case = draw(number)
    dtype = "float32" if case.is_smooth and number % 5 < 2 else "float64"
    net = build(case, dtype, kernels)
    unsettle(net, case)
    params: dict[str, Any] = {name: view.astype(float) for name, view in net.param_table.items()}
    z, left = case.logits(params)
    given, labels, mask = batch(case, z)
    x = case.x.astype(dtype)
    found, score = net.gradient_and_score(x, given.astype(dtype), Stream.of(1), case.features_mask, mask)
    kept, gradient = net.params.copy(), found.copy()
    net.params[...] = gradient
    grads = {name: view.astype(float) for name, view in net.param_table.items()}
    net.params[...] = kept
    close = 3e-3 if dtype == "float32" else 1e-7
    if not case.clips(z):
        wanted = float(case.loss(z, left, labels, mask).real)
        assert float(score) == pytest.approx(wanted, rel=close, abs=close), case.title()
    for name, values in params.items():
        if name.split("_")[-1] in STATES:
            continue
        direction = case.rng.standard_normal(values.shape)
        moved = params | {name: values + 1j * H * direction}
        wanted = float(case.loss(*case.logits(moved), labels, mask).imag / H)
        size = max(1e-3, float(np.abs(grads[name]).max())) * np.sqrt(values.size)
        error = abs(float((grads[name] * direction).sum()) - wanted)
        assert error <= close * size, f"{case.title()}: {name} is off by {error:.2e} of {size:.2e}"


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("number", range(EVERYDAY))
def test_a_random_network_has_the_gradient_of_its_formulas(number: int, kernels: str) -> None:
    check(number, kernels)


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_a_thousand_random_networks_have_the_gradients_of_their_formulas(kernels: str) -> None:
    failures: list[str] = []
    for number in range(EVERYDAY, EVERYDAY + LONG):
        try:
            check(number, kernels)
        except AssertionError as wrong:
            failures.append(str(wrong))
    assert not failures, "\n".join([f"{len(failures)} of {LONG}", *failures[:20]])
