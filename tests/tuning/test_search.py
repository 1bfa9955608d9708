"""Searches: what they find, that they go on where they stopped, and that neither workers nor pruning change a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import IrisDataSetIterator
from dl4jlegacy.errors import ConfError, OutputError, TrainingError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.scoring import ValidationConf
from dl4jlegacy.training import prepare as training
from dl4jlegacy.tuning import FinishedTrial, PruningCallback, SearchOptions, SearchResult, SearchSpace, tune

RATE = "updater.learning_rate"
WRITTEN = {RATE: {"low": 1e-4, "high": 1e-1, "log": True}, "layers[0].n_out": {"low": 8, "high": 256, "step": 8}}
CONF = Conf(model="mlp", dataset="iris", epochs=2, batch_size=16, jobs_per_round=2)


def search(
    conf: Conf = CONF, written: Any = None, *, tick: Any = None, on_trial: Any = None, **options: Any
) -> SearchResult:
    space = SearchSpace.of(WRITTEN if written is None else written)
    return tune(conf, space, SearchOptions(**options), tick=tick, on_trial=on_trial)


def content(trials: list[FinishedTrial]) -> list[Any]:
    """All that must be the same wherever and however often a trial is computed."""
    return [(t.number, t.state, t.score, t.params, t.scores, t.params_sha256, t.is_start) for t in trials]


def test_the_trials_are_the_same_for_any_number_of_workers_and_the_best_conf_trains_the_best_model(
    tmp_path: Path,
) -> None:
    one = search(trials=2, workers=1)
    two = search(trials=2, workers=2, out=str(tmp_path / "best.zip"), out_conf=str(tmp_path / "best.yaml"))
    assert content(one.trials) == content(two.trials)
    assert [t.number for t in one.trials] == [0, 1]
    assert one.best.score == min(t.score or 9.0 for t in one.trials)
    assert one.start == one.trials[0] and one.trials[0].params[RATE] == 0.001414
    conf = Conf.read(tmp_path / "best.yaml")
    assert conf == two.conf and conf.validation == ValidationConf(fraction=0.2)
    run, data = training.prepare(conf.replace(workers=1), Conf.named_in(tmp_path / "best.yaml"))
    report = training.train(run, data)
    assert report.fields["params_sha256"] == two.best.params_sha256
    assert report.fields["choices"] == {}  # the file has it all
    assert report.fields["best"]["score"] == two.best.score
    assert report.fields["accuracy"] == two.evaluation["accuracy"]
    assert (tmp_path / "best.zip").stat().st_size > 0


def test_a_fifth_validates_of_many_rows_too() -> None:
    found = search(Conf(model="mlp", dataset="digits", epochs=1, batch_size=256), trials=1)
    assert found.conf.validation == ValidationConf(fraction=0.2)


class _Halt(Exception):
    """Stands for whatever ends a process."""


def test_an_interrupted_search_goes_on_without_losing_or_repeating_trials(tmp_path: Path) -> None:
    whole, place = search(trials=3), str(tmp_path / "trials.db")
    begun: list[int] = []

    def halt_in_trial_1(status: RunStatus) -> None:
        if len(begun) == 1:
            raise _Halt

    with pytest.raises(_Halt):
        search(trials=3, storage=place, tick=halt_in_trial_1, on_trial=lambda trial: begun.append(trial.number))
    assert begun == [0]
    again: list[int] = []
    found = search(trials=3, storage=place, on_trial=lambda trial: again.append(trial.number))
    assert again == [1, 2]
    assert content(found.trials) == content(whole.trials)


@pytest.mark.long
def test_a_trial_whose_process_died_is_tried_again_with_what_it_had_drawn(tmp_path: Path) -> None:
    place = tmp_path / "trials.db"
    search(trials=1, storage=str(place))
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{place}")
    dead = study.ask()  # it has drawn, and there is no more of it
    dead.set_user_attr("number", 1)
    dead.suggest_float(RATE, 1e-4, 1e-1, log=True)
    drawn = dead.params[RATE]
    study._storage.remove_session()
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    found = search(trials=2, storage=str(place))
    assert [trial.number for trial in found.trials] == [0, 1]
    assert found.trials[1].params[RATE] == drawn


@pytest.mark.long
def test_a_search_that_is_done_trains_nothing_but_its_best_model_for_the_file(tmp_path: Path) -> None:
    options = {"trials": 2, "storage": str(tmp_path / "trials.db")}
    first, seen = search(**options), []
    found = search(**options, out=str(tmp_path / "best.zip"), on_trial=seen.append)
    assert (seen, content(found.trials)) == ([], content(first.trials))
    assert training.params_sha256(found.network.params) == first.best.params_sha256
    assert (tmp_path / "best.zip").exists()


def test_a_trial_that_comes_to_nothing_is_named_and_the_others_go_on() -> None:
    found = search(written={RATE: [1e38, 0.01]}, trials=5)
    failed = [trial for trial in found.trials if trial.state == "failed"]
    assert failed and all(trial.params == {RATE: 1e38} and trial.score is None for trial in failed)
    assert "NaN" in failed[0].error or "not finite" in failed[0].error or "infin" in failed[0].error
    assert found.best.params == {RATE: 0.01}


def test_a_search_of_which_every_trial_fails_says_why() -> None:
    with pytest.raises(TrainingError, match="no trial of 2 came to its end; trial 0: "):
        search(written={RATE: {"low": 1e37, "high": 1e38}}, trials=2)


def test_a_study_is_not_gone_on_with_as_another_search(tmp_path: Path) -> None:
    place = str(tmp_path / "trials.db")
    search(trials=1, storage=place)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"conf": CONF.replace(epochs=1)}, "another conf;"),
        ({"conf": CONF.replace(dataset="digits")}, "another conf and another data set;"),
        ({"written": {"batch_size": [8]}}, "another search section;"),
        ({"seed": 5, "pruner": "none"}, "another seed and another pruner;"),
    ]
    for change, what in changes:
        with pytest.raises(ConfError, match=f"study 'search' was begun with {what} go on with the same, or give"):
            search(trials=1, storage=place, **change)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"storage": "nowhere/trials.db"}, OutputError, "storage nowhere/trials.db cannot be used: .*unable to open"),
        ({"storage": "s3://bucket/trials.db"}, ConfError, "it is no path of this machine"),
        ({"storage": "nosuch://host/db"}, ConfError, "storage nosuch://host/db: "),
        ({"storage": "text.db"}, OutputError, "file is not a database"),
        ({"out_conf": "nowhere/best.yaml"}, OutputError, "cannot be written to nowhere/best.yaml: No such file"),
        ({"pruner": "meridian"}, ConfError, "pruner is 'meridian'; did you mean 'median'?"),
        ({"trials": 0}, ConfError, "at least 1 trial and 1 worker; it has 0 and None"),
        ({"conf": CONF.replace(checkpoint_dir="x")}, ConfError, "a search keeps no checkpoints; leave it out"),
        ({"conf": CONF.replace(validation=ValidationConf())}, ConfError, "Conf.validation names no data"),
    ],
)
def test_wrong_options_are_refused_before_the_first_trial(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.db").write_text("this is text " * 100)
    with pytest.raises(error, match=message.replace("?", r"\?")):
        search(**options)
    assert [path.name for path in tmp_path.iterdir()] == ["text.db"]


def test_a_second_search_waits_for_no_file_that_another_works_in(tmp_path: Path) -> None:
    place, said = str(tmp_path / "trials.db"), []

    def begin_another(trial: FinishedTrial) -> None:
        with pytest.raises(ConfError, match=r"another search is at work in .*trials\.db") as refused:
            search(trials=1, storage=place)
        said.append(str(refused.value))

    search(trials=1, storage=place, on_trial=begin_another)
    assert len(said) == 1


def test_pruning_ends_a_run_of_ones_own_in_the_usual_way() -> None:
    """The study has trials whose scores nobody reaches, so that the first validation that may prune does."""
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=2))
    study.add_trial(optuna.create_trial(value=0.0, intermediate_values={1: 0.0, 2: 0.0, 3: 0.0}))
    pruning = PruningCallback(study.ask())
    network = training.prepare(CONF, frozenset())[0].conf.multi_layer_conf
    conf = CONF.replace(multi_layer_conf=network, epochs=5, validation=ValidationConf(fraction=0.2), workers=2)
    with ActorNetworkRunner("master", IrisDataSetIterator(16), stop_if=pruning) as runner:
        runner.setup(conf)
        result = runner.train(progress=False)
    assert result is not None and result.plan.epochs_before(result.head.round) == 2
    assert result.stopped_by.startswith("Pruned: score ") and "of validation 2 " in result.stopped_by
    assert (result.batches_lost, result.batches_duplicated) == (0, 0)
    assert pruning.has_pruned(result.stopped_by) and not pruning.has_pruned("") and not pruning.has_pruned("MaxTime")
    pruning.raise_if_pruned("")
    with pytest.raises(optuna.TrialPruned):
        pruning.raise_if_pruned(result.stopped_by)


def test_a_round_that_is_closed_twice_is_reported_once() -> None:
    study = optuna.create_study()
    trial = study.ask()
    pruning = PruningCallback(trial)
    assert [pruning(3, 0.5), pruning(3, 0.5), pruning(7, 0.25)] == ["", "", ""]
    assert study.trials[0].intermediate_values == {1: 0.5, 2: 0.25}


def median(values: list[float]) -> float:
    return float(np.median(values))


def test_trials_at_once_are_the_same_for_any_number_of_workers_and_calls(tmp_path: Path) -> None:
    """Three are drawn together; the first call ends within the second three, another one in the middle of a run."""
    whole, place = search(trials=7, workers=1, at_once=3), str(tmp_path / "trials.db")
    assert whole.conf.workers == 1
    assert [trial.number for trial in whole.trials] == list(range(7)) and whole.start == whole.trials[0]
    assert content((more := search(trials=7, workers=6, at_once=3)).trials) == content(whole.trials)
    assert more.conf.workers == 6, "the best Conf has the share of one trial"
    search(trials=4, storage=place, at_once=3)
    seen: list[int] = []

    def halt_after_one_more(status: RunStatus) -> None:
        if seen:
            raise _Halt

    with pytest.raises(_Halt):
        search(trials=7, storage=place, at_once=3, tick=halt_after_one_more, on_trial=lambda t: seen.append(t.number))
    assert seen and set(seen) <= {4, 5}
    found = search(trials=7, storage=place, at_once=3, on_trial=lambda t: seen.append(t.number))
    assert sorted(seen) == [4, 5, 6], "a trial was lost, or done twice"
    assert content(found.trials) == content(whole.trials)
    assert found.best == found.trials[whole.best.number]
    assert training.params_sha256(found.network.params) == whole.best.params_sha256


def test_a_trial_at_once_with_others_that_comes_to_nothing_leaves_them_alone() -> None:
    one, three = (search(written={RATE: [1e38, 0.01]}, trials=6, at_once=3, workers=n).trials for n in (1, 3))
    assert content(one) == content(three)
    assert {trial.state for trial in one} == {"complete", "failed"}


def test_a_search_with_other_trials_at_once_is_another_search(tmp_path: Path) -> None:
    place = str(tmp_path / "trials.db")
    search(trials=1, storage=place)
    with pytest.raises(ConfError, match="was begun with another number of trials at once; go on"):
        search(trials=2, storage=place, at_once=2)
    with pytest.raises(ConfError, match="at_once is 0; a search runs at least 1 trial at a time"):
        search(at_once=0)


def test_a_study_from_before_there_was_a_choice_goes_on_with_one_trial_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "trials.db"
    search(trials=1, storage=str(place))
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{place}")
    known = study.user_attrs["search"]
    assert known.pop("number of trials at once") == 1
    study.set_user_attr("search", known)
    study._storage.remove_session()
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    assert len(search(trials=2, storage=str(place)).trials) == 2
    with pytest.raises(ConfError, match="another number of trials at once"):
        search(trials=3, storage=str(place), at_once=3)


@pytest.mark.long
@pytest.mark.release
def test_what_is_drawn_does_not_depend_on_which_of_a_batch_are_tried_again(tmp_path: Path) -> None:
    """The best two, 12 and 14, are of the batch that is tried again, its first behind those beside it: TPE draws from
    these two, and otherwise if they are in another order."""
    seldom = ValidationConf(fraction=0.2, every_rounds=40)  # each validation is committed to the disk
    conf = CONF.replace(epochs=1, seed=3, batch_size=96, jobs_per_round=1, validation=seldom)
    options = {"conf": conf, "at_once": 3, "workers": 3, "pruner": "none"}
    whole, place = search(trials=18, **options), tmp_path / "trials.db"
    assert {trial.number for trial in sorted(whole.trials[:15], key=lambda trial: trial.score)[:2]} == {12, 14}
    search(trials=15, storage=str(place), **options)
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{place}")
    kept = {trial.number: trial for trial in whole.trials}
    batch = [trial for trial in study.get_trials() if trial.user_attrs["number"] >= 12]
    assert [trial.user_attrs["number"] for trial in batch] == [12, 13, 14]
    again = optuna.create_study(study_name="again", storage=study._storage, direction=study.direction)
    again.set_user_attr("search", study.user_attrs["search"])
    again.add_trials([trial for trial in study.get_trials() if trial.user_attrs["number"] < 12])
    again.add_trials([batch[2], batch[1]])
    again.enqueue_trial(batch[0].params, user_attrs={"number": 12})
    study._storage.remove_session()
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    found = search(trials=18, storage=str(place), study="again", **options)
    assert content(found.trials) == content([kept[number] for number in range(18)])


@pytest.mark.long
def test_a_killed_search_of_several_trials_at_once_loses_and_repeats_none(tmp_path: Path) -> None:
    conf, place = tmp_path / "search.yaml", tmp_path / "trials.db"
    conf.write_text(
        "model: mlp\ndataset: digits\nepochs: 5\njobs_per_round: 2\n"
        "search:\n  updater.learning_rate: {low: 1e-4, high: 1e-1, log: true}\n"
    )
    command = [sys.executable, "-m", "dl4jlegacy", "tune", str(conf), "--trials", "9", "--at-once", "3", "--workers"]
    command += ["3", "--format", "json", "--log-format", "json"]
    whole = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    wanted = json.loads(whole.stdout)["trials"]
    kept = [*command, "--storage", str(place)]
    ended: list[int] = []
    for _ in range(3):  # killed after the first, the second and the third trial of its own that ends
        with subprocess.Popen(kept, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if '"event": "trial"' in line:
                    ended.append(json.loads(line)["trial"])
                    process.kill()
                    break
    last = subprocess.run(kept, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(last.stdout)["trials"]
    again = [json.loads(line)["trial"] for line in last.stderr.splitlines() if '"event": "trial"' in line]
    assert len(set(ended)) == 3 and not set(ended) & set(again), "a trial that was done was done again"
    differs = ("seconds",)
    assert [{k: v for k, v in t.items() if k not in differs} for t in found] == [
        {k: v for k, v in t.items() if k not in differs} for t in wanted
    ]


@pytest.mark.long
def test_trials_at_once_are_pruned_by_those_of_the_batches_before_alone() -> None:
    conf = CONF.replace(epochs=6)
    found = [search(conf, trials=20, at_once=4, workers=workers).trials for workers in (1, 4)]
    assert content(found[0]) == content(found[1])
    states = [trial.state for trial in found[0]]
    assert "pruned" in states and states[:8] == ["complete"] * 8, states
    whole = search(conf, trials=20, at_once=4, pruner="none").trials
    for one, other in zip(whole, found[0], strict=False):
        if other.number < 10 and other.state == "complete":
            assert content([one]) == content([other])


@pytest.mark.long
@pytest.mark.parametrize(("metric", "sign"), [("loss", 1), ("accuracy", -1)])
def test_pruned_trials_are_worse_than_the_median_and_lose_nothing_of_the_others(metric: str, sign: int) -> None:
    conf = CONF.replace(epochs=6, validation=ValidationConf(fraction=0.2, metric=metric))
    whole, pruned = (search(conf, trials=10, pruner=pruner).trials for pruner in ("none", "median"))
    states = [trial.state for trial in pruned]
    assert states.count("pruned") >= 2 and states[:5] == ["complete"] * 5
    for one, other in zip(whole, pruned, strict=True):  # TPE draws the first ten without regard to their scores
        assert one.params == other.params
        assert one.scores[: len(other.scores)] == other.scores
        if other.state == "complete":
            assert content([one]) == content([other])
            continue
        steps = len(other.scores)
        assert steps < len(one.scores) == 6
        before = [t.scores[steps - 1] for t in pruned[: other.number] if t.state == "complete"]
        assert min(sign * score for score in other.scores) > sign * median(before)


@pytest.mark.long
@pytest.mark.parametrize("metric", [pytest.param("loss", marks=pytest.mark.release), "accuracy"])
def test_twenty_trials_on_digits_beat_the_starting_point_and_become_better(metric: str) -> None:
    conf = Conf(model="mlp", dataset="digits", epochs=5, validation=ValidationConf(fraction=0.2, metric=metric))
    found = search(conf, {**WRITTEN, "batch_size": [8, 16, 32]}, trials=20, workers=2)
    sign = -1 if metric == "accuracy" else 1
    assert found.start is not None and found.start.score is not None and found.best.score is not None
    assert sign * found.best.score < sign * found.start.score - 0.02
    drawn, learned = ([sign * (t.score or 0.0) for t in part] for part in (found.trials[1:11], found.trials[11:]))
    assert median(learned) < median(drawn), "TPE has learned nothing from the first ten"
    assert found.evaluation["accuracy"] > 0.95


def test_a_study_of_another_program_is_left_alone(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path / 'trials.db'}"
    study = optuna.create_study(storage=place, study_name="search")
    study.add_trial(optuna.create_trial(value=1.0))
    study._storage.remove_session()
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
    with pytest.raises(ConfError, match="study 'search' is of another program"):
        search(trials=1, storage=place)


def test_without_optuna_it_says_what_to_type() -> None:
    code = """import sys
sys.modules["optuna"] = None
from dl4jlegacy.errors import ConfError
try:
    import dl4jlegacy.tuning
except ConfError as exc:
    print(exc)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "needs Optuna, which is not installed: type './install tune'" in done.stdout
