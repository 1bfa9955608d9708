"""Dashboards for tests: runs made of records, without a training, and a real server that shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from dl4jlegacy.errors import CheckpointError, TrackerError
from dl4jlegacy.nn.zoo import ZOO
from dl4jlegacy.observing.ratios import RatiosEntry
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.monitor import GONE
from dl4jlegacy.scaleout.persistence.history import HistoryEntry, HistoryFile
from dl4jlegacy.scaleout.persistence.journal import Journal, JournalFile
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    Failure,
    Figures,
    Head,
    JobRecord,
    Keys,
    Manifest,
    WorkerRecord,
    encode_record,
)
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.storage.folders import LocalFolder
from dl4jlegacy.system.listening import bind
from dl4jlegacy.ui.endpoints import Panel
from dl4jlegacy.ui.evaluation import EvaluationView
from dl4jlegacy.ui.guard import Policy
from dl4jlegacy.ui.run_models import Model, newest_of
from dl4jlegacy.ui.run_sources import Source, TrackerState
from dl4jlegacy.ui.server import Dashboard
from dl4jlegacy.ui.view import Reading
from dl4jlegacy.ui.watcher import Watcher

__all__ = ["HOSTILE", "KeptRun", "TrackedRun", "bearer", "history", "link_to", "served"]

HOSTILE = "<img src=x onerror=alert(1)>\"'&;\u202e\u0000"
"""A text that would be markup if it were not shown as what it is."""


def history(count: int, began: float = 1000.0, first: int = 1) -> list[HistoryEntry]:
    """The entries of so many versions, each of 100 examples in half a second, with a validation at every tenth."""
    return [
        HistoryEntry(
            began=began,
            time=began + version / 2,
            version=version,
            round=version,
            batches=4 * version,
            examples=100 * version,
            score=1.0 / version,
            seconds=0.5,
            staleness=0.0,
            workers={"host-0": 210.0, "host-1": 190.0},
            validation=Figures(loss=2.0 / version, examples=50, accuracy=0.5) if version % 10 == 0 else None,
        )
        for version in range(first, first + count)
    ]


def small_conf(**fields: Any) -> Conf:
    return Conf(**{"run": "r1", "multi_layer_conf": ZOO["mlp"].build(4, 3), "model": "mlp", "batch_size": 25, **fields})


class KeptRun:
    """The folder of a run, as it would have left it."""

    def __init__(self, path: Path, **fields: Any) -> None:
        self.path, self.conf = path, small_conf(checkpoint_dir=str(path), **fields)
        path.mkdir()
        (path / "conf.json").write_text(self.conf.to_json(), encoding="utf-8")

    def write(self, entries: Sequence[HistoryEntry]) -> None:
        HistoryFile(LocalFolder(self.path)).append(entries)

    def journal(self, *events: Any) -> None:
        """Copy the journal of a tracker with these events, each a name and its fields, to the folder."""
        tracker = InMemoryStateTracker()
        writer = Journal(tracker, "host")
        for event, fields in events:
            writer.write(event, **fields)
        JournalFile(LocalFolder(self.path)).append(Journal.read(tracker))


class TrackedRun:
    """A ``Source`` over a tracker in memory, with a head, workers and jobs, and with what can go wrong with it."""

    def __init__(self) -> None:
        self.place, self.can, self.rest = "a tracker in memory", ("stop", "drain", "save"), 20
        self.tracker, self.conf = InMemoryStateTracker(), small_conf()
        self.plan = Plan(batches=40, examples=1000, batch_size=25, jobs_per_round=2, phases=(Phase(epochs=2),))
        self.state = TrackerState(self.tracker, self.json(), self.plan)
        self.journal = Journal(self.tracker, "host")
        self.is_away, self.saved, self.drained, self.stops = False, list[str](), list[str](), 0
        self.entries: list[HistoryEntry] | None = None
        self.set_head(0)

    def json(self) -> dict[str, Any]:
        import json

        found: dict[str, Any] = json.loads(self.conf.to_json())
        return found

    def set_head(self, version: int, **fields: Any) -> None:
        known = {"batches": 2 * version, "examples": 50 * version, "score": 1.0 / (version + 1)}
        head = Head(
            run="r1", version=version, round=version, model=Manifest(f"model/{version}/m", 1, 1), **{**known, **fields}
        )
        self.tracker.store.put(HEAD, encode_record(head))

    def set_worker(self, index: int, **fields: Any) -> None:
        known = {"host": "host", "pid": 100 + index, "beat": 1000.0, "kernels": "numba", "state": "working"}
        self.tracker.add_worker(WorkerRecord(id=f"host-{index}", **{**known, **fields}))

    def set_job(self, round_: int, slot: int, **fields: Any) -> None:
        record = JobRecord(**{"state": "leased", "model": f"model/{round_}/m", "token": 1, **fields})
        self.tracker.store.put(Keys.job(round_, slot), encode_record(record))

    def set_gone(self, **reasons: str) -> None:
        self.tracker.define(GONE, reasons)

    def fail_job(self, round_: int, slot: int, text: str) -> None:
        failure = Failure(code="DL4J-INTERNAL", message=text, worker="host-1", traceback=f"Traceback\n  {text}")
        self.set_job(round_, slot, state="failed", failure=failure, failures=(failure,))
        self.journal.write(
            "job_failed", worker="host-1", round=round_, slot=slot, message=text, traceback=failure.traceback
        )

    def read(self) -> Reading:
        if self.is_away:
            raise TrackerError("the state tracker at 127.0.0.1:1 did not answer")
        reading = self.state.read()
        return Reading(
            run=reading.run,
            workers=reading.workers,
            jobs=reading.jobs,
            events=reading.events,
            history=self.entries,
            conf=reading.conf,
        )

    def stop(self) -> str:
        self.stops += 1
        head = self.tracker.finish("stopped")
        return f"run r1: {head.status if head else 'nothing'}"

    def drain(self, worker: str) -> str:
        self.drained.append(worker)
        return f"{worker} was asked to leave"

    def save(self, out: str) -> str:
        self.saved.append(out)
        return f"saved in {out}"

    def models(self, after: int) -> Sequence[Model]:
        return newest_of(self.tracker, after)

    def ratios(self) -> Sequence[RatiosEntry]:
        return []

    def evaluate(self) -> EvaluationView:
        raise CheckpointError("run r1 has kept no checkpoint yet")

    def close(self) -> None:
        self.tracker.shutdown()


@contextlib.contextmanager
def served(source: Source, policy: Policy | None = None, folder: str = ".") -> Iterator[tuple[httpx.Client, Panel]]:
    """A client of a real server that shows a source, and what it answers from."""
    with bind("127.0.0.1", 0, "the dashboard") as listening, Watcher(source) as watcher:
        panel = Panel(watcher=watcher, policy=policy or Policy(), folder=folder)
        with Dashboard(panel, listening) as dashboard, httpx.Client(base_url=dashboard.url, timeout=30) as client:
            yield client, panel


def bearer(panel: Panel) -> dict[str, str]:
    """Return the header with a dashboard's token."""
    return {"authorization": f"Bearer {panel.policy.token}"}


def link_to(client: httpx.Client, panel: Panel) -> str:
    """The link to a dashboard's page, as a terminal shows it."""
    return f"{client.base_url}#token={panel.policy.token}"
