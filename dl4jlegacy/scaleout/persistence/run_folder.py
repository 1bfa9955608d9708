"""``RunFolder``: the folder of a run's checkpoints as the process that leads the run uses it; what of it ends the run.

A run depends on its folder only where nothing else has what it needs. So a new run is refused a folder that it cannot
write, where somebody can choose another one; and a run that is under way, whoever leads it, and however that became its
master, goes on without: it says so once, and tries again with each checkpoint. Only a run that its tracker has lost
needs its checkpoints: it waits for them, and then ends with an error that names them. It never begins anew instead.
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
"""Who waits asks more often than that."""
T = TypeVar("T")


class RunFolder:
    """What a run keeps in its folder. Saved to by one thread at a time; another one may read meanwhile.

    Args:
        store: of the checkpoints; None: the run keeps none, and nothing is done here.
        conf: the run's.
        resumes: whether the run goes on from before: it is under way.
        clock: for how long is waited.

    Attributes:
        on_trouble: called with a message, once, when the folder cannot be used.
        on_change: called with ``CHECKPOINTS`` and a message, once, when a checkpoint cannot be written, and with ""
            when one can again.
        on_wait: called while the run waits for its checkpoints.
        failed: so many checkpoints in a row, up to the last, could not be written.
        troubles: that checkpoints cannot be written, and why; empty: they can, as far as is known.
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
        """Where, in the form that ``dl4j resume`` accepts; "": nowhere."""
        return "" if self._store is None else self._store.place

    def check_unused(self) -> None:
        """Refuse a new run the folder of another one; raises ``CheckpointError``."""
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
        """Take the folder for the run; one that is under way goes on without if that cannot be done now.

        Args:
            arithmetic, made_of: return what the run is computed with, and what it is made of, to be written down with
                each checkpoint.
            takes_over: whether this process leads the run of another one, which the grid may know better than the
                folder does.

        Raises:
            CheckpointError: the folder of a new run cannot be written, or is another's; that of one that is resumed
                in this process alone is another's, or in use. CloudError and its like: what a service says.
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
        """Let others use the folder."""
        if self._store is not None:
            self._store.release()

    # -- saving --------------------------------------------------------------------------------------------------------

    def keep(self, head: Head, frame: Buffer, best: Buffer | None, states: Mapping[int, SavedState]) -> None:
        """Save a version as ``save`` does; if that fails, say so once, not at every version until somebody looks."""
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
        """Save a version of the model as ``CheckpointStore.save``; raises as that, and what a service says."""
        if self._store is not None:
            self._store.save(head, frame, best, states)
            self._has_kept = True

    def kept(self) -> dict[str, Any]:
        """Return what a ``protocol.RunStart`` is given of this, by the names of its fields."""
        return {"restore": self.restore, "best_model": self.best_model, "states": self.states}

    def has(self, version: int) -> bool:
        """Return whether there is a checkpoint of this version; raises ``StorageError``, and what a service says."""
        return self._store is not None and version in self._store.versions()

    def is_empty(self) -> bool:
        """Return whether it is known that there are no checkpoints."""
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
        """Return what the newest checkpoint was computed with; empty if there is none, or that is unknown now.

        ``field`` as for ``CheckpointStore.made_with``.
        """
        with contextlib.suppress(Dl4jError):
            return {} if self._store is None else self._store.made_with(field)
        return {}

    def newest(self) -> Head | None:
        """Return the head of the newest good checkpoint; None if there is none. Raises as that of the store."""
        newest = self._newest()
        return None if newest is None else newest[0]

    def begun(self) -> Head | None:
        """Return what ``newest`` does, and None if that is unknown now."""
        with contextlib.suppress(Dl4jError):
            return self.newest()
        return None

    def restore(self) -> tuple[Head, Buffer] | None:
        """Return the newest good checkpoint; None if the run has kept none.

        Raises:
            StorageError: that is unknown now; the run is to ask again.
            CheckpointError: it was to for too long, or every checkpoint is damaged. Either ends the run.
        """
        return self._ask(self._newest)

    def wait_for_newest(self) -> tuple[Head, Buffer] | None:
        """Return what ``restore`` does, as soon as that can be told; raises ``CheckpointError`` as that does."""
        while True:
            with contextlib.suppress(StorageError):
                return self.restore()
            time.sleep(_LOOK_SECONDS)

    def best_model(self, best: Best) -> Buffer | None:
        """Return a best model; None if the checkpoints do not have it. Raises as ``restore``."""
        store = self._store
        return None if store is None else self._ask(lambda: store.best_model(best))

    def states(self, head: Head) -> dict[int, SavedState] | None:
        """Return the states of the slots that belong to a restored head; None if they are damaged. Raises likewise."""
        store = self._store
        return None if store is None else self._ask(lambda: store.states(head))

    def _newest(self) -> tuple[Head, Buffer] | None:
        newest = None if self._store is None else self._store.newest()
        if newest is None and self._has_kept:
            raise StorageError(f"none of the checkpoints of run {self._conf.run} is in {self.place} any more")
        self._has_kept = self._has_kept or newest is not None
        return newest

    def _ask(self, question: Callable[[], T]) -> T:
        """Return the answer of the folder, which may have to be waited for; raises as ``restore``."""
        if self._clock.now() - self._asked > _SAME_WAIT_SECONDS:
            self._waits_since = None  # the run has gone on since then: another master had what it needed
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
        """Return what is raised if the folder cannot be read, and the tracker has lost the run."""
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
    """Return whether an error is about what is in the folder, and not about reaching it: waiting helps nobody."""
    return isinstance(error, CheckpointError) and not isinstance(error, StorageError)
