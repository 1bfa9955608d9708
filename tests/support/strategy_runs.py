"""Short embedded runs on iris, and a plan, for the tests of strategies."""

from __future__ import annotations

import itertools
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, ListDataSetIterator
from dl4jlegacy.datasets import load
from dl4jlegacy.datasets.normalizers import NormalizerMinMaxScaler
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.plan import Phase, Plan, Validation
from dl4jlegacy.scaleout.state.records import Head, Manifest

__all__ = ["BEGINNING", "PLAN", "SLOTS", "Copies", "bits", "conf_of", "data", "interrupt", "train"]

SLOTS = 4
PLAN = Plan(
    phases=(Phase(kind="pretrain", layer=0), Phase(epochs=3)),
    batches=18,  # the last round of an epoch has two slots
    examples=18,
    batch_size=1,
    jobs_per_round=SLOTS,
    validation=Validation(batches=3, examples=3, batch_size=1),
)
"""Phases, validations and short rounds: all that a schedule has to keep apart."""
BEGINNING = Head(run="r", version=0, round=0, model=Manifest("", 0, 0))
_IRIS = load("iris")
_TRAIN = NormalizerMinMaxScaler().fit(_IRIS.train).transform(_IRIS.train)


def conf_of(router: str, router_args: dict[str, Any] | None = None, **fields: Any) -> Conf:
    """Return the Conf of a run of 48 rounds; every eighth has half of the slots."""
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


class _Slow:
    """Takes its time over each batch, and more of it after ten rounds."""

    def __init__(self) -> None:
        self.never, self.batches = threading.Event(), itertools.count()

    def iteration_done(self, network: Any, iteration: int, score: float, *, examples: int = 0) -> None:
        self.never.wait(0.02 if next(self.batches) < 10 * SLOTS else 1.0)


def interrupt(conf: Conf, *, in_log: bool = False) -> None:
    """Train as far as the sixth round, then interrupt the run in its middle.

    With ``in_log`` where a log leads to the newest version, once rounds are so long that it still does when all stops.
    """

    def is_enough(status: Any) -> None:
        head = status.head
        if head is not None and (head.round >= 10 and head.logged if in_log else head.round >= 6):
            raise KeyboardInterrupt

    runner = ActorNetworkRunner("master", data(conf), worker_listeners=[_Slow()])
    runner.setup(conf)
    with pytest.raises(KeyboardInterrupt):
        runner.train(is_enough)
    runner.shutdown()


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
