"""``dl4j status --watch``: a run's status, updated in place on a terminal, or as lines of text or JSON.

A thread polls the run; the caller's thread shows its snapshots, and for how long there was no answer. A tracker or
Zookeeper that does not answer for a while does not end the display, nor does a master that dies and is replaced. The
display ends with the run, when the reader leaves, and on Ctrl-C.
"""

from __future__ import annotations

import logging
import queue
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from dl4jlegacy.cli.terminal.panel import LABEL_WIDTH, Panel, bar, row
from dl4jlegacy.errors import Dl4jError, TrackerError, counted
from dl4jlegacy.scaleout.monitoring.run_state import GOES_ON, RunFacts, RunState, run_state, short_name
from dl4jlegacy.scaleout.monitoring.silence import Silence
from dl4jlegacy.scaleout.monitoring.speed import Speed
from dl4jlegacy.system.clock import RUNNING, SLICE_SECONDS, Clock
from dl4jlegacy.system.console import emit, error_fields, printable
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread
from dl4jlegacy.system.strict_json import to_json
from dl4jlegacy.training.progress import duration

__all__ = ["Screen", "Snapshot", "StatusPoller", "Viewer", "rows", "watch"]

logger = logging.getLogger("dl4jlegacy")

Look = Callable[[], dict[str, Any] | None]
"""Returns the fields of ``dl4j status``; None: no run is registered. Raises ``TrackerError`` if it is unknown now."""

