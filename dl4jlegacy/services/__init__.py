"""Local servers for one machine: a Hazelcast member (or several) and a Zookeeper server, started from their jars.

Nothing that trains imports it. ``java`` finds a Java and ``jars`` the jars, ``settings`` writes the servers'
configurations and command lines, ``ports`` finds free ports and asks whether a server answers on one, ``processes``
starts and stops processes, and ``servers`` puts these together.
"""

from __future__ import annotations

from dl4jlegacy.services.servers import Services, ServicesState

__all__ = ["Services", "ServicesState"]
