"""Structs are decoded by many threads, also for the first time."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST_USE = """
import sys, threading
sys.setswitchinterval(1e-6)
from dl4jlegacy.scaleout.conf import Conf
text = Conf(run="x").to_json()
begin, done = threading.Barrier(8), []
def decode():
    begin.wait()
    done.append(Conf.from_json(text).run)
threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert done == ["x"] * 8
"""


@pytest.mark.long
def test_eight_threads_decode_a_conf_for_the_first_time() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
