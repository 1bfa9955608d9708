"""What a run's process serves for Prometheus: what the page says, of this run, and nothing that grows."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import prometheus_client
import promql_parser
import pytest
import yaml
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from dl4jlegacy import ActorNetworkRunner, Conf, IrisDataSetIterator
from dl4jlegacy.errors import CheckpointError, ConfError
from dl4jlegacy.nn import zoo
from dl4jlegacy.observing.prometheus import METRICS, PrometheusObserver
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun
from dl4jlegacy.scaleout.monitoring.outcome import TrainingResult
from dl4jlegacy.scaleout.monitoring.run_state import STATES
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.phases import PHASES
from dl4jlegacy.scaleout.protocol import Limits
from dl4jlegacy.scaleout.scoring import ValidationConf
from dl4jlegacy.scaleout.state.records import Failure, WorkerRecord
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from tests.support import REPOSITORY
from tests.support.command_line import exit_status as dl4j
from tests.support.performers import before_one_job

Values = dict[str, dict[tuple[str, ...], float]]
"""By sample name and the values of its labels."""


def served(metrics: PrometheusObserver) -> dict[str, Family]:
    """The families of metrics that a server has, by name."""
    with urllib.request.urlopen(metrics.url, timeout=30) as answer:
        assert answer.status == 200
        assert answer.headers.get_content_type() == "text/plain"
        text = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(metrics: PrometheusObserver) -> Values:
    found: Values = {}
    for family in served(metrics).values():
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def trained(metrics: PrometheusObserver, *, performer: Any = None, **conf: Any) -> TrainingResult:
    with ActorNetworkRunner("master", IrisDataSetIterator(16), performer=performer, observers=[metrics]) as runner:
        runner.setup(Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2, **conf))
        result = runner.train()
        assert result is not None
        return result


@pytest.fixture
def metrics() -> Iterator[PrometheusObserver]:
    with PrometheusObserver(0) as observer:
        yield observer


def begun(
    metrics: PrometheusObserver, *, is_master: bool, workers: Sequence[WorkerRecord] = ()
) -> InMemoryStateTracker:
    """Have a run followed of which nothing happens; return its tracker."""
    with ActorNetworkRunner("master", IrisDataSetIterator(16)) as runner:
        conf = runner.setup(Conf(multi_layer_conf=zoo.mlp(4, 3), run="quiet"))
        plan = runner.status().plan
    tracker = InMemoryStateTracker()
    metrics.begin(ObservedRun(conf, plan, "me", tracker, lambda: workers, is_master=is_master))
    return tracker


def page() -> list[tuple[str, str, str, str]]:
    """The rows of the page's table: name, kind, labels, and whose it is."""
    text = (REPOSITORY / "docs" / "prometheus.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(dl4j_\w+)` \| (\w+) \| ([^|]*) \| (\w+) \| ([^|]+) \|$", text, flags=re.MULTILINE)
    assert all(text for *_, text in rows)
    return [(name, kind, labels.replace("`", "").replace(" ", ""), of) for name, kind, labels, of, _ in rows]


def test_the_page_has_what_is_served(metrics: PrometheusObserver) -> None:
    assert page() == [(one.name, one.kind, one.label, one.of) for one in METRICS]
    trained(metrics, epochs=2, validation=ValidationConf(fraction=0.2))
    found = {name: family for name, family in served(metrics).items() if not name.endswith("_created")}
    own = {name: family for name, family in found.items() if name.startswith("dl4j_")}
    names = {one.name.removesuffix("_total"): one for one in METRICS}  # as the parser has counters
    assert own.keys() == names.keys()
    for name, family in own.items():
        assert family.type == names[name].kind and family.documentation == names[name].text
        labels = set(names[name].label.split(",")) - {""}
        assert all(set(sample.labels) - {"le"} == labels for sample in family.samples), name
    assert "process_resident_memory_bytes" in found
    assert set(found) - set(own) == {name for name in found if name.startswith("process_")}


def test_a_worker_s_process_has_what_the_page_says_that_it_has(metrics: PrometheusObserver) -> None:
    begun(metrics, is_master=False)
    metrics.job_failed((0, 0), Failure("DL4J-JOB", "no", "me-0"))
    found = values(metrics)
    names = {re.sub(r"_(count|sum|bucket|created)$", "", name) for name in found if name.startswith("dl4j_")}
    histograms = {one.name for one in METRICS if one.kind == "histogram"}
    assert names - histograms == {one.name for one in METRICS if one.of != "master"} - histograms
    assert found["dl4j_jobs_failed_total"] == {(): 1.0}
    [info] = found["dl4j_run_info"]
    assert "worker" in info


