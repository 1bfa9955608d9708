"""A process of its own for ``test_zookeeper.py``: ``ROLE ADDRESS GROUP NAME``; one JSON line for all that happens."""

from __future__ import annotations

import json
import sys
import threading
import time

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout import Conf
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    WorkerRegistration,
    ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
)

SESSION_SECONDS = 1.0


def tell(event: str, **more: object) -> None:
    print(json.dumps({"event": event, "time": time.time(), **more}), flush=True)


def until_told(line: str) -> None:
    for said in sys.stdin:
        if said.strip() == line:
            return


def lead(session: ZooKeeperSession, group: str, name: str) -> None:
    election = MasterElection(
        session,
        group=group,
        info={"id": name},
        on_elected=lambda: tell("elected"),
        on_lost=lambda reason: tell("lost", reason=reason, leads=election.is_leader),
    )
    tell("ready")
    until_told("go")
    with election:
        until_told("stop")


def work(session: ZooKeeperSession, group: str, name: str) -> None:
    with WorkerRegistration(session, name, {"id": name}, group=group):
        tell("registered")
        until_told("stop")


def claim(session: ZooKeeperSession, group: str, name: str) -> None:
    election = MasterElection(session, group=group, info={"id": name})
    tell("ready")
    until_told("go")
    with election.claim(10.0 if name == "patient" else None):
        tell("claimed")
        until_told("stop")


def register(session: ZooKeeperSession, group: str, name: str) -> None:
    host, _, port = session.address.partition(":")
    registers = [
        ZooKeeperConfigurationRegister(Conf(run=f"{name}-{i}"), group, host, int(port), session=session)
        for i in range(20)
    ]
    tell("ready")
    until_told("go")
    for one in registers:
        one.register()
    tell("registered")


def retrieve(session: ZooKeeperSession, group: str, name: str) -> None:
    host, _, port = session.address.partition(":")
    tell("ready")
    conf = ZookeeperConfigurationRetriever(host, int(port), group, session=session).retrieve(wait_seconds=20)
    tell("retrieved", conf=conf.to_json())


def main(role: str, address: str, group: str, name: str) -> None:
    roles = {"lead": lead, "work": work, "claim": claim, "register": register, "retrieve": retrieve}
    try:
        with ZooKeeperSession(address, session_seconds=SESSION_SECONDS) as session:
            roles[role](session, group, name)
    except Dl4jError as exc:
        tell("failed", error=type(exc).__name__, message=str(exc))
    tell("end", threads=[t.name for t in threading.enumerate() if t is not threading.main_thread()])


if __name__ == "__main__":
    main(*sys.argv[1:])
