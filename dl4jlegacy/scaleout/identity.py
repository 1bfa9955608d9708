"""Identity of a run beyond its Conf and its data sets: its first model, its jobs, and the user's own code.

==================== ============================================= ==============================================
what                 who compares it                               if it differs
==================== ============================================= ==============================================
a Conf's fields      ``Conf.digest``, in each checkpoint           it is another run
data sets            ``Conf.data_fingerprint``                     refused
jobs without network the run's masters (``DATA``)                  refused
the first model      the run's masters (``FIRST_MODEL``)           refused; may be omitted if there is a model
own router           masters and workers                           refused, unless ``changed_code`` at resume
own aggregator       the run's masters                             the same
``stop_if``          the run's masters                             the same
own performer        workers: the first one decides                the same
``--use`` modules    all processes that have it                    the same
versions, arithmetic ``cluster.address.versions``, ``compute``     refused
==================== ============================================= ==============================================

The digests are in the tracker while the run lives, and in each checkpoint's manifest for processes that resume it.
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
"""Globals: the digests of a run's master, and of the performer's code, which the run's first worker sets."""
FIRST_MODEL, DATA, MODULE = "first model", "jobs", "module "
NONE = "none"
_MOST_JOBS = 64


def shared_code(conf: Conf) -> dict[str, str]:
    """Return the digests of the code that masters and workers must share, by the name of each part."""
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
    """Return the digests of the parts of a run's master, by the name of each part.

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
    """Return the digest of jobs without a network: of their plan and of up to 64 jobs; "" for other jobs."""
    if not isinstance(jobs, OwnJobs):
        return ""  # data sets have a fingerprint of their own
    plan: Plan = jobs.plan
    whole = hashlib.sha256(msgspec.json.encode((plan.batches, plan.examples, plan.batch_size)))
    step = max(1, plan.total_slots // _MOST_JOBS)
    for number in range(0, plan.total_slots, step):
        whole.update(jobs.frame(plan.slot(*plan.at(number))))
    return whole.hexdigest()


def agree_on_parts(
    tracker: StateTracker, conf: Conf, ours: Mapping[str, str], kept: Mapping[str, str], *, changed_code: bool = False
) -> tuple[str, ...]:
    """Check that the leading process has the parts that the run began with; return which code has changed.

    Args:
        tracker, conf: of the run.
        ours: as ``parts_of`` returned it.
        kept: the digests in the newest checkpoint; empty if there is none, or an older version wrote it.
        changed_code: whether changed code is intended.

    Raises:
        CheckpointError: the run began with another first model, or other jobs.
        VersionError: it began with other code, and ``changed_code`` is False.
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
    """Check that the workers have the same performer as the run's first worker; raises ``VersionError`` if not."""
    ours = code_digest(performer) or NONE
    theirs = tracker.define_once(PERFORMER, ours)
    if theirs != ours:
        raise VersionError(_said(conf, (PERFORMER,), {PERFORMER: str(theirs)}, {PERFORMER: ours}))


def _defined(tracker: StateTracker) -> dict[str, str]:
    """Return the digests of the run's parts that are in the tracker."""
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
    """The digests of a run's parts, cached once the tracker has all of them. For one thread at a time."""

    def __init__(self, tracker: StateTracker) -> None:
        self._tracker, self._known = tracker, dict[str, str]()

    def __call__(self) -> dict[str, str]:
        """Return the digests by the name of the part, as far as they are known."""
        if PERFORMER not in self._known:
            with contextlib.suppress(TrackerError):
                self._known = _defined(self._tracker)
        return self._known

    def had_a_model(self) -> bool:
        """Return whether the run began with a model that its program gave."""
        return _defined(self._tracker).get(FIRST_MODEL, NONE) != NONE
