"""Every layer, loss and activation against central differences, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.losses import LOSSES

EXAMPLES, N_IN, N_OUT = 6, 4, 3
PROBABILITIES = ("sigmoid", "softmax")
# Activations whose range lies where the loss is defined and not clipped; every other loss takes any output.
OUTPUTS = {
    "xent": PROBABILITIES,
    "kl_divergence": PROBABILITIES,
    "reconstruction_crossentropy": PROBABILITIES,
    "mcxent": (*PROBABILITIES, "softplus"),
    "negativeloglikelihood": (*PROBABILITIES, "softplus"),
    "sparse_mcxent": (*PROBABILITIES, "softplus"),
    "poisson": (*PROBABILITIES, "softplus"),
    "mean_squared_logarithmic_error": (*PROBABILITIES, "softplus", "identity"),
}
ANY = ("identity", "sigmoid", "tanh", "softmax", "softplus", "softsign", "leakyrelu", "cube")


def data(loss: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(EXAMPLES, N_IN))
    classes = rng.integers(0, N_OUT, EXAMPLES)
    if loss == "sparse_mcxent":
        return x, classes[:, None].astype(float)
    if loss in ("hinge", "squared_hinge", "wasserstein"):
        return x, np.eye(N_OUT)[classes] * 2 - 1
    if loss in ("mcxent", "negativeloglikelihood", "xent"):
        return x, np.eye(N_OUT)[classes]
    return x, rng.uniform(0.1, 0.9, (EXAMPLES, N_OUT))


def network(*layers: Layer, kernels: str = "numpy", **conf: object) -> MultiLayerNetwork:
    fields = {"seed": 3, "dtype": "float64", "activation": "tanh"} | conf
    return MultiLayerNetwork(
        MultiLayerConfiguration(conf=NeuralNetConfiguration(**fields), layers=layers), kernels=load(kernels)
    )


def output(loss: str, activation: str, **fields: object) -> OutputLayer:
    return OutputLayer(n_out=N_OUT, loss=loss, activation=activation, bias_init=0.05, **fields)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_output_layer_gradient_is_the_derivative_of_the_score_for_every_fitting_activation(loss: str) -> None:
    x, labels = data(loss)
    for activation in OUTPUTS.get(loss, ANY):
        net = network(DenseLayer(n_in=N_IN, n_out=5), output(loss, activation))
        report = GradientCheckUtil.check_gradients(net, x, labels)
        assert report.passed, (loss, activation, report.failures[:3])


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("loss", ["mcxent", "mse"])
def test_hidden_layer_gradient_is_the_derivative_of_the_score(activation: str, loss: str) -> None:
    x, labels = data(loss)
    hidden = {"activation": activation, "bias_init": 0.1}
    for layer in (DenseLayer(n_in=N_IN, n_out=5, **hidden), AutoEncoder(n_in=N_IN, n_out=5, **hidden)):
        net = network(layer, output(loss, "softmax"))
        report = GradientCheckUtil.check_gradients(net, x, labels)
        assert report.passed, (layer, report.failures[:3])


@pytest.mark.parametrize("unit", ["binary", "gaussian", "rectified", "softmax", "linear", "identity"])
def test_rbm_in_fine_tuning_is_differentiated_through_its_hidden_units_mean(unit: str) -> None:
    x, labels = data("mcxent")
    net = network(RBM(n_in=N_IN, n_out=5, hidden_unit=unit), RBM(n_out=4), output("mcxent", "softmax"))
    assert GradientCheckUtil.check_gradients(net, x, labels).passed


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_drop_out_and_regularization_are_part_of_the_gradient(kernels: str) -> None:
    x, labels = data("mcxent")
    net = network(
        DenseLayer(n_in=N_IN, n_out=6, activation="sigmoid"),
        DenseLayer(n_out=5, activation="relu"),
        output("mcxent", "softmax"),
        kernels=kernels, l1=0.02, l2=0.03, l1_bias=0.01, l2_bias=0.04, drop_out=0.7,
    )  # fmt: skip
    report = GradientCheckUtil.check_gradients(net, x, labels)
    assert report.passed, report.failures[:3]
    assert report.checked == net.num_params


def test_weighted_losses_and_summed_losses_have_their_own_gradient() -> None:
    x, labels = data("mse")
    net = network(DenseLayer(n_in=N_IN, n_out=5), output("mse", "tanh", loss_weights=(0.2, 1.0, 3.0)))
    assert GradientCheckUtil.check_gradients(net, x, labels).passed
    x, labels = data("mcxent")
    net = network(DenseLayer(n_in=N_IN, n_out=5), output("mcxent", "softmax", loss_weights=(0.2, 1.0, 3.0)))
    assert GradientCheckUtil.check_gradients(net, x, labels).passed


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_autoencoder_pretraining_gradient_is_the_derivative_of_its_loss(activation: str, kernels: str) -> None:
    x = np.random.default_rng(5).uniform(0.05, 0.95, (EXAMPLES, N_IN))
    for loss in ("reconstruction_crossentropy", "mse"):
        layer = AutoEncoder(n_in=N_IN, n_out=5, activation=activation, loss=loss, corruption_level=0.3)
        net = network(layer, output("mcxent", "softmax"), kernels=kernels, l2=0.01)
        report = GradientCheckUtil.check_pretrain_gradients(net, 0, x)
        assert report.passed, (loss, report.failures[:3])


def test_the_check_finds_a_wrong_gradient() -> None:
    x, labels = data("mcxent")
    net = network(DenseLayer(n_in=N_IN, n_out=5), output("mcxent", "softmax"))
    right = net.gradient_and_score

    def wrong(*args: object) -> tuple[np.ndarray, float]:
        gradient, score = right(*args)  # type: ignore[arg-type]
        gradient[2] *= 1.01
        return gradient, score

    net.gradient_and_score = wrong  # type: ignore[method-assign, assignment]
    report = GradientCheckUtil.check_gradients(net, x, labels)
    assert [failure[:2] for failure in report.failures] == [("0_W", 2)]


def test_a_check_in_float32_is_refused() -> None:
    x, labels = data("mcxent")
    net = network(DenseLayer(n_in=N_IN, n_out=5), output("mcxent", "softmax"), dtype="float32")
    with pytest.raises(ConfError, match="float64"):
        GradientCheckUtil.check_gradients(net, x, labels)
