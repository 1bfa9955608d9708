"""Configurations and command lines of the servers: the member's YAML and Zookeeper's ``zoo.cfg``.

Both servers bind one address, by default 127.0.0.1. Members find each other by a fixed list of addresses, and so do the
servers of a Zookeeper ensemble; multicast, discovery and phone-home reports are off. Community Hazelcast has neither
passwords nor encryption.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dl4jlegacy.services.java import Java
from dl4jlegacy.system.strict_json import to_json

__all__ = [
    "ELECTION_PORT",
    "HAZELCAST_PORT",
    "HOST",
    "IDLE_SECONDS",
    "MAX_HAZELCAST_PORT",
    "QUORUM_PORT",
    "ZOOKEEPER_PORT",
    "health_port",
    "member_command",
    "member_ports",
    "member_settings",
    "quorum",
    "zookeeper_command",
    "zookeeper_settings",
]

HOST = "127.0.0.1"

HAZELCAST_PORT, ZOOKEEPER_PORT = 5701, 2181
"""The default ports of the first member and of Zookeeper."""

_AMONG_MEMBERS, _HEALTH = 1000, 2000
"""Offsets from a member's client port to its port for other members and its health port."""

MAX_HAZELCAST_PORT = 65_535 - _HEALTH
"""The largest client port that leaves room for a member's other ports."""

QUORUM_PORT, ELECTION_PORT = 2888, 3888
"""The ports for communication between the servers of a Zookeeper ensemble."""

IDLE_SECONDS = 7 * 24 * 3600
"""Entries that were neither read nor written for this time are removed from the grid."""

_MODULES = (  # as in Hazelcast's own start script
    *("--add-modules", "java.se"),
    *("--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED"),
    *("--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens", "java.management/sun.management=ALL-UNNAMED"),
    *("--add-opens", "jdk.management/com.sun.management.internal=ALL-UNNAMED"),
)

_PROPERTIES = {
    "hazelcast.phone.home.enabled": "false",
    "hazelcast.socket.bind.any": "false",
    "hazelcast.socket.client.bind.any": "false",
    "hazelcast.logging.type": "jdk",
    "hazelcast.wait.seconds.before.join": "0",
    # the workers need the processors; with one thread per processor a request takes 50 % more processor time
    "hazelcast.io.input.thread.count": "1",
    "hazelcast.io.output.thread.count": "1",
    "hazelcast.operation.thread.count": "2",
    # a frozen member leaves after 15 s instead of 60
    "hazelcast.heartbeat.interval.seconds": "1",
    "hazelcast.max.no.heartbeat.seconds": "15",
    # separated members search for each other every 10 s; by default for the first time after 300 s
    "hazelcast.merge.first.run.delay.seconds": "10",
    "hazelcast.merge.next.run.delay.seconds": "10",
}


_DESERIALIZED = (  # types in error messages between members; nested java.util sets would occupy a thread for minutes
    *("java.lang.Throwable", "java.lang.Exception", "java.lang.RuntimeException", "java.lang.Error"),
    *("java.lang.IllegalStateException", "java.lang.IllegalArgumentException", "java.lang.StackTraceElement"),
    *("java.lang.UnsupportedOperationException", "[Ljava.lang.StackTraceElement;", "java.util.Collections$EmptyList"),
)


_SOCKETS = {"send-buffer-size-kb": 1024, "receive-buffer-size-kb": 1024}
"""Models are sent in pieces of about 1 MB."""

_MAJORITY = "majority"


def quorum(members: int) -> int:
    """Return how many members must see each other to serve: a majority, so that two separated parts never both serve.

    With two members the remaining one must serve, or the second would be useless: two have no quorum (1).
    """
    return members // 2 + 1 if members > 2 else 1


def member_ports(port: int) -> tuple[int, int, int]:
    """Return a member's ports: ``port`` for clients, one for other members, and the health port.

    With a single port, a member that connects to a frozen one, whose machine still accepts connections, asks itself
    without end whether it has answered, and sends nothing to other members meanwhile (Hazelcast's issue 26473): any
    frozen member would stop all others.
    """
    return port, port + _AMONG_MEMBERS, health_port(port)


def health_port(port: int) -> int:
    """Return the health port of a member with this client port."""
    return port + _HEALTH


