"""``RunFolder``: the checkpoint folder of a run as its leading process uses it, and which errors end the run.

A run depends on its folder only if no other place has the data it needs. A new run is refused a folder that cannot be
written, since the user can still choose another one. A run that is under way, with any master, continues without the
folder: it reports the problem once, and tries again with each checkpoint. Only a run that its tracker has lost needs
its checkpoints: it waits for them, and then ends with an error that names them. It never restarts from the beginning
instead.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dl4jlegacy.errors import CheckpointError, Dl4jError, StorageError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.protocol import SavedState
from dl4jlegacy.scaleout.state.records import Best, Head
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.system.clock import RUNNING, Clock

__all__ = ["CHECKPOINTS", "RunFolder"]

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
_LOOK_SECONDS = 0.5
_SAME_WAIT_SECONDS = 60.0
"""Maximum seconds between two questions of the same wait; after a longer gap a new wait begins."""
T = TypeVar("T")


class RunFolder:
    """A run's use of its checkpoint folder. One thread at a time saves; another one may read meanwhile.

    Args:
        store: of the checkpoints; None: the run keeps none, and all methods do nothing.
        conf: of the run.
        resumes: whether the run is already under way.
        clock: measures waiting times.

    Attributes:
        on_trouble: called with a message, once, when the folder cannot be used.
        on_change: called with ``CHECKPOINTS`` and a message, once, when a checkpoint cannot be written, and with ""
            when one can be written again.
        on_wait: called while the run waits for its checkpoints.
        failed: number of consecutive checkpoints, up to the last, that could not be written.
        troubles: the reason why checkpoints cannot be written; empty if there is no known problem.
    """

    def __init__(
        self, store: CheckpointStore | None, conf: Conf, *, resumes: bool = False, clock: Clock = RUNNING
    ) -> None:
        self._store, self._conf, self._resumes, self._clock = store, conf, resumes, clock
        self.on_trouble: Callable[[str], None] = lambda message: None
        self.on_change: Callable[[str, str], None] = lambda what, message: None
        self.on_wait: Callable[[], None] = lambda: None
        self.failed, self.troubles = 0, dict[str, str]()
        self._is_told = self._has_kept = False
        self._waits_since: float | None = None
        self._asked = float("-inf")

    @property
    def keeps(self) -> bool:
        """Whether the run keeps checkpoints."""
        return self._store is not None

    @property
    def place(self) -> str:
        """The folder, in the form that ``dl4j resume`` accepts; "": there is none."""
        return "" if self._store is None else self._store.place

    def check_unused(self) -> None:
        """Raise ``CheckpointError`` if a new run would use the folder of another run."""
        if self._store is not None and not self._resumes and self._store.versions():
            raise CheckpointError(
                f"{self.place} already holds checkpoints of a run; `dl4j resume {self.place}` goes on with it, or "
                "choose another --checkpoint-dir"
            )

    def take(
        self,
        arithmetic: Callable[[], dict[str, str]],
        made_of: Callable[[], dict[str, str]] = dict,
        *,
        takes_over: bool,
    ) -> None:
        """Take the folder for the run; a run that is under way continues if that is not possible now.

        Args:
            arithmetic, made_of: return the arithmetic of the run, and its components, which are stored with each
                checkpoint.
            takes_over: whether this process takes the run over from another one; the grid may then be more up to date
                than the folder.

        Raises:
            CheckpointError: the folder of a new run cannot be written, or belongs to another run; or the folder of a
                run that is resumed in this process alone belongs to another run, or is in use. CloudError and its like:
                errors reported by a service.
        """
        if self._store is None:
            return
        self._store.arithmetic, self._store.made_of = arithmetic, made_of
        try:
            self._store.keep_conf(self._conf, takes_over=takes_over)
        except Dl4jError as exc:
            if not self._resumes or (_is_verdict(exc) and not takes_over):
                raise
            self._say(f"{exc}. Run {self._conf.run} goes on, and tries it again with each checkpoint")

    def release(self) -> None:
        """Release the lock on the folder."""
        if self._store is not None:
            self._store.release()

    # -- saving --------------------------------------------------------------------------------------------------------

    def keep(self, head: Head, frame: Buffer, best: Buffer | None, states: Mapping[int, SavedState]) -> None:
        """Save a version with ``save``; report a failure once, and not at every version."""
        if head.snapshot is not None and not states:
            logger.warning("no checkpoint is made of version %s, of which a state was lost", head.version)
            return
        try:
            self.save(head, frame, best, states)
        except Dl4jError as exc:
            self.failed += 1
            self._say(str(exc))
            if self.failed == 1:
                self.troubles = {CHECKPOINTS: str(exc)}
                self.on_change(CHECKPOINTS, str(exc))
            return
        if self._is_told:
            logger.warning("checkpoints are written to %s again, after %s that could not be", self.place, self.failed)
        if self.failed:
            self.troubles = {}
            self.on_change(CHECKPOINTS, "")
        self.failed, self._is_told = 0, False

    def save(
        self, head: Head, frame: Buffer, best: Buffer | None, states: Mapping[int, SavedState] | None = None
    ) -> None:
        """Save a version of the model as ``CheckpointStore.save``; raises the same errors, and those of a service."""
        if self._store is not None:
            self._store.save(head, frame, best, states)
            self._has_kept = True

    def kept(self) -> dict[str, Any]:
        """Return the functions of this object for a ``protocol.RunStart``, by the names of its fields."""
        return {"restore": self.restore, "best_model": self.best_model, "states": self.states}

    def has(self, version: int) -> bool:
        """Return whether there is a checkpoint of this version; raises ``StorageError``, and errors of a service."""
        return self._store is not None and version in self._store.versions()

    def is_empty(self) -> bool:
        """Return whether it is certain that there are no checkpoints."""
        with contextlib.suppress(Dl4jError):
            return self._store is None or not self._store.versions()
        return False

    def _say(self, message: str) -> None:
        if not self._is_told:
            logger.warning("%s", message)
            self.on_trouble(message)
        self._is_told = True

    # -- what the tracker may have lost --------------------------------------------------------------------------------

    def made_with(self, field: str = "arithmetic") -> dict[str, str]:
        """Return the arithmetic of the newest checkpoint; empty if there is none, or it is unknown at the moment.

        ``field`` as for ``CheckpointStore.made_with``.
        """
        with contextlib.suppress(Dl4jError):
            return {} if self._store is None else self._store.made_with(field)
        return {}

    def newest(self) -> Head | None:
        """Return the head of the newest good checkpoint, or None. Raises as ``CheckpointStore.newest``."""
        newest = self._newest()
        return None if newest is None else newest[0]

    def begun(self) -> Head | None:
        """Return the same as ``newest``, or None if that is unknown at the moment."""
        with contextlib.suppress(Dl4jError):
            return self.newest()
        return None

    def restore(self) -> tuple[Head, Buffer] | None:
        """Return the newest good checkpoint; None if the run has kept none.

        Raises:
            StorageError: unknown at the moment; the run must ask again.
            CheckpointError: the answer was unknown for too long, or every checkpoint is damaged. Either ends the run.
        """
        return self._ask(self._newest)

    def wait_for_newest(self) -> tuple[Head, Buffer] | None:
        """Wait until ``restore`` has an answer, and return it; raises ``CheckpointError`` like ``restore``."""
        while True:
            with contextlib.suppress(StorageError):
                return self.restore()
            time.sleep(_LOOK_SECONDS)

    def best_model(self, best: Best) -> Buffer | None:
        """Return a best model; None if the checkpoints do not have it. Raises as ``restore``."""
        store = self._store
        return None if store is None else self._ask(lambda: store.best_model(best))

    def states(self, head: Head) -> dict[int, SavedState] | None:
        """Return the slot states that belong to a restored head; None if they are damaged. Raises as ``restore``."""
        store = self._store
        return None if store is None else self._ask(lambda: store.states(head))

    def _newest(self) -> tuple[Head, Buffer] | None:
        newest = None if self._store is None else self._store.newest()
        if newest is None and self._has_kept:
            raise StorageError(f"none of the checkpoints of run {self._conf.run} is in {self.place} any more")
        self._has_kept = self._has_kept or newest is not None
        return newest

    def _ask(self, question: Callable[[], T]) -> T:
        """Return the folder's answer to a question; raises as ``restore`` if the folder cannot be read."""
        if self._clock.now() - self._asked > _SAME_WAIT_SECONDS:
            self._waits_since = None  # the run continued meanwhile: another master had the data
        try:
            answer = question()
            self._waits_since = None
        except Dl4jError as exc:
            if _is_verdict(exc):
                raise
            raise self._unanswered(exc) from exc
        finally:
            self._asked = self._clock.now()
        return answer

    def _unanswered(self, error: Dl4jError) -> CheckpointError:
        """Return the error to raise if the folder cannot be read and the tracker has lost the run."""
        run, now, most = self._conf.run, self._clock.now(), self._conf.worker_wait_seconds
        self.on_wait()
        if self._waits_since is None:
            self._waits_since = now
            message = f"run {run} needs its checkpoints, and waits for them, up to {most:.0f} s: {error}"
            logger.warning("%s", message)
            self.on_trouble(message)
        if now - self._waits_since < most:
            return StorageError(str(error))
        return CheckpointError(
            f"run {run} cannot go on: the tracker has lost it, and its checkpoints could not be read for {most:.0f} s: "
            f"{error}. When they are there again, continue it with dl4j resume"
        )


def _is_verdict(error: Dl4jError) -> bool:
    """Return whether an error is about the folder's contents and not about access to it: waiting does not help."""
    return isinstance(error, CheckpointError) and not isinstance(error, StorageError)
