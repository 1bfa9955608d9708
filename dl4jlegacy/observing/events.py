"""Sends a run's events to a command or a web address, each as a JSON object.

Events are the entries of the run's journal and the changes of its state. A run in one process has no journal; its
events are the changes of its state and the jobs that failed. A receiver cannot harm the run: events wait in a bounded
queue and are sent by a thread per receiver, each with a deadline. Events that cannot be sent are lost, with a warning.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from dl4jlegacy.errors import Dl4jError, UsageError
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun, RunObserver
from dl4jlegacy.scaleout.monitoring.run_state import RunFacts, RunState, ending_of, run_state
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.scaleout.state.records import Failure
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread
from dl4jlegacy.system.strict_json import to_json

__all__ = ["Command", "EventObserver", "Receiver", "Webhook"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_MOST_WAITING = 200
"""Most events that wait for a receiver; beyond this number the oldest are lost, and the next event reports how many."""
_COMMAND_SECONDS, _REQUEST_SECONDS, _CLOSE_SECONDS = 10.0, 5.0, 15.0
_PAUSES = (1.0, 3.0)
"""Seconds before a failed request is sent again."""
_SECRETS = ("DL4J_SECRET", "DL4J_WEBHOOK")
"""Environment variables that commands do not get."""


class Receiver(ABC):
    """Receives events, on a thread of its own."""

    name: str
    """Name of the receiver in messages, without secrets."""

    @abstractmethod
    def tell(self, event: bytes, pause: Callable[[float], bool]) -> str:
        """Send an event; return the reason of a failure, or "". Does not raise; has a deadline.

        Args:
            event: as JSON.
            pause: waits the given number of seconds; returns True if the run ended meanwhile.
        """


class Command(Receiver):
    """A command that is started, without a shell, for each event, with the event on its standard input.

    Args:
        words: the command and its arguments, quoted as for a shell.
        seconds: its deadline; then it is killed, with the processes that it has started.

    Raises:
        UsageError: the quotes are not closed, or it is empty.
    """

    def __init__(self, words: str, seconds: float = _COMMAND_SECONDS) -> None:
        try:
            self._words = shlex.split(words)
        except ValueError as exc:
            raise UsageError(f"--on-event cannot be read as a command: {exc}; close its quotes") from exc
        if not self._words:
            raise UsageError("--on-event is empty; give a command")
        self.name, self._seconds = f"the command {self._words[0]}", seconds

    def tell(self, event: bytes, pause: Callable[[float], bool]) -> str:
        """See ``Receiver``."""
        env = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        quiet = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=env, start_new_session=True
            )
        except (OSError, ValueError) as exc:
            return f"it cannot be started: {exc}"
        with process:
            try:
                process.communicate(event, timeout=self._seconds)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"it was not done after {self._seconds:g} s, and was killed"
            except OSError as exc:  # the command does not read its input, which is fine if it succeeds
                logger.debug("%s: %s", self.name, exc)
        return "" if process.returncode == 0 else f"it ended with exit status {process.returncode}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follow no redirect."""
        return


class Webhook(Receiver):
    """A web address that gets each event by POST; a failed request is repeated, at most twice.

    Args:
        url: http or https; messages name its host only.
        seconds: deadline of each request.
        pauses: seconds before each further attempt.

    Raises:
        UsageError: the url is no such address.
    """

    def __init__(self, url: str, seconds: float = _REQUEST_SECONDS, pauses: Sequence[float] = _PAUSES) -> None:
        try:
            parts = urlsplit(url)
            is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_one = False
        if not is_one or not url.isascii() or any(character <= " " for character in url):
            raise UsageError("--webhook is no address; it must begin with http:// or https://, and name a host")
        self._url, self._seconds, self._pauses = url, seconds, pauses
        self.name = f"the webhook at {parts.hostname}"
        self._opener = urllib.request.build_opener(_NoRedirects())

    def tell(self, event: bytes, pause: Callable[[float], bool]) -> str:
        """See ``Receiver``."""
        for seconds in (*self._pauses, None):
            said, is_lasting = self._post(event)
            if not said or is_lasting or seconds is None or pause(seconds):
                return said
        raise AssertionError("the last pause is None")

    def _post(self, event: bytes) -> tuple[str, bool]:
        """Return the reason of a failed request, or "", and whether another attempt would be useless."""
        headers = {"content-type": "application/json", "user-agent": "dl4jlegacy"}
        request = urllib.request.Request(self._url, event, headers, method="POST")  # checked above
        try:
            with self._opener.open(request, timeout=self._seconds) as answer:
                answer.read(1)
            return "", True
        except urllib.error.HTTPError as exc:
            exc.close()
            return f"it answers {exc.code}", exc.code < 500 and exc.code != 429
        except (OSError, http.client.HTTPException, ValueError) as exc:  # its text may contain the address
            return f"it cannot be reached ({type(exc).__name__})", False


