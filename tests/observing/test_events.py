"""Events of a run for a command and a webhook: each is JSON, and nothing that receives them harms the run."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, IrisDataSetIterator
from dl4jlegacy.cli.main import main
from dl4jlegacy.errors import UsageError
from dl4jlegacy.nn import zoo
from dl4jlegacy.observing import events
from dl4jlegacy.observing.events import Command, EventObserver, Receiver, Webhook
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.training.prepare import params_sha256

NEVER = threading.Event().wait


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take its time to tell the last events."""
    monkeypatch.setattr(events, "_CLOSE_SECONDS", 120.0)


def trained(*receivers: Receiver) -> str:
    """Train a small run that tells these; return what its parameters are."""
    with ActorNetworkRunner("master", IrisDataSetIterator(16), observers=[EventObserver(receivers)]) as runner:
        runner.setup(Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2, epochs=2, seed=3, run="told"))
        result = runner.train()
        assert result is not None
        return params_sha256(runner.network(result).params)


def keeping(path: Path, more: str = "") -> str:
    """A command that appends what it is told to a file."""
    code = f"import sys; open({str(path)!r}, 'a').write(sys.stdin.read() + chr(10)); {more}"
    return f'{sys.executable} -c "{code}"'


class Kept(Receiver):
    """Keeps what it is told; ``tell`` may be held up."""

    name = "a test"

    def __init__(self, hold: threading.Event | None = None) -> None:
        self.told, self.hold = list[dict[str, Any]](), hold

    def tell(self, event: bytes, pause: Callable[[float], bool]) -> str:
        if self.hold is not None:
            self.hold.wait(60)
        self.told.append(json.loads(event))
        return ""


@contextmanager
def listening(*answers: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a server and what it has got; it answers so, the last one again and again."""
    got, left = list[bytes](), list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.send_header("location", "http://203.0.113.7/")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?token=geheim", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_command_and_a_webhook_are_told_of_the_states_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "events"
    with listening(200) as (url, got):
        assert trained(Command(keeping(file)), Webhook(url)) == trained()
    for told in (file.read_text().splitlines(), got):
        last = json.loads(told[-1])
        assert (last["event"], last["run"], last["state"], last["reason"]) == ("state_changed", "told", "ended", "done")


@pytest.mark.parametrize(
    "how", ["import sys; sys.exit(7)", "raise SystemExit", "import os, signal; os.kill(os.getpid(), 9)"]
)
def test_a_command_that_fails_or_reads_nothing_harms_nothing(how: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert trained(Command(f"{sys.executable} -c {json.dumps(how)}"), Command("/no/such/program")) == trained()
    said = [record.getMessage() for record in caplog.records]
    assert any("/no/such/program was not told of an event: it cannot be started" in text for text in said)


def test_a_command_that_hangs_is_killed_with_what_it_started() -> None:
    command = Command(f"{sys.executable} -c \"import subprocess; subprocess.run(['sleep', '600'])\"", seconds=0.5)
    assert command.tell(b"{}", NEVER) == "it was not done after 0.5 s, and was killed"


def test_a_flood_is_bounded_and_says_how_many_are_lost() -> None:
    hold, kept = threading.Event(), Kept()
    kept.hold = hold
    observer = EventObserver([kept])
    with ActorNetworkRunner("master", IrisDataSetIterator(16), observers=[observer]) as runner:
        runner.setup(Conf(multi_layer_conf=zoo.mlp(4, 3), epochs=1, run="flood"))
        observer.end = lambda: None  # type: ignore[method-assign]  # at the end of the test
        runner.train()
        entry = JournalEntry(key="log/1", time=0.0, source="s", host="h", pid=1, event="job_failed")
        for _ in range(1000):
            observer.happened([entry])
        hold.set()
    EventObserver.end(observer)
    assert len(kept.told) <= events._MOST_WAITING + 2
    assert sum(event.get("events_lost", 0) for event in kept.told) + len(kept.told) >= 1000


def test_a_webhook_is_tried_again_and_follows_nobody() -> None:
    with listening(503, 200) as (url, got):
        assert Webhook(url, pauses=(0.0,)).tell(b"{}", lambda seconds: False) == "" and len(got) == 2
    with listening(500) as (url, got):
        assert Webhook(url, pauses=(0.0, 0.0)).tell(b"{}", lambda seconds: False) == "it answers 500" and len(got) == 3
    for status in (302, 404):
        with listening(status) as (url, got):
            assert Webhook(url, pauses=(0.0,)).tell(b"{}", lambda seconds: False) == f"it answers {status}"
            assert len(got) == 1


def test_what_is_secret_is_in_no_message(caplog: pytest.LogCaptureFixture, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DL4J_SECRET", "geheim")
    file = tmp_path / "seen"
    code = f"import os; open({str(file)!r}, 'w').write(str(os.environ.get('DL4J_SECRET')))"
    assert Command(f'{sys.executable} -c "{code}"').tell(b"{}", NEVER) == "" and file.read_text() == "None"
    with listening(404) as (url, _), caplog.at_level(logging.DEBUG):
        trained(Webhook(url))
    webhook = Webhook("http://127.0.0.1:9/geheim", pauses=())
    assert webhook.tell(b"{}", NEVER) == "it cannot be reached (URLError)"
    assert "geheim" not in caplog.text + webhook.name


@pytest.mark.parametrize("url", ["ftp://host/geheim", "http:///geheim", "geheim", "http://host:99999/", "http://h/a b"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--webhook is no address") as caught:
        Webhook(url)
    assert "geheim" not in str(caught.value)


def test_what_is_no_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--dataset", "iris", "--on-event", "echo 'open"])
    assert ended.value.code == 2 and "--on-event cannot be read as a command" in capsys.readouterr().err