def test_the_figures_are_the_run_s(metrics: PrometheusObserver) -> None:
    result = trained(metrics, epochs=3, validation=ValidationConf(fraction=0.2))
    found, head, last = values(metrics), result.head, result.validation
    assert last is not None
    assert found["dl4j_rounds_total"][()] == found["dl4j_rounds_planned"][()] == result.plan.total_rounds
    assert found["dl4j_model_version"][()] == head.version == found["dl4j_round_seconds_count"][()]
    assert (found["dl4j_batches_total"][()], found["dl4j_examples_total"][()]) == (head.batches, head.examples)
    assert found["dl4j_jobs_done_total"][()] == result.plan.total_slots
    assert found["dl4j_score"][()] == pytest.approx(head.score)
    assert found["dl4j_validation"][("loss",)] == pytest.approx(last.loss)
    assert found["dl4j_validation"][("accuracy",)] == pytest.approx(last.accuracy)
    assert found["dl4j_run_active"][()] == 0
    trainings = result.plan.total_slots - found["dl4j_phase_seconds_count"][("WorkerValidate",)]
    assert found["dl4j_phase_seconds_count"][("WorkerFit",)] == trainings
    assert found["dl4j_phase_seconds_count"][("MasterCommit",)] >= head.version
    assert {labels[0] for labels in found["dl4j_phase_seconds_count"]} <= set(PHASES)
    assert found["dl4j_jobs_failed_total"][()] == 0
    [info] = [dict(sample.labels) for sample in served(metrics)["dl4j_run_info"].samples]
    conf = result.conf
    assert info == {"run": conf.run, "incarnation": conf.incarnation, "router": "iterative-reduce", "role": "master"}


def test_jobs_that_failed_are_counted(metrics: PrometheusObserver) -> None:
    make, failed = before_one_job(2, failing)
    result = trained(metrics, performer=make, epochs=2)
    assert len(failed) == 1 and result.batches_lost == 0
    assert values(metrics)["dl4j_jobs_failed_total"][()] == 1


def failing() -> None:
    raise RuntimeError("made to fail")


