"""Scale-out (layers 3 and 4): the run protocol and what it shares out, without any server library.

``actors``, which drives all this on pykka, is imported by the runner only.
"""

from dl4jlegacy.scaleout.aggregate import (
    CollectingAggregator,
    DeltaAggregator,
    JobAggregator,
    ParameterAveragingAggregator,
)
from dl4jlegacy.scaleout.checkpoint import CheckpointSaver, ModelSaver
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.job import CollectionJobIterator, DataSetJobIterator, Job, JobIterator, Result
from dl4jlegacy.scaleout.perform import MultiLayerNetworkPerformer, WorkerPerformer
from dl4jlegacy.scaleout.router import HogWildWorkRouter, IterativeReduceWorkRouter, WorkRouter
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, StateTracker

__all__ = [
    "CheckpointSaver",
    "CollectingAggregator",
    "CollectionJobIterator",
    "Conf",
    "DataSetJobIterator",
    "DeltaAggregator",
    "HogWildWorkRouter",
    "InMemoryStateTracker",
    "IterativeReduceWorkRouter",
    "Job",
    "JobAggregator",
    "JobIterator",
    "ModelSaver",
    "MultiLayerNetworkPerformer",
    "ParameterAveragingAggregator",
    "Result",
    "StateTracker",
    "WorkRouter",
    "WorkerPerformer",
]
