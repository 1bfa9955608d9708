"""How patient a run is, is four fields of its Conf, each with a flag and a variable, checked like all others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dl4jlegacy.cli.options.conf_options import read_conf, resume_changes
from dl4jlegacy.cli.options.read import ResumeOptions, TrainOptions
from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.protocol import Limits

FLAGS = ("tracker_wait", "worker_wait", "lease", "stuck", "session")


def seconds(conf: Conf) -> dict[str, float]:
    """Return what each flag sets."""
    return {
        "tracker_wait": conf.tracker_wait_seconds,
        "worker_wait": conf.worker_wait_seconds,
        "lease": conf.limits.lease,
        "stuck": conf.stuck_seconds,
        "session": conf.session_seconds,
    }


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_sets_its_field_and_no_other(flag: str) -> None:
    defaults, given = seconds(Conf()), {flag: 7.5}
    conf, named = read_conf(TrainOptions(**given))
    assert seconds(conf) == {**defaults, **given}
    assert len(named) == 1
    begun = Conf(limits=Limits(lease=9.0, poll=0.1))
    resumed = begun.replace(**resume_changes(ResumeOptions(run="r", **given), begun))
    assert seconds(resumed) == {**seconds(begun), **given}
    assert resumed.limits.poll == 0.1
    assert resumed.digest() == begun.digest()  # a run may go on with others


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "1e10", ""])
@pytest.mark.everyday(19)
def test_what_is_no_duration_is_refused_by_the_flags_name(flag: str, text: str, dl4j: Any) -> None:
    name = f"--{flag.replace('_', '-')}"
    for command in (["train"], ["resume", "here"]):
        assert name in dl4j(*command, f"{name}={text}", fails=2)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, 1e10])
@pytest.mark.parametrize(
    "field", ["tracker_wait_seconds", "worker_wait_seconds", "stuck_seconds", "session_seconds", "heartbeat_seconds"]
)
def test_what_is_no_duration_is_refused_in_a_conf(field: str, value: float) -> None:
    with pytest.raises(ConfError, match=rf"Conf\.{field} is .*; it must be positive"):
        Conf(**{field: value})


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, 1e10])
def test_what_is_no_duration_is_refused_in_limits(value: float) -> None:
    with pytest.raises(ConfError, match=r"limits\.lease is .*; it must be positive"):
        Limits(lease=value)


def test_the_variables_stand_in_for_the_flags(dl4j: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}
    monkeypatch.setattr(
        "dl4jlegacy.cli.commands.cluster.train_on_cluster", lambda options, *_, **__: found.update(options=options)
    )
    for index, flag in enumerate(FLAGS):
        monkeypatch.setenv(f"DL4J_{flag.upper()}", str(index + 1))
    dl4j("master", "--tracker", "hazelcast://127.0.0.1:1")
    assert seconds(read_conf(found["options"])[0]) == {flag: index + 1.0 for index, flag in enumerate(FLAGS)}
