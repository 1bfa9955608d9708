"""Scale-out: the run protocol, the state tracker, jobs and their aggregation; no server library is imported here.

``actors``, which runs the protocol on pykka, is imported by the runner and by cluster workers only.
"""

from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.plan import Phase, Plan, SlotPlan
from dl4jlegacy.scaleout.scoring import EarlyStopping, ValidationConf
from dl4jlegacy.scaleout.state.aggregate import (
    Aggregation,
    CollectingAggregator,
    DeltaAggregator,
    Fold,
    JobAggregator,
    ParameterAveragingAggregator,
)
from dl4jlegacy.scaleout.state.job import CollectionJobIterator, DataSetJobIterator, Job, JobIterator, Result
from dl4jlegacy.scaleout.strategies import HogWildWorkRouter, IterativeReduceWorkRouter, SlotMemory, WorkRouter
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, StateTracker
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer, WorkerPerformer
from dl4jlegacy.scaleout.workers.plugins import register_performer, register_router

__all__ = [
    "Aggregation",
    "CheckpointStore",
    "CollectingAggregator",
    "CollectionJobIterator",
    "Conf",
    "DataSetJobIterator",
    "DeltaAggregator",
    "EarlyStopping",
    "Fold",
    "HogWildWorkRouter",
    "InMemoryStateTracker",
    "IterativeReduceWorkRouter",
    "Job",
    "JobAggregator",
    "JobIterator",
    "MultiLayerNetworkPerformer",
    "ParameterAveragingAggregator",
    "Phase",
    "Plan",
    "Result",
    "SlotMemory",
    "SlotPlan",
    "StateTracker",
    "ValidationConf",
    "WorkRouter",
    "WorkerPerformer",
    "register_performer",
    "register_router",
]
