"""Whether a run's last master has died: the kernel refuses connections to a dead process, and to no frozen one."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from dl4jlegacy.scaleout.monitoring.last_master import dead_master
from tests.support.cluster_commands import freeze

HERE = f"{socket.gethostname()}-123-0123abcd"
LISTENS = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_master_that_lives_or_is_frozen_is_not_dead_and_one_that_was_killed_is() -> None:
    program = [sys.executable, "-c", LISTENS]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as master:
        assert master.stdout is not None
        address = f"127.0.0.1:{int(master.stdout.readline())}"
        try:
            assert dead_master(HERE, address) == ""
            freeze(master.pid)
            assert dead_master(HERE, address) == ""
        finally:
            master.kill()
        master.wait(60)
        assert dead_master(HERE, address) == HERE


@pytest.mark.parametrize("process", ["elsewhere-123-0123abcd", None, 7])
def test_nothing_is_known_of_a_master_that_listened_to_another_machines_loopback(process: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert dead_master(process, f"127.0.0.1:{port}") == "" == dead_master(process, f"localhost:{port}")


@pytest.mark.parametrize("address", [None, "", "nowhere", "host:0", 5])
def test_nothing_is_known_of_a_master_without_an_address(address: Any) -> None:
    assert dead_master(HERE, address) == ""
