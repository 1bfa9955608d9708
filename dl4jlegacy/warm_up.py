"""Compile the kernels of models before they are needed, so that a first run does not wait for it.

A kernel is compiled at its first use on a machine and kept in a cache (``kernels.compilation``). Here models of the zoo
train on a batch of made-up examples each, which uses all kernels that they have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.compile_ahead import compiling_ahead
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.zoo import ZOO, select

__all__ = ["WarmedUp", "made_up_batch", "warm_up"]

_LETTERS, _STEPS, _CLASSES = 20, 7, 10
_SIDES = {"lenet": 18, "alexnet-small": 18}  # of images; of others 8


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """A model whose kernels are compiled now.

    Attributes:
        model: its name in the zoo.
        seconds: of its first batch, compilation included.
        again: seconds of the same batch once more.
    """

    model: str
    seconds: float
    again: float


def made_up_batch(model: str, examples: int = 17) -> tuple[int, int, DataSet]:
    """Return small examples that a model of the zoo trains on, the same at every call, and the sizes of its builder.

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
    """Let models of the zoo (none: all of them) train on one batch each; yield each when its kernels are compiled.

    Raises:
        ConfError: there is no such model; before any is compiled for.
        VersionError: the kernels that are asked for cannot be used here.
    """
    names, kernels = list(models) or list(ZOO), load()
    for name in names:
        select(name)
    for name in names:
        n_in, n_out, batch = made_up_batch(name)
        conf = ZOO[name].build(n_in, n_out)
        network = MultiLayerNetwork(conf, kernels=kernels)
        ends = [clock()]
        with compiling_ahead(conf, kernels):
            for _ in range(2):
                network.fit(batch)
                network.output(batch.features)
                ends.append(clock())
        yield WarmedUp(name, ends[1] - ends[0], ends[2] - ends[1])
