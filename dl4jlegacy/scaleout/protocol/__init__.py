"""The run protocol as step functions over a store and a clock: no threads, no sleeps, no input or output of its own.

A role is a generator. ``yield STEP`` stands before every store operation: a point where the process may be killed,
frozen or overtaken. What a role needs from its surroundings it yields as an event (``Wait``, ``MoreWork``,
``NewModel``, ``Perform``). Actors drive these generators in earnest; the tests' simulator drives the same ones under a
seeded scheduler with a virtual clock.

The safety of a run rests on one thing: the head changes only by compare-and-set, each head computed from the one
before. Whoever wins that step has closed the round; everything else is immutable or can be derived again.
"""

from dl4jlegacy.scaleout.protocol.events import (
    ABANDONED,
    DROPPED,
    HEAD_TOPIC,
    JOB_TOPIC,
    STEP,
    UPDATE_TOPIC,
    Event,
    Limits,
    MoreWork,
    NewModel,
    Perform,
    Steps,
    Wait,
)
from dl4jlegacy.scaleout.protocol.frames import increment, read_frame, write_frame
from dl4jlegacy.scaleout.protocol.issue import issue_jobs
from dl4jlegacy.scaleout.protocol.master import Begin, Master, master_steps
from dl4jlegacy.scaleout.protocol.worker import Worker, extend_lease, is_wanted, worker_steps

__all__ = [
    "ABANDONED",
    "DROPPED",
    "HEAD_TOPIC",
    "JOB_TOPIC",
    "STEP",
    "UPDATE_TOPIC",
    "Begin",
    "Event",
    "Limits",
    "Master",
    "MoreWork",
    "NewModel",
    "Perform",
    "Steps",
    "Wait",
    "Worker",
    "extend_lease",
    "increment",
    "is_wanted",
    "issue_jobs",
    "master_steps",
    "read_frame",
    "worker_steps",
    "write_frame",
]
