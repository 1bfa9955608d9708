"""What was injected is undone, also where the run has ended meanwhile."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from dl4jlegacy.errors import Dl4jError
from tools.chaos import faults
from tools.chaos.schedule import Fault


@pytest.mark.parametrize("kind", ["master-freeze", "master-long-freeze"])
def test_a_master_is_woken_up_although_nobody_leads_a_run_that_ended_meanwhile(kind: str, monkeypatch) -> None:
    def nobody(test_bed: object, leader: object) -> None:
        raise Dl4jError("no master leads")

    signals: list[int] = []
    leader = SimpleNamespace(name="master-0", pid=1, signal=signals.append)
    monkeypatch.setattr(faults, "_wait_for_another", nobody)
    fault = Fault(number=1, kind=kind, target="master", after_rounds=1, seconds=0.0)
    active = faults.inject(SimpleNamespace(leader=lambda: leader), fault)
    assert signals == [signal.SIGSTOP]
    with pytest.raises(Dl4jError, match="no master leads"):
        active.recover()
    assert signals == [signal.SIGSTOP, signal.SIGCONT]
