"""Held-out losses of char-lstm, deep-autoencoder and vae, ours and PyTorch's: ``python benchmarks/nn_losses.py``.

    --peer-python PATH   an interpreter that has torch (default: this one)
    --dataset NAME       for the autoencoders (default: digits; mnist takes some minutes)

Both train the zoo's network with its own settings, from the same initial parameters, on the same batches; only what is
drawn while training (Gibbs chains, latent values) differs. Ours is the public ``fit``. Exit status 1 if our loss is
more than 2 % above PyTorch's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import command_line
import numpy as np

from dl4jlegacy.datasets import DataSet, DataSource, ListDataSetIterator, load
from dl4jlegacy.models.model import evaluate_network, source_for_model
from dl4jlegacy.nn import MultiLayerNetwork, zoo

PEER = Path(__file__).with_name("nn_losses_torch.py")
MODELS = ("char-lstm", "deep-autoencoder", "vae")
GOAL = 1.02


def orders(source: DataSource, batch: int, epochs: int) -> np.ndarray:
    """Return the rows of the training set in the order of every epoch, ``(epochs, examples)``."""
    rows = np.arange(len(source.train), dtype=np.float32)[:, None]
    iterator = ListDataSetIterator(DataSet(rows, rows), batch)
    batches = [[iterator.batch(epoch, i).features[:, 0] for i in range(iterator.total_batches)]
               for epoch in range(epochs)]  # fmt: skip
    return np.array([np.concatenate(parts) for parts in batches]).astype(np.int64)


def write(path: Path, network: MultiLayerNetwork, source: DataSource, settings: dict[str, Any]) -> None:
    """Write the input of the peer."""
    updater: Any = network.conf.conf.updater
    epochs = max(settings["epochs"], settings.get("pretrain_epochs", 0))
    np.savez(
        path,
        x=source.train.features,
        labels=source.train.labels,
        test_x=source.test.features,
        test_labels=source.test.labels,
        orders=orders(source, settings["batch_size"], epochs),
        batch=settings["batch_size"],
        epochs=settings["epochs"],
        pretrain_epochs=settings.get("pretrain_epochs", 0),
        rate=updater.learning_rate,
        **{f"p_{name}": view for name, view in network.param_table.items()},
    )


def ours(network: MultiLayerNetwork, source: DataSource, settings: dict[str, Any]) -> float:
    iterator = ListDataSetIterator(source.train, settings["batch_size"])
    if network.conf.pretrain:
        network.pretrain(iterator, settings["pretrain_epochs"])
        iterator.seek(0, 0)
    if network.conf.backprop:
        network.finetune(iterator, settings["epochs"])
    return evaluate_network(network, source.test, ()).loss


def compare(model: str, dataset: str, python: str) -> bool:
    """Print both losses; return whether ours is low enough."""
    source = source_for_model(load(dataset), model)
    network = MultiLayerNetwork(zoo.select(model).build(source.train.n_in, source.train.n_out))
    settings = zoo.select(model).defaults(len(source.train))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "given.npz"
        write(path, network, source, settings)
        start = time.perf_counter()
        loss = ours(network, source, settings)
        seconds = time.perf_counter() - start
        done = subprocess.run([python, str(PEER), model, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{model}: PyTorch did not run: {(done.stderr.splitlines() or ['?'])[-1]}")
        return False
    peer, peer_seconds = map(float, done.stdout.split())
    verdict = "reached" if loss <= GOAL * peer else "MISSED"
    print(f"{model} on {dataset}: ours {loss:.4f} ({seconds:.0f} s), torch {peer:.4f} ({peer_seconds:.0f} s), "
          f"ratio {loss / peer:.4f}; at most {GOAL} wanted: {verdict}", flush=True)  # fmt: skip
    return loss <= GOAL * peer


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--dataset", default="digits")
    arguments = parser.parse_args()
    unknown = set(arguments.models) - set(MODELS)
    if unknown:
        parser.error(f"unknown model {min(unknown)}; known: {', '.join(MODELS)}")
    reached = [compare(model, "sonnets" if model == "char-lstm" else arguments.dataset, arguments.peer_python)
               for model in arguments.models or MODELS]  # fmt: skip
    return 0 if all(reached) else 1


if __name__ == "__main__":
    raise SystemExit(main())
