"""What networks on a GPU give back, draw and write is what those on the CPU do; on the stand-in, with host arrays."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy import TrainedModel
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import Reading
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.kernels import load
from dl4jlegacy.models.generation import generate_text
from dl4jlegacy.nn import (
    RBM,
    AutoEncoder,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    reconstruct_input,
    sample_input,
)
from dl4jlegacy.nn.zoo import char_lstm, vae
from tests.support.device_twins import gpu  # noqa: F401  # a fixture

pytestmark = pytest.mark.usefixtures("gpu")
X = np.random.default_rng(1).random((9, 6), np.float32)


def twins(conf: MultiLayerConfiguration) -> tuple[MultiLayerNetwork, MultiLayerNetwork]:
    """The same network on the CPU and on the device."""
    host, device = MultiLayerNetwork(conf), MultiLayerNetwork(conf, kernels=load("cupy"))
    host.set_params(np.random.default_rng(2).normal(0, 0.7, host.num_params).astype(np.float32))
    device.set_params(host.params)
    return host, device


def stack(*layers: RBM | AutoEncoder) -> MultiLayerConfiguration:
    output = OutputLayer(n_out=3, activation="softmax")
    return MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=3), layers=(*layers, output), pretrain=True)


RBMS = stack(RBM(n_in=6, n_out=5), RBM(n_out=4, hidden_unit="rectified"))
CODERS = stack(AutoEncoder(n_in=6, n_out=5, activation="sigmoid"), AutoEncoder(n_out=4))


@pytest.mark.parametrize("conf", [RBMS, CODERS, vae(6, 6, hidden=(5, 3))], ids=["rbm", "autoencoder", "vae"])
def test_inputs_are_given_back_alike(conf: MultiLayerConfiguration) -> None:
    host, device = twins(conf)
    np.testing.assert_allclose(reconstruct_input(device, X), reconstruct_input(host, X), rtol=1e-4, atol=1e-5)


def test_samples_are_drawn_alike() -> None:
    for conf, steps in ((vae(6, 6, hidden=(5, 3)), 1), (stack(RBM(n_in=6, n_out=5)), 4)):
        host, device = twins(conf)
        drawn = [sample_input(net, 8, Stream.of(4), gibbs_steps=steps) for net in (host, device)]
        assert isinstance(drawn[1], np.ndarray)
        np.testing.assert_allclose(drawn[1], drawn[0], rtol=1e-4, atol=1e-5)


def test_a_text_goes_on_alike() -> None:
    host, device = twins(char_lstm(8 * 4, 4, hidden=(5,)))
    texts = [
        "".join(
            generate_text(TrainedModel(net, Reading(label_names=tuple("abc "), text=TextReader())), "ab", length=20)
        )
        for net in (host, device)
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 20
