"""A run's statistics as a trace in the format of Chrome's tracing, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import Any

from dl4jlegacy.scaleout.monitoring.stats import TrainingStats, side_of

__all__ = ["chrome_trace", "lanes"]

Lane = tuple[str, str, str]
"""A machine, a process and a thread."""


def lanes(stats: TrainingStats) -> list[Lane]:
    """Return the threads of a run: those of the master's process first, then sorted by machine, process and thread."""
    found = {(event.machine, event.process, event.thread) for event in stats.events}
    leaders = {(machine, process) for machine, process, thread in found if thread == "master"}
    return sorted(found, key=lambda lane: (lane[:2] not in leaders, *lane[:2], _in_numbers(lane[2])))


def _in_numbers(thread: str) -> tuple[str, int, str]:
    """Return a sort key by which ``worker-10`` comes after ``worker-9``."""
    name, _, number = thread.rpartition("-")
    return (name, int(number), thread) if number.isdecimal() and len(number) < 10 else (thread, 0, thread)


def chrome_trace(stats: TrainingStats) -> dict[str, Any]:
    """Return the trace as a JSON object: a complete event (``X``) per phase, times in microseconds from the first.

    Processes and threads have numbers, as the format requires, and names.
    """
    order = lanes(stats)
    processes = {process: number for number, process in enumerate(dict.fromkeys(lane[:2] for lane in order), 1)}
    threads = {lane: number for number, lane in enumerate(order, 1)}
    first = stats.events[0].start if stats.events else 0.0
    events: list[dict[str, Any]] = []
    for (machine, process), number in processes.items():
        events.append(_name("process_name", f"{machine}: {process}", pid=number))
    for lane, number in threads.items():
        events.append(_name("thread_name", lane[2], pid=processes[lane[:2]], tid=number))
    for event in stats.events:
        lane = (event.machine, event.process, event.thread)
        events.append(
            {
                "name": event.phase,
                "cat": side_of(event.phase) or "other",
                "ph": "X",
                "ts": round(1e6 * (event.start - first), 1),
                "dur": round(1e6 * event.seconds, 1),
                "pid": processes[lane[:2]],
                "tid": threads[lane],
                "args": {"round": event.round, "slot": event.slot},
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _name(kind: str, name: str, **where: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "args": {"name": name}, **where}