_MAX_WIDTH = 100
_MOST_NEW = 100  # most snapshots waiting to be shown; polling pauses then
_SLOW_SECONDS = 3.0  # polling usually takes some hundredths
_ERROR_LINES = 3
_CLOSE_SECONDS = 2.0
_SILENT_SECONDS = 5.0  # a worker's heartbeat is due every second, or as its Conf says


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The known state of a run at one time.

    Attributes:
        number: number of answered polls so far.
        fields: those of the last poll that found a run; None: none did.
        time: of that poll, in seconds since 1970.
        error: why the present poll was not answered; None: it was.
        away_seconds: time since the last answer; 0.0: the present poll was answered.
        is_over: whether the run has ended, and nothing more will change.
        speed: in examples per second; 0.0: unknown.
        silent: seconds since the last heartbeat, for the workers whose next heartbeat is overdue.
    """

    number: int = 0
    fields: dict[str, Any] | None = None
    time: float = 0.0
    error: Dl4jError | None = None
    away_seconds: float = 0.0
    is_over: bool = False
    speed: float = 0.0
    silent: dict[str, float] = field(default_factory=dict)


class StatusPoller:
    """Polls a run on a thread of its own, which ends with the run. A context manager.

    Args:
        look: called by that thread only.
        every: seconds between an answer and the next poll.
        close: closes the resources of ``look``, on that thread.
        clock: of running time.
    """

    def __init__(self, look: Look, *, every: float, close: Callable[[], None], clock: Clock = RUNNING) -> None:
        self._look, self._every, self._close, self._clock = look, every, close, clock
        self._closed = threading.Event()
        self._new: queue.Queue[Snapshot | Exception] = queue.Queue(_MOST_NEW)
        self._known: tuple[Snapshot, float, float | None] = Snapshot(), clock.now(), None
        """The last snapshot; time of the last answer; start of the present poll, None between two polls."""
        self._speed, self._silence = Speed(), Silence(clock)
        self._latest: dict[str, Any] = {}  # the last fields with a head: the head is removed after the end
        self._thread = ServiceThread(target=self._run, name="dl4j-watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)  # a thread that waits for a server ends with the process

    def next(self, seconds: float) -> Snapshot:
        """Return the next snapshot; if there is none within ``seconds``, return the present state.

        Raises:
            Dl4jError: the error that ended the polling, if it was not the end of the run.
        """
        try:
            found = self._new.get(timeout=seconds)
        except queue.Empty:
            return self._meanwhile()
        if isinstance(found, Exception):
            raise found
        return found

    def _meanwhile(self) -> Snapshot:
        """Return the state during a poll; a slow poll counts as not answered."""
        (last, answered, asked), now = self._known, self._clock.now()
        if last.error is None and asked is not None and now - asked >= _SLOW_SECONDS:
            last = replace(last, error=TrackerError("Zookeeper or the state tracker has not answered so far"))
        return last if last.error is None else replace(last, away_seconds=now - answered)

    def _run(self) -> None:
        try:
            with exits_as_errors():
                while not self._closed.is_set() and not self._known[0].is_over:
                    if not self._new.full():
                        self._look_once()
                    self._closed.wait(self._every)
        except Exception as exc:  # noqa: BLE001  # raised again on the caller's thread
            self._new.put(exc)
        finally:
            self._close()

    def _look_once(self) -> None:
        last, answered, _ = self._known
        self._known = last, answered, self._clock.now()
        try:
            fields = self._look()
        except TrackerError as exc:
            if last.fields is None:
                raise  # there was nothing to watch from the beginning
            self._known = replace(last, error=exc), answered, None
            self._new.put(self._meanwhile())
            return
        now = self._clock.now()
        self._known = self._next(last.number + 1, fields, now), now, None
        self._new.put(self._known[0])

    def _next(self, number: int, fields: dict[str, Any] | None, now: float) -> Snapshot:
        """Return the snapshot of an answered poll."""
        if fields is None:
            over = run_state(RunFacts(is_over=True)).fields()
            last = self._latest if self._latest.get("state") == "ended" else {**self._latest, **over}
            return Snapshot(number, last, self._known[0].time, is_over=True)
        if fields["head"] is not None or self._latest.get("run") != fields["run"]:
            self._latest = fields
        if fields["examples"] is not None:
            self._speed.add(now, fields["examples"])
        seconds = self._silence.update({worker["id"]: worker["beat"] for worker in fields["workers"]})
        silent = {id: since for id, since in seconds.items() if since >= _SILENT_SECONDS}
        is_over = fields["state"] == "ended" and fields["master"] is None and not fields["standbys"]
        return Snapshot(number, fields, time.time(), is_over=is_over, speed=self._speed.now, silent=silent)


class Viewer:
    """Shows the snapshots of a run."""

    def show(self, seen: Snapshot) -> bool:
        """Show a snapshot; return whether there is still a reader."""
        raise NotImplementedError

    def close(self) -> None:
        """Restore the terminal; the last snapshot may stay visible."""


def watch(look: Look, *, every: float, close: Callable[[], None], as_json: bool) -> None:
    """Show a run on standard output until it ends: in place on a terminal, else a line for every poll with news.

    Args:
        look, every, close: as for ``StatusPoller``.
        as_json: a line of JSON for every poll, on a terminal too.

    Raises:
        TrackerError: at the beginning there is no run, or it cannot be reached. Dl4jError: other errors of ``look``.
    """
    viewer = _viewer(as_json)
    before = logger.level
    logger.setLevel(logging.ERROR)  # an unreachable tracker is shown; a log line would disturb the display
    try:
        with StatusPoller(look, every=every, close=close) as poller:
            goes_on = True
            while goes_on:
                seen = poller.next(max(SLICE_SECONDS, min(every, 1.0)))
                goes_on = not seen.number or (viewer.show(seen) and not seen.is_over)
    finally:
        logger.setLevel(before)
        viewer.close()


def _viewer(as_json: bool) -> Viewer:
    if as_json:
        return _JsonLines()
    console = Console(file=sys.stdout, highlight=False)
    return Screen(console) if console.is_terminal and not console.is_dumb_terminal else _Lines()


# -- as lines ----------------------------------------------------------------------------------------------------------


class _JsonLines(Viewer):
    """A line of JSON for every poll, answered or not."""

    def __init__(self) -> None:
        self._shown = (0, False, 0)

    def show(self, seen: Snapshot) -> bool:
        """See ``Viewer``."""
        place = (seen.number, seen.error is not None, int(seen.away_seconds))
        if place == self._shown:
            return True
        self._shown = place
        return emit(to_json(_fields(seen)))


def _fields(seen: Snapshot) -> dict[str, Any]:
    """Return a snapshot as one JSON object: that of ``dl4j status``, with fields that a single poll does not know."""
    away = None
    if seen.error is not None:
        away = {"seconds": round(seen.away_seconds, 1), **error_fields(seen.error)}
    stalled = {"state": "stalled", "reason": _flat(str(seen.error))} if seen.error is not None else {}
    return {
        **(seen.fields or {}),
        **stalled,
        "time": seen.time,
        "over": seen.is_over,
        "away": away,
        "examples_per_second": round(seen.speed, 1),
        "silent": {worker: round(seconds, 1) for worker, seconds in seen.silent.items()},
    }


class _Lines(Viewer):
    """A line of text for every poll with news."""

    def __init__(self) -> None:
        self._last, self._is_away = "", False

    def show(self, seen: Snapshot) -> bool:
        """See ``Viewer``."""
        was_away, self._is_away = self._is_away, seen.error is not None
        again = "answers again: " if was_away and not self._is_away else ""
        last, self._last = self._last, _line(seen)
        return self._last == last or emit(f"{_time_of_day(time.time())} {again}{printable(self._last)}")


def _line(seen: Snapshot) -> str:
    """Return a snapshot in one line, which stays the same as long as nothing changes."""
    fields = seen.fields or {}
    if seen.error is not None:
        return f"stalled: no answer since {_time_of_day(seen.time)}, trying again: {_flat(str(seen.error))}"
    if seen.is_over:
        return _ending(fields)
    said = [f"run {fields['run']}: {_flat(RunState(fields['state'], fields['reason']).text())}"]
    if fields["round"] is not None:
        said += [f"round {fields['round']}/{fields['rounds'] or '?'}", counted(fields["examples"], "example")]
        said += [f"{seen.speed:,.0f}/s"] if seen.speed and fields["state"] in GOES_ON else []
        said += [f"score {_score(fields)}"]
    busy = sum(worker["state"] == "working" for worker in fields["workers"])
    said.append(f"{busy}/{counted(len(fields['workers']), 'worker')} busy")
    said.append(_master(fields))
    said += [_flat(fields["waiting"])] if fields["waiting"] else []
    silent = [f"{short_name(worker)} silent" for worker in seen.silent]
    gone = [f"{short_name(w['id'])} {_flat(w['state'])}" for w in fields["workers"] if w["state"].startswith("gone")]
    return ", ".join([*said, *gone, *silent])


def _master(fields: dict[str, Any]) -> str:
    master = fields["master"]
    if master is not None:
        return f"master {_flat(str(master.get('host')))} {master.get('pid')}"
    return "no master: a standby takes over" if fields["standbys"] else "no master"


def _ending(fields: dict[str, Any]) -> str:
    if fields["status"] not in (None, "running"):
        return f"run {fields['run']}: {fields['status']} in round {fields['round']}"
    return f"run {fields['run']} is over, or was stopped: it is not registered any more"


def _score(fields: dict[str, Any]) -> str:
    return "-" if fields["score"] is None else f"{fields['score']:.4f}"


def _flat(text: str) -> str:
    return " ".join(printable(text).split())


def _time_of_day(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


# -- on a terminal -----------------------------------------------------------------------------------------------------


class Screen(Viewer):
    """Lines that are updated in place, and remain visible at the end."""

    def __init__(self, console: Console) -> None:
        self._console, self._panel = console, Panel(console)
        self._has_begun = False

    def show(self, seen: Snapshot) -> bool:
        """See ``Viewer``."""
        lines = rows(seen, self._console.width, self._console.height)
        if self._has_begun:
            self._panel.show(lines)
        else:
            self._has_begun = True
            self._panel.start(lines)
        return True

    def close(self) -> None:
        """See ``Viewer``."""
        if self._has_begun:
            self._panel.stop(leave=True)


def rows(seen: Snapshot, width: int, height: int) -> list[Text]:
    """Return the lines for a terminal of ``width`` columns and ``height`` rows; if rows are few, workers share one."""
    fields = seen.fields or {}
    head, tail = list(_head(seen, fields, min(_MAX_WIDTH, width - 1) - LABEL_WIDTH - 2)), list(_tail(seen, fields))
    workers = _workers(seen, fields, height - 1 - len(head) - len(tail))
    lines = [*head, *workers, *tail][: max(1, height - 1)]
    for line in lines:
        line.truncate(width - 1, overflow="ellipsis")
    return lines


def _head(seen: Snapshot, fields: dict[str, Any], width: int) -> Iterator[Text]:
    if seen.error is not None:
        yield row("no answer", Text(f"for {duration(seen.away_seconds)}, trying again", "yellow"))
        for part in textwrap.wrap(_flat(str(seen.error)), max(8, width))[:_ERROR_LINES]:
            yield row("", Text(part, "yellow"))
    elif seen.is_over:
        yield row("over", Text(_ending(fields)))
    done = (fields["round"] or 0) / (fields["rounds"] or 1)
    state = "stalled" if seen.error is not None else fields["state"]
    yield row(state, bar(min(1.0, done), width))
    if fields["reason"] and seen.error is None:
        yield row("", Text(_flat(fields["reason"]), "" if state == "ended" else "yellow"))
    yield row("run", Text(_flat(f"{fields['run']} (id {fields['id']})")))
    if fields["round"] is not None:
        yield row("round", Text(f"{fields['round']:,} of {fields['rounds'] or '?'}"))
        yield row("examples", Text(f"{fields['examples']:,}{_share(fields)}"))
        yield row(
            "speed",
            Text(f"{seen.speed:,.0f} examples/s{_left(seen, fields)}" if seen.speed and state in GOES_ON else "-"),
        )
        yield row("score", Text(f"{_score(fields)}{_best(fields)}"))
    yield row("master", Text(_master(fields).removeprefix("master "), "" if fields["master"] else "yellow"))
    for standby in fields["standbys"]:
        yield row("standby", Text(_flat(f"{standby.get('host')} {standby.get('pid')}")))
    if fields["waiting"]:
        yield row("waiting", Text(_flat(str(fields["waiting"])).removeprefix("waiting "), "yellow"))


def _share(fields: dict[str, Any]) -> str:
    return "" if fields["total_examples"] is None else f" of {fields['total_examples']:,}"


def _left(seen: Snapshot, fields: dict[str, Any]) -> str:
    if fields["total_examples"] is None or fields["state"] not in GOES_ON:
        return ""
    return f", {duration((fields['total_examples'] - fields['examples']) / seen.speed)} left"


def _best(fields: dict[str, Any]) -> str:
    best = (fields["head"] or {}).get("best")
    return f", best {fields['metric']} {best['score']:.4f} in round {best['round']}" if best else ""


def _workers(seen: Snapshot, fields: dict[str, Any], room: int) -> list[Text]:
    """Return a line for each worker; if they do not fit, one line for the rest."""
    workers = fields["workers"]
    if not workers:
        return [row("workers", Text("none", "yellow"))]
    shown = workers if len(workers) <= room else workers[: max(0, room - 1)]
    lines = [row(short_name(worker["id"]), _doing(worker, seen.silent.get(worker["id"]))) for worker in shown]
    if left := workers[len(shown) :]:
        busy = sum(worker["state"] == "working" for worker in left)
        lines.append(row(f"{len(left)} more", Text(f"{busy} of them working")))
    return lines


def _doing(worker: dict[str, Any], silent: float | None) -> Text:
    job = f" {worker['job']}" if worker["job"] else ""
    device = f", {worker['device']}" if worker["device"] else ""
    late = f"silent for {duration(silent)}, " if silent is not None else ""
    text = (
        f"{late}{worker['state']}{job}, {counted(worker['jobs_done'], 'job')}, {worker['host']} {worker['pid']}{device}"
    )
    return Text(_flat(text), "yellow" if late or worker["state"].startswith("gone") else "")


def _tail(seen: Snapshot, fields: dict[str, Any]) -> Iterator[Text]:
    if fields["failures"]:
        last = fields["failures"][-1]
        where = f"round {last['round']}, slot {last['slot']}, worker {short_name(str(last['worker']))}"
        yield row("failed", Text(_flat(f"{where}: {last['message']}"), "red"))
    yield row("seen", Text(_time_of_day(seen.time)))
