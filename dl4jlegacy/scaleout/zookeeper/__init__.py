"""The Zookeeper adapter: stores the ``Conf``, registers workers, and elects the master.

Only ``session`` imports kazoo. Zookeeper holds no jobs and no models, which are in the state tracker, and a run is safe
without it.
"""

from dl4jlegacy.scaleout.zookeeper.configuration import (
    ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever,
    build_path,
)
from dl4jlegacy.scaleout.zookeeper.election import MasterElection
from dl4jlegacy.scaleout.zookeeper.ended_runs import find_end, remove_end, write_end
from dl4jlegacy.scaleout.zookeeper.membership import (
    MESH,
    MeshMembers,
    WorkerRegistration,
    is_deserted,
    prune_group,
    registered_workers,
)
from dl4jlegacy.scaleout.zookeeper.roots import guard_roots
from dl4jlegacy.scaleout.zookeeper.session import ZooKeeperSession

__all__ = [
    "MESH",
    "MasterElection",
    "MeshMembers",
    "WorkerRegistration",
    "ZooKeeperConfigurationRegister",
    "ZooKeeperSession",
    "ZookeeperConfigurationRetriever",
    "build_path",
    "find_end",
    "guard_roots",
    "is_deserted",
    "prune_group",
    "registered_workers",
    "remove_end",
    "write_end",
]
