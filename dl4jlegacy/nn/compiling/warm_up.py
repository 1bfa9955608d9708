"""Compiles the kernels of models in advance, so that a first run need not wait for the compilation.

A kernel is compiled at its first use on a machine and kept in a cache (``kernels.compilation``). Here models of the zoo
train on one batch of synthetic examples each, which uses all their kernels, and the operations of a run on updates are
applied to a short vector.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.arithmetic import cpu_arithmetic
from dl4jlegacy.kernels.elementary import log
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.compiling.compile_ahead import compiling_ahead
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.zoo import ZOO, select

__all__ = ["RUNS", "WarmedUp", "made_up_batch", "warm_up"]

RUNS = "runs"
"""Kernels that every run needs for any model: to compare its processes' arithmetic, and to combine updates."""

_LETTERS, _STEPS, _CLASSES = 32, 7, 10  # few of a letter's numbers are non-zero, so that only those are multiplied
_SIDES = {"lenet": 28, "alexnet-small": 28, "cnn": 28}  # image width, as MNIST's, since blocks depend on it; else 8
_ELEMENTS = 2 * 64 + 1  # length of an update: whole lines, and a remainder


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """A model whose kernels are now compiled.

    Attributes:
        name: of a model in the zoo, or ``RUNS``.
        seconds: time of its first batch, including compilation.
        again: seconds of a second pass over the same batch.
    """

    name: str
    seconds: float
    again: float


def made_up_batch(model: str, examples: int = 17) -> tuple[int, int, DataSet]:
    """Return small training examples for a model of the zoo, equal at every call, and the sizes for its builder.

    Raises:
        ConfError: there is no such model.
    """
    zoo_model, generator = select(model), np.random.default_rng(7)
    if zoo_model.of or model == "char-lstm":
        classes = generator.integers(0, _LETTERS, (examples, _STEPS))
        one_hot = np.moveaxis(np.eye(_LETTERS, dtype=np.float32)[classes], -1, 1)
        features: Array = classes[:, None].astype(np.float32) if zoo_model.of == "words" else one_hot
        inputs = {"words": _STEPS, "sequences": _LETTERS}.get(zoo_model.of, _LETTERS * _STEPS)
        return inputs, _LETTERS, DataSet(features, np.ascontiguousarray(np.roll(one_hot, -1, axis=2)))
    inputs = _SIDES.get(model, 8) ** 2
    features = generator.integers(0, 17, (examples, inputs)).astype(np.float32) / 16
    if zoo_model.reconstructs:
        return inputs, inputs, DataSet(features, features)
    labels = np.eye(_CLASSES, dtype=np.float32)[generator.integers(0, _CLASSES, examples)]
    return inputs, _CLASSES, DataSet(features, labels)


def warm_up(models: Sequence[str] = (), clock: Callable[[], float] = time.perf_counter) -> Iterator[WarmedUp]:
    """Let models of the zoo (none: all of them) train on one batch each, and compile the kernels of every run.

    Each item is yielded when its kernels are compiled, ``RUNS`` last.

    Raises:
        ConfError: there is no such model; raised before any compilation.
        VersionError: the requested kernels cannot be used here.
    """
    names, kernels = list(models) or list(ZOO), load()
    for name in names:
        select(name)
    for name in names:
        n_in, n_out, batch = made_up_batch(name)
        conf = ZOO[name].build(n_in, n_out)
        network = MultiLayerNetwork(conf, kernels=kernels)
        with compiling_ahead(conf, kernels):
            done = _timed(name, functools.partial(_train, network, batch), clock)
        yield done
    yield _timed(RUNS, functools.partial(_combine, kernels), clock)


def _timed(name: str, step: Callable[[], None], clock: Callable[[], float]) -> WarmedUp:
    times = [clock()]
    for _ in range(2):
        step()
        times.append(clock())
    return WarmedUp(name, times[1] - times[0], times[2] - times[1])


def _train(network: MultiLayerNetwork, batch: DataSet) -> None:
    network.fit(batch)
    network.output(batch.features)
    if isinstance(network.layers[-1], BaseOutputLayer):
        network.score(batch)


def _combine(kernels: Kernels) -> None:
    """Apply to an update all operations of strategies, messages and the comparison of workers; and what runs add.

    A run chooses AdamW for some models, and compares its score with that of guessing.
    """
    cpu_arithmetic(kernels.name)
    log(np.ones(2))
    update, total = np.ones(_ELEMENTS, np.float32), np.zeros(_ELEMENTS, np.float32)
    kernels.weighted_sum([update, update], [0.5, 0.5], total)
    kernels.axpy(total, update, 1.0)
    kernels.decay(total, 0.5)
    codes = np.empty(_ELEMENTS, np.int32)
    count = kernels.threshold_encode(update, 1.0, codes)
    message = kernels.rice_encode(codes[:count], _ELEMENTS)
    kernels.threshold_decode(kernels.rice_decode(message, count, _ELEMENTS), 1.0, total)
