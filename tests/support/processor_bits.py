"""A program that prints what networks become on this processor: one line, an object of SHA-256 by name, as JSON.

Every model of the zoo is pretrained and trained for a few batches, and random networks of every kind of layer give
their gradients; a caller compares the lines of processes that compile for other processors.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import MultiLayerNetwork
from dl4jlegacy.nn.compiling.warm_up import made_up_batch
from dl4jlegacy.nn.zoo import ZOO
from tests.nn.test_random_networks import batch, build, unsettle
from tests.support.random_networks import draw


def digest(*arrays: Any) -> str:
    """Return the beginning of the SHA-256 of arrays."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:16]


def trained(name: str) -> str:
    """Return the digest of a model's parameters after pretraining and two batches."""
    n_in, n_out, made_up = made_up_batch(name)
    net = MultiLayerNetwork(ZOO[name].build(n_in, n_out), kernels=load("numba"))
    net.fit(made_up, epochs=2)  # which pretrains first
    return digest(net.params, net.output(made_up.features[:5]))


def gradient(number: int) -> str:
    """Return the digest of the gradient of a random network, in float32 or float64."""
    case = draw(number)
    dtype = ("float32", "float64")[number % 2]
    net = build(case, dtype, "numba")
    unsettle(net, case)
    z, _ = case.logits({name: view.astype(float) for name, view in net.param_table.items()})
    given, _, mask = batch(case, np.zeros_like(z))
    found, score = net.gradient_and_score(
        case.x.astype(dtype), given.astype(dtype), Stream.of(1), case.features_mask, mask
    )
    return digest(found, np.float64(score))


def main() -> None:
    """Print the digests of all models, and of random networks; the argument is their number."""
    found = {name: trained(name) for name in ZOO}
    found |= {str(number): gradient(number) for number in range(int(sys.argv[1]))}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