def member_settings(
    port: int,
    ports: Sequence[int],
    cluster_name: str,
    host: str = HOST,
    *,
    others: Sequence[str] = (),
    heap: str = "1g",
) -> str:
    """Return a Hazelcast member's configuration as JSON, which is also YAML; with two members all data have one backup.

    Args:
        port: this member's client port.
        ports: the client ports of all members on this host.
        cluster_name: clients must use it; nothing else is checked.
        host: the address of this machine to bind.
        others: the other hosts that have a member, each at the same port.
        heap: as for ``member_command``; stored for clients, which cannot ask a member for its memory.
    """
    among = [member_ports(p)[1] for p in ports]
    members = [*(f"{host}:{p}" for p in among), *(f"{each}:{member_ports(port)[1]}" for each in others)]
    for_clients, for_members, for_health = (
        {"port": {"port": each, "auto-increment": False}, "interfaces": {"enabled": True, "interfaces": [host]}}
        for each in member_ports(port)
    )
    network = {
        "enabled": True,
        "join": {
            "auto-detection": {"enabled": False},
            "multicast": {"enabled": False},
            "tcp-ip": {"enabled": True, "member-list": members},
        },
        "member-server-socket-endpoint-config": {**for_members, "socket-options": _SOCKETS},
        "client-server-socket-endpoint-config": {**for_clients, "socket-options": _SOCKETS},
        "rest-server-socket-endpoint-config": {
            **for_health,
            "endpoint-groups": {"HEALTH_CHECK": {"enabled": True}},
        },
    }
    every_map = {
        "in-memory-format": "BINARY",
        "backup-count": 1,
        "statistics-enabled": False,
        "cache-deserialized-values": "NEVER",
        "metadata-policy": "OFF",
        "eviction": {"eviction-policy": "NONE"},
        # unused entries belong to an abandoned run; a master reads all its entries
        "max-idle-seconds": IDLE_SECONDS,
        # merging two halves of a run's state is worse than keeping one
        "merge-policy": {"class-name": "DiscardMergePolicy"},
    }
    protection = {"enabled": True, "minimum-cluster-size": quorum(len(members)), "protect-on": "READ_WRITE"}
    protected = quorum(len(members)) > 1
    serialization_filter = {
        "defaults-disabled": True,
        "whitelist": {"class": _DESERIALIZED, "prefix": ["com.hazelcast."]},
    }
    settings = {
        "cluster-name": cluster_name,
        "member-attributes": {"heap": {"type": "string", "value": heap}},
        "properties": _PROPERTIES,
        "advanced-network": network,
        "jet": {"enabled": False},
        "metrics": {"enabled": False},
        "map": {"default": {**every_map, **({"split-brain-protection-ref": _MAJORITY} if protected else {})}},
        **({"split-brain-protection": {_MAJORITY: protection}} if protected else {}),
        "serialization": {"java-serialization-filter": serialization_filter},
    }
    return to_json({"hazelcast": settings}, indent=1) + "\n"


def member_command(java: Java, jars: Sequence[Path], settings: Path, heap: str, host: str = HOST) -> list[str]:
    """Return the command line of a member that reads ``settings``, and whose address for others is ``host``."""
    options = [
        # otherwise it uses an address only if an interface lists it; the loopback interface lists only one of millions
        *([] if host == HOST else [f"-Dhazelcast.local.localAddress={host}"]),
        *(f"-Xmx{heap}", "-Djava.net.preferIPv4Stack=true", f"-Dhazelcast.config={settings}"),
        # With workers on the same machine: they get the processor time of Java's optimizing compiler, and the member
        # starts in half the time. Small requests stay as fast; large ones cost up to 50 % more.
        *(["-XX:TieredStopAtLevel=1"] if host == HOST else []),
        *("-XX:+ExitOnOutOfMemoryError", f"-XX:ErrorFile={settings.parent}/hs_err_%p.log"),
    ]
    return _java_command(java, [*options, *_MODULES], jars, "com.hazelcast.core.server.HazelcastMemberStarter")


def zookeeper_settings(port: int, data: Path, host: str = HOST, *, hosts: Sequence[str] = ()) -> str:
    """Return a Zookeeper server's ``zoo.cfg``: sessions of 1 s to 60 s, any number of local clients.

    Args:
        port: for clients.
        data: its folder, which has the server's number in ``myid`` if it belongs to an ensemble.
        host: the address to bind.
        hosts: those of all servers of the ensemble, in the same order on each; empty: a single server.
    """
    lines = {
        "dataDir": data,
        "clientPort": port,
        "clientPortAddress": host,
        "tickTime": 500,  # ms; a session lasts at least two ticks
        "maxSessionTimeout": 60_000,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr,ruok",
        "autopurge.purgeInterval": 1,
        # ticks: a follower has 10 s to fetch the leader's data, and is dropped after 3 s of silence
        **({"initLimit": 20, "syncLimit": 6} if hosts else {}),
        **{f"server.{n}": f"{each}:{QUORUM_PORT}:{ELECTION_PORT}" for n, each in enumerate(hosts, 1)},
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def zookeeper_command(java: Java, jars: Sequence[Path], settings: Path, heap: str) -> list[str]:
    """Return the command line of a Zookeeper server that reads ``settings``."""
    options = [
        *(f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"),
        *("-XX:+ExitOnOutOfMemoryError", f"-XX:ErrorFile={settings.parent}/hs_err_%p.log"),
        # Written data survive a killed server, but no power failure: enough on one machine, and in an ensemble the
        # other machines have the data. It is much faster.
        *("-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024"),
        "-Dzookeeper.cnxTimeout=1000",  # ms: a lost host does not delay elections
        *("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"),
    ]
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"  # also runs a single server
    return _java_command(java, options, jars, main, str(settings))


def _java_command(java: Java, options: Sequence[str], jars: Sequence[Path], main: str, *arguments: str) -> list[str]:
    return [str(java.path), *options, "-cp", ":".join(map(str, jars)), main, *arguments]
