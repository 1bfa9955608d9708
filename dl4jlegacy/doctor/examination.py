"""Does the checks: those that wait side by side, the others one after the other, each under its deadline.

One thread (the caller's) knows what is under way and decides; each check runs on a thread of its own, which is left to
itself when the check's deadline has passed. A check that raises is a failed check, and the others go on.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dl4jlegacy.doctor.check import Check, Finding, Result, Settings, failed, of_error, one_line, skipped
from dl4jlegacy.doctor.mending import mend
from dl4jlegacy.errors import Dl4jError, counted
from dl4jlegacy.system.clock import RUNNING, SLICE_SECONDS, Deadline
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["examine"]

logger = logging.getLogger(__name__)

_WORKS = ("ok", "warning")


def examine(checks: Sequence[Check], settings: Settings, *, fix: bool = False) -> Iterator[Result]:
    """Do the checks and yield their results, in their order, each as soon as it and those before it are there.

    Args:
        checks: in an order in which each comes after those that it ``needs``.
        settings: what they are about.
        fix: whether to do what findings offer as their ``mend``, and then look again.
    """
    under_way = _UnderWay(settings, fix=fix)
    waiting, results = list(checks), dict[str, Result]()
    for check in checks:
        while check.name not in results:
            waiting = under_way.start(waiting, results)
            for result in under_way.finished():
                results[result.name] = result
        yield results[check.name]


class _Answer(NamedTuple):
    """What a check's thread says at its end."""

    check: Check
    finding: Finding
    mended: str
    seconds: float


class _UnderWay:
    """The checks whose threads run. Used by one thread."""

    def __init__(self, settings: Settings, *, fix: bool) -> None:
        self._settings, self._fix = settings, fix
        self._deadlines: dict[str, tuple[Check, Deadline]] = {}
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._settled: list[Result] = []
        self._reasons: dict[str, str] = {}

    def start(self, waiting: Sequence[Check], results: dict[str, Result]) -> list[Check]:
        """Start what can be started now, and settle what has nothing to look at; return the others."""
        others = []
        for check in waiting:
            missing = [name for name in check.needs if name in results and results[name].status not in _WORKS]
            if missing:
                reason = self._reason(results[missing[0]])
                self._reasons[check.name] = reason
                self._settled.append(self._result(_Answer(check, skipped(reason), "", 0.0)))
            elif any(name not in results for name in check.needs) or not (check.is_waiting or self._is_free()):
                others.append(check)
            else:
                self._begin(check)
        return others

    def _begin(self, check: Check) -> None:
        try:
            ServiceThread(target=self._look, args=(check,), name=f"doctor {check.name}").start()
        except RuntimeError as exc:  # the very limit that another check is about
            finding = failed(f"no thread could be started for it: {exc}", "let more threads be started: ulimit -u")
            self._settled.append(self._result(_Answer(check, finding, "", 0.0)))
        else:
            self._deadlines[check.name] = (check, Deadline(check.seconds))

    def finished(self) -> list[Result]:
        """Return what has come to its end, or to its deadline; waits a moment for it if there is nothing yet."""
        found, self._settled = self._settled, []
        try:
            answer = self._answers.get(timeout=0.0 if found else SLICE_SECONDS)
            if self._deadlines.pop(answer.check.name, None) is not None:  # else its deadline has passed before
                found.append(self._result(answer))
        except queue.Empty:
            found += [self._late(check) for check, deadline in list(self._deadlines.values()) if deadline.passed()]
        return found

    def _reason(self, missing: Result) -> str:
        """Return why a check that needs ``missing`` has nothing to look at: the first cause, not what followed."""
        why = f"{missing.name} has failed" if missing.status == "failed" else f"{missing.name}: {missing.found}"
        return self._reasons.get(missing.name, why)

    def _is_free(self) -> bool:
        """Return whether none is under way that computes."""
        return all(check.is_waiting for check, _ in self._deadlines.values())

    def _late(self, check: Check) -> Result:
        del self._deadlines[check.name]
        found = f"it had not come to its end after {counted(round(check.seconds), 'second')}"
        remedy = "see what it looks at (a disk, a server, a device) for what does not answer, and try again"
        return self._result(_Answer(check, failed(found, remedy), "", check.seconds))

    def _look(self, check: Check) -> None:
        """Do a check, on a thread of its own; with ``fix`` a second time after something was mended."""
        began, mended = RUNNING.now(), ""
        finding = _look(check, self._settings)
        if self._fix and finding.mend is not None:
            try:
                mended = mend(finding.mend)
                finding = _look(check, self._settings)
            except OSError as exc:
                found = f"{finding.found}; it cannot be mended: {exc.filename}: {exc.strerror or exc}"
                finding = failed(found, finding.remedy)
        self._answers.put(_Answer(check, finding, mended, RUNNING.now() - began))

    def _result(self, answer: _Answer) -> Result:
        check, finding = answer.check, answer.finding
        return Result(
            name=check.name,
            area=check.area,
            status=finding.status,
            found=finding.found,
            remedy=finding.remedy,
            needed=check.is_needed(self._settings),
            mended=answer.mended,
            seconds=round(answer.seconds, 3),
        )


def _look(check: Check, settings: Settings) -> Finding:
    try:
        return check.look(settings)
    except Dl4jError as exc:
        return of_error(exc)
    except BaseException as exc:  # whatever it was, the other checks have something to say
        logger.info("check %s failed itself", check.name, exc_info=True)
        what = one_line(f"{type(exc).__name__}: {exc}")
        return failed(f"the check itself failed: {what}", "this may be a bug in dl4jlegacy: report it, with this line")
