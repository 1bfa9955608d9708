"""Networks on a GPU: every layer, loss, activation and vertex against the CPU, on a stand-in that runs our CUDA C.

The stand-in refuses NumPy's arrays and functions on the device and counts waits and uploads.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.backend import to_host
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.optimization.losses import LOSSES
from tests.nn.graph import test_computation_graph
from tests.nn.layers import test_convolution, test_embedding, test_output, test_recurrent, test_variational
from tests.nn.preprocessors import test_preprocessors
from tests.nn.training import test_gradient_check
from tests.support.device_twins import Twins, cases, gpu  # noqa: F401  # gpu is a fixture

RNG = np.random.default_rng(4)
pytestmark = pytest.mark.usefixtures("gpu")

CASES = [
    *cases(test_gradient_check.test_output_layer_gradient_is_the_derivative_of_the_score_for_every_fitting_activation),
    *cases(test_gradient_check.test_hidden_layer_gradient_is_the_derivative_of_the_score),
    *cases(test_gradient_check.test_rbm_in_fine_tuning_is_differentiated_through_its_hidden_units_mean),
    *cases(test_gradient_check.test_drop_out_and_regularization_are_part_of_the_gradient),
    *cases(test_gradient_check.test_weighted_losses_and_summed_losses_have_their_own_gradient),
    *cases(test_gradient_check.test_autoencoder_pretraining_gradient_is_the_derivative_of_its_loss),
    *cases(test_convolution.test_gradients_of_image_layers_are_those_of_the_score),
    *cases(test_convolution.test_gradients_of_sequence_layers_are_those_of_the_score),
    *cases(test_convolution.test_gradients_of_other_output_layers),
    *cases(test_computation_graph.test_gradients_of_a_vertex_are_the_derivative_of_the_score),
    *cases(test_computation_graph.test_gradients_between_sequences_images_and_vectors),
    *cases(test_computation_graph.test_gradients_with_masks_of_labels_and_several_outputs_from_one_branch),
    *cases(test_computation_graph.test_images_find_their_way_through_preprocessors),
    *cases(test_preprocessors.test_gradients_of_rows_include_mean_and_deviation),
    *cases(test_preprocessors.test_gradients_of_sequences_and_of_their_rows),
    *cases(test_preprocessors.test_several_go_from_images_to_rows_to_sequences_and_back),
    *cases(test_preprocessors.test_gradients_in_a_graph),
    *cases(test_recurrent.test_gradient_is_the_derivative_of_the_score),
    *cases(test_recurrent.test_the_last_time_step_passes_its_gradient_to_where_the_sequence_ended),
    *cases(test_recurrent.test_labels_that_are_masked_out_do_not_count),
    *cases(test_recurrent.test_other_activations_take_the_general_path),
    *cases(test_variational.test_pretraining_follows_the_gradient_of_the_bound),
    *cases(test_variational.test_other_activations_and_a_layer_below),
    *cases(test_variational.test_in_a_network_it_is_the_encoder_up_to_the_mean),
    *cases(test_embedding.test_gradient_is_the_derivative_of_the_score),
    *cases(test_embedding.test_sequences_of_indices_go_into_a_recurrent_layer),
]


@pytest.mark.parametrize(("test", "given"), CASES)
def test_a_network_on_the_device_does_what_it_does_on_the_cpu(
    test: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(test.__globals__, "GradientCheckUtil", Twins)
    test(**given)


# -- kernels that only networks have a use for


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_fused_binary_cross_entropy_is_the_loss_of_that_name(dtype: str) -> None:
    p = RNG.random((70, 30)).astype(dtype)
    p[:4] = np.array([0, 1, 1e-7, 1 - 1e-7])[:, None]
    labels = RNG.random((70, 30)).astype(dtype)
    wanted = LOSSES["xent"].score(labels, p).astype(np.float64).sum()
    xp = load("cupy").xp
    assert load("numpy").binary_cross_entropy(p, labels) == pytest.approx(wanted, rel=1e-6)
    found = load("cupy").binary_cross_entropy(xp.asarray(p), xp.asarray(labels))
    assert found.shape == () and found.dtype == np.float64 and float(found) == pytest.approx(wanted, rel=1e-6)
    p[3, 3] = np.nan
    assert np.isnan(float(load("cupy").binary_cross_entropy(xp.asarray(p), xp.asarray(labels))))


@pytest.mark.parametrize("masked", ["none", "outputs"])
@pytest.mark.parametrize("weights", [None, test_output.WEIGHTS], ids=["plain", "weighted"])
def test_the_error_of_a_confident_network_is_that_of_the_cpu(weights: Any, masked: str) -> None:
    mask = test_output.masks(masked)
    for loss, activation, kind in test_output.CASES:
        found = [
            test_output.error_and_bias_gradient(loss, activation, kind, weights, mask, kernels)
            for kernels in ("numpy", "cupy")
        ]
        for ours, theirs in zip(*found, strict=True):
            what = f"{loss} behind {activation}, labels {kind}"
            np.testing.assert_allclose(to_host(theirs), ours, rtol=2e-5, atol=2e-5, err_msg=what)


def test_gradients_of_an_embedding_are_summed_in_the_order_of_the_rows() -> None:
    dz, index = RNG.normal(size=(300, 5)).astype(np.float32), RNG.integers(0, 9, 300)
    index[index == 4] = 5  # a class that nobody asked for
    xp = load("cupy").xp
    flat = xp.full(45, 7, np.float32)
    load("cupy").embedding_gradient(xp.asarray(dz), xp.asarray(index), flat.reshape(5, 9).T)
    wanted = np.zeros((9, 5), np.float32)
    for row, own in zip(dz, index, strict=True):
        wanted[own] += row
    assert (wanted == to_host(flat).reshape(5, 9).T).all()


def test_truth_values_and_a_python_float_are_refused_since_cupy_makes_them_float16(gpu: ModuleType) -> None:  # noqa: F811
    there = gpu.asarray([1.0, -1.0])
    for wrong in (lambda: gpu.where(there > 0, 1, 0.01), lambda: 0.2 * (there > 0), lambda: (there > 0) + 0.5):
        with pytest.raises(TypeError, match="float16"):
            wrong()
    assert to_host(gpu.where(there > 0, gpu.float64(1), 0.01)).tolist() == [1.0, 0.01]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [3, 16, 37])
@pytest.mark.parametrize("beside", [1, 37])
def test_images_are_dropped_and_drawn_for_as_on_the_cpu_however_they_lie(dtype: str, rows: int, beside: int) -> None:
    x = RNG.random((rows, 2 * 3 * 5)).astype(dtype)
    host, device = load("numba"), load("cupy")
    xp, found = device.xp, []
    for kernels, lanes in ((host, host.lanes(x.dtype.char, rows)), (device, min(beside, rows))):
        tiles = kernels.xp.zeros((-(-rows // lanes), 2, 3, 5, lanes), x.dtype)
        there = x if kernels is host else xp.asarray(x)
        kernels.tile(there, tiles)
        out, drawn = kernels.xp.empty_like(tiles), kernels.xp.empty_like(tiles)
        kernels.dropout(tiles, out, 0.6, 99)
        kernels.dropout_backward(out, 0.9, 98)
        kernels.uniform(drawn, 97)
        for result in (out, drawn):
            back = kernels.xp.empty_like(there)
            kernels.untile(result, back)
            found.append(to_host(back))
    np.testing.assert_array_equal(found[2], found[0])
    np.testing.assert_array_equal(found[3], found[1])
    assert (found[0] == 0).any() and len(np.unique(found[1])) > 20
