"""The run protocol as step functions over a store and a clock: no threads, no sleeps, no I/O of its own.

Each role is a generator. It yields ``STEP`` before every store operation: a point where its process may be killed,
frozen or overtaken. What it needs from outside it yields as an event (``Wait``, ``MoreWork``, ``NewModel``,
``Perform``). In a run, actors drive these generators; in the tests, a simulator drives the same generators with a
seeded scheduler and a virtual clock.

The safety of a run rests on one rule: the head changes only by compare-and-set, and each head is computed from the one
before. The process whose compare-and-set succeeds has closed the round. Everything else is immutable or can be derived
again.
"""

from dl4jlegacy.scaleout.protocol.batch import issue_jobs
from dl4jlegacy.scaleout.protocol.ends import End, end_in_grid, write_end
from dl4jlegacy.scaleout.protocol.events import (
    ABANDONED,
    DROPPED,
    HEAD_TOPIC,
    JOB_TOPIC,
    MOST_SECONDS,
    STEP,
    UPDATE_TOPIC,
    Event,
    Limits,
    MoreWork,
    NewModel,
    Perform,
    Performed,
    SavedState,
    Steps,
    Wait,
)
from dl4jlegacy.scaleout.protocol.frames import (
    delete_many,
    increment,
    next_number,
    parse_count,
    parse_record,
    read_frame,
    read_many,
    write_frame,
)
from dl4jlegacy.scaleout.protocol.leading import (
    OFFICE,
    Holder,
    KeptEnd,
    Register,
    Registered,
    RunPlace,
    StandBy,
    TakeOver,
    check_master,
    end_run,
    find_end,
    go_on_again,
    is_left_behind,
    is_over,
    may_begin,
    outlive_master,
    put_back,
)
from dl4jlegacy.scaleout.protocol.leasing import extend_lease
from dl4jlegacy.scaleout.protocol.log import SharedModels, is_model_there, rewound
from dl4jlegacy.scaleout.protocol.master import Master, RunStart, extend_run, master_steps, reopen, restore_end
from dl4jlegacy.scaleout.protocol.names import (
    NAMES,
    RunRecord,
    claim_name,
    keep_name,
    list_run,
    listed_runs,
    listing,
    release_name,
    restore_name,
    unlist_run,
)
from dl4jlegacy.scaleout.protocol.saving import DueCheckpoints
from dl4jlegacy.scaleout.protocol.states import states_of
from dl4jlegacy.scaleout.protocol.worker import is_wanted, worker_steps
from dl4jlegacy.scaleout.protocol.worker_state import Worker

__all__ = [
    "ABANDONED",
    "DROPPED",
    "HEAD_TOPIC",
    "JOB_TOPIC",
    "MOST_SECONDS",
    "NAMES",
    "OFFICE",
    "STEP",
    "UPDATE_TOPIC",
    "DueCheckpoints",
    "End",
    "Event",
    "Holder",
    "KeptEnd",
    "Limits",
    "Master",
    "MoreWork",
    "NewModel",
    "Perform",
    "Performed",
    "Register",
    "Registered",
    "RunPlace",
    "RunRecord",
    "RunStart",
    "SavedState",
    "SharedModels",
    "StandBy",
    "Steps",
    "TakeOver",
    "Wait",
    "Worker",
    "check_master",
    "claim_name",
    "delete_many",
    "end_in_grid",
    "end_run",
    "extend_lease",
    "extend_run",
    "find_end",
    "go_on_again",
    "increment",
    "is_left_behind",
    "is_model_there",
    "is_over",
    "is_wanted",
    "issue_jobs",
    "keep_name",
    "list_run",
    "listed_runs",
    "listing",
    "master_steps",
    "may_begin",
    "next_number",
    "outlive_master",
    "parse_count",
    "parse_record",
    "put_back",
    "read_frame",
    "read_many",
    "release_name",
    "reopen",
    "restore_end",
    "restore_name",
    "rewound",
    "states_of",
    "unlist_run",
    "worker_steps",
    "write_end",
    "write_frame",
]
