"""Networks on a GPU: every layer, loss, activation and vertex against the CPU, on a stand-in that runs our CUDA C.

The stand-in refuses NumPy's arrays and functions on the device and counts waits and uploads.
"""

from __future__ import annotations

from typing import Any

import pytest
import test_convolution
import test_embedding
import test_gradient_check
import test_graph
import test_recurrent
import test_variational
from device_twins import Twins, cases, gpu  # noqa: F401  # gpu is a fixture

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
    *cases(test_graph.test_gradients_of_a_vertex_are_the_derivative_of_the_score),
    *cases(test_graph.test_gradients_between_sequences_images_and_vectors),
    *cases(test_graph.test_gradients_with_masks_of_labels_and_several_outputs_from_one_branch),
    *cases(test_graph.test_images_find_their_way_through_preprocessors),
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
