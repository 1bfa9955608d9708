"""One contender of ``serving.py``, in a process of its own: ``python serving_contenders.py WHO [OPTIONS]``.

``bare`` and ``bare-torch`` answer each line with a number of seconds on stdin by the rows per second that a loop
computed in that time; ``torch`` serves, by the code of ``dl4j serve``, until stdin ends, and answers ``url``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

import numpy as np

ROWS, N_IN, N_OUT = 32, 784, 10
WARM_CALLS = 20


def features(rows: int) -> np.ndarray:
    """Return features for the requests: pixels similar to digits, ``(rows, 784)`` float32."""
    x = np.random.default_rng(1).random((rows, N_IN), dtype=np.float32)
    return x * (x > 0.8)


def write_lenet(path: Path) -> None:
    """Write the model to serve."""
    from dl4jlegacy import MultiLayerNetwork, write_model
    from dl4jlegacy.nn import zoo

    write_model(MultiLayerNetwork(zoo.lenet(N_IN, N_OUT)), path)


class TorchNetwork:
    """The same LeNet in PyTorch in place of ours; all other attributes come from our network."""

    def __init__(self, ours: Any) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(1)
        self._ours, self._torch = ours, torch
        self._net = nn.Sequential(
            nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5, stride=2), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, N_OUT), nn.Softmax(1),
        ).eval()  # fmt: skip

    def output(self, x: np.ndarray) -> np.ndarray:
        """Return probabilities, ``(rows, 10)``."""
        with self._torch.inference_mode():
            found: np.ndarray = self._net(self._torch.from_numpy(x).view(-1, 1, 28, 28)).numpy()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)


def network(who: str) -> Any:
    from dl4jlegacy import MultiLayerNetwork
    from dl4jlegacy.nn import zoo

    ours = MultiLayerNetwork(zoo.lenet(N_IN, N_OUT))
    return ours if who == "bare" else TorchNetwork(ours)


def loop(output: Callable[[np.ndarray], np.ndarray]) -> None:
    """Answer lines with rows per second at batch 32."""
    x = features(ROWS)
    for _ in range(WARM_CALLS):
        output(x)
    for line in sys.stdin:
        seconds, calls, began = float(line), 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            output(x)
            calls += 1
        print(json.dumps(calls * ROWS / passed), flush=True)


def serve(model_file: str, options: argparse.Namespace) -> None:
    """Serve PyTorch's LeNet as ``dl4j serve`` does ours."""
    from dl4jlegacy.models.queue import Batching, ReplicatedModel
    from dl4jlegacy.serving.models import LoadedModel, ServedModel
    from dl4jlegacy.serving.server import ModelServer
    from dl4jlegacy.serving.service import Service
    from dl4jlegacy.system.listening import bind

    batching = Batching(batch_limit=options.batch_limit, batch_delay=options.batch_delay, queue_limit=options.queue)
    served = ServedModel("lenet", model_file, batching)
    ours = served.current.model
    theirs = dataclasses.replace(ours, network=TorchNetwork(ours.network))
    served.current = LoadedModel(ReplicatedModel(theirs, [theirs.answer]), 1)
    with contextlib.ExitStack() as stack:
        service = Service({"lenet": served})
        server = stack.enter_context(ModelServer(service, bind("127.0.0.1", 0, "LeNet"), reload_seconds=3600))
        for _ in sys.stdin:
            print(json.dumps(server.url), flush=True)


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("who", choices=("bare", "bare-torch", "torch"))
    parser.add_argument("--model", help="the file that is served")
    parser.add_argument("--batch-limit", type=int, default=64)
    parser.add_argument("--batch-delay", type=float, default=0.0)
    parser.add_argument("--queue", type=int, default=1024)
    arguments = parser.parse_args()
    if "torch" in arguments.who:
        command_line.require("torch")
    print(f"{arguments.who}: {side_by_side.cores()} cores", file=sys.stderr)
    if arguments.who == "torch":
        serve(arguments.model, arguments)
    else:
        loop(network(arguments.who).output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
