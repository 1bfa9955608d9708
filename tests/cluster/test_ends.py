"""The end of a run (evaluate, write, clear up) belongs to the run, and not to the process that happened to lead it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dl4jlegacy.models.model import evaluate_model, read_model
from tests.support.cluster_commands import RUN, Cluster, embedded, error, same, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

KILLED = "import os, signal\ndef die(*given, **named):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
WHERE = {
    "before it evaluates": "import dl4jlegacy.training.prepare as module\nmodule.evaluate_network = die\n",
    "before it writes": "import dl4jlegacy.storage.paths as module\nmodule.Output.save_or_keep = die\n",
    "while it writes": "import dl4jlegacy.system.files as module\nmodule._put_in_place = die\n",
    "while it clears up": "import dl4jlegacy.cluster.registration as module\nmodule.destroy = die\n",
}


@pytest.mark.parametrize(
    ("where", "takes_over"),
    [
        pytest.param("before it evaluates", "a standby", marks=pytest.mark.release),
        pytest.param("before it writes", "resume", marks=pytest.mark.release),
        ("while it writes", "a standby"),
        ("while it clears up", "resume"),
    ],
)
def test_a_master_that_is_killed_after_the_last_batch_leaves_the_end_to_whoever_takes_over(
    where: str, takes_over: str, cluster: Cluster, tmp_path: Path
) -> None:
    out = tmp_path / "model.zip"
    flags = ("--epochs", "2", "--run", "r1", "--out", str(out), *cluster.master_flags)
    master = cluster.start("master", *RUN, *flags, patch=KILLED + WHERE[where])
    standby = None
    if takes_over == "a standby":
        standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
        standby.says("standing by")
    worker = cluster.worker()
    assert (master.wait(), worker.wait()) == (-9, 0)
    finishes = standby or cluster.start("resume", "r1", "--zookeeper", cluster.zookeeper, "--format", "json")
    if where != "while it clears up":
        report = same(finishes, 2)
        assert report["model_path"] == str(out)
    elif standby is not None:
        assert standby.wait() == 0, standby.err()
    else:
        error(finishes, 4, "no run r1")
        # Zookeeper keeps the killed master's session for some seconds; until then the run counts as live.
        until(lambda: not any("/election/" in left for left in cluster.left_over()), what="the master's session ends")
        cleans = cluster.start("runs", "--clean", "--zookeeper", cluster.zookeeper, *cluster.master_flags[:4])
        assert cleans.wait() == 0, cleans.err()
    assert evaluate_model(read_model(str(out)), "digits")[1]["accuracy"] == embedded(2)["accuracy"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("model")] == ["model.zip"]
    assert cluster.left_over() == []


FULL = (
    "import errno, dl4jlegacy.system.files as module\n"
    "def full(*given, **named):\n    raise OSError(errno.ENOSPC, 'No space left on device')\n"
    "module._put_in_place = full\n"
)


def test_a_run_whose_model_finds_no_room_is_kept_until_it_is_written(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--epochs", "2", "--run", "r1", "--out", str(tmp_path / "model.zip"), *cluster.master_flags)
    master = cluster.start("master", *RUN, *flags, patch=FULL)
    worker = cluster.worker()
    assert (master.wait(), worker.wait()) == (8, 0)
    assert "No space left on device" in master.err()
    assert "it is lost; but the run is kept: `dl4j resume r1 --out FILE` writes its model" in master.err()
    resumed = cluster.start("resume", "r1", "--zookeeper", cluster.zookeeper, "--format", "json")
    assert same(resumed, 2)["model_path"] == str(tmp_path / "model.zip")
    assert cluster.left_over() == []


def test_a_run_whose_model_is_not_written_yet_keeps_its_name(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--epochs", "2", "--run", "r1", *cluster.master_flags)
    master = cluster.start(
        "master", *RUN, *flags, "--out", str(tmp_path / "m.zip"), patch=KILLED + WHERE["before it writes"]
    )
    worker = cluster.worker()
    assert (master.wait(), worker.wait()) == (-9, 0)
    error(cluster.start("master", *RUN, *flags, "--id", "other"), 4, "has a run r1 already", "dl4j resume r1")
    elsewhere = tmp_path / "elsewhere.zip"
    resumed = cluster.start(
        "resume", "r1", "--zookeeper", cluster.zookeeper, "--out", str(elsewhere), "--format", "json"
    )
    same(resumed, 2)
    assert elsewhere.exists()
    assert not (tmp_path / "m.zip").exists()
