"""Local servers for one machine: a Hazelcast member (or several) and a Zookeeper server, started from their jars.

A layer of its own beside the command line: nothing that trains imports it. ``java`` finds a Java, ``jars`` the jars,
``settings`` writes what the servers are told, ``processes`` starts and stops them, ``servers`` puts these together
and ``command`` is ``dl4j services``.
"""

from __future__ import annotations

from dl4jlegacy.services.servers import Services, ServicesState

__all__ = ["Services", "ServicesState"]
