"""What a worker makes of what it finds in Zookeeper while it works: no server is needed."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from dl4jlegacy.cluster.worker import _MasterWatch
from dl4jlegacy.errors import ConfError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.records import HEAD, Head, Manifest, encode_record
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker


@pytest.mark.parametrize("raised", [ConfError, NotAuthorisedError, VersionError, TrackerError])
def test_a_running_worker_ignores_a_conf_that_cannot_be_read(raised: type[Exception]) -> None:
    def find() -> NoReturn:
        raise raised("somebody else was there")

    tracker = InMemoryStateTracker()
    tracker.store.put(HEAD, encode_record(Head(run="r", version=1, round=1, model=Manifest("m", 1, 1))))
    registered: Any = SimpleNamespace(find=find)
    election: Any = SimpleNamespace(holder=lambda: {"host": "h"})
    link: Any = SimpleNamespace(state="alive")
    watch = _MasterWatch(Conf(run="r"), tracker, registered, election, link)
    watch._looked = time.monotonic() - 3600.0
    assert watch.look()
