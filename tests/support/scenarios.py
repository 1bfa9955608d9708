"""What happens in the runs of ``simulator``: what jobs are like, and how often something is killed, frozen or lost."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dl4jlegacy.scaleout.protocol import closing


@dataclass(frozen=True)
class Scenario:
    """What the jobs of a schedule are like, and how often a process is killed or frozen, or something is lost."""

    batches: int = 4
    """A job has fewer batches than that, each a step."""
    patience: float = float("inf")
    """Seconds without progress after which a master gives up the run."""
    hostility: float = 1.0
    losses: float = 1.0
    """How often something is lost, in proportion to that."""
    failures: float = 0.02
    """The probability that a job fails."""
    attempts: int = 1_000_000
    sick: str = ""
    """A role whose every job fails. Its process is never killed, so that it is one worker all the time."""
    garbles: bool = False
    """Whether its jobs do not fail, but come to updates that do not fit the model."""
    replay: float = 1e12
    """Seconds of replay that states are saved for (``LONGEST_REPLAY``): so much that there are long logs."""
    is_resumed: bool = False
    """Whether somebody resumes the run whenever it fails."""
    servers: bool = False
    """Whether parameter servers fold the rounds, as many as the seed says."""
    pushes: bool = False
    """Whether workers push each other their messages, over a mesh that loses, delays, doubles, tears and forges them.
    One master writes the log for that, and one as if there were no mesh; one worker is not connected."""
    storage: bool = False
    """Whether the folder of checkpoints is one that is away, deleted or another run's now and then."""
    copies: bool = False
    """Whether two of the workers are on one host, where they copy the states of their slots."""


HOSTILE = Scenario()
LONG_ROUNDS = Scenario(batches=300, patience=900.0, hostility=0.1, replay=closing.LONGEST_REPLAY)
"""Rounds that last longer than a run may stand still."""
SICK_WORKER = Scenario(failures=0.0, attempts=3, sick="w2")
GARBLING_WORKER = dataclasses.replace(SICK_WORKER, garbles=True)
FAILING_RUN = Scenario(failures=0.2, attempts=2, is_resumed=True, replay=200.0)
"""With logs as short as in ``SHORT_LOGS``: a run that fails at every fourth job never has eight rounds on end."""
SHORT_LOGS = Scenario(replay=200.0)
"""For phases of many rounds: with what is lost here, hardly anybody comes to the end of eight that are all needed."""
PARAMETER_SERVERS = Scenario(servers=True)
PUSHES = Scenario(pushes=True)
COPIES = Scenario(copies=True)
STORAGE = Scenario(storage=True, replay=200.0)
"""Checkpoints are deleted as well: of longer logs nobody would come to the end."""
SCENARIOS = {
    "hostile": HOSTILE,
    "long-rounds": LONG_ROUNDS,
    "sick-worker": SICK_WORKER,
    "garbling-worker": GARBLING_WORKER,
    "failing-run": FAILING_RUN,
    "parameter-servers": PARAMETER_SERVERS,
    "short-logs": SHORT_LOGS,
    "pushes": PUSHES,
    "copies": COPIES,
    "storage": STORAGE,
}
