"""Local servers for one machine: a Hazelcast member (or several) and a Zookeeper server, started from their jars.

Training code does not import this package. ``java`` finds a Java and ``jars`` the jars, ``settings`` writes the
servers' configurations and command lines, ``ports`` finds free ports and checks whether a server answers on one,
``processes`` starts and stops processes, and ``servers`` combines these.
"""

from __future__ import annotations

from dl4jlegacy.services.servers import Services, ServicesState

__all__ = ["Services", "ServicesState"]
