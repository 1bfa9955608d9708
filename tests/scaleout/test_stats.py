"""Training statistics: every phase of every round once, on every store, at no cost to the result."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, IrisDataSetIterator, read_stats
from dl4jlegacy.errors import CheckpointError, TrackerError, UsageError
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout import phases
from dl4jlegacy.scaleout.monitoring import stats
from dl4jlegacy.scaleout.monitoring.stats import (
    RING,
    StatsCollector,
    StatsFile,
    StatsSender,
    TrainingStats,
    duration,
    sending,
)
from dl4jlegacy.scaleout.monitoring.stats_page import histogram, stats_page
from dl4jlegacy.scaleout.monitoring.stats_trace import chrome_trace
from dl4jlegacy.scaleout.persistence.jsonl import MOST_WAITING
from dl4jlegacy.scaleout.phases import NO_PHASES, PHASES, EventStats, PhaseRecorder
from dl4jlegacy.scaleout.scoring import ValidationConf
from dl4jlegacy.scaleout.state.records import Keys, encode_record
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, StateTracker
from dl4jlegacy.storage.folders import LocalFolder
from dl4jlegacy.system.clock import RunningClock
from dl4jlegacy.training.prepare import params_sha256
from tests.support.cluster_commands import until
from tests.support.command_line import exit_status as dl4j

HOSTILE = '</script><script>alert(1)</script>\x1b[31m"&'


class Machine:
    """A machine's two clocks, which the test sets; its process may be stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.monotonic = 1_000_000.0, 50.0
        monkeypatch.setattr(phases.time, "time", lambda: self.wall)
        monkeypatch.setattr(phases.time, "monotonic", lambda: self.monotonic)
        self.clock = RunningClock(lambda: self.monotonic)

    def runs(self, seconds: float) -> None:
        self.wall, self.monotonic = self.wall + seconds, self.monotonic + seconds
        self.clock.now()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def event(number: int = 0, phase: str = "WorkerFit", seconds: float = 1.0, **fields) -> EventStats:
    given = {"machine": "m", "process": "p", "thread": "worker-0", "round": 3, "slot": 1, "start": 1000.0 + number}
    return EventStats(**{**given, "phase": phase, "number": number, "seconds": seconds, **fields})


def write(path: Path, *events: EventStats, after: bytes = b"") -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in events) + after)
    return path


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_a_phase_has_its_place_its_start_and_its_duration(machine: Machine) -> None:
    recorder = PhaseRecorder("host-1", machine.clock)
    worker, master = recorder.thread("worker-0"), recorder.thread("master")
    machine.runs(0.5)
    with worker.phase("WorkerFit", (7, 2)):
        machine.runs(0.25)
    span = master.begin()
    machine.runs(0.125)
    span.stop()
    machine.runs(0.5)
    span.end("MasterIssue", (8, None))
    first, second = recorder.take()
    assert (first.phase, first.process, first.thread, first.number) == ("WorkerFit", "host-1", "worker-0", 0)
    assert (first.round, first.slot, first.start, first.seconds) == (7, 2, 1_000_000.5, 0.25)
    assert (second.phase, second.thread, second.number) == ("MasterIssue", "master", 1)
    assert (second.round, second.slot, second.start, second.seconds) == (8, None, 1_000_000.75, 0.125)
    assert recorder.take() == []


def test_a_wall_clock_that_is_set_and_a_process_that_is_stopped_lengthen_nothing(machine: Machine) -> None:
    recorder = PhaseRecorder("host-1", machine.clock)
    with recorder.thread("worker-0").phase("WorkerFit", (0, 0)):
        machine.wall -= 86_400
        machine.runs(0.5)
        machine.runs(3600.0)  # stopped: nobody read the clock
    with recorder.thread("worker-0").phase("WorkerSend", (0, 0)):
        machine.runs(0.5)
    fit, send = recorder.take()
    assert (fit.start, fit.seconds) == (1_000_000.0, 1.5)  # a gap counts as a second
    assert (send.start, send.seconds) == (1_003_600.5, 0.5)


