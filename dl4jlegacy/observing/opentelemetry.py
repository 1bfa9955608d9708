"""A run's rounds and jobs as OpenTelemetry spans, made from the phases that its processes record.

Each process exports its own spans. A round is a trace; the ids of the trace and of the round's span are computed from
the run's incarnation and the number of the round. So the jobs of all processes are in the trace of the master's round,
and no message is needed for that.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dl4jlegacy.errors import ConfError, how_to_install
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun, RunObserver
from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.phases import EventStats
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.state.records import Failure

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor

__all__ = ["OpenTelemetryObserver", "round_ids"]

logger = logging.getLogger(__name__)

_MOST_TEXT = 500
_MOST_FAILURES = 1000
Slot = tuple[int, int]


class OpenTelemetryObserver(RunObserver):
    """Exports spans of a run's rounds and jobs until it is closed; a context manager.

    Args:
        processor: gets the spans; None: a processor that sends them in batches, on a thread of its own, to the address
            in the variables ``OTEL_EXPORTER_OTLP_...``, by default to a collector on this machine.

    Raises:
        ConfError: opentelemetry-sdk is not installed, or without a ``processor`` its exporter; or one of the variables
            is invalid.
    """

    wants_phases = True

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        try:
            from opentelemetry.sdk.resources import SERVICE_NAME, Resource
            from opentelemetry.sdk.trace import TracerProvider

            processor = _otlp() if processor is None else processor
        except ImportError as exc:
            raise ConfError(
                f"spans need opentelemetry-sdk and its exporter, which are not installed: {how_to_install('otel')}"
            ) from exc
        except ValueError as exc:
            raise ConfError(f"spans cannot be exported as the variables OTEL_... say: {exc}") from exc
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # no variable names it
            resource = resource.merge(Resource({SERVICE_NAME: "dl4j"}))
        self._ids = _ids()
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._lock = threading.Lock()
        self._spans: _Spans | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send the remaining spans, within half a minute, and end. May be called more than once."""
        self.end()
        self._provider.shutdown()

    def begin(self, run: ObservedRun) -> None:
        """See ``RunObserver``."""
        with self._lock:
            self._spans = _Spans(run, self._provider, self._ids)

    def phases(self, events: Sequence[EventStats]) -> None:
        """See ``RunObserver``."""
        with self._lock:
            for event in events:
                if self._spans is not None and event.round is not None:
                    self._spans.add(event, event.round)

    def new_version(self, version: HistoryEntry, event: NewModel) -> None:
        """See ``RunObserver``."""
        with self._lock:
            if self._spans is not None:
                self._spans.made(version)

    def job_failed(self, slot: Slot, failure: Failure) -> None:
        """See ``RunObserver``."""
        with self._lock:
            if self._spans is not None:
                self._spans.note(slot, failure)

    def end(self) -> None:
        """See ``RunObserver``: open spans end at their last phase."""
        with self._lock:
            spans, self._spans = self._spans, None
            if spans is not None:
                spans.finish()


def round_ids(incarnation: str, round_: int) -> tuple[int, int]:
    """Return the ids of a round's trace (128 bits) and of its span (64 bits): the same in all processes."""
    digest = hashlib.sha256(f"{incarnation}/{round_}".encode()).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")


def _otlp() -> SpanProcessor:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter())


