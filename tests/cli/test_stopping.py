"""Runs that are stopped: by signals, in the middle of a job, by readers that leave. Nothing hangs, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from dl4jlegacy.cli.terminal.next_steps import RunLocation
from dl4jlegacy.cli.terminal.progress import _where_it_stopped
from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.kernels import load
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.protocol.frames import write_frame
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import HEAD, Head, JobRecord, Keys, Manifest, decode_record, encode_record
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, drive
from tests.support import REPOSITORY
from tests.support.progress_lines import without_progress

DL4J = (sys.executable, "-m", "dl4jlegacy")
LONG = ("train", "--model", "mlp", "--dataset", "digits", "--epochs", "2000", "--workers", "3", "--seed", "5")


def test_a_worker_that_gives_a_lease_back_pauses_so_that_its_actor_can_stop_there() -> None:
    tracker = InMemoryStateTracker()
    store, clock = tracker.store, tracker.clock
    plan = Plan(phases=(Phase(),), batches=4, examples=4, batch_size=1, jobs_per_round=4)
    model = drive(write_frame(store, "model/0/m", Result({}).encode()))
    store.put(HEAD, encode_record(Head(run="r", version=0, round=0, model=model)))
    for slot in range(4):
        store.put(Keys.job(0, slot), encode_record(JobRecord(state="ready", model=model.key)))
    router = create_router("iterative-reduce")
    worker = protocol.Worker("w", store, clock, plan, router, aggregator=router.fold(load("numpy")))
    steps = protocol.worker_steps(worker)
    performed = next(event for event in steps if event is not None)
    assert isinstance(performed, protocol.Perform)
    after = next(event for event in steps if event is not None)  # the answer is None: not performed
    assert isinstance(after, protocol.Wait)
    records = [decode_record(store.get(Keys.job(0, slot)), JobRecord) for slot in range(4)]
    assert [record.state for record in records] == ["ready"] * 4
    tracker.shutdown()


def environment() -> dict[str, str]:
    root = str(REPOSITORY)
    return {**os.environ, "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DL4J, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def pause(process: subprocess.Popen[str], seconds: float) -> None:
    """Wait for the end of the process, but not longer."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)