def test_a_phase_that_fails_is_recorded_too_and_a_span_that_is_given_up_is_not(machine: Machine) -> None:
    recorder = PhaseRecorder("host-1", machine.clock)
    recorder.thread("worker-0").begin()
    with pytest.raises(ValueError, match="no"), recorder.thread("worker-0").phase("WorkerFit"):
        raise ValueError("no")
    assert [found.phase for found in recorder.take()] == ["WorkerFit"]


def test_who_records_nothing_is_told_nothing() -> None:
    with NO_PHASES.phase("WorkerFit", (0, 0)) as span:
        span.end("WorkerFit")
    assert NO_PHASES.begin() is NO_PHASES.begin()


def test_a_recorder_that_nobody_empties_is_bounded_and_its_numbers_tell_what_is_lost(monkeypatch, machine) -> None:
    monkeypatch.setattr(phases, "MOST_WAITING", 10)
    recorder = PhaseRecorder("host-1", machine.clock)
    for _ in range(25):
        recorder.thread("worker-0").begin().end("WorkerFit")
    found = recorder.take()
    assert [one.number for one in found] == list(range(15, 25))
    assert TrainingStats(tuple(found)).lost == {"host-1": 15}


# -- what becomes of it ------------------------------------------------------------------------------------------------


def test_the_figures_of_a_phase() -> None:
    fits = [event(number, seconds=seconds) for number, seconds in enumerate([0.5, 0.1, 0.2, 2.2])]
    others = event(4, "WorkerWait", 1.0), event(5, "MasterWait", 4.0), event(6, "New", 1.0)
    found = TrainingStats((*fits, *fits, *others))
    assert found.get_key_set() == ("WorkerWait", "WorkerFit", "MasterWait", "New")
    wait, fit, master, new = found.phases
    assert (fit.phase, fit.count, fit.median, fit.p95) == ("WorkerFit", 4, 0.35, 2.2)
    assert (fit.total, fit.mean, fit.share) == (pytest.approx(3.0), pytest.approx(0.75), pytest.approx(0.75))
    assert (wait.share, master.share, new.share) == (0.25, 1.0, 1.0)
    assert found.stats_as_string().splitlines()[1] == "WorkerFit".ljust(55) + "500.000,100.000,200.000,2200.000"
    assert found.lost == {} and len(found.events) == 7


def test_what_a_95th_percentile_is() -> None:
    figures = TrainingStats(tuple(event(number, seconds=number + 1.0) for number in range(100))).phases[0]
    assert (figures.p95, figures.median, figures.count) == (95.0, 50.5, 100)


def test_events_come_from_another_process_once_and_are_taken_out(machine: Machine, tmp_path: Path) -> None:
    tracker, recorder = InMemoryStateTracker(), PhaseRecorder("other-7", machine.clock)
    for number in range(2500):
        machine.runs(0.5)
        with recorder.thread("worker-0").phase("WorkerFit", (number, 1)):
            machine.runs(0.5)
    sender = StatsSender(recorder, sending(tracker))
    sender.start()
    sender.close()
    keys = tracker.store.keys("")
    assert keys == ["stats/other-7/0", "stats/other-7/1", "stats/other-7/2"] and all(map(Keys.is_of_run, keys))
    collector = StatsCollector(LocalFolder(tmp_path))
    until(lambda: collector.gather(tracker) or not tracker.store.keys(""), what="they are written")
    collector.gather(tracker, ["head", "stats/other-7/0"])
    collector.close()
    found = collector.stats()
    assert [one.number for one in found.events] == list(range(2500)) and found.lost == {}
    own = {"process": "other-7", "machine": recorder.machine, "start": 1_000_009.5}
    assert found.events[9] == event(9, round=9, seconds=0.5, **own)
    assert read_stats(tmp_path) == found


