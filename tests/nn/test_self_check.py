"""One batch of training tells machines apart that compute in another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.numba import kernels
from dl4jlegacy.nn.compiling import self_check
from dl4jlegacy.nn.compiling.self_check import training_digest
from dl4jlegacy.nn.compiling.warm_up import made_up_batch
from dl4jlegacy.nn.zoo import ZOO
from tests.nn.test_random_networks import build
from tests.support.random_networks import draw

NETWORKS = {name: model.build(*made_up_batch(name)[:2]) for name, model in ZOO.items()}


@pytest.mark.parametrize("name", ZOO)
def test_a_network_has_the_same_digest_every_time_and_another_one_than_others(name: str) -> None:
    found = training_digest(NETWORKS[name], load("numba"))
    assert len(found) == 16 and found == training_digest(NETWORKS[name], load("numba"))
    assert found != training_digest(NETWORKS["mlp" if name != "mlp" else "dbn"], load("numba"))


def test_made_up_examples_fit_nearly_all_networks() -> None:
    found = [training_digest(build(draw(n), "float32", "numba").conf, load("numba")) for n in range(60)]
    assert sum(digest.startswith("not checked") for digest in found) <= 1


@pytest.mark.parametrize(
    ("name", "kernel", "changed"),
    [
        ("mlp", "bias_activation", 0),
        ("mlp", "activation_backward_bias", 2),
        ("mlp", "softmax_cross_entropy", 2),
        ("lenet", "conv_pool_forward", 3),
        ("lenet", "conv_pool_backward", 4),
        ("char-lstm", "lstm_forward", 6),
        ("char-lstm", "lstm_backward", 10),
        ("dbn", "sigmoid_sample", 3),
        ("sda", "corrupt", 1),
        ("vae", "gaussian", 0),
    ],
)
def test_another_last_place_is_noticed_whatever_kernel_computes_it(
    name: str, kernel: str, changed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, real = training_digest(NETWORKS[name], load("numba")), getattr(kernels, kernel)

    def another(*args: Any) -> Any:
        result = real(*args)
        args[changed][...] = np.nextafter(args[changed], np.float32(0))
        return result

    monkeypatch.setattr(kernels, kernel, another)
    assert training_digest(NETWORKS[name], load("numba")) != ours


def test_a_very_large_network_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_MOST_PARAMETERS", 100)
    assert training_digest(NETWORKS["mlp"], load("numba")) == "not checked"
