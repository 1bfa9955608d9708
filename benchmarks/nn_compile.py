"""Prints the seconds of the first and of the second batch that a zoo model trains: ``python nn_compile.py MODEL``.

See ``nn_cpu.py``, which gives it an empty cache. A model that is pretrained takes a batch through that too. With
``--compilers`` other processes compile, too, as they do in a run.
"""

from __future__ import annotations

import contextlib
import json
import time

import command_line
import numpy as np

from dl4jlegacy.datasets import DataSet
from dl4jlegacy.nn import MultiLayerNetwork, zoo
from dl4jlegacy.nn.compiling.compile_ahead import compiling_ahead

ROWS, CHARACTERS = 128, 64


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("model", metavar="MODEL", help="of the zoo")
    parser.add_argument("--compilers", action="store_true", help="let other processes compile, too")
    arguments = parser.parse_args()
    model, rng = zoo.select(arguments.model), np.random.default_rng(1)
    if model.name == "char-lstm":
        letters = np.eye(CHARACTERS, dtype=np.float32)[rng.integers(0, CHARACTERS, (32, 64))].transpose(0, 2, 1).copy()
        data, sizes = DataSet(letters, letters), (CHARACTERS * 64, CHARACTERS)
    else:
        data = DataSet.of_classes(rng.random((ROWS, 784), dtype=np.float32), rng.integers(0, 10, ROWS), 10)
        data = DataSet(data.features, data.features) if model.reconstructs else data
        sizes = (data.n_in, data.n_out)
    network = MultiLayerNetwork(model.build(*sizes))
    seconds = []
    with compiling_ahead(network.conf, network.kernels) if arguments.compilers else contextlib.nullcontext():
        for _ in range(2):
            start = time.perf_counter()
            network.fit(data)
            seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