def test_a_master_that_is_killed_before_it_has_written_them_leaves_them_to_the_next(tmp_path: Path) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    class Hanging(LocalFolder):
        def append(self, name: str, lines: bytes) -> None:
            hangs.set()
            assert goes_on.wait(60)
            super().append(name, lines)

    tracker = InMemoryStateTracker()
    send = sending(tracker)
    send([event(0)])
    killed, its_next = StatsCollector(Hanging(tmp_path / "killed")), StatsCollector(LocalFolder(tmp_path / "next"))
    killed.gather(tracker)
    assert hangs.wait(60)
    send([event(1)])
    killed.gather(tracker)
    its_next.gather(tracker)
    its_next.close()
    goes_on.set()
    killed.close()
    for name in ("killed", "next"):
        found = StatsFile(LocalFolder(tmp_path / name))
        assert [one.number for one in found.lines()] == [0, 1] and found.read().lost == {}  # each is written once


def test_a_key_that_is_used_again_before_its_events_are_written_is_taken_again(tmp_path: Path) -> None:
    tracker, collector = InMemoryStateTracker(), StatsCollector(LocalFolder(tmp_path))
    send = sending(tracker)
    for number in range(2 * RING):
        send([event(number)])
        if number % RING == RING - 1:
            collector.gather(tracker)
    until(lambda: collector.gather(tracker) or not tracker.store.keys(""), what="they are written")
    collector.close()
    assert sorted(one.number for one in StatsFile(LocalFolder(tmp_path)).lines()) == list(range(2 * RING))


def test_a_master_that_finds_more_than_can_wait_takes_it_in_turns(tmp_path: Path) -> None:
    tracker, total = InMemoryStateTracker(), 2 * MOST_WAITING
    send = sending(tracker)
    for first in range(0, total, stats.CHUNK):
        send([event(number) for number in range(first, first + stats.CHUNK)])
    collector = StatsCollector(LocalFolder(tmp_path))
    until(lambda: collector.gather(tracker) or not tracker.store.keys(""), what="they are written")
    collector.close()
    assert StatsFile(LocalFolder(tmp_path)).read().lost == {} and len(collector.stats().events) == total


def test_a_process_without_a_master_fills_no_more_than_its_keys() -> None:
    tracker = InMemoryStateTracker()
    send = sending(tracker)
    for number in range(RING + 10):
        send([event(number)])
    assert len(tracker.store.keys("")) == RING
    collector = StatsCollector(None)
    collector.gather(tracker)
    collector.close()
    assert collector.stats().lost == {"p": 10}


def test_what_strangers_write_is_left_out(machine: Machine) -> None:
    tracker, collector = InMemoryStateTracker(), StatsCollector(None)
    tracker.store.put("stats/a/0", b"\xc1 no record")
    bad = [(-1, 0.0, 1.0), (0, float("nan"), 1.0), (0, 1.0, float("inf")), (0, 1.0, -1.0), (0, 1e300, 1.0)]
    events = tuple((number, "t", HOSTILE, None, None, *times) for number, *times in [*bad, (5, 1.0, 2.0)])
    tracker.store.put("stats/b/0", encode_record(stats._Chunk(HOSTILE, "b", events)))
    collector.gather(tracker)
    (found,) = collector.stats().events
    assert (found.number, found.phase) == (5, HOSTILE)
    assert tracker.store.keys("") == [] and tracker.store.foreign.count == 1


def test_a_tracker_that_does_not_answer_loses_what_was_on_its_way_and_nothing_else(machine: Machine) -> None:
    recorder, sent, fails = PhaseRecorder("p", machine.clock), [], iter([True, False])

    def send(events) -> None:
        if next(fails):
            recorder.thread("worker-0").begin().end("WorkerSend")
            over.set()
            raise TrackerError("away")
        sent.extend(events)

    over = threading.Event()
    recorder.thread("worker-0").begin().end("WorkerFit")
    sender = StatsSender(recorder, send)
    sender.start()
    assert over.wait(30)
    sender.close()
    assert [(one.number, one.phase) for one in sent] == [(1, "WorkerSend")]


