"""``/api/v1``: the state of a run, as JSON and as an event stream, and the actions on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.system.admission import most_connections
from dl4jlegacy.system.clock import RUNNING
from dl4jlegacy.ui.endpoints import Endpoint, Panel, Parameter, Refused, Values, json_response, steered
from dl4jlegacy.ui.view import Away, HistoryPoint, JobView, RunView, View, WorkerView, history_points

__all__ = ["ENDPOINTS", "log_text", "save_model"]

_LOG_LINES, _EVENTS, _POINTS = 200, 200, 1000
_MOST_STREAMS = min(64, most_connections("dashboard") // 2)
_BEAT_SECONDS, _LOOK_SECONDS = 15.0, 1.0


async def _run(panel: Panel, values: Values) -> Response:
    view = panel.watcher.view
    return json_response({"run": view.run, **_around(view)})


def _around(view: View) -> dict[str, Any]:
    """Return the common fields of an answer: source, age, errors and available actions."""
    return {
        "source": view.source,
        "read_at": view.read_at,
        "away": view.away,
        "notices": view.notices,
        "can": view.can,
    }


async def _workers(panel: Panel, values: Values) -> Response:
    view = panel.watcher.view
    return json_response({"workers": view.workers, **_around(view)})


async def _jobs(panel: Panel, values: Values) -> Response:
    view = panel.watcher.view
    return json_response({"jobs": view.jobs, **_around(view)})


async def _history(panel: Panel, values: Values) -> Response:
    history, view = panel.watcher.history, panel.watcher.view
    points = history_points(history, values["points"], values["after"])
    return json_response({"history": points, "versions": len(history), "is_observed": view.is_observed})


async def _events(panel: Panel, values: Values) -> Response:
    entries = [
        entry for entry in panel.watcher.events if entry.key > values["after"] and values["event"] in ("", entry.event)
    ]
    newest = entries[-values["limit"] :] if values["limit"] else []
    return json_response({"events": [{**entry.flat(), "key": entry.key} for entry in newest], "entries": len(entries)})


async def _log(panel: Panel, values: Values) -> Response:
    return PlainTextResponse(log_text(panel.watcher.events, values["lines"]))


def log_text(entries: Sequence[JournalEntry], lines: int) -> str:
    """Return the last lines of the journal, as ``dl4j logs`` prints them."""
    newest = entries[-lines:] if lines else []  # each entry has at least one line
    text = "\n".join(entry.text() for entry in newest).splitlines()
    return "".join(f"{line}\n" for line in text[-lines:]) if lines else ""


async def _stream(panel: Panel, values: Values) -> Response:
    if panel.streams >= _MOST_STREAMS:
        raise Refused(429, f"{panel.streams} pages follow this run already; close some")
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(_events_of(panel), media_type="text/event-stream", headers=headers)


async def _events_of(panel: Panel) -> AsyncIterator[bytes]:
    """Yield every view as a server-sent event ``view``; a slow reader gets only the last of the views it missed."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    panel.streams += 1
    try:
        with panel.watcher.told(lambda: _wake(loop, news)):
            number, said = -1, RUNNING.now()
            while not panel.is_closing():
                news.clear()
                view = panel.watcher.view
                if view.number != number:
                    number, said = view.number, RUNNING.now()
                    yield b"event: view\ndata: " + msgspec.json.encode(view) + b"\n\n"
                elif RUNNING.now() - said > _BEAT_SECONDS:
                    said = RUNNING.now()
                    yield b": still here\n\n"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await news.wait()
    finally:
        panel.streams -= 1


def _wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the server has ended
        loop.call_soon_threadsafe(news.set)


async def _stop(panel: Panel, values: Values) -> Response:
    return json_response({"status": await steered(panel, panel.watcher.source.stop)})


async def _drain(panel: Panel, values: Values) -> Response:
    return json_response({"status": await steered(panel, lambda: panel.watcher.source.drain(values["worker"]))})


async def _save(panel: Panel, values: Values) -> Response:
    return json_response({"status": await save_model(panel)})


async def save_model(panel: Panel) -> str:
    """Save the newest stored model in a file named after run and round; return where, in words."""
    run = panel.watcher.view.run
    if run is None:
        raise Refused(409, "nothing is known of the run yet")
    name = "".join(each if each.isalnum() or each in "-_." else "-" for each in run.run).lstrip(".") or "run"
    out = Path(panel.folder) / f"{name}-round-{run.round}.zip"
    return await steered(panel, lambda: panel.watcher.source.save(str(out)))


_AFTER_KEY = Parameter(name="after", text="Only entries with a greater key; keys grow with time.", default="")
_STEERS = {200: "done", 409: "not possible: why"}
_AROUND = {
    "source": str,
    "read_at": float | None,
    "away": Away | None,
    "notices": list[str],
    "can": list[str],
}

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/api/v1/run",
        handler=_run,
        summary="Where the run is.",
        shape={"run": RunView | None, **_AROUND},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/workers",
        handler=_workers,
        summary="The workers, and what each does.",
        shape={"workers": list[WorkerView], **_AROUND},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/jobs",
        handler=_jobs,
        summary="The jobs of the present round.",
        shape={"jobs": list[JobView], **_AROUND},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/history",
        handler=_history,
        summary="The versions of the model: scores, validations, speed.",
        shape={"history": list[HistoryPoint], "versions": int, "is_observed": bool},
        parameters=(
            Parameter(name="after", text="Only versions after this one.", kind="integer", default=-1, least=-1),
            Parameter(
                name="points",
                text="So many points at most; each stands for some versions in a row.",
                kind="integer",
                default=_POINTS,
                least=1,
                most=100_000,
            ),
        ),
    ),
    Endpoint(
        method="GET",
        path="/api/v1/events",
        handler=_events,
        summary="The run's journal: who came and went, what failed, who took over.",
        shape={"events": list[dict[str, Any]], "entries": int},
        parameters=(
            _AFTER_KEY,
            Parameter(name="event", text="Only entries of this kind, such as worker_gone.", default=""),
            Parameter(name="limit", text="The newest so many.", kind="integer", default=_EVENTS, least=0, most=100_000),
        ),
    ),
    Endpoint(
        method="GET",
        path="/api/v1/log",
        handler=_log,
        summary="The end of the journal as text, tracebacks included.",
        parameters=(
            Parameter(name="lines", text="So many.", kind="integer", default=_LOG_LINES, least=0, most=100_000),
        ),
        media="text/plain",
    ),
    Endpoint(
        method="GET",
        path="/api/v1/stream",
        handler=_stream,
        summary="Server-sent events: one named view whenever the run was looked at.",
        answers={200: "events, until the connection ends", 429: "too many follow the run"},
        media="text/event-stream",
    ),
    Endpoint(
        method="POST",
        path="/api/v1/stop",
        handler=_stop,
        summary="Stop the run, as dl4j stop does.",
        answers=_STEERS,
        shape={"status": str},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/workers/{worker}/drain",
        handler=_drain,
        summary="Ask the process of a worker to leave when it has finished and committed its jobs.",
        parameters=(Parameter(name="worker", text="The worker, by its id.", place="path"),),
        answers=_STEERS,
        shape={"status": str},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/save",
        handler=_save,
        summary="Write the newest checkpoint as a model, into the folder in which the dashboard was started.",
        answers=_STEERS,
        shape={"status": str},
    ),
)
