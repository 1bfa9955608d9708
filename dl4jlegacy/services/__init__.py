"""Local servers for one machine: a Hazelcast member (or several) and a Zookeeper server, started from their jars.

Beside the command line, at the top: nothing that trains imports it. ``java`` finds a Java and ``jars`` the jars,
``settings`` is what the servers are told, ``ports`` finds free ones and asks whether somebody answers, ``processes``
starts and stops, ``servers`` puts these together and ``command`` is ``dl4j services``.
"""

from __future__ import annotations

from dl4jlegacy.services.servers import Services, ServicesState

__all__ = ["Services", "ServicesState"]