# -- a run -------------------------------------------------------------------------------------------------------------


def trained(folder: Path | None, *, tracker: StateTracker | None = None, **conf):
    given = Conf(
        multi_layer_conf=zoo.mlp(4, 3),
        workers=2,
        epochs=3,
        validation=ValidationConf(fraction=0.2),
        checkpoint_dir="" if folder is None else str(folder),
        **conf,
    )
    with ActorNetworkRunner("master", IrisDataSetIterator(16), tracker=tracker) as runner:
        runner.setup(given)
        result = runner.train()
    return runner, result


@pytest.mark.parametrize("by_reference", [True, False])
def test_every_phase_of_every_round_is_there_and_the_result_is_the_same(tmp_path: Path, *, by_reference: bool) -> None:
    data = {"data_by_reference": by_reference, "checkpoint_every": 2}
    runner, result = trained(tmp_path, collect_training_stats=True, **data)
    without, plain = trained(None, **data)
    assert params_sha256(result.model.arrays["params"]) == params_sha256(plain.model.arrays["params"])
    with pytest.raises(UsageError, match="--collect-training-stats"):
        without.stats  # noqa: B018
    found = runner.stats
    assert found == read_stats(tmp_path) and found.lost == {} and found.damaged == 0
    plan = result.plan
    jobs = {(r, s): plan.is_validation(r) for r in range(plan.total_rounds) for s in range(plan.slots(r))}
    done = Counter((one.phase, one.round, one.slot) for one in found.events)
    for (round_, slot), validates in jobs.items():
        work = "WorkerValidate" if validates else "WorkerFit"
        reads = ["WorkerGetData"] if by_reference else []
        for phase in ("WorkerGetJob", work, "WorkerInit", "WorkerEncode", "WorkerSend", *reads):
            assert done[phase, round_, slot] >= 1, (phase, round_, slot)
    for round_ in range(plan.total_rounds):
        for phase in ("MasterIssue", "MasterReadUpdates", "MasterAggregate", "MasterScore", "MasterCommit"):
            assert done[phase, round_, None] >= 1, (phase, round_)
    seldom = {"WorkerFold"} | (set() if by_reference else {"WorkerGetData"})  # the first: with parameter servers only
    assert set(found.get_key_set()) == set(PHASES) - seldom
    threads = {"master", "saver", "worker-0", "worker-1", *([] if by_reference else ["batch"])}
    assert {one.thread for one in found.events} == threads
    by_thread = itertools.groupby(sorted(found.events, key=lambda one: (one.thread, one.start)), lambda one: one.thread)
    for _, events in by_thread:  # phases of a thread do not overlap
        assert all(a.start + a.seconds <= b.start + 2e-3 for a, b in itertools.pairwise(events))


def test_a_run_that_fails_keeps_its_statistics(tmp_path: Path) -> None:
    class Failing:
        progress = 0

        def update(self, model) -> None:
            pass

        def perform(self, job):
            raise ValueError("broken")

    conf = Conf(multi_layer_conf=zoo.mlp(4, 3), workers=1, checkpoint_dir=str(tmp_path), collect_training_stats=True)
    with ActorNetworkRunner("master", IrisDataSetIterator(16), performer=lambda conf, kernels: Failing()) as runner:
        runner.setup(conf)
        with pytest.raises(Exception, match="broken"):
            runner.train()
    assert len([one for one in runner.stats.events if one.phase == "WorkerFit"]) >= 3
    assert read_stats(tmp_path) == runner.stats


def test_the_option_does_not_change_which_run_it_is() -> None:
    conf = Conf(multi_layer_conf=zoo.mlp(4, 3))
    assert conf.replace(collect_training_stats=True).digest() == conf.digest()


# -- files and the command ---------------------------------------------------------------------------------------------