def test_checkpoints_that_failed_are_counted_and_those_that_did_not_are_timed(
    metrics: PrometheusObserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = CheckpointStore.save, []

    def first_fails(self: CheckpointStore, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise CheckpointError("the disk is full")
        return save(self, *args)

    monkeypatch.setattr(CheckpointStore, "save", first_fails)
    trained(metrics, epochs=3, checkpoint_dir=str(tmp_path / "run"), checkpoint_every=1)
    found = values(metrics)
    assert found["dl4j_checkpoints_failed_total"][()] == 1
    assert found["dl4j_phase_seconds_count"][("MasterCheckpoint",)] == len(calls) > 1


def test_jobs_that_others_got_as_well_are_counted_by_reason(metrics: PrometheusObserver) -> None:
    begun(metrics, is_master=True)
    for reason in ("slow", "slow", "expired"):
        metrics.job_reissued(reason)  # type: ignore[arg-type]
    assert values(metrics)["dl4j_jobs_reissued_total"] == {("slow",): 2, ("expired",): 1, ("gone",): 0}


def test_a_run_tells_of_a_job_whose_lease_was_broken(metrics: PrometheusObserver) -> None:
    """End to end: a worker that hangs, and a real lease."""
    release = threading.Event()
    make, hung = before_one_job(2, lambda: release.wait(60))
    limits = Limits(lease=0.3, poll=0.05)
    with ActorNetworkRunner("master", IrisDataSetIterator(16), performer=make, observers=[metrics]) as runner:
        conf = Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2, epochs=2, limits=limits, stuck_seconds=0.2)
        runner.setup(conf)
        try:
            runner.train()
        finally:
            release.set()
    assert hung and sum(values(metrics)["dl4j_jobs_reissued_total"].values()) >= 1


class Seconds:
    """A clock that a test sets."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


def worker(name: str, state: str, beat: float) -> WorkerRecord:
    return WorkerRecord(id=name, host="host", pid=1, state=state, beat=beat)


def test_workers_are_counted_by_state_and_the_most_silent_one_shows() -> None:
    clock, workers = Seconds(), list[WorkerRecord]()
    with PrometheusObserver(0, clock=clock) as metrics:
        begun(metrics, is_master=True, workers=workers)
        workers += [
            worker("d", "gone (closed)", 5.0),
            worker("a", "idle", 5.0),
            worker("b", "working", 1e9),
            worker("c", "a new state of 2031", -7.0),
        ]
        metrics.sample()
        assert values(metrics)["dl4j_workers"][("gone",)] == 1
        clock.seconds = 3.0
        workers[1], workers[3] = worker("a", "idle", 6.0), worker("c", "stuck", -6.0)
        del workers[0]
        metrics.sample()
        clock.seconds = 4.0
        found = values(metrics)
        assert found["dl4j_heartbeat_age_seconds"][()] == 4.0  # of b, whose machine's wall clock means nothing here
        assert found["dl4j_workers"] == {("idle",): 1, ("working",): 1, ("stuck",): 1, ("gone",): 0, ("other",): 0}
        workers[2] = worker("c", "a new state of 2031", -5.0)
        del workers[1]
        metrics.sample()
        found = values(metrics)
        assert found["dl4j_workers"] == {("idle",): 1, ("working",): 0, ("stuck",): 0, ("gone",): 0, ("other",): 1}
        assert found["dl4j_heartbeat_age_seconds"][()] == 1.0


def test_the_next_run_has_figures_of_its_own(metrics: PrometheusObserver) -> None:
    trained(metrics, epochs=2)
    begun(metrics, is_master=True)
    found = values(metrics)
    assert found["dl4j_jobs_done_total"][()] == 0 and "dl4j_score" not in found
    assert [labels for labels in found["dl4j_run_info"] if "quiet" in labels] == list(found["dl4j_run_info"])


def test_the_registry_of_the_program_is_left_alone(metrics: PrometheusObserver) -> None:
    trained(metrics, epochs=1)
    assert not [family.name for family in prometheus_client.REGISTRY.collect() if family.name.startswith("dl4j")]


# -- the server --------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_said_before_the_run_begins(
    metrics: PrometheusObserver, capsys: pytest.CaptureFixture[str]
) -> None:
    port = metrics.url.split(":")[-1].split("/")[0]
    assert dl4j("train", "--dataset", "no-such-thing.csv", "--metrics-port", port) == 3
    shown = capsys.readouterr()
    assert f"metrics cannot be served at 127.0.0.1:{port}: Address already in use; choose another" in shown.err
    assert "no-such-thing" not in shown.err and shown.out == ""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--metrics-port", "70000"), "there is no port 70000 for metrics"),
        (("--metrics-port", "-1"), "--metrics-port is '-1'; it must be a whole number, at least 0"),
        (("--metrics-port", "http"), "--metrics-port is 'http'"),
        (("--metrics-host", "127.0.0.1"), "--metrics-host says where metrics are served"),
    ],
)
def test_what_cannot_be_is_refused(flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dl4j("train", "--dataset", "iris", *flags) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "a" * 70])
def test_a_host_that_is_not_here_is_said(host: str) -> None:
    with pytest.raises(ConfError, match="metrics cannot be served at"):
        PrometheusObserver(0, host)


def test_it_listens_on_loopback_only_and_on_ipv6_if_it_is_told_to() -> None:
    with PrometheusObserver(0) as metrics:
        assert metrics.url.startswith("http://127.0.0.1:")
    with PrometheusObserver(0, "::1") as metrics:
        assert metrics.url.startswith("http://[::1]:")
        assert served(metrics)


def test_clients_that_say_nothing_hold_up_neither_others_nor_the_end(metrics: PrometheusObserver) -> None:
    host, port = metrics._server.server_address[:2]
    silent = [socket.create_connection((str(host), port)) for _ in range(20)]
    silent[0].sendall(b"GET /met")
    assert "process_open_fds" in served(metrics)
    metrics.close()  # the fixtures fail if a thread stays
    for client in silent:
        with closing(client):
            client.settimeout(10)
            assert client.recv(1) == b""


def test_of_more_clients_than_there_is_room_for_the_oldest_leave(metrics: PrometheusObserver) -> None:
    address = metrics._server.server_address[:2]
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(40)]
        assert "process_open_fds" in served(metrics), "silent clients keep nobody out"
        for client in clients[:9]:
            client.settimeout(10)
            assert client.recv(1) == b""


def test_whoever_has_sent_a_request_keeps_its_place_till_the_answer(
    metrics: PrometheusObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, goes_on, collect = threading.Event(), threading.Event(), metrics.collect

    def held() -> Any:
        asked.set()
        assert goes_on.wait(60)
        return collect()

    monkeypatch.setattr(metrics, "collect", held)
    address = metrics._server.server_address[:2]
    with ExitStack() as stack:
        client = stack.enter_context(socket.create_connection(address, 60))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert asked.wait(60)
        silent = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(40)]
        assert silent[0].recv(1) == b"", "it has left for a later one"
        goes_on.set()
        assert client.recv(15, socket.MSG_WAITALL) == b"HTTP/1.0 200 OK"


def test_the_command_says_where_and_serves_until_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, float]] = []
    end = PrometheusObserver.end

    def look(self: PrometheusObserver) -> None:
        end(self)
        seen.append((self.url, values(self)["dl4j_rounds_total"][()]))

    monkeypatch.setattr(PrometheusObserver, "end", look)
    run = ("--dataset", "iris", "--epochs", "2", "--workers", "2", "--log-format", "json", "--format", "json")
    assert dl4j("train", *run, "--metrics-port", "0") == 0
    [(url, rounds)] = seen
    assert f'{{"event":"metrics","url":"{url}"}}' in re.sub(r'(?<=[:,]) (?=")', "", capsys.readouterr().err)
    assert rounds > 0
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=5)


KINDS = {one.name: one for one in METRICS}
OTHERS = ("up", "process_resident_memory_bytes")
"""Served by whatever is scraped, and by every process of Python."""


def metrics_of(text: str) -> set[str]:
    """The metrics that an expression asks for, each of which is served with the labels that are asked for.

    Raises:
        ValueError: Prometheus would refuse it.
    """
    selectors = list[tuple[promql_parser.VectorSelector, bool]]()

    def look(part: Any) -> None:
        if isinstance(part, promql_parser.MatrixSelector):
            selectors.append((part.vector_selector, True))
        elif isinstance(part, promql_parser.VectorSelector):
            selectors.append((part, False))

    promql_parser.walk(promql_parser.parse(text.replace("$__rate_interval", "5m")), look)
    assert selectors, text
    return {served_metric(selector, is_over_time=is_over_time) for selector, is_over_time in selectors}


def served_metric(selector: promql_parser.VectorSelector, *, is_over_time: bool) -> str:
    """Return the name of the metric that is asked for; it is served, with these labels, and counts if it has to."""
    asked = str(selector.name)
    name = re.sub(r"_(bucket|sum|count)$", "", asked)
    one = KINDS.get(name)
    assert asked in OTHERS or (one is not None and (name != asked) == (one.kind == "histogram")), f"no metric {asked}"
    assert not is_over_time or one is None or one.kind != "gauge", f"{name} is a gauge"
    own = [] if one is None else one.label.split(",") + (["le"] if asked.endswith("_bucket") else [])
    for matcher in selector.matchers.matchers:
        assert matcher.name in ("job", "instance", *own), f"{name} has no label {matcher.name}"
        assert matcher.name != "state" or matcher.value in STATES, f"no state {matcher.value}"
    return name


def test_the_rules_for_alerts_are_promql_and_ask_for_nothing_that_is_not_served() -> None:
    [group] = yaml.safe_load((REPOSITORY / "docs" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    states = list[str]()
    for rule in group["rules"]:
        assert metrics_of(rule["expr"])
        states += re.findall(r'state="(\w+)"', rule["expr"])
        assert {"summary", "remedy"} == set(rule["annotations"]) and rule["labels"]["severity"] in (
            "critical",
            "warning",
        )
        assert promql_parser.parse_duration(rule.get("for", "1s"))
    assert sorted(states) == ["degraded", "stalled", "waiting"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) >= 7


def test_the_board_for_grafana_is_promql_and_asks_for_nothing_that_is_not_served() -> None:
    board = msgspec.json.decode((REPOSITORY / "docs" / "grafana.json").read_bytes())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 20 and len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    shown = {name for text in asked for name in metrics_of(text)}
    rest = {one.name for one in METRICS} - shown - {"dl4j_run_info"}
    assert rest == {
        "dl4j_model_version",
        "dl4j_batches_total",
        "dl4j_examples_per_second",
        "dl4j_updates_dropped_total",
    }
    assert all('{job=~"$job"' in text for text in asked)
