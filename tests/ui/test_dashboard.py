"""The dashboard's server: what it tells of a run that is kept in a folder or in a tracker, and to whom."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dl4jlegacy.errors import CheckpointError, ConfError, NotAuthorisedError, UsageError
from dl4jlegacy.scaleout.monitoring.silence import Silence
from dl4jlegacy.system.listening import bind, url_of
from dl4jlegacy.ui.guard import Policy, refusal
from dl4jlegacy.ui.run_sources import FolderSource, LocalSource
from dl4jlegacy.ui.server import TOKEN, TOKEN_FILE, policy_for
from dl4jlegacy.ui.view import history_points
from dl4jlegacy.ui.watcher import Watcher, rest_after
from tests.support import REPOSITORY
from tests.support.cluster_commands import until
from tests.support.dashboards import HOSTILE, KeptRun, TrackedRun, bearer, history, served


@pytest.fixture
def kept(tmp_path: Path) -> KeptRun:
    return KeptRun(tmp_path / "run")


def views(client: httpx.Client) -> Iterator[dict[str, Any]]:
    """The views of the stream, as they come."""
    with client.stream("GET", "/api/v1/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


# --- what is told -----------------------------------------------------------------------------------------------------


def test_a_run_that_is_kept_in_a_folder_is_shown_as_its_history_has_it(kept: KeptRun) -> None:
    kept.write(history(30))
    with served(FolderSource(str(kept.path))) as (client, _):
        run = client.get("/api/v1/run").json()
        assert (run["run"]["run"], run["run"]["round"], run["run"]["examples"]) == ("r1", 30, 3000)
        assert run["run"]["validation"] == {"loss": 2.0 / 30, "examples": 50, "accuracy": 0.5}
        assert (run["run"]["state"], run["source"], run["away"]) == ("stalled", str(kept.path), None)  # since 1970
        assert (run["run"]["status"], "no news for" in run["run"]["reason"]) == ("running", True)
        assert run["run"]["conf"]["batch_size"] == 25
        workers = client.get("/api/v1/workers").json()["workers"]
        assert [(w["id"], w["examples_per_second"], w["state"]) for w in workers] == [
            ("host-0", 210.0, ""),
            ("host-1", 190.0, ""),
        ]
        found = client.get("/api/v1/history").json()
        assert [point["version"] for point in found["history"]] == list(range(1, 31)) and not found["is_observed"]
        assert {point["examples_per_second"] for point in found["history"]} == {200.0}


def test_what_is_written_while_it_is_looked_at_is_shown(kept: KeptRun) -> None:
    with served(FolderSource(str(kept.path))) as (client, _):
        assert client.get("/api/v1/run").json()["run"]["status"] == "not begun"
        following = views(client)
        assert next(following)["history"]["count"] == 0
        kept.write(history(7))
        assert any(view["history"]["count"] == 7 and view["run"]["round"] == 7 for view in following)
        kept.journal(("run_ended", {"status": "done", "round": 7}))
        assert any((view["run"]["state"], view["run"]["status"]) == ("ended", "done") for view in following)
        following.close()


def test_versions_that_a_resumed_run_made_anew_take_the_place_of_the_old_ones(kept: KeptRun) -> None:
    kept.write([*history(10), *history(2, began=2000.0, first=6)])
    with served(FolderSource(str(kept.path))) as (client, _):
        assert [p["version"] for p in client.get("/api/v1/history").json()["history"]] == [1, 2, 3, 4, 5, 6, 7]
        assert client.get("/api/v1/run").json()["run"]["round"] == 7


def test_points_stand_for_several_versions_where_there_are_too_many() -> None:
    entries = history(95)
    points = history_points(entries, 10)
    assert [point.version for point in points] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 95]
    assert points[0].score == pytest.approx(sum(1 / n for n in range(1, 11)) / 10)
    assert {point.examples_per_second for point in points} == {200.0}
    assert [p.validation is None for p in points] == [False] * 9 + [True]
    assert [point.version for point in history_points(entries, 3, after=89)] == [91, 93, 95]
    assert history_points(entries, 3, after=95) == [] and history_points([], 3) == []


def test_a_tracker_is_shown_with_workers_jobs_and_events() -> None:
    source = TrackedRun()
    source.set_head(3)
    source.set_worker(0, job="3/0", jobs_done=6, device="NVIDIA H100, 3.2 of 80 GiB")
    source.set_worker(1, state="idle")
    source.set_job(3, 0, worker="host-0", model="model/1/m", progress=2)
    source.journal.write("worker_joined", worker="host-0")
    with served(source) as (client, _):
        run = client.get("/api/v1/run").json()["run"]
        assert (run["round"], run["rounds"], run["examples"], run["total_examples"]) == (3, 40, 150, 2000)
        assert (run["phase"], run["state"]) == ("finetune", "running")
        first, second = client.get("/api/v1/workers").json()["workers"]
        assert (first["job"], first["staleness"], first["device"]) == ("3/0", 2, "NVIDIA H100, 3.2 of 80 GiB")
        assert (second["state"], second["job"], second["staleness"]) == ("idle", "", None)
        (job,) = client.get("/api/v1/jobs").json()["jobs"]
        assert (job["slot"], job["state"], job["worker"], job["progress"]) == (0, "leased", "host-0", 2)
        (event,) = client.get("/api/v1/events").json()["events"]
        assert (event["event"], event["worker"]) == ("worker_joined", "host-0")


def test_a_worker_that_is_gone_and_a_job_that_failed_are_shown_with_their_reasons() -> None:
    source = TrackedRun()
    source.set_worker(1, job="0/1")
    with served(source) as (client, _):
        following = views(client)
        assert next(following)["workers"][0]["state"] == "working"
        source.set_gone(host="connection lost")
        source.fail_job(0, 1, "RuntimeError: the disk is on fire")
        view = next(view for view in following if view["workers"][0]["gone"] and view["events"]["count"])
        following.close()
        assert (view["workers"][0]["state"], view["workers"][0]["gone"]) == ("gone", "connection lost")
        (failure,) = view["jobs"][0]["failures"]
        assert failure["message"] == "RuntimeError: the disk is on fire" and failure["worker"] == "host-1"
        log = client.get("/api/v1/log").text
        assert "job failed: worker host-1" in log and log.endswith(
            "  Traceback\n    RuntimeError: the disk is on fire\n"
        )
        assert client.get("/api/v1/log?lines=1").text == "    RuntimeError: the disk is on fire\n"
        assert client.get("/api/v1/log?lines=0").text == ""


def test_events_are_told_by_key_kind_and_number() -> None:
    source = TrackedRun()
    for number in range(5):
        source.journal.write("worker_joined" if number % 2 else "worker_left", worker=f"w{number}")
    with served(source) as (client, _):

        def workers(query: str) -> list[str]:
            return [event["worker"] for event in client.get(f"/api/v1/events{query}").json()["events"]]

        assert workers("") == ["w0", "w1", "w2", "w3", "w4"]
        assert workers("?limit=2") == ["w3", "w4"] and workers("?limit=0") == []
        assert workers("?event=worker_joined") == ["w1", "w3"] and workers("?event=nothing") == []
        third = client.get("/api/v1/events").json()["events"][2]["key"]
        assert workers(f"?after={third}") == ["w3", "w4"]


def test_a_tracker_that_is_away_is_said_to_be_with_what_was_known_and_comes_back() -> None:
    source = TrackedRun()
    source.set_head(3)
    with served(source) as (client, _):
        following = views(client)
        assert next(following)["away"] is None
        source.is_away = True
        away = next(view for view in following if view["away"])
        assert away["away"]["code"] == "DL4J-TRACKER" and "did not answer" in away["away"]["message"]
        assert away["run"]["round"] == 3 and away["read_at"] <= away["away"]["since"]
        answer = client.get("/api/v1/run")
        assert answer.status_code == 200 and answer.json()["away"]["since"] == away["away"]["since"]
        source.set_head(9)
        source.is_away = False
        assert next(view for view in following if not view["away"])["run"]["round"] == 9
        following.close()


def test_a_bug_while_looking_is_shown_and_does_not_end_the_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    source = TrackedRun()
    with served(source) as (client, panel):
        with monkeypatch.context() as patch:
            patch.setattr(source, "read", lambda: 1 / 0)
            panel.watcher.look()
            away = panel.watcher.view.away
            assert away is not None and "ZeroDivisionError" in away.message
        until(lambda: client.get("/api/v1/run").json()["away"] is None)


def test_a_run_that_keeps_no_history_has_the_curve_that_was_seen_from_here() -> None:
    source = TrackedRun()
    source.set_head(3)
    watcher = Watcher(source)
    watcher.look()
    for version in (4, 4, 7):
        source.set_head(version)
        watcher.look()
    assert [(entry.version, entry.examples) for entry in watcher.history] == [(4, 200), (7, 350)]
    assert watcher.view.is_observed and all(entry.seconds > 0 for entry in watcher.history)
    began = watcher.history[-1].began
    for version in (2, 3):  # it went on from a checkpoint
        source.set_head(version)
        watcher.look()
    assert watcher.history[-1].version == 3 and watcher.history[-1].began > began
    source.entries = history(2)
    watcher.look()
    assert [entry.version for entry in watcher.history] == [1, 2] and not watcher.view.is_observed
    source.close()


def test_where_a_look_holds_up_the_run_the_next_one_waits_longer(tmp_path: Path) -> None:
    run, folder = TrackedRun(), FolderSource(str(tmp_path))
    source = LocalSource(run.tracker, run.conf, run.plan)
    assert (source.rest, folder.rest) == (100, 20)
    assert [rest_after(seconds, source.rest) for seconds in (0.001, 0.007, 0.3)] == [0.5, pytest.approx(0.7), 1.0]
    assert [rest_after(seconds, folder.rest) for seconds in (0.007, 0.03, 0.3)] == [0.5, pytest.approx(0.6), 1.0]
    run.close()


def test_the_silence_of_a_worker_is_measured_here() -> None:
    class Now:
        seconds = 0.0

        def now(self) -> float:
            return self.seconds

    clock = Now()
    silence = Silence(clock)
    assert silence.update({"a": 5.0, "b": 9.0}) == {"a": 0.0, "b": 0.0}
    clock.seconds = 3.0
    assert silence.update({"a": 5.0, "b": 9.5}) == {"a": 3.0, "b": 0.0}
    assert silence.update({"b": 9.5}) == {"b": 0.0}


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match="holds no run"):
            FolderSource(str(path)).read()
    (tmp_path / "conf.json").write_text("[1")
    with pytest.raises(CheckpointError, match=r"conf\.json in .* is none"):
        FolderSource(str(tmp_path)).read()


def test_damaged_lines_and_numbers_that_are_none_are_left_out(kept: KeptRun) -> None:
    kept.write(history(2))
    with (kept.path / "history.jsonl").open("ab") as file:
        file.write(b'{"began": 1000.0, "time"\n\xff\xfe\n')
    kept.write(history(1, first=3))
    with served(FolderSource(str(kept.path))) as (client, _):
        assert [p["version"] for p in client.get("/api/v1/history").json()["history"]] == [1, 2, 3]


# --- what can be done -------------------------------------------------------------------------------------------------


def test_a_run_is_stopped_and_its_model_saved_with_the_token_only(tmp_path: Path) -> None:
    source = TrackedRun()
    source.set_head(3)
    with served(source, folder=str(tmp_path)) as (client, panel):
        own = bearer(panel)
        token = panel.policy.token
        for headers in (
            {},
            {"origin": str(client.base_url).rstrip("/"), "x-dl4j-token": token},
            {"cookie": f"token={token}"},
            {"authorization": f"Basic {base64.b64encode(f'anybody:{token}'.encode()).decode()}"},
            {"authorization": f"Bearer {token}x"},
            {"authorization": f"Bearer {token[:-1]}"},
            {"authorization": "Bearer"},
            {"authorization": token},
        ):
            for path in ("stop", "save", "evaluate"):
                refused = client.post(f"/api/v1/{path}", headers=headers)
                assert refused.status_code == 401 and refused.json()["error"]["code"] == "DL4J-AUTH", headers
        assert (source.stops, source.saved) == (0, [])
        assert client.post("/api/v1/save", headers=own).json() == {"status": f"saved in {tmp_path}/r1-round-3.zip"}
        assert client.post("/api/v1/stop", headers=own).json() == {"status": "run r1: stopped"}
        assert client.get("/api/v1/stop").status_code == 405
        until(lambda: client.get("/api/v1/run").json()["run"]["status"] == "stopped")
    assert (source.stops, len(source.saved)) == (1, 1)


def test_what_cannot_be_done_is_answered_with_the_reason(kept: KeptRun) -> None:
    with served(FolderSource(str(kept.path))) as (client, panel):
        refused = client.post("/api/v1/stop", headers=bearer(panel))
        assert refused.status_code == 409 and "press Ctrl-C" in refused.json()["error"]["message"]
        refused = client.post("/api/v1/save", headers=bearer(panel))
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "DL4J-CHECKPOINT")


def test_one_thing_is_done_at_a_time() -> None:
    source = TrackedRun()
    begun, goes_on = threading.Event(), threading.Event()

    def save(out: str) -> str:
        begun.set()
        assert goes_on.wait(30)
        return "saved"

    source.save = save  # type: ignore[method-assign]
    with served(source) as (client, panel):
        own, answers = bearer(panel), list[int]()
        first = threading.Thread(target=lambda: answers.append(client.post("/api/v1/save", headers=own).status_code))
        first.start()
        assert begun.wait(30)
        with httpx.Client(base_url=client.base_url) as other:
            assert other.post("/api/v1/stop", headers=own).status_code == 409
            assert other.get("/api/v1/run").status_code == 200
        goes_on.set()
        first.join(30)
        assert answers == [200] and source.stops == 0


# --- to whom ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9000", "LOCALHOST:80", "127.0.0.1:1", "[::1]:9000", "box:9000"]
)
def test_the_server_is_called_by_addresses_and_names_of_its_machine(host: str) -> None:
    assert refusal("GET", "/", {"host": host}, Policy(names=("box",))) is None


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:9000", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_a_name_of_somebody_else_that_leads_here_is_refused(host: str) -> None:
    found = refusal("GET", "/", {"host": host}, Policy(names=("box",)))
    assert found is not None and found.status == 421


def test_where_a_token_is_demanded_nothing_is_told_without_it() -> None:
    page = frozenset({"/", "/dashboard.js"})
    with served(TrackedRun(), Policy(token="sesame-open", is_open=False, names=(), files=page)) as (client, panel):
        for path in ("/api/v1/model", "/api/v1/run", "/api/v1/stream", "/statetracker/jobs", "/nothing"):
            for given in (None, "Bearer x", "Bearer", "Basic x", "Bearer sesame-ope", "Bearer ä", "sesame-open"):
                refused = client.get(path, headers={"authorization": given.encode("latin-1")} if given else {})
                assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer", (path, given)
                assert "sesame" not in refused.text
        assert "r1" not in client.get("/").text + client.get("/dashboard.js").text
        assert client.get("/api/v1/run", headers=bearer(panel)).json()["run"]["run"] == "r1"
        assert client.post("/api/v1/stop").status_code == 401
        assert client.post("/api/v1/stop", headers=bearer(panel)).status_code == 200


def test_beyond_loopback_there_is_a_token_or_no_server(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "box"):
        with pytest.raises(NotAuthorisedError, match=rf"--host {host} .* {TOKEN_FILE}"):
            policy_for(host, {}, is_signed=False)
    for host in ("127.0.0.1", "localhost", "::1"):
        policies = [policy_for(host, {}, is_signed=is_signed) for is_signed in (False, True)]
        assert [policy.is_open for policy in policies] == [True, False]
        assert all(len(policy.token) > 30 for policy in policies) and policies[0].token != policies[1].token
    file = tmp_path / "token"
    file.write_text("a-long-token-of-mine\n")
    file.chmod(0o600)
    for environ in ({TOKEN: "a-long-token-of-mine"}, {TOKEN_FILE: str(file)}):
        policy = policy_for("0.0.0.0", environ, is_signed=False)
        assert policy.token == "a-long-token-of-mine" and policy.token not in repr(policy) and not policy.is_open
    for environ in ({TOKEN: ""}, {TOKEN_FILE: ""}, {TOKEN_FILE: str(tmp_path / "nothing")}, {TOKEN: "sesame"}):
        with pytest.raises(ConfError, match=TOKEN) as refused:
            policy_for("127.0.0.1", environ, is_signed=False)
        assert "DL4J_SECRET" not in str(refused.value) and "sesame" not in str(refused.value)


def test_the_page_runs_no_script_of_others_and_no_markup_of_a_run(kept: KeptRun) -> None:
    kept.journal(("job_failed", {"worker": HOSTILE, "message": HOSTILE}))
    with served(FolderSource(str(kept.path))) as (client, panel):
        page = client.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert panel.policy.token not in page.text + client.get("/dashboard.js").text
        for path in ("/dashboard.js", "/model.js", "/dashboard.css", "/favicon.svg"):
            text = client.get(path).text
            assert "innerHTML" not in text and "insertAdjacentHTML" not in text
            assert "https://" not in text and "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "<script>" not in page.text and " style=" not in page.text and "onclick" not in page.text
        for path in ("/api/v1/events", "/api/v1/log"):
            answer = client.get(path)
            assert "html" not in answer.headers["content-type"] and "onerror" in answer.text


def test_the_page_is_small() -> None:
    files = (REPOSITORY / "dl4jlegacy" / "ui" / "page").iterdir()
    assert sum(file.stat().st_size for file in files) < 300_000


# --- the server -------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do() -> None:
    with bind("127.0.0.1", 0, "the dashboard") as taken:
        port = taken.getsockname()[1]
        assert url_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port}: address already in use; .*--port 0"):
            bind("127.0.0.1", port, "the dashboard")
    with pytest.raises(UsageError, match=r"--host nowhere\.invalid"):
        bind("nowhere.invalid", 0, "the dashboard")


def test_a_server_that_is_left_leaves_though_somebody_follows_it() -> None:
    with served(TrackedRun()) as (client, panel):
        following = views(client)
        next(following)
        until(lambda: panel.streams == 1)
    following.close()
    assert panel.streams == 0


def test_no_more_than_so_many_follow_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dl4jlegacy.ui.api._MOST_STREAMS", 1)
    with served(TrackedRun()) as (client, panel):
        following = views(client)
        next(following)
        until(lambda: panel.streams == 1)
        assert client.get("/api/v1/stream").status_code == 429
        following.close()
        until(lambda: panel.streams == 0)


def test_the_command_prints_where_and_ends_by_ctrl_c(kept: KeptRun) -> None:
    kept.write(history(3))
    command = [sys.executable, "-m", "dl4jlegacy", "dashboard", str(kept.path), "--port", "0", "--format", "json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        said = json.loads(process.stdout.readline())
        with httpx.Client(base_url=said["url"], timeout=30) as client:
            assert said["run"] == client.get("/api/v1/run").json()["run"]["run"] == "r1"
            following = views(client)
            assert next(following)["run"]["round"] == 3
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            following.close()
        assert process.stderr.read() == "stopped by SIGINT\n"


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ((), 2, "give the folder of its checkpoints, or --zookeeper"),
        (("nowhere",), 8, "holds no run"),
        (("run", "--port", "70000"), 2, "at most 65535"),
        (("run", "--port", "x"), 2, "--port is 'x'"),
        (("run", "--host", "0.0.0.0"), 6, "there is no token"),
        (("run", "--zookeeper", "127.0.0.1:1"), 2, "give either"),
        (("--zookeeper", "127.0.0.1:1"), 4, "Zookeeper at 127.0.0.1:1 did not answer"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    words: tuple[str, ...],
    status: int,
    says: str,
    kept: KeptRun,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dl4jlegacy.cli import main

    monkeypatch.chdir(kept.path.parent)
    for variable in (TOKEN, TOKEN_FILE):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(SystemExit) as leave:
        main.main(["dashboard", *words])
    assert (leave.value.code, says in capsys.readouterr().err) == (status, True)


def test_a_client_that_says_nothing_does_not_hold_the_server_up() -> None:
    with served(TrackedRun()) as (client, _):
        host, port = client.base_url.host, client.base_url.port
        with socket.create_connection((host, port), timeout=30) as silent:
            silent.sendall(b"GET /api/v1/run HT")
            assert client.get("/api/v1/run").status_code == 200


# --- beside a training ------------------------------------------------------------------------------------------------


def begun(*words: str, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dl4jlegacy", *words]
    with log.open("w") as err:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, cwd=REPOSITORY)


def test_a_training_shows_itself_and_is_stopped_from_its_page(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ("--model", "mlp", "--dataset", "iris", "--epochs", "1000000", "--workers", "2", "--log-format", "json")
    with begun("train", *words, "--ui", log=log) as process:
        try:
            until(lambda: '"dashboard"' in log.read_text() or process.poll() is not None)
            (said,) = [json.loads(line) for line in log.read_text().splitlines() if '"dashboard"' in line]
            token = Path(said["token_file"]).read_text().strip()
            own = {"authorization": f"Bearer {token}"}
            with httpx.Client(base_url=said["url"], timeout=30) as client:
                until(lambda: (client.get("/api/v1/run").json()["run"] or {}).get("round", 0) > 3)
                workers = client.get("/api/v1/workers").json()["workers"]
                assert [worker["pid"] for worker in workers] == [process.pid] * 2
                assert client.get("/api/v1/history").json()["is_observed"]
                assert client.post("/api/v1/stop").status_code == 401
                assert ": stopped in round" in client.post("/api/v1/stop", headers=own).json()["status"]
            assert process.wait(60) == 1
            assert "was stopped in round" in log.read_text() and token not in log.read_text()
            assert not Path(said["token_file"]).parent.exists()
        finally:
            process.kill()


def test_a_training_that_is_interrupted_takes_its_page_along(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ("--model", "mlp", "--dataset", "iris", "--epochs", "1000000", "--checkpoint-dir", str(tmp_path / "run"))
    with begun("train", *words, "--ui", log=log) as process:
        try:
            until(lambda: "is shown at" in log.read_text() or process.poll() is not None)
            url = log.read_text().partition("is shown at ")[2].partition(",")[0]
            with httpx.Client(base_url=url, timeout=30) as client:
                until(lambda: client.get("/api/v1/history").json()["versions"] > 3)
                assert client.get("/api/v1/run").json()["can"] == ["stop", "save", "evaluate"]
                following = views(client)
                next(following)
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130
                following.close()
        finally:
            process.kill()
