"""A run's spans, by the SDK's own exporter in memory and over OTLP: each round and each job once, and in its place."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dl4jlegacy import ActorNetworkRunner, Conf, IrisDataSetIterator
from dl4jlegacy.nn import zoo
from dl4jlegacy.observing.opentelemetry import OpenTelemetryObserver, round_ids
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun
from dl4jlegacy.scaleout.phases import EventStats, Phase
from dl4jlegacy.scaleout.scoring import ValidationConf
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from tests.support.command_line import exit_status as dl4j
from tests.support.performers import before_one_job


def traced(
    *, performer: Any = None, tick: Any = None, resume: bool = False, **conf: Any
) -> tuple[Any, tuple[ReadableSpan, ...]]:
    """Train irises; return the result (None: it was interrupted) and the spans."""
    exporter, result = InMemorySpanExporter(), None
    with OpenTelemetryObserver(SimpleSpanProcessor(exporter)) as observer:
        data = IrisDataSetIterator(16)
        with ActorNetworkRunner("master", data, performer=performer, observers=[observer]) as runner:
            runner.setup(Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2, **conf), resume=resume)
            try:
                result = runner.train(tick)
            except KeyboardInterrupt:
                assert tick is not None
    return result, exporter.get_finished_spans()


def of(spans: tuple[ReadableSpan, ...], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def slots(spans: list[ReadableSpan]) -> Counter[tuple[int, int]]:
    return Counter((span.attributes["dl4j.round"], span.attributes["dl4j.slot"]) for span in spans)


def check_places(conf: Conf, spans: tuple[ReadableSpan, ...]) -> None:
    """Every span is in its round's trace, and a job's phases lie inside it."""
    by_id = {span.context.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        assert span.start_time <= span.end_time
        if span.name == "round":
            assert span.parent is None
            ids = round_ids(conf.incarnation, span.attributes["dl4j.round"])
            assert (span.context.trace_id, span.context.span_id) == ids
            continue
        above = by_id.get(span.parent.span_id)
        if above is not None and above.name == "job":
            assert above.start_time <= span.start_time and span.end_time <= above.end_time
            assert above.context.trace_id == span.context.trace_id
        else:
            ids = round_ids(conf.incarnation, span.attributes["dl4j.round"])
            assert (span.context.trace_id, span.parent.span_id) == ids


def test_each_round_and_each_job_is_a_span_with_its_phases_inside() -> None:
    result, spans = traced(epochs=3, validation=ValidationConf(fraction=0.2))
    rounds, jobs = of(spans, "round"), of(spans, "job")
    assert sorted(span.attributes["dl4j.round"] for span in rounds) == list(range(result.plan.total_rounds))
    planned = {(r, s): 1 for r in range(result.plan.total_rounds) for s in range(result.plan.slots(r))}
    assert slots(jobs) == planned
    check_places(result.conf, spans)
    inside = Counter(span.parent.span_id for name in ("WorkerFit", "WorkerValidate") for span in of(spans, name))
    assert inside == {job.context.span_id: 1 for job in jobs}
    assert {span.attributes["thread.name"] for span in jobs} == {"worker-0", "worker-1"}
    assert {span.attributes["dl4j.run"] for span in jobs} == {result.conf.run}
    assert {span.resource.attributes["service.name"] for span in spans} == {"dl4j"}
    assert len(of(spans, "MasterCommit")) == result.head.version


def test_an_asynchronous_run_has_each_round_and_job_once() -> None:
    result, spans = traced(epochs=3, router="hogwild", window=3, jobs_per_round=2)
    assert sorted(span.attributes["dl4j.round"] for span in of(spans, "round")) == list(range(result.plan.total_rounds))
    assert set(slots(of(spans, "job")).values()) == {1}
    check_places(result.conf, spans)


def test_a_job_that_failed_says_why_and_is_done_again() -> None:
    def fail() -> None:
        raise RuntimeError("made to fail")

    make, failed = before_one_job(2, fail)
    result, spans = traced(performer=make, epochs=2)
    jobs = of(spans, "job")
    [error] = [span for span in jobs if span.status.status_code is StatusCode.ERROR]
    assert slots([error]) == {failed[0]: 1} and slots(jobs)[failed[0]] == 2
    assert error.status.description == "RuntimeError: made to fail"
    assert error.attributes["dl4j.failure.code"] == "RuntimeError"
    check_places(result.conf, spans)


def test_a_run_that_goes_on_is_in_the_same_traces(tmp_path: Path) -> None:
    def interrupt(status: Any) -> None:
        if status.head is not None and status.head.round > 3:
            raise KeyboardInterrupt

    where = {"epochs": 25, "checkpoint_dir": str(tmp_path / "run")}
    _, first = traced(tick=interrupt, **where)
    result, second = traced(resume=True, **where)
    check_places(result.conf, first)
    check_places(result.conf, second)
    done = {span.attributes["dl4j.round"] for span in (*of(first, "round"), *of(second, "round"))}
    assert done == set(range(result.plan.total_rounds))


def event(phase: Phase, round_: int | None, slot: int | None, start: float, thread: str = "worker-0") -> EventStats:
    return EventStats(phase, "machine", "process", thread, 0, round_, slot, start, 0.5)


def test_a_worker_elsewhere_puts_its_jobs_into_the_master_s_round() -> None:
    """What two machines export meets in one trace, though neither has told the other anything."""
    with ActorNetworkRunner("master", IrisDataSetIterator(16)) as runner:
        conf = runner.setup(Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2))
        plan = runner.status().plan
    found = []
    events = (
        [event("MasterIssue", 0, None, 1.0, "master"), event("MasterCommit", 0, None, 5.0, "master")],
        [event("WorkerWait", None, None, 1.0), event("WorkerFit", 0, 1, 2.0), event("WorkerSend", 0, 1, 3.0)],
    )
    for own in events:
        exporter = InMemorySpanExporter()
        with OpenTelemetryObserver(SimpleSpanProcessor(exporter)) as observer:
            observer.begin(ObservedRun(conf, plan, "process", InMemoryStateTracker()))
            observer.phases(own)
        found.append(exporter.get_finished_spans())
    [master, worker] = found
    [round_], [job] = of(master, "round"), of(worker, "job")
    assert job.parent.span_id == round_.context.span_id and job.context.trace_id == round_.context.trace_id
    assert (round_.start_time, round_.end_time) == (1_000_000_000, 5_500_000_000)
    assert (job.start_time, job.end_time) == (2_000_000_000, 3_500_000_000)
    assert {span.name for span in worker} == {"job", "WorkerFit", "WorkerSend"}


def test_rounds_that_are_not_sampled_have_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert traced(epochs=1)[1] == ()


# -- over OTLP ---------------------------------------------------------------------------------------------------------


class Collector(ThreadingHTTPServer):
    """Takes what is exported to it."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.spans: list[Any] = []
        self.services: set[str] = set()


class Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.server.services.add(names["service.name"])
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server
        server.shutdown()
        thread.join()


RUN = ("train", "--dataset", "iris", "--epochs", "2", "--workers", "2", "--otel")


def test_the_command_exports_to_the_collector_that_the_environment_names(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "flowers")
    assert dl4j(*RUN) == 0
    names = Counter(span.name for span in collector.spans)
    assert names["round"] > 0 and names["job"] >= names["round"] and names["WorkerFit"] == names["job"]
    assert collector.services == {"flowers"}


def test_a_collector_that_is_not_there_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    assert dl4j(*RUN) == 0
