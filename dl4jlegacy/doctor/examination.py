"""Runs the checks: waiting ones concurrently, the others one after the other, each with its deadline.

Each check runs on a thread of its own, which is abandoned at the check's deadline. A check that raises has failed, and
the others go on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence

from dl4jlegacy.doctor.check import Check, Finding, Result, Settings, failed, of_error, one_line, skipped
from dl4jlegacy.errors import Dl4jError, counted
from dl4jlegacy.system.clock import RUNNING, Deadline
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["examine"]

logger = logging.getLogger(__name__)


def examine(checks: Sequence[Check], settings: Settings, *, fix: bool = False) -> Iterator[Result]:
    """Run the checks and yield their results in order, each as soon as possible.

    Args:
        checks: each after the check that it needs.
        settings: the subject of the checks.
        fix: create and remove what findings name, and then check again.
    """
    begun = {each.name: _Examination(each, settings, fix) for each in checks if each.is_waiting and not each.need}
    results = dict[str, Result]()
    for check in checks:
        before = results.get(check.need)
        if before is not None and before.status in ("failed", "skipped"):
            why = f"{before.name} has failed" if before.status == "failed" else before.found
            result = _result(check, settings, skipped(why))
        else:
            result = (begun.get(check.name) or _Examination(check, settings, fix)).result()
        results[check.name] = result
        yield result


class _Examination:
    """A running check, on a thread of its own."""

    def __init__(self, check: Check, settings: Settings, fix: bool) -> None:
        self._check, self._settings, self._fix = check, settings, fix
        self._found: Result | None = None
        self._is_done, self._deadline = threading.Event(), Deadline(check.seconds)
        try:
            ServiceThread(target=self._run, name=f"doctor {check.name}").start()
        except RuntimeError as exc:
            finding = failed(f"no thread could be started for it: {exc}", "let more threads be started: ulimit -u")
            self._end(finding)

    def result(self) -> Result:
        """Return the result; waits at most until the check's deadline."""
        self._deadline.wait(self._is_done.wait)
        if self._found is not None:
            return self._found
        late = f"it had not come to its end after {counted(round(self._check.seconds), 'second')}"
        remedy = "see what it looks at (a disk, a server, a device) for what does not answer, and try again"
        return _result(self._check, self._settings, failed(late, remedy), seconds=self._check.seconds)

    def _run(self) -> None:
        began, mended = RUNNING.now(), ""
        finding = _finding(self._check, self._settings)
        if self._fix and (finding.creates or finding.removes):
            try:
                mended = _mend(finding)
                finding = _finding(self._check, self._settings)
            except OSError as exc:
                why = f"{finding.found}; it cannot be mended: {exc.filename}: {exc.strerror or exc}"
                finding = failed(why, finding.remedy)
        self._end(finding, mended, round(RUNNING.now() - began, 3))

    def _end(self, finding: Finding, mended: str = "", seconds: float = 0.0) -> None:
        self._found = _result(self._check, self._settings, finding, mended, seconds)
        self._is_done.set()


def _result(check: Check, settings: Settings, finding: Finding, mended: str = "", seconds: float = 0.0) -> Result:
    return Result(
        name=check.name,
        area=check.area,
        status=finding.status,
        found=finding.found,
        remedy=finding.remedy,
        needed=bool(check.is_needed(settings)),
        mended=mended,
        seconds=seconds,
    )


def _finding(check: Check, settings: Settings) -> Finding:
    try:
        return check.look(settings)
    except Dl4jError as exc:
        return of_error(exc)
    except BaseException as exc:  # the other checks go on, whatever the error was
        logger.info("check %s failed itself", check.name, exc_info=True)
        what = one_line(f"{type(exc).__name__}: {exc}")
        return failed(f"the check itself failed: {what}", "this may be a bug in dl4jlegacy: report it, with this line")


def _mend(finding: Finding) -> str:
    """Create and remove what a finding names; return the changes in words."""
    for folder in finding.creates:
        folder.mkdir(parents=True, exist_ok=True)
    for file in finding.removes:
        file.unlink(missing_ok=True)  # removes a link itself, and never its target
    done = [f"created {os.fspath(folder)}" for folder in finding.creates]
    if finding.removes:
        places = ", ".join(sorted({os.fspath(file.parent) for file in finding.removes}))
        done.append(f"removed {counted(len(finding.removes), 'damaged file')} from {places}")
    return "; ".join(done)
