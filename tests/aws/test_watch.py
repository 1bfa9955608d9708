"""What runs on each instance beside its services: it keeps what they say, and ends with the run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dl4jlegacy.aws import on_instance
from dl4jlegacy.aws.cluster_bucket import (
    JOURNAL,
    PRESENT_MASTER,
    PresentMaster,
    Servers,
    own_key,
    read_done,
    read_object,
    write_object,
)
from dl4jlegacy.aws.watch import JOURNAL_NBYTES, read_journal, say_done, watch
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.system.exits import Stopped
from tests.support.aws_fixtures import Fault, FaultProxy, impatient

BUCKET = "dl4j-digits-123456789012-us-east-1"


@pytest.fixture
def me(aws: Aws) -> str:
    """As whom AWS knows this instance; the bucket is there."""
    aws.client("s3").create_bucket(Bucket=BUCKET)
    return str(aws.client("sts").get_caller_identity()["UserId"])


def kept(aws: Aws, me: str) -> bytes:
    found = read_object(aws, BUCKET, own_key(me, JOURNAL))
    return b"" if found is None else found[0]


class Minutes:
    """Waits that take no time; what happens in a minute is done before it."""

    def __init__(self, happens: dict[int, Callable[[], object]]) -> None:
        self.count, self.happens = 0, happens

    def wait(self, seconds: float) -> None:
        assert seconds == 60.0
        self.count += 1
        assert self.count <= max(self.happens), "it goes on for ever"
        self.happens.get(self.count, lambda: None)()


def stop() -> None:
    raise Stopped(15)


def test_it_ends_in_the_minute_in_which_the_master_says_so_and_has_kept_all_till_then(aws: Aws, me: str) -> None:
    said, seen = [b"one\n"], []

    def look() -> None:
        seen.append(kept(aws, me))
        said.append(b"more\n")

    minutes = Minutes({1: look, 4: look, 6: look, 9: lambda: say_done(aws, BUCKET, "s3://models-of-mine/m.zip")})
    write_object(aws, BUCKET, PRESENT_MASTER, Servers((PresentMaster("10.0.0.1", me),)).to_bytes())
    with impatient(minutes.wait) as here:
        watch(here, BUCKET, ends=True, read=lambda: b"".join(said))
    assert minutes.count == 9
    assert seen == [b"one\n", b"one\n", b"one\nmore\nmore\n"]  # every five minutes
    assert kept(aws, me) == b"one\nmore\nmore\nmore\n"
    done = read_done(aws, BUCKET, PresentMaster("10.0.0.1", me))
    assert done.model == "s3://models-of-mine/m.zip" and done.since.endswith("Z")


def no_journal() -> bytes:
    raise subprocess.TimeoutExpired("journalctl", 60)


@pytest.mark.parametrize(
    ("master", "ends", "read"),
    [("AROA:i-1", True, bytes), ("", False, bytes), ("AROA:i-1", True, no_journal)],
    ids=["another's word", "to be kept", "no journal"],
)
def test_it_goes_on_until_the_present_master_says_so(master: str, ends: bool, read, aws: Aws, me: str) -> None:
    write_object(aws, BUCKET, PRESENT_MASTER, Servers((PresentMaster("10.0.0.1", master or me),)).to_bytes())
    say_done(aws, BUCKET, "s3://models-of-mine/m.zip")
    with impatient(Minutes({9: stop}).wait) as here, pytest.raises(Stopped):
        watch(here, BUCKET, ends=ends, read=read)


def test_it_keeps_the_last_words_when_it_is_told_to_end(aws: Aws, me: str) -> None:
    said = [b"one\n"]
    minutes = Minutes({1: lambda: said.append(b"last words\n"), 2: stop})
    with impatient(minutes.wait) as here, pytest.raises(Stopped):
        watch(here, BUCKET, ends=True, read=lambda: b"".join(said))
    assert kept(aws, me) == b"one\nlast words\n"


def test_it_outlasts_an_s3_that_denies_or_fails(aws: Aws, me: str, fault_proxy: FaultProxy) -> None:
    faults = {"GET s3": Fault("error", "AccessDenied", 403), "PUT s3": Fault("error", "InternalError", 500)}
    fault_proxy.judge = lambda request: faults.get(request.action)

    def works_again() -> None:
        fault_proxy.judge = lambda request: None

    minutes = Minutes({8: works_again, 9: stop})
    with impatient(minutes.wait) as here, pytest.raises(Stopped):
        watch(here, BUCKET, ends=True, read=lambda: b"one\n")
    assert kept(aws, me) == b"one\n"


def test_a_journal_is_the_services_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = f'#!/bin/sh\necho "$@"\nhead --bytes={2 * JOURNAL_NBYTES} /dev/zero\necho the end\n'
    (tmp_path / "journalctl").write_text(says, encoding="ascii")
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = read_journal()
    assert len(said) == JOURNAL_NBYTES and said.endswith(b"the end\n")
    (tmp_path / "journalctl").write_text('#!/bin/sh\necho "$@"\n', encoding="ascii")
    last = read_journal().decode().splitlines()[-1]
    assert last == "--no-pager --output=short-iso --lines=20000 --unit=dl4j-*"


def test_a_signal_ends_it_with_a_status_that_does_not_end_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_instance, "watch", lambda *given, **options: stop())
    with pytest.raises(SystemExit) as end:
        on_instance.main(["watch", "us-east-1", BUCKET])
    assert end.value.code == 143