class _Queue:
    """Events for one receiver, and the thread that sends them."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_MOST_WAITING)
        """Numbered events; a gap in the numbers shows how many were lost."""
        self._lock, self._news, self._closed = threading.Lock(), threading.Event(), threading.Event()
        self._given_up = threading.Event()
        self._added, self._has_failed = 0, False
        self._thread = ServiceThread(target=self._run, name="dl4j-event-sender")
        self._thread.start()

    def put(self, event: dict[str, Any]) -> None:
        """Queue an event for sending; does not wait."""
        with self._lock:
            self._added += 1
            self._waiting.append((self._added, event))
        self._news.set()

    def close(self, deadline: Deadline) -> None:
        """Send the remaining events, until the deadline."""
        self._closed.set()
        self._news.set()
        self._thread.join(max(0.0, deadline.left()))
        self._given_up.set()
        self._thread.join(0.1)
        left = len(self._waiting) + self._thread.is_alive()
        if left:
            logger.warning("%s did not get the last %d events", self.receiver.name, left)

    def _run(self) -> None:
        sent, is_last = 0, False
        while not is_last:
            self._news.wait()
            self._news.clear()
            is_last = self._closed.is_set()
            while self._waiting and not self._given_up.is_set():
                number, event = self._waiting.popleft()
                lost, sent = number - sent - 1, number
                self._send(event | ({"events_lost": lost} if lost else {}))

    def _send(self, event: dict[str, Any]) -> None:
        try:
            with exits_as_errors():
                why = self.receiver.tell(to_json(event).encode(errors="replace"), self._given_up.wait)
        except Exception as exc:  # noqa: BLE001  # an event that is not JSON, or a bug; later events may still be sent
            why = type(exc).__name__
        if why and not self._has_failed:
            logger.warning("%s was not told of an event: %s; the run goes on (said once)", self.receiver.name, why)
        self._has_failed = self._has_failed or bool(why)


class EventObserver(RunObserver):
    """Sends the events of the runs that it follows, in the master's process.

    Args:
        receivers: each has a thread of its own during a run.
    """

    def __init__(self, receivers: Sequence[Receiver]) -> None:
        self._receivers = tuple(receivers)
        self._queues: tuple[_Queue, ...] = ()
        self._run: ObservedRun | None = None
        self._over = threading.Event()
        self._thread: ServiceThread | None = None

    def begin(self, run: ObservedRun) -> None:
        """See ``RunObserver``."""
        self._run, self._over = run, threading.Event()
        self._queues = tuple(_Queue(receiver) for receiver in self._receivers)
        self._thread = ServiceThread(target=self._watch, name="dl4j-events")
        self._thread.start()

    def happened(self, entries: Sequence[JournalEntry]) -> None:
        """See ``RunObserver``; state changes are not taken from the journal, where they appear later."""
        for entry in entries:
            if entry.event != "state_changed":
                fields = {name: value for name, value in entry.flat().items() if name not in ("traceback", "event")}
                self._put(entry.event, **fields)

    def job_failed(self, slot: tuple[int, int], failure: Failure) -> None:
        """See ``RunObserver``; on a cluster the journal contains failed jobs."""
        if self._run is not None and isinstance(self._run.tracker, InMemoryStateTracker):
            fields = {"code": failure.code, "message": failure.message, "worker": failure.worker}
            self._put("job_failed", round=slot[0], slot=slot[1], **fields)

    def end(self) -> None:
        """See ``RunObserver``."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        deadline = Deadline(_CLOSE_SECONDS)
        queues, self._queues = self._queues, ()
        for queue in queues:
            queue.close(deadline)

    def _put(self, event: str, **fields: Any) -> None:
        run = "" if self._run is None else self._run.conf.run
        for queue in self._queues:
            queue.put({"event": event, "run": run, "time": time.time(), **fields})

    def _state(self, is_last: bool) -> RunState:
        """Return the state of the run; its end is read from its tracker."""
        assert self._run is not None
        head = self._run.tracker.head() if is_last else None
        if head is None or head.status == "running":
            return self._run.state()
        return run_state(RunFacts(status=head.status, ending=ending_of(head)))

    def _watch(self) -> None:
        before = RunState("waiting")
        while True:
            is_last = self._over.wait(_LOOK_SECONDS)
            with contextlib.suppress(Dl4jError):
                state = self._state(is_last)
                if state != before and (state.state != before.state or state.state == "degraded"):
                    self._put("state_changed", **state.fields(), before=before.state)
                    before = state
            if is_last:
                return
