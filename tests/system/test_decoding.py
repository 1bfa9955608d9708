"""Structs are decoded by many threads, also for the first time; what is nested too deep is what cannot be decoded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cli.options.values import json_object
from dl4jlegacy.datasets.tables import stored_tables
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import CheckpointError, ConfError, TrackerError, UsageError
from dl4jlegacy.scaleout.persistence import checkpoint, own_folder
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.persistence.history import HistoryFile
from dl4jlegacy.scaleout.zookeeper import configuration
from dl4jlegacy.scaleout.zookeeper.session import Node
from dl4jlegacy.services import state
from dl4jlegacy.storage import web
from dl4jlegacy.storage.folders import LocalFolder

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


DEEP = b'{"conf":' * 100_000
READERS: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "history": (lambda folder: HistoryFile(LocalFolder(folder)).read(), []),
    "whose folder": (lambda folder: own_folder.whose(LocalFolder(folder)), None),
    "kept Conf": (lambda folder: CheckpointStore(str(folder)).kept("run"), ""),
    "manifest": (lambda folder: checkpoint._verified(DEEP), CheckpointError),
    "schema": (lambda folder: TransformProcess.from_json(DEEP), ConfError),
    "arguments": (lambda folder: json_object("--router-args", DEEP.decode()), UsageError),
    "copy": (lambda folder: web._read_note(folder / "conf.json"), None),
    "stored table": (lambda folder: stored_tables._opened(folder), None),
    "Zookeeper": (lambda folder: configuration._begun(Node(DEEP, 0, 0, 0)), None),
    "servers": (state.read_state, TrackerError),
}


@pytest.mark.parametrize("name", READERS)
def test_what_is_nested_too_deep_is_answered_as_what_cannot_be_decoded(name: str, tmp_path: Path) -> None:
    read, expected = READERS[name]
    for file in ("history.jsonl", "conf.json", "services.json", stored_tables._SUMMARY):
        (tmp_path / file).write_bytes(DEEP)
    if isinstance(expected, type):
        with pytest.raises(expected):
            read(tmp_path)
    else:
        assert read(tmp_path) == expected
