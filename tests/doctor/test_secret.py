"""How a machine without a secret gets one: a copy where others may have one, a new one where nothing is yet."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dl4jlegacy.doctor import Settings
from dl4jlegacy.doctor.servers import secret
from dl4jlegacy.services.ensemble import Ensemble
from dl4jlegacy.services.state import Server, ServicesState
from dl4jlegacy.system.secret import GET_SECRET, MAKE_SECRET

OWN, OTHER = "10.7.0.1", "10.7.0.9"
SET = Ensemble(hosts=(OWN, "10.7.0.2", "10.7.0.3"))


@pytest.fixture
def services(tmp_path: Path) -> Path:
    """A folder of servers that were started on this machine."""
    return write(tmp_path, None)


def write(folder: Path, ensemble: Ensemble | None) -> Path:
    server = Server(name="zookeeper", port=2181, command=(), host=OWN)
    state = ServicesState(cluster_name="mine", folder=str(folder), servers=(server,), ensemble=ensemble)
    (folder / "services.json").write_bytes(msgspec.json.encode(state))
    return folder


@pytest.mark.parametrize(
    ("variables", "named", "remedy"),
    [
        ({}, {"zookeeper": f"{OWN}:2181"}, MAKE_SECRET),
        ({}, {"zookeeper": f"{OTHER}:2181"}, GET_SECRET),
        ({}, {"zookeeper": f"{OWN}:2181", "tracker": f"hazelcast://{OTHER}:5701"}, GET_SECRET),
        ({"DL4J_ALLOW_UNSIGNED": "1"}, {"tracker": f"hazelcast://{OTHER}:5701"}, GET_SECRET),
        ({"DL4J_ALLOW_UNSIGNED": "1"}, {"tracker": f"hazelcast://{OWN}:5701"}, MAKE_SECRET),
        ({"DL4J_SECRET_FILE": "/none/such"}, {}, MAKE_SECRET),
        ({"DL4J_SECRET_FILE": "/none/such"}, {"zookeeper": f"{OTHER}:2181"}, GET_SECRET),
        ({"DL4J_SECRET": ""}, {"zookeeper": f"{OTHER}:2181"}, GET_SECRET),
        ({"DL4J_SECRET": "abc"}, {"zookeeper": f"{OTHER}:2181"}, MAKE_SECRET),
    ],
)
def test_it_is_copied_from_others_and_made_where_nothing_is(
    services: Path, variables: dict[str, str], named: dict[str, str], remedy: str
) -> None:
    found = secret(Settings(environ={"DL4J_SERVICES": str(services), **variables}, **named))
    assert found.remedy == remedy
    assert "copy the file" not in found.found and "urandom" not in found.found


def test_of_a_set_of_hosts_another_one_may_have_it(tmp_path: Path) -> None:
    folder = write(tmp_path, SET)
    found = secret(Settings(environ={"DL4J_SERVICES": str(folder)}, zookeeper=f"{OWN}:2181"))
    assert found.remedy == GET_SECRET
