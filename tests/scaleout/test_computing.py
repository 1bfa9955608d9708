"""A run in one process that dies of its own job: what its folder says of it, and what the resumes make of that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dl4jlegacy.errors import PoisonJobError
from dl4jlegacy.scaleout.persistence import computing
from dl4jlegacy.scaleout.persistence.computing import Computing
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.state.records import Head, Manifest
from tests.support import REPOSITORY

PLAN = Plan(phases=(Phase(epochs=100),), batches=40, examples=40, batch_size=1, jobs_per_round=4)
HEAD = Head(run="r", version=500, round=500, model=Manifest("m", 1, 1), folded=((0, 2000),))


def dies(folder: Path, *places: tuple[int, int], incarnation: str = "i") -> None:
    """Leave behind what a process does that dies of jobs."""
    noted = Computing(folder, incarnation)
    for index, place in enumerate(places):
        noted.change(place, begins=True)
        noted._noted.computing[f"thread {index}"] = noted._noted.computing.popitem()[1]
    noted._write()


def test_a_process_that_dies_of_one_job_again_and_again_is_told_which_and_may_try_it_again_then(tmp_path: Path) -> None:
    dies(tmp_path, (500, 1))
    assert not Computing(tmp_path, "i").is_suspected()
    dies(tmp_path, (500, 1))
    noted = Computing(tmp_path, "i")
    noted.check("r", PLAN, HEAD)
    assert noted.is_suspected() and noted._noted.crashes == {"500/1": 2}
    dies(tmp_path, (500, 1))
    with pytest.raises(PoisonJobError, match=r"round 500, slot 1 .*kills its workers"):
        Computing(tmp_path, "i").check("r", PLAN, HEAD)
    Computing(tmp_path, "i").check("r", PLAN, HEAD)


def test_a_job_that_is_to_be_set_aside_is_left_out_by_every_resume_until_a_checkpoint_says_so(tmp_path: Path) -> None:
    for _ in range(3):
        dies(tmp_path, (500, 1))
    number = PLAN.number(500, 1)
    for _ in range(2):  # whoever dies before its next checkpoint
        noted = Computing(tmp_path, "i")
        assert noted.check("r", PLAN, HEAD, sets_aside=True) == ((number, number + 1),)
        assert not noted.is_suspected()
    known = msgspec.structs.replace(HEAD, jobs_set_aside=((number, number + 1),))
    assert Computing(tmp_path, "i").check("r", PLAN, known) == known.jobs_set_aside


def test_a_job_that_is_done_is_not_to_blame(tmp_path: Path) -> None:
    for _ in range(3):
        dies(tmp_path, (500, 1), (500, 2))
    noted = Computing(tmp_path, "i")
    assert noted._noted.crashes == {"500/1": 3, "500/2": 3}
    noted.change((500, 1), begins=True)
    noted.change((500, 1), begins=False, is_done=True)
    assert Computing(tmp_path, "i")._noted.crashes == {"500/2": 3}


def test_a_machine_that_went_down_and_another_run_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies(tmp_path, (500, 1))
    assert Computing(tmp_path, "another")._noted.crashes == {}
    dies(tmp_path, (500, 1))
    boot = tmp_path / "boot"
    boot.write_text("another")
    monkeypatch.setattr(computing, "_BOOT", boot)
    assert Computing(tmp_path, "i")._noted.crashes == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"crashes": {"1/1": "x"}}', b"\xff" * 9000])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "computing.json").write_bytes(content)
    assert not Computing(tmp_path, "i").is_suspected()


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "computing.json").symlink_to(victim)
    Computing(tmp_path, "i").change((1, 1), begins=True)
    assert victim.read_text() == "precious"


DIES = """
import signal
import dl4jlegacy.scaleout.workers.perform as poison_module
performed_well = poison_module.MultiLayerNetworkPerformer.perform
def perform_poison(self, job):
    if tuple(job.slot[:2]) == (60, 2):
        signal.raise_signal(signal.SIGSEGV)
    return performed_well(self, job)
poison_module.MultiLayerNetworkPerformer.perform = perform_poison
"""


@pytest.mark.long
def test_a_training_that_dies_of_its_own_job_goes_on_without_it_if_that_is_wanted(tmp_path: Path) -> None:
    """Though its slots remember something."""
    (tmp_path / "sitecustomize.py").write_text(DIES)
    env, folder, died = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}, str(tmp_path / "run"), 0
    data = ["--model", "mlp", "--dataset", "digits", "--epochs", "6", "--router", "gradient-sharing"]
    flags = ["--checkpoint-dir", folder, "--checkpoint-every", "1", "--poison-jobs", "set-aside", "--format", "json"]
    words = ["train", *data, "--jobs-per-round", "4", *flags]
    while True:
        program = [sys.executable, "-m", "dl4jlegacy", *words]
        done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != -signal.SIGSEGV or died > 12:
            break
        died, words = died + 1, ["resume", folder, "--format", "json"]
    assert done.returncode == 0 and 3 <= died <= 12, done.stderr
    report = json.loads(done.stdout)
    assert (report["batches_set_aside"], report["batches_lost"], report["batches_duplicated"]) == (1, 0, 0)
    assert "round 60, slot 2 is set aside" in done.stderr


@pytest.mark.long
def test_a_training_that_dies_of_its_own_job_ends_with_its_name_when_it_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES)
    poisoned = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    folder, died = str(tmp_path / "run"), 0
    flags = ["--checkpoint-dir", folder, "--checkpoint-every", "1", "--format", "json"]
    arguments = ["train", "--model", "mlp", "--dataset", "digits", "--jobs-per-round", "4", "--epochs", "6", *flags]

    def run(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "dl4jlegacy", *words]
        return subprocess.run(program, env=env, capture_output=True, text=True, timeout=120, check=False)

    done = run(arguments, poisoned)
    while done.returncode == -signal.SIGSEGV and died < 12:
        died += 1
        done = run(["resume", folder], poisoned)
    assert done.returncode == 12 and 3 <= died < 12, done.stderr
    assert "round 60, slot 2" in done.stderr and "kills its workers" in done.stderr
    mended = run(["resume", folder, "--format", "json"], dict(os.environ))
    assert mended.returncode == 0, mended.stderr
    whole = run([*arguments[:-6], "--format", "json"], dict(os.environ))
    assert json.loads(mended.stdout)["batches_set_aside"] == 0
    assert json.loads(mended.stdout)["params_sha256"] == json.loads(whole.stdout)["params_sha256"]
