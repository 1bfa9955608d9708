"""What a run's answer depends on besides its Conf and its data sets: its first model, its jobs, and its own code.

==================== ============================================= ==============================================
what                 who compares it                               another one
==================== ============================================= ==============================================
a Conf's fields      ``Conf.digest``, in each checkpoint           is another run's
data sets            ``Conf.data_fingerprint``                     are refused
jobs, no network's   the run's masters (``DATA``)                  are refused
the first model      the run's masters (``FIRST_MODEL``)           is refused; none is as good while there is a model
own router           masters and workers                           is refused, but for ``changed_code`` at resume
own aggregator       the run's masters                             likewise
``stop_if``          the run's masters                             likewise
own performer        workers: the first one decides                likewise
``--use`` modules    all processes that have it                    likewise
versions, arithmetic ``cluster.address.versions``, ``compute``     are refused
==================== ============================================= ==============================================

The tracker has it while the run lives, and each checkpoint's manifest for whoever goes on from it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from dl4jlegacy.errors import CheckpointError, TrackerError, VersionError
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.own_jobs import OwnJobs
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.code_digest import code_digest
from dl4jlegacy.scaleout.state.job import JobIterator, Result
from dl4jlegacy.scaleout.strategies import BUILT_IN
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.workers.plugins import ROUTERS, PerformerFactory, used_modules

__all__ = [
    "MADE_OF",
    "MODULE",
    "PERFORMER",
    "MadeOf",
    "agree_on_parts",
    "agree_on_performer",
    "parts_of",
    "shared_code",
]

MADE_OF, PERFORMER = "made_of", "performer"
"""The globals with what a run's master is made of, and with its performer's code, on which its first worker decides."""
FIRST_MODEL, DATA, MODULE = "first model", "jobs", "module "
NONE = "none"
_MOST_JOBS = 64


def shared_code(conf: Conf) -> dict[str, str]:
    """Return the digests of the code that masters and workers must have in common, by what it is."""
    modules = {f"{MODULE}{name}": digest for name, digest in used_modules().items()}
    if conf.router in BUILT_IN:
        return modules
    return {**modules, f"router {conf.router}": code_digest(ROUTERS.find(conf.router, f"run {conf.run}"))}


def parts_of(
    conf: Conf,
    jobs: JobIterator,
    *,
    first: Result | Network | None,
    aggregator: Any,
    stop_if: Any,
    performer: PerformerFactory | None,
) -> dict[str, str]:
    """Return what a run's master is made of, as digests, by what it is.

    Args:
        conf, jobs: of the run.
        first, aggregator, stop_if: of its program; None: it has none.
        performer: of the workers in its process; None: there are none.
    """
    parts = {
        FIRST_MODEL: _model_digest(first),
        "aggregator": NONE if aggregator is None else code_digest(aggregator),
        "stop_if": NONE if stop_if is None else code_digest(stop_if),
        **shared_code(conf),
    }
    if performer is not None:
        parts[PERFORMER] = code_digest(performer) or NONE
    digest = _jobs_digest(jobs)
    return {**parts, DATA: digest} if digest else parts


def _model_digest(first: Result | Network | None) -> str:
    if first is None:
        return NONE
    result = first if isinstance(first, Result) else first_model(first)
    return hashlib.sha256(Result(result.values, result.arrays).encode()).hexdigest()


def _jobs_digest(jobs: JobIterator) -> str:
    """Return the digest of jobs that are no network's: of their plan and of 64 of them at most; "": there is none."""
    if not isinstance(jobs, OwnJobs):
        return ""  # data sets have a fingerprint, and what comes of others is nobody's model
    plan: Plan = jobs.plan
    whole = hashlib.sha256(msgspec.json.encode((plan.batches, plan.examples, plan.batch_size)))
    step = max(1, plan.total_slots // _MOST_JOBS)
    for number in range(0, plan.total_slots, step):
        whole.update(jobs.frame(plan.slot(*plan.at(number))))
    return whole.hexdigest()


def agree_on_parts(
    tracker: StateTracker, conf: Conf, ours: Mapping[str, str], kept: Mapping[str, str], *, changed_code: bool = False
) -> tuple[str, ...]:
    """Check that a process that leads a run is made of what the run began with; return what code has changed.

    Args:
        tracker, conf: of the run.
        ours: as ``parts_of`` returned it.
        kept: what its newest checkpoint says; empty if there is none, or an older version wrote it.
        changed_code: whether other code is meant.

    Raises:
        CheckpointError: the run began with another first model, or other jobs.
        VersionError: it began with other code, and nobody has said that this is meant.
    """
    began = {**_defined(tracker), **kept}
    different = [name for name, digest in ours.items() if began.get(name, digest) != digest]
    for name in (FIRST_MODEL, DATA):
        if name in different and ours[name] != NONE:
            raise CheckpointError(
                f"run {conf.run} began with {'another' if name == FIRST_MODEL else 'other'} {name}: {began[name][:16]} "
                f"there, and {ours[name][:16]} here; give it what it began with (no first model is needed where there "
                "is a checkpoint), or begin a new run with another --checkpoint-dir"
            )
    code = tuple(name for name in different if name not in (FIRST_MODEL, DATA))
    if code and not changed_code:
        raise VersionError(_said(conf, code, began, ours))
    now = {**began, **ours, FIRST_MODEL: began.get(FIRST_MODEL, ours[FIRST_MODEL])}
    performer = now.pop(PERFORMER, None)
    tracker.define(MADE_OF, now)
    if changed_code:
        tracker.undefine(PERFORMER)  # the next worker decides
        performer = ours.get(PERFORMER)
    if performer is not None:
        tracker.define_once(PERFORMER, performer)
    return code


def agree_on_performer(tracker: StateTracker, conf: Conf, performer: PerformerFactory) -> None:
    """Check that workers have the performer that the run's first worker had; raises ``VersionError`` if not."""
    ours = code_digest(performer) or NONE
    theirs = tracker.define_once(PERFORMER, ours)
    if theirs != ours:
        raise VersionError(_said(conf, (PERFORMER,), {PERFORMER: str(theirs)}, {PERFORMER: ours}))


def _defined(tracker: StateTracker) -> dict[str, str]:
    """Return what the tracker has of what a run is made of."""
    found, performer = tracker.get(MADE_OF), tracker.get(PERFORMER)
    made_of = {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
    return made_of if performer is None else {**made_of, PERFORMER: str(performer)}


def _said(conf: Conf, code: tuple[str, ...], theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    what = "; ".join(f"{name}: {theirs[name][:16]} there, {ours[name][:16]} here" for name in code)
    return (
        f"run {conf.run} began with other code than this process has ({what}); take what it began with, or, if the "
        "change is meant, go on with the whole run: dl4j resume --changed-code, or setup(conf, resume=True, "
        "changed_code=True)"
    )


class MadeOf:
    """What a run is made of, remembered once the tracker has all of it. For one thread at a time."""

    def __init__(self, tracker: StateTracker) -> None:
        self._tracker, self._known = tracker, dict[str, str]()

    def __call__(self) -> dict[str, str]:
        """Return it by the name of the part, as far as it is known."""
        if PERFORMER not in self._known:
            with contextlib.suppress(TrackerError):
                self._known = _defined(self._tracker)
        return self._known

    def had_a_model(self) -> bool:
        """Return whether the run began with a model that its program gave it."""
        return _defined(self._tracker).get(FIRST_MODEL, NONE) != NONE
