"""Networks on a (stand-in) GPU beside the same on the CPU: what ``test_device_networks`` does with every case.

``Twins`` takes the place of ``GradientCheckUtil`` in other test modules, so that their cases (every layer, loss,
activation, vertex) are also those of the device: their networks stay on the CPU, and each is compared with its twin.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.backend import as_contiguous, to_host
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckReport, GradientCheckUtil
from dl4jlegacy.nn.networks import Network, build_network
from dl4jlegacy.nn.optimization.updaters import Sgd
from tests.support.standin import counters

STREAM = Stream.of(5)
CHECKED = 6  # parameters of a network, evenly spread: every one means two passes over kernels compiled for the CPU
TOLERANCE = 1e-4
RATE = 1e-4  # some of the losses are so steep that networks diverge at usual rates


@pytest.fixture
def gpu(device_arrays: ModuleType) -> ModuleType:
    """Return the stand-in for ``cupy``."""
    return device_arrays


def twin(network: Network, dtype: str, kernels: str, *, captures: bool = False) -> Network:
    """A network of the same configuration and parameters as ``network``, in ``dtype``; ``captures``: as CUDA graphs."""
    own = network.conf.conf
    conf = network.conf.replace(conf=own.replace(dtype=dtype, updater=Sgd(learning_rate=RATE)))
    found: Any = load(kernels)
    if kernels == "cupy":
        found.captures = captures
    made = build_network(conf, found)
    made.set_params(to_host(network.params).astype(dtype))
    return made


def uploaded(batch: Any, dtype: str) -> Any:
    """A batch, in any nesting, on the device."""
    if isinstance(batch, list | tuple):
        return [uploaded(part, dtype) for part in batch]
    return None if batch is None else as_contiguous(np.asarray(batch), load("cupy").xp, dtype)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing in the ``with`` may wait for the device, or bring anything there but launches."""
    counters.reset()
    yield
    found = (counters.synchronisations, counters.uploads, counters.downloads)
    assert found == (0, 0, 0), f"waits, uploads, downloads: {found}"


def close(ours: Any, theirs: Any, what: str) -> None:
    """Equal within ``TOLERANCE`` of the largest value."""
    ours, theirs = to_host(ours), to_host(theirs)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, what
    scale = max(1e-3, float(np.abs(theirs).max(initial=0.0)))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * scale, err_msg=what)


def alike(network: Network, x: Any, labels: Any, masks: dict[str, Any], stream: Stream = STREAM) -> None:
    """Score, gradient, output and three updates in float32 are those of the CPU; no step waits for the device."""
    host, device = twin(network, "float32", "numba"), twin(network, "float32", "cupy")
    captured = twin(network, "float32", "cupy", captures=True)
    batch = uploaded((x, labels), "float32")
    given = {name: uploaded(mask, "float32") for name, mask in masks.items()}
    for wanted, found in zip(
        host.gradient_and_score(x, labels, stream, *masks.values()),
        device.gradient_and_score(*batch, stream, *given.values()),
        strict=True,
    ):
        close(found, np.asarray(wanted), "gradient or score")
    features = masks.get("features_mask")
    close(device.output(batch[0], features), host.output(x, features), "output")
    for iteration in range(3):
        host.fit_batch(x, labels, iteration=iteration, stream=stream, **masks)
        if not iteration:
            device.fit_batch(x, labels, iteration=iteration, stream=stream, **masks)  # buffers, kernels, constants
        else:
            with undisturbed():
                device.fit_batch(*batch, iteration=iteration, stream=stream, **given)
        captured.fit_batch(x, labels, iteration=iteration, stream=stream, **masks)
    device.check_finite()
    captured.check_finite()
    assert to_host(captured.params).tobytes() == to_host(device.params).tobytes()
    close(device.params, host.params, "parameters")
    close(device.updater_state, host.updater_state, "updater state")


class Twins:
    """What ``GradientCheckUtil`` offers, done on the device; a failed comparison is an ``AssertionError``."""

    @staticmethod
    def check_gradients(
        network: Network, x: Any, labels: Any, *, stream: Stream | None = None, features_mask: Any = None,
        labels_mask: Any = None, max_params: int | None = None,
    ) -> GradientCheckReport:  # fmt: skip
        masks = {"features_mask": features_mask, "labels_mask": labels_mask}
        device = twin(network, "float64", "cupy")
        report = GradientCheckUtil.check_gradients(device, x, labels, stream=stream, max_params=CHECKED, **masks)
        alike(network, x, labels, masks)
        return dataclasses.replace(report, checked=network.num_params)

    @staticmethod
    def check_pretrain_gradients(network: Any, layer: int, x: Any) -> GradientCheckReport:
        device = twin(network, "float64", "cupy")
        report = GradientCheckUtil.check_pretrain_gradients(device, layer, x, max_params=CHECKED)
        pretrained_alike(network, layer, x)
        return dataclasses.replace(report, checked=network.num_params)


def pretrained_alike(network: Any, layer: int, x: Any) -> None:
    """Three pretraining updates in float32 are those of the CPU, and wait for nothing."""
    host, device = twin(network, "float32", "numba"), twin(network, "float32", "cupy")
    captured = twin(network, "float32", "cupy", captures=True)
    given = uploaded(x, "float32")
    for iteration in range(3):
        wanted = host.pretrain_batch(layer, x, iteration=iteration, stream=STREAM)
        if not iteration:
            score = device.pretrain_batch(layer, x, iteration=iteration, stream=STREAM)
        else:
            with undisturbed():
                score = device.pretrain_batch(layer, given, iteration=iteration, stream=STREAM)
        close(score, np.asarray(wanted), "score")
        again = captured.pretrain_batch(layer, x, iteration=iteration, stream=STREAM)
        assert float(again) == float(score)
    device.check_finite()
    captured.check_finite()
    assert to_host(captured.params).tobytes() == to_host(device.params).tobytes()
    close(device.params, host.params, "parameters")
    close(device.reconstruct(given, layer), host.reconstruct(x, layer), "reconstruction")


def _values(given: Any, count: int) -> tuple[Any, ...]:
    """What one entry of a parametrisation gives to as many names, with marks (``pytest.param``) or without."""
    if hasattr(given, "marks"):
        return tuple(given.values)
    return (given,) if count == 1 else tuple(given)


def cases(function: Any) -> list[Any]:
    """A test function with every combination of what it is parametrised with (of kernels: one), as parameters."""
    choices: list[list[dict[str, Any]]] = []
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name != "everyday"]
    for mark in marks:
        assert mark.name == "parametrize", mark
        names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
        values = mark.args[1][:1] if names == ["kernels"] else mark.args[1]
        choices.append([dict(zip(names, _values(value, len(names)), strict=True)) for value in values])
    found = []
    for number, combination in enumerate(itertools.product(*choices)):
        given = {name: value for part in combination for name, value in part.items()}
        words = [str(value) for value in given.values() if isinstance(value, str | int)]
        found.append(pytest.param(function, given, id="-".join([function.__name__[5:45], *words, str(number)])))
    return found
