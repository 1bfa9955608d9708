"""The dashboard's views of a run: frozen structs, made by pure functions from the run's records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dl4jlegacy.scaleout.links.liveness.failure_detector import process_of
from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.records import Best, Failure, Figures, Head, JobRecord, WorkerRecord

__all__ = [
    "Away",
    "HistoryPoint",
    "JobView",
    "Marks",
    "Reading",
    "RunView",
    "View",
    "WorkerView",
    "history_points",
    "job_views",
    "run_view",
    "worker_views",
    "workers_of_history",
]

_CONF_FIELDS = (
    *("model", "dataset", "multi_layer_clazz", "router", "workers", "jobs_per_round", "batch_size", "epochs"),
    *("pretrain_epochs", "averaging_frequency", "seed", "device", "kernels", "min_workers"),
    *("checkpoint_dir", "checkpoint_every", "collect_training_stats"),
)
_RECENT = 20
"""Number of recent versions in which a worker's last job gives the worker's rate."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is.

    Attributes:
        run, id: its name, and its id in Zookeeper ("": it is in none).
        state, reason: one of running, degraded, waiting, stalled and ended (``scaleout.run_state``), and why, in words.
        status: of its head: "running", "done", "failed", "stopped"; "not begun": it has none.
        phase: "pretrain", "finetune", "validate" or a program's own kind of work; "": unknown.
        round, rounds, version, batches, examples, total_examples: done so far, and planned (None: unknown here).
        updates_dropped: updates that came a second time, and did not count.
        score: of the last version; ``metric``: what the run is scored by (None: by nothing), ``best`` and
            ``validation`` what that has found.
        stopped_by, waiting: why it ended early, what it waits for, in words; "": neither.
        failure: what ended a run that failed.
        master, standbys: host, pid, ... of these processes; None: there is no master, or none is known here.
        last_news: when it was last heard of, in seconds since 1970, by the clock of the machine that wrote it.
        conf: the fields of the Conf that are shown.
    """

    run: str
    id: str = ""
    state: str = "waiting"
    reason: str = ""
    status: str = "not begun"
    phase: str = ""
    round: int = 0
    rounds: int | None = None
    version: int = 0
    batches: int = 0
    examples: int = 0
    total_examples: int | None = None
    updates_dropped: int = 0
    score: float | None = None
    metric: str | None = None
    best: Best | None = None
    validation: Figures | None = None
    stopped_by: str = ""
    waiting: str = ""
    failure: Failure | None = None
    master: dict[str, Any] | None = None
    standbys: tuple[dict[str, Any], ...] = ()
    last_news: float | None = None
    conf: dict[str, Any] = {}


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a worker.

    Attributes:
        state: "idle", "working", ...; "gone" with a reason in ``gone``; "" where only the history knows of it.
        job: its job as ``round/slot``; "": it has none.
        device: its GPU and the memory in use there; "": it computes on the CPU, or that is unknown.
        beat: the time of day of its last heartbeat by its machine's clock; None: unknown.
        silent_seconds: for how long this dashboard has seen no new one, by its own clock.
        staleness: by how many versions the model of its job is older than the newest.
        examples_per_second: of its last job; None: unknown.
    """

    id: str
    host: str = ""
    pid: int | None = None
    state: str = ""
    gone: str = ""
    job: str = ""
    jobs_done: int | None = None
    device: str = ""
    kernels: str = ""
    beat: float | None = None
    silent_seconds: float | None = None
    staleness: int | None = None
    examples_per_second: float | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the present round: its state, who has it, and why attempts at it failed (``failures``)."""

    round: int
    slot: int
    state: str
    worker: str = ""
    token: int = 0
    progress: int = 0
    seconds: float = 0.0
    staleness: int | None = None
    failures: tuple[Failure, ...] = ()


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """How far a list has come: its length, and what changes with its last and its first entry."""

    count: int = 0
    last: str = ""
    first: str = ""


class Away(msgspec.Struct, frozen=True, kw_only=True):
    """Why the run cannot be read now: the error's code and message, and since when (seconds since 1970)."""

    since: float
    code: str
    message: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown at one moment.

    Attributes:
        number: grows with every view of one dashboard.
        source: where the run is read from, in words.
        read_at: when that last succeeded, in seconds since 1970; None: never.
        away: why it does not succeed now; None: it does.
        notices: what else a person should know, in words.
        history, events: how far these have come; ``is_observed``: the history is what this dashboard has seen itself,
            since the run keeps none that can be read from here.
        can: which of "stop" and "save" this dashboard can do.
    """

    number: int = 0
    source: str = ""
    read_at: float | None = None
    away: Away | None = None
    notices: tuple[str, ...] = ()
    run: RunView | None = None
    workers: tuple[WorkerView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    history: Marks = Marks()
    events: Marks = Marks()
    is_observed: bool = False
    can: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of a run; ``history`` None: the run stores none that can be read from here."""

    run: RunView
    workers: tuple[WorkerView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    history: Sequence[HistoryEntry] | None = None
    events: Sequence[JournalEntry] = ()
    notices: tuple[str, ...] = ()
    conf: Mapping[str, Any] = field(default_factory=dict)
    """The run's Conf, as JSON."""


# -- from records ------------------------------------------------------------------------------------------------------


def run_view(
    conf: Mapping[str, Any],
    head: Head | None,
    plan: Plan | None,
    history: Sequence[HistoryEntry] = (),
    **known: Any,
) -> RunView:
    """Return the view of a run.

    Args:
        conf: the run's Conf, as JSON.
        head: the run's last head; None: it has not begun, or has no checkpoint yet.
        plan: the run's plan, if known here.
        history: entries newer than the head take precedence, since checkpoints are made only every few versions.
        known: other fields.
    """
    scored, validation = conf.get("validation") or conf.get("early_stopping"), conf.get("validation") or {}
    view = RunView(
        run=str(conf.get("run", "")),
        metric=str(validation.get("metric", "loss")) if scored else None,
        conf={name: conf[name] for name in _CONF_FIELDS if name in conf},
    )
    if head is not None:
        view = msgspec.structs.replace(view, **_of_head(head))
    if plan is not None:
        phase = "" if view.round >= plan.total_rounds else plan.work_of(view.round).kind
        view = msgspec.structs.replace(
            view, rounds=plan.total_rounds, total_examples=plan.total_examples, phase=phase or view.phase
        )
    if history:
        view = _further(view, history)
    return msgspec.structs.replace(view, **known)


def _of_head(head: Head) -> dict[str, Any]:
    return {
        "run": head.run,
        "status": head.status,
        "round": head.round,
        "version": head.version,
        "batches": head.batches,
        "examples": head.examples,
        "updates_dropped": head.updates_dropped,
        "score": head.score,
        "best": head.best,
        "validation": None if head.scores is None else head.scores.figures,
        "stopped_by": head.stopped_by,
        "failure": head.failure,
    }


def _further(view: RunView, history: Sequence[HistoryEntry]) -> RunView:
    """Return the view updated with newer facts from the history."""
    last = history[-1]
    news: dict[str, Any] = {"last_news": last.time}
    if last.version > view.version:
        news |= {name: getattr(last, name) for name in ("round", "version", "batches", "examples")}
        news["score"] = view.score if last.score is None else last.score
        news["status"] = "running" if view.status == "not begun" else view.status
    if view.validation is None:
        news["validation"] = next((e.validation for e in reversed(history) if e.validation is not None), None)
    return msgspec.structs.replace(view, **news)


def job_views(jobs: Mapping[tuple[int, int], JobRecord], head: Head | None) -> tuple[JobView, ...]:
    """Return the views of a round's jobs by slot, with all failures, including that of the last attempt."""
    return tuple(
        JobView(
            round=round_,
            slot=slot,
            state=job.state,
            worker=job.worker,
            token=job.token,
            progress=job.progress,
            seconds=job.seconds,
            staleness=_staleness(job, head),
            failures=(*job.failures, *(() if job.failure is None or job.failure in job.failures else (job.failure,))),
        )
        for (round_, slot), job in sorted(jobs.items())
    )


def _staleness(job: JobRecord, head: Head | None) -> int | None:
    """Return how many versions the model of a job is behind the head; a model's key contains its version."""
    version = job.model.split("/")[1:2]
    if head is None or job.state != "leased" or not version or not version[0].isdecimal():
        return None
    return max(0, head.version - int(version[0]))


def worker_views(
    records: Iterable[WorkerRecord],
    gone: Mapping[str, str],
    jobs: Sequence[JobView],
    history: Sequence[HistoryEntry] = (),
    silent: Mapping[str, float] | None = None,
) -> tuple[WorkerView, ...]:
    """Return the views of the registered workers by id.

    Args:
        records: of the workers.
        gone: the processes that are gone, with the reasons.
        jobs: of the present round.
        history: for the workers' rates.
        silent: seconds since the last change of each heartbeat.
    """
    rates, stale = _rates(history), {(job.worker, f"{job.round}/{job.slot}"): job.staleness for job in jobs}
    return tuple(
        WorkerView(
            id=record.id,
            host=record.host,
            pid=record.pid,
            state="gone" if process_of(record.id) in gone else record.state,
            gone=gone.get(process_of(record.id), ""),
            job=record.job,
            jobs_done=record.jobs_done,
            device=record.device,
            kernels=record.kernels,
            beat=record.beat or None,
            silent_seconds=None if silent is None else silent.get(record.id),
            staleness=stale.get((record.id, record.job)),
            examples_per_second=rates.get(record.id),
        )
        for record in records
    )


def workers_of_history(history: Sequence[HistoryEntry]) -> tuple[WorkerView, ...]:
    """Return the workers of the last versions, for a run of which only the history is known."""
    return tuple(WorkerView(id=id, examples_per_second=rate) for id, rate in sorted(_rates(history).items()))


def _rates(history: Sequence[HistoryEntry]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for entry in history[-_RECENT:]:
        rates |= entry.workers
    return rates


# -- curves ------------------------------------------------------------------------------------------------------------


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Some versions in a row as one point of a curve.

    ``time``, ``version``, ``round``, ``batches``, ``examples`` and ``phase`` are those of the last of them, ``score``
    the mean of those of that phase, ``staleness`` of all, ``examples_per_second`` their examples by their seconds,
    ``validation`` the last one among them.
    """

    time: float
    version: int
    round: int
    batches: int
    examples: int
    score: float | None
    examples_per_second: float | None
    staleness: float
    validation: Figures | None
    phase: str = ""


def history_points(history: Sequence[HistoryEntry], most: int, after: int = -1) -> list[HistoryPoint]:
    """Return the versions after ``after`` as at most ``most`` points, each of equally many versions except the last."""
    first = next((i for i, entry in enumerate(history) if entry.version > after), len(history))
    each = max(1, -(-(len(history) - first) // most))
    return [
        _point(history[start : start + each], history[start - 1].examples if start else 0)
        for start in range(first, len(history), each)
    ]


def _point(entries: Sequence[HistoryEntry], before: int) -> HistoryPoint:
    last, seconds = entries[-1], sum(entry.seconds for entry in entries)
    scores = [entry.score for entry in entries if entry.score is not None and entry.phase == last.phase]
    new = last.examples - before
    return HistoryPoint(
        time=last.time,
        version=last.version,
        round=last.round,
        batches=last.batches,
        examples=last.examples,
        score=sum(scores) / len(scores) if scores else None,
        examples_per_second=new / seconds if seconds > 0 and new > 0 else None,
        staleness=sum(entry.staleness for entry in entries) / len(entries),
        validation=next((e.validation for e in reversed(entries) if e.validation is not None), None),
        phase=last.phase,
    )
