"""A user's program for the tests: it counts the words of numbered lines with the processes of a cluster.

    python -m tests.support.own_program master|standby|resume|fails ZOOKEEPER TRACKER CLUSTER_NAME --run RUN LINES
    python -m tests.support.own_program worker|unregistered ZOOKEEPER

Workers of ``dl4j`` take performer and router with ``--use tests.support.own_program``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from typing import Any

from dl4jlegacy import (
    ActorNetworkRunner,
    CollectingAggregator,
    CollectionJobIterator,
    Conf,
    IterativeReduceWorkRouter,
    Job,
    Result,
    register_performer,
    register_router,
)
from dl4jlegacy.scaleout.protocol import Limits
from dl4jlegacy.scaleout.workers import plugins as parts

__all__ = ["WordCountPerformer", "lines"]

WORDS = (
    "to",
    "be",
    "or",
    "not",
    "that",
    "is",
    "the",
    "question",
    "whether",
    "nobler",
    "in",
    "mind",
    "suffer",
    "slings",
    "and",
    "arrows",
)


def lines(count: int) -> list[str]:
    """Return so many lines, each with other words."""
    return [" ".join(WORDS[(i * step) % len(WORDS)] for step in range(1, 2 + i % 7)) for i in range(count)]


@register_performer("word-count")
class WordCountPerformer:
    """Counts the words of one line, after a pause of its argument's seconds."""

    def __init__(self, conf: Conf, kernels: object) -> None:
        self.progress = 0
        self._pause = float(conf.performer_args.get("seconds", 0.0))

    def update(self, model: Result) -> None:
        """The counts so far are of no use for counting on."""

    def perform(self, job: Job) -> Result:
        """Return the counts of the line that the job holds."""
        threading.Event().wait(self._pause)
        self.progress += 1
        return Result({"value": dict(Counter(job.work.split())), "examples": 1})


@register_router("in-order")
class InOrderRouter(IterativeReduceWorkRouter):
    """As the package's own, under another name."""

    def __init__(self, conf: Conf) -> None:
        assert conf.router_args == {}


def add(total: dict[str, int], counts: dict[str, int]) -> dict[str, int]:
    return dict(Counter(total) + Counter(counts))


def main(role: str, zookeeper: str, *rest: str) -> None:
    """Play a role to its end; a master, of whatever kind, prints what was counted."""
    if role in ("worker", "unregistered"):
        performer = None
        if role == "unregistered":
            parts.PERFORMERS.parts.clear()
            performer = WordCountPerformer
        with ActorNetworkRunner("worker", zookeeper=zookeeper, performer=performer) as runner:
            runner.setup()
            runner.train()
        return
    tracker, cluster_name, _, run, count = rest
    folds: dict[str, Any] = {"aggregator": CollectingAggregator(add), "first_model": Result({"value": {}})}
    jobs = CollectionJobIterator(lines(int(count)), jobs_per_round=8)
    kind, where = "standby" if role == "standby" else "master", {"cluster_name": cluster_name, "zookeeper": zookeeper}
    conf = Conf(run=run, performer="word-count", performer_args={"seconds": 0.02}, limits=Limits(lease=5.0))
    with ActorNetworkRunner(kind, jobs, tracker=tracker, **where, **folds) as runner:
        runner.setup(None if role == "standby" else conf, resume=role == "resume")
        result = runner.train(deadline=240)
        if role == "fails":
            raise OSError("the disk is full")
        if result is not None:
            lost, twice = result.batches_lost, result.batches_duplicated
            print(json.dumps({"counts": result.model.values["value"], "lost": lost, "twice": twice}))


if __name__ == "__main__":
    main(*sys.argv[1:])
