"""Short embedded runs on iris, for the tests of strategies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dl4jlegacy import ActorNetworkRunner, Conf, ListDataSetIterator
from dl4jlegacy.datasets import load
from dl4jlegacy.datasets.normalizers import NormalizerMinMaxScaler
from dl4jlegacy.nn import zoo

__all__ = ["SLOTS", "Copies", "bits", "conf_of", "data", "train"]

SLOTS = 4
_IRIS = load("iris")
_TRAIN = NormalizerMinMaxScaler().fit(_IRIS.train).transform(_IRIS.train)


def conf_of(router: str, router_args: dict[str, Any] | None = None, **fields: Any) -> Conf:
    """The Conf of a run of 48 rounds, of which every eighth has half of the slots."""
    usual = {"multi_layer_conf": zoo.mlp(4, 3), "batch_size": 4, "epochs": 6, "jobs_per_round": SLOTS, "seed": 9}
    return Conf(**(usual | {"router": router, "router_args": router_args or {}} | fields))


def data(conf: Conf, **more: Any) -> ListDataSetIterator:
    """The batches that such runs train on."""
    return ListDataSetIterator(_TRAIN, conf.batch_size, **{"seed": conf.seed, **more})


def train(conf: Conf, resume: bool = False, **more: Any) -> Any:
    """Train to the end; return the result."""
    with ActorNetworkRunner("master", data(conf), **more) as runner:
        runner.setup(conf, resume=resume)
        return runner.train(deadline=60)


def bits(result: Any) -> bytes:
    """The parameters of a run's end."""
    return result.model.arrays["params"].tobytes()


class Copies:
    """A saver that copies the folder of a run once a checkpoint of its middle has been written."""

    def __init__(self, folder: Path, copy: Path) -> None:
        self.folder, self.copy = folder, copy

    def save(self, head: Any, model: Any) -> None:
        if head.version >= 12 and not self.copy.exists():
            shutil.copytree(self.folder, self.copy)