def when_under_way(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until the run in ``folder`` has a checkpoint."""
    end = time.monotonic() + 60
    while not list(folder.glob("checkpoint-*.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        pause(process, 0.05)


OTHER_SIGNALS = [pytest.param(*case, marks=pytest.mark.long) for case in ((signal.SIGINT, 130), (signal.SIGHUP, 129))]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), *OTHER_SIGNALS])
def test_a_signal_saves_a_checkpoint_says_how_to_go_on_and_resume_does(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    folder = tmp_path / "run"
    process = start(*LONG, "--checkpoint-dir", str(folder), "--format", "json")
    when_under_way(process, folder)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert without_progress(err).count("\n") == 1
    assert f"stopped by {number.name} in round " in err
    assert f"`dl4j resume {folder}` goes on" in err
    error = json.loads(out)["error"]
    assert (error["code"], error["exit"]) == (f"DL4J-{number.name}", status)
    assert {path.name for path in folder.glob(".*")} <= {".lock"}

    saved = max(int(path.stem.split("-")[1]) for path in folder.glob("checkpoint-*.json"))
    again = start("resume", str(folder), "--log-format", "json", "--workers", "2")
    when_resumed(again, folder, saved)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=60)
    assert again.returncode == 130


def when_resumed(process: subprocess.Popen[str], folder: Path, saved: int) -> None:
    end = time.monotonic() + 60
    while max(int(path.stem.split("-")[1]) for path in folder.glob("checkpoint-*.json")) <= saved:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        pause(process, 0.05)


def test_a_second_signal_leaves_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*LONG, "--checkpoint-dir", str(folder))
    when_under_way(process, folder)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        pause(process, 0.005)
    process.communicate(timeout=60)
    assert process.returncode == 130


LATE = """
import os, signal, sys
from dl4jlegacy.system.console import run_guarded
class Late:
    kill, us = os.kill, os.getpid()
    def __del__(self):
        self.kill(self.us, signal.SIGINT)
        self.kill(self.us, signal.SIGTERM)
late = Late()
sys.exit(run_guarded(lambda: os.kill(os.getpid(), signal.SIGINT)))
"""


def test_a_second_signal_while_the_interpreter_is_taken_down_does_not_change_the_exit_status() -> None:
    command = [sys.executable, "-c", LATE]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "stopped by SIGINT\n")


@pytest.mark.long
def test_without_checkpoints_a_stopped_run_says_that_nothing_is_kept(tmp_path: Path) -> None:
    process = start(*LONG, "--log-format", "json", "--out", str(tmp_path / "model.zip"))
    end = time.monotonic() + 60
    while psutil.Process(process.pid).num_threads() <= 3:  # until all three workers are there
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        pause(process, 0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    last = json.loads(err.splitlines()[-1])
    assert (last["event"], last["code"], last["exit"]) == ("error", "DL4J-SIGTERM", 143)
    assert not list(tmp_path.iterdir())


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, env=environment(), check=False
    )


SHORT: Sequence[str] = (*DL4J, "train", "--model", "mlp", "--dataset", "iris", "--epochs", "2")


def test_a_reader_of_stdout_that_leaves_is_no_error() -> None:
    done = shell(f"set -o pipefail; {' '.join(SHORT)} | true")
    assert done.returncode == 0
    assert "rror" not in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.long
def test_a_reader_of_stderr_that_leaves_does_not_end_the_training(tmp_path: Path) -> None:
    done = shell(
        f"{' '.join(SHORT)} --format json --log-format json --out {tmp_path / 'm.zip'} 2> >(true) "
        f"--learning-rate 0.01; echo $?"
    )
    lines = done.stdout.splitlines()
    assert json.loads(lines[0])["batches_lost"] == 0
    assert lines[1] == "0"
    assert (tmp_path / "m.zip").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_under_stdout_is_named() -> None:
    done = shell(f"{' '.join(SHORT)} > /dev/full")
    assert done.returncode == 1
    assert without_progress(done.stderr).splitlines()[-1] == (
        "error [DL4J-OUTPUT]: the results cannot be written to standard output: No space left on device"
    )


@pytest.mark.long
def test_closed_standard_streams_do_not_matter() -> None:
    done = shell(f"{' '.join(SHORT)} --format json 2>&-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["batches_lost"] == 0


SIGNALLED = """
import os, runpy, signal, sys

class Signal:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
sys.meta_path.insert(0, Signal())
runpy.run_module("dl4jlegacy", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["dl4jlegacy.cli.main", "typer", "dl4jlegacy.system.console"])
def test_a_signal_while_the_command_line_is_imported_leaves_without_a_traceback(module, number) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SIGNALLED, module, str(int(number))],
        capture_output=True, text=True, timeout=60, env=environment(), check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (128 + number, "")
    assert found.stderr == f"stopped by {number.name} before it began\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_so_does_one_while_python_m_imports_the_package(number: signal.Signals, tmp_path: Path) -> None:
    """``lazy_loader`` is the first thing that the package imports."""
    (tmp_path / "lazy_loader.py").write_text(f"import os, signal\nos.kill(os.getpid(), {int(number)})\n")
    found = subprocess.run(
        [sys.executable, "-m", "dl4jlegacy", "--version"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 128 + number and found.stderr == f"stopped by {number.name} before it began\n"


def test_nohup_keeps_a_run_from_ending_at_a_hangup() -> None:
    code = "import signal; from dl4jlegacy.system.console import run_guarded as r; import sys, os; " \
        "signal.signal(1, signal.SIG_IGN); sys.exit(r(lambda: os.kill(os.getpid(), 1)))"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], timeout=60, env=environment(), check=False).returncode == 0


@pytest.mark.parametrize(
    ("logged", "address", "goes_on"),
    [
        (0, None, "there"),
        (3, None, "round 4 or later, where it was stored last"),
        (3, ClusterAddress("127.0.0.1:2181"), "there"),  # the grid has the messages since then
    ],
)
def test_who_stops_a_run_is_told_from_where_it_goes_on(
    logged: int, address: ClusterAddress | None, goes_on: str
) -> None:
    plan = Plan(phases=(Phase(epochs=9),), batches=4, examples=4, batch_size=1, jobs_per_round=4)
    head = Head(run="run", version=7, round=7, model=Manifest("m", 1, 1), logged=logged)
    said = _where_it_stopped(RunStatus(plan, head, 3.0, ()), RunLocation("kept", "run", address))
    assert said.startswith(" in round 7/9; `dl4j resume ") and said.endswith(f"` goes on from {goes_on}")
