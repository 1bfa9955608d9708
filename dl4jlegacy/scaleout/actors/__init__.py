"""The actors: ``MasterActor``, ``BatchActor``, ``WorkerActor``, ``ModelSavingActor``, ``HeartbeatActor``.

Every actor owns its state and works on its own thread; actors communicate only by ``tell`` with frozen messages. The
protocol's roles are generators (``protocol``): their actors run them from one ``Wait`` to the next. They are woken by
hints from the store or, at the latest, by the ``Poll`` of the ``ticker``. Actors never wait and have no timers of their
own. A bug in an actor ends the run with its traceback; an error in a job is data.

Legacy: ``org.deeplearning4j.scaleout.actor.core.actor.*`` on Akka. There the heartbeat stopped while a worker trained,
one performer served all workers, and a failed job was cleared and never issued again.
"""

from dl4jlegacy.scaleout.actors.heartbeat import HeartbeatActor
from dl4jlegacy.scaleout.actors.master import BatchActor, MasterActor, issuing
from dl4jlegacy.scaleout.actors.messages import Beat, Poll, SaveModel, Working
from dl4jlegacy.scaleout.actors.saver import ModelSavingActor
from dl4jlegacy.scaleout.actors.worker import WorkerActor

__all__ = [
    "BatchActor",
    "Beat",
    "HeartbeatActor",
    "MasterActor",
    "ModelSavingActor",
    "Poll",
    "SaveModel",
    "WorkerActor",
    "Working",
    "issuing",
]