def _ids() -> Any:
    """Return a generator of random span ids; ``forced`` ids are used instead, once."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        forced: tuple[int, int] | None = None

        def generate_trace_id(self) -> int:
            return super().generate_trace_id() if self.forced is None else self.forced[0]

        def generate_span_id(self) -> int:
            forced, self.forced = self.forced, None
            return super().generate_span_id() if forced is None else forced[1]

    return Ids()


class _Spans:
    """Makes spans from a run's phases, as they arrive. For one thread at a time."""

    def __init__(self, run: ObservedRun, provider: Any, ids: Any) -> None:
        self._run, self._ids, self._sampler = run, ids, provider.sampler
        self._tracer = provider.get_tracer("dl4jlegacy")
        self._jobs: dict[str, tuple[Slot, list[EventStats]]] = {}
        """By thread: its present job, and the job's phases so far."""
        self._rounds: dict[int, tuple[float, float]] = {}
        """Start, and end so far, of each unfinished round of the master."""
        self._next: int | None = None
        """The first unfinished round; None: this process is no master, or has not begun."""
        self._done, self._last = 0, (0.0, 0.0)
        self._failures: dict[tuple[str, Slot], Failure] = {}

    def add(self, event: EventStats, round_: int) -> None:
        """Add a phase of this process in ``round_``."""
        if event.phase.startswith("Worker") and event.slot is not None:
            self._add_to_job(event, (round_, event.slot))
            return
        parent = self._context(round_)
        if parent is not None:
            self._span(event, parent, self._attributes(round_, event.slot, event.thread))
        if event.thread == "master":
            self._next = round_ if self._next is None else self._next
            if round_ >= self._next:
                start, end = self._rounds.get(round_, (event.start, 0.0))
                self._rounds[round_] = min(start, event.start), max(end, event.start + event.seconds)
            if event.phase == "MasterCommit":
                self._end_rounds(before=round_)

    def made(self, version: HistoryEntry) -> None:
        """Note that a version was made; the rounds before its round are done."""
        self._done = version.round

    def note(self, slot: Slot, failure: Failure) -> None:
        """Note that a job failed; its phases may come later."""
        if len(self._failures) < _MOST_FAILURES:
            self._failures[f"worker-{failure.worker.rpartition('-')[2]}", slot] = failure

    def finish(self) -> None:
        """End all open spans."""
        for thread in tuple(self._jobs):
            self._end_job(thread)
        self._end_rounds(before=max(self._done, *(round_ + 1 for round_ in self._rounds), 0))

    def _add_to_job(self, event: EventStats, slot: Slot) -> None:
        before, _ = self._jobs.get(event.thread, (slot, []))
        if event.thread in self._jobs and (before != slot or event.phase == "WorkerGetJob"):
            self._end_job(event.thread)
        self._jobs.setdefault(event.thread, (slot, []))[1].append(event)
        if event.phase == "WorkerSend":
            self._end_job(event.thread)

    def _end_job(self, thread: str) -> None:
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        slot, events = self._jobs.pop(thread)
        failure, parent = self._failures.pop((thread, slot), None), self._context(slot[0])
        if parent is None:
            return
        attributes = self._attributes(*slot, thread)
        span = self._tracer.start_span("job", parent, attributes=attributes, start_time=_ns(events[0].start))
        if failure is not None:
            span.set_attribute("dl4j.failure.code", failure.code)
            span.set_status(Status(StatusCode.ERROR, failure.message[:_MOST_TEXT]))
        inside = set_span_in_context(span, parent)
        for event in events:
            self._span(event, inside, {})
        span.end(_ns(max(event.start + event.seconds for event in events)))

    def _end_rounds(self, *, before: int) -> None:
        """End the rounds that the master has finished.

        An asynchronous run commits some rounds many times and others never; the latter get the times of the round
        before.
        """
        if self._next is None:
            return
        start, end = self._last
        for round_ in range(self._next, before):
            start, end = self._last = self._rounds.pop(round_, (start, end))
            if self._context(round_) is None:
                continue
            self._ids.forced = round_ids(self._run.conf.incarnation, round_)
            span = self._tracer.start_span(
                "round", _root(), attributes=self._attributes(round_, None, "master"), start_time=_ns(start)
            )
            span.end(_ns(end))
        self._next = max(self._next, before)

    def _span(self, event: EventStats, parent: Context, attributes: dict[str, Any]) -> None:
        span = self._tracer.start_span(event.phase, parent, attributes=attributes, start_time=_ns(event.start))
        span.end(_ns(event.start + event.seconds))

    def _attributes(self, round_: int, slot: int | None, thread: str) -> dict[str, Any]:
        conf = self._run.conf
        found = {
            "dl4j.run": conf.run,
            "dl4j.incarnation": conf.incarnation,
            "dl4j.round": round_,
            "dl4j.process": self._run.process,
            "thread.name": thread,
        }
        return found if slot is None else found | {"dl4j.slot": slot}

    def _context(self, round_: int) -> Context | None:
        """Return the context of a round's span, possibly of another process; None if the round is not sampled."""
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        trace, span = round_ids(self._run.conf.incarnation, round_)
        if not self._sampler.should_sample(_root(), trace, "round").decision.is_sampled():
            return None
        of_round = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        return set_span_in_context(NonRecordingSpan(of_round), _root())


def _root() -> Context:
    """Return a context without a span."""
    from opentelemetry.context import Context

    return Context()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