def test_of_a_file_that_was_cut_short_what_is_whole_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = msgspec.json.encode(event(3))[:40]
    strange = msgspec.json.encode({**msgspec.to_builtins(event(4)), "seconds": -1.0})
    path = write(tmp_path / "mine.txt", event(0), event(2, seconds=0.0125), after=b"\xff\n" + strange + b"\n" + half)
    assert dl4j("stats", str(path)) == 0
    shown = capsys.readouterr()
    assert shown.err == "warning: 3 lines of the statistics cannot be read, and are left out\n"
    assert shown.out.splitlines() == [
        "phase      count   total    mean  median     p95    share",
        "WorkerFit      2  1.01 s  506 ms  506 ms  1.00 s  100.0 %",
        "2 events of 1 process on 1 machine",
        "1 event of 1 process lost on the way",
    ]


def test_the_table_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / StatsFile.NAME, event(0), event(1, "MasterWait", 0.5, thread="master"))
    assert dl4j("stats", str(tmp_path), "--format", "json") == 0
    fields = json.loads(capsys.readouterr().out)
    row = {"phase": "WorkerFit", "count": 1, "total": 1.0, "mean": 1.0, "median": 1.0, "p95": 1.0, "share": 1.0}
    assert fields["phases"][0] == row and fields["phases"][1]["phase"] == "MasterWait"
    assert {name: fields[name] for name in ("events", "processes", "machines", "lost", "damaged")} == {
        "events": 2,
        "processes": 1,
        "machines": 1,
        "lost": {},
        "damaged": 0,
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there are no statistics of this run; statistics are collected if the run is told to: `dl4j train"),
        (b"a,b\n1,2\n", "none of its lines is an event"),
        (b"\x00\xff" * 100, "none of its lines is an event"),
    ],
)
def test_a_run_without_statistics_says_how_they_are_collected(tmp_path: Path, capsys, content, said) -> None:
    if content is not None:
        (tmp_path / StatsFile.NAME).write_bytes(content)
    assert dl4j("stats", str(tmp_path)) == CheckpointError.exit_status
    shown = capsys.readouterr()
    assert said in shown.err and "--collect-training-stats" in shown.err and not shown.out


def test_a_name_that_is_nothing_and_a_command_without_a_folder(tmp_path: Path, capsys) -> None:
    assert dl4j("stats", str(tmp_path / "none")) == CheckpointError.exit_status
    assert "there is nothing of that name" in capsys.readouterr().err
    assert dl4j("train", "--dataset", "iris", "--collect-training-stats") == UsageError.exit_status
    assert "give --checkpoint-dir" in capsys.readouterr().err
    path = write(tmp_path / "s.jsonl", event())
    assert dl4j("stats", str(path), "--trace", str(tmp_path / "no" / "t.json")) == 1
    assert "choose another --trace" in capsys.readouterr().err


def test_a_file_without_events_has_an_empty_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = tmp_path / "p.html", tmp_path / "t.json"
    assert dl4j("stats", str(write(tmp_path / "s.jsonl")), "--html", str(page), "--trace", str(trace)) == 0
    assert capsys.readouterr().out == "no phase was recorded\n"
    assert json.loads(trace.read_text())["traceEvents"] == [] and "no phase was recorded" in page.read_text().lower()


def test_the_trace_has_every_event_where_perfetto_looks_for_it(tmp_path: Path, capsys) -> None:
    write(
        tmp_path / StatsFile.NAME,
        event(0, thread="worker-10", process="b"),
        event(1, thread="worker-9", process="b", seconds=0.0025),
        event(0, "MasterWait", thread="master", process="z", slot=None),
    )
    assert dl4j("stats", str(tmp_path), "--trace", str(tmp_path / "t.json")) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    named = [(one["name"], one["pid"], one.get("tid"), one["args"]["name"]) for one in events if one["ph"] == "M"]
    assert named == [
        ("process_name", 1, None, "m: z"),
        ("process_name", 2, None, "m: b"),
        ("thread_name", 1, 1, "master"),
        ("thread_name", 2, 2, "worker-9"),
        ("thread_name", 2, 3, "worker-10"),
    ]
    where = {"cat": "worker", "ph": "X", "pid": 2, "args": {"round": 3, "slot": 1}}
    assert events[-1] == {"name": "WorkerFit", "ts": 1e6, "dur": 2500.0, "tid": 2, **where}
    assert events[-2]["tid"] == 1 or events[-3]["tid"] == 1
    assert chrome_trace(TrainingStats()) == {"displayTimeUnit": "ms", "traceEvents": []}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 us"), (4.2e-5, "42 us"), (1e-3, "1.00 ms"), (0.0123, "12.3 ms"), (0.5, "500 ms"), (61.0, "61.0 s")],
)
def test_a_duration_has_its_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# -- the page ----------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """A page's elements, texts, and the data in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def data(self) -> dict:
        return json.loads(next(text for text in self.texts if text.startswith("{")))


def test_the_page_shows_every_lane_event_and_phase_and_needs_nothing_from_elsewhere() -> None:
    found = TrainingStats(
        (
            event(0, "MasterWait", 0.25, thread="master", slot=None),
            event(1, seconds=0.5),
            event(2, seconds=0.0125, machine="other", process="q"),
        ),
        damaged=2,
    )
    text = stats_page(found, title="Training statistics of run 7")
    page = Page(text)
    assert page.data["lanes"] == [["m", "p", "master"], ["m", "p", "worker-0"], ["other", "q", "worker-0"]]
    assert page.data["phases"] == ["WorkerFit", "MasterWait"] and len(page.data["colours"]) == 2
    assert page.data["events"] == [
        [0, 1, 0, 250_000, 3, None],
        [1, 0, 1_000_000, 500_000, 3, 1],
        [2, 0, 2_000_000, 12_500, 3, 1],
    ]
    assert (
        "3 events of 2 processes on 2 machines. 2 events lost on the way. 2 lines of the file could not be read."
        in text
    )
    assert page.tags.count("figure") == 2 and page.tags.count("input") == 2 and page.tags.count("tr") == 3
    assert ("id", "timeline") in page.attributes and ("tabindex", "0") in page.attributes
    assert "prefers-color-scheme: dark" in text and "ArrowLeft" in text
    elsewhere = [value for name, value in page.attributes if name in ("src", "href", "srcset", "action")]
    assert not elsewhere and re.findall(r"https?://[^\s\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert "default-src 'none'" in text and "innerHTML" not in text and "url(" not in text


def test_names_on_the_page_are_text() -> None:
    names = {"machine": HOSTILE, "process": HOSTILE, "thread": HOSTILE}
    text = stats_page(TrainingStats((event(0, HOSTILE, **names), event(1))), title=HOSTILE)
    page = Page(text)
    assert page.tags.count("script") == 2 == text.count("<script")
    assert [page.data["phases"], page.data["lanes"][0]] == [["WorkerFit", HOSTILE], [HOSTILE] * 3]
    assert page.texts.count(HOSTILE) >= 2  # the title, the table


def test_a_long_run_has_its_newest_events_on_the_timeline_and_all_in_the_table(monkeypatch) -> None:
    monkeypatch.setattr("dl4jlegacy.scaleout.monitoring.stats_page.MOST_SHOWN", 10)
    page = Page(stats_page(TrainingStats(tuple(map(event, range(30)))), title="t"))
    assert [found[2] for found in page.data["events"]] == [1_000_000 * n for n in range(10)]
    assert "The newest 10 events; table and histograms are of all." in page.texts and "30" in page.texts


def test_a_histogram_has_every_duration_in_one_bin() -> None:
    edges, counts = histogram([0.0, 1e-6, 1e-3, 1e-3, 1.0])
    assert len(edges) == 21 and (edges[0], edges[-1]) == (pytest.approx(1e-6), pytest.approx(1.0))
    assert (counts[0], counts[10], counts[19], sum(counts)) == (2, 2, 1, 5)
    assert histogram([0.5, 0.5]) == ([pytest.approx(0.5)] * 2, [2])
