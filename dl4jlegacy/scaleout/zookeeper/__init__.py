"""The Zookeeper adapter (L4): where the ``Conf`` is found, who is there, who is master.

``session`` is the only module that imports kazoo. Zookeeper holds little and decides little: jobs and models are in
the state tracker, and a run is safe without any of this.
"""

from dl4jlegacy.scaleout.zookeeper.configuration import (
    ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever,
    build_path,
)
from dl4jlegacy.scaleout.zookeeper.election import MasterElection
from dl4jlegacy.scaleout.zookeeper.membership import WorkerRegistration, WorkersWatch, registered_workers
from dl4jlegacy.scaleout.zookeeper.session import ZooKeeperSession

__all__ = [
    "MasterElection",
    "WorkerRegistration",
    "WorkersWatch",
    "ZooKeeperConfigurationRegister",
    "ZooKeeperSession",
    "ZookeeperConfigurationRetriever",
    "build_path",
    "registered_workers",
]
