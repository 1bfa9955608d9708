"""Configurations and command lines of the servers: the member's YAML and Zookeeper's ``zoo.cfg``.

Both servers bind one address, by default 127.0.0.1. Members find each other by a fixed list of addresses, and so do the
servers of a Zookeeper ensemble; nothing is multicast, detected, or reported to anybody. Community Hazelcast has neither
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
"""Where everybody looks for the first member and for Zookeeper."""

_AMONG_MEMBERS, _HEALTH = 1000, 2000
"""How far above a member's port, at which clients find it, are those for other members and for questions about it."""

MAX_HAZELCAST_PORT = 65_535 - _HEALTH
"""The last one for clients beside which a member can have its others."""

QUORUM_PORT, ELECTION_PORT = 2888, 3888
"""Where the servers of a Zookeeper ensemble talk to each other."""

IDLE_SECONDS = 7 * 24 * 3600
"""After this long, what nobody has read or written leaves the grid."""

_MODULES = (  # those of Hazelcast's own start script
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
    # the workers need the processors; with as many threads as these a request takes half as much again of them
    "hazelcast.io.input.thread.count": "1",
    "hazelcast.io.output.thread.count": "1",
    "hazelcast.operation.thread.count": "2",
    # a frozen member leaves after 15 s, not after 60
    "hazelcast.heartbeat.interval.seconds": "1",
    "hazelcast.max.no.heartbeat.seconds": "15",
    # members that were cut off from each other look for each other every 10 s, not for the first time after 300
    "hazelcast.merge.first.run.delay.seconds": "10",
    "hazelcast.merge.next.run.delay.seconds": "10",
}


_DESERIALIZED = (  # what members tell each other of errors; nested sets of java.util would occupy a thread for minutes
    *("java.lang.Throwable", "java.lang.Exception", "java.lang.RuntimeException", "java.lang.Error"),
    *("java.lang.IllegalStateException", "java.lang.IllegalArgumentException", "java.lang.StackTraceElement"),
    *("java.lang.UnsupportedOperationException", "[Ljava.lang.StackTraceElement;", "java.util.Collections$EmptyList"),
)


_SOCKETS = {"send-buffer-size-kb": 1024, "receive-buffer-size-kb": 1024}
"""Models are sent in pieces of about 1 MB."""

_MAJORITY = "majority"


def quorum(members: int) -> int:
    """Return how many members must see each other to serve: more than half, so that two parts never both do.

    Of two members the one that is left must serve, or the second would be of no use: two have no quorum (1).
    """
    return members // 2 + 1 if members > 2 else 1


def member_ports(port: int) -> tuple[int, int, int]:
    """Return a member's ports: ``port`` for clients, that for other members, and that for questions about it.

    With one port for all three, a member that connects to a frozen one, whose machine accepts for it, asks itself
    without end whether it has answered, and writes to nobody else meanwhile (Hazelcast's issue 26473): any frozen
    member would bring down all others.
    """
    return port, port + _AMONG_MEMBERS, health_port(port)


def health_port(port: int) -> int:
    """Return where the member that clients find at ``port`` says how it is."""
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
    """Return a Hazelcast member's configuration as JSON, which is YAML too: one backup of everything with two members.

    Args:
        port: this member's, for clients.
        ports: those of all members on this host.
        cluster_name: clients must name it; nothing else is checked.
        host: the address that they bind, one of this machine.
        others: the other hosts that have a member, each at the same port.
        heap: as for ``member_command``; clients are told of it, since nobody can ask a member for its memory.
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
        # what nobody reads or writes for so long is a run's that nobody will continue; a master reads all that it needs
        "max-idle-seconds": IDLE_SECONDS,
        # two merged halves of a run's state are worse than one half
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
    """Return the command line of a member that reads ``settings``, and is known to others by the address ``host``."""
    options = [
        # else it takes an address only if an interface lists it, which the loopback's does with one of its millions
        *([] if host == HOST else [f"-Dhazelcast.local.localAddress={host}"]),
        *(f"-Xmx{heap}", "-Djava.net.preferIPv4Stack=true", f"-Dhazelcast.config={settings}"),
        # Where the workers are on the same machine, they get what Java's thorough compiler would take, and the member
        # starts in half the time; it does as many small requests in a second. Large ones cost up to half as much again.
        *(["-XX:TieredStopAtLevel=1"] if host == HOST else []),
        *("-XX:+ExitOnOutOfMemoryError", f"-XX:ErrorFile={settings.parent}/hs_err_%p.log"),
    ]
    return _java_command(java, [*options, *_MODULES], jars, "com.hazelcast.core.server.HazelcastMemberStarter")


def zookeeper_settings(port: int, data: Path, host: str = HOST, *, hosts: Sequence[str] = ()) -> str:
    """Return a Zookeeper server's ``zoo.cfg``: sessions of 1 s to 60 s, any number of local clients.

    Args:
        port: for clients.
        data: its folder, which has the server's number in ``myid`` if it is one of several.
        host: the address that it binds.
        hosts: those of all servers of the ensemble, in the same order on each; none: it is alone.
    """
    lines = {
        "dataDir": data,
        "clientPort": port,
        "clientPortAddress": host,
        "tickTime": 500,  # ms; a session lasts two ticks at least
        "maxSessionTimeout": 60_000,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr,ruok",
        "autopurge.purgeInterval": 1,
        # ticks: a follower has 10 s to fetch what the leader has, and is left out after 3 s of silence
        **({"initLimit": 20, "syncLimit": 6} if hosts else {}),
        **{f"server.{n}": f"{each}:{QUORUM_PORT}:{ELECTION_PORT}" for n, each in enumerate(hosts, 1)},
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def zookeeper_command(java: Java, jars: Sequence[Path], settings: Path, heap: str) -> list[str]:
    """Return the command line of a Zookeeper server that reads ``settings``."""
    options = [
        *(f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"),
        *("-XX:+ExitOnOutOfMemoryError", f"-XX:ErrorFile={settings.parent}/hs_err_%p.log"),
        # what is written survives a killed server, not a power cut: enough on one machine, and of several machines the
        # others have it; and much faster
        *("-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024"),
        "-Dzookeeper.cnxTimeout=1000",  # ms: a host that is gone holds up no election of the others
        *("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"),
    ]
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"  # runs a server that is alone, too
    return _java_command(java, options, jars, main, str(settings))


def _java_command(java: Java, options: Sequence[str], jars: Sequence[Path], main: str, *arguments: str) -> list[str]:
    return [str(java.path), *options, "-cp", ":".join(map(str, jars)), main, *arguments]
