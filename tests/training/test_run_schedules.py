"""Schedules over a whole run: its plan says how long they are, whoever works, wherever it begins and goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, ListDataSetIterator
from dl4jlegacy.datasets import load
from dl4jlegacy.nn import (
    AdamW,
    CosineSchedule,
    DenseLayer,
    LinearSchedule,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
    OutputLayer,
    PolySchedule,
)
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.networks import learning_rate_at
from dl4jlegacy.training.prepare import params_sha256
from dl4jlegacy.training.run import Run, resolve

TRAIN = load("iris").train
LINEAR = LinearSchedule()
BATCHES = -(-TRAIN.num_examples // 8)


def conf(schedule: Any = LINEAR, first: Any = DenseLayer, **fields: Any) -> Conf:
    network = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=5, updater=AdamW(learning_rate=0.02, schedule=schedule)),
        layers=(first(n_in=4, n_out=6, activation="tanh"), OutputLayer(n_out=3, activation="softmax")),
        pretrain=first is not DenseLayer,
    )
    usual = {"batch_size": 8, "epochs": 4, "jobs_per_round": 4, "workers": 2, "seed": 9}
    return Conf(**({"multi_layer_conf": network} | usual | fields))


def resolved(conf: Conf) -> Run:
    return resolve(conf, ListDataSetIterator(TRAIN, conf.batch_size, seed=conf.seed))


def updates_of(run: Run) -> list[int]:
    return [run.plan.iteration_at(round_) for round_ in range(run.plan.total_rounds + 1)]


def trained(conf: Conf, *, resume: bool = False, **more: Any) -> Any:
    with ActorNetworkRunner("master", ListDataSetIterator(TRAIN, conf.batch_size, seed=conf.seed), **more) as runner:
        runner.setup(conf, resume=resume)
        return runner.train(deadline=60)


def sha(result: Any) -> str:
    return params_sha256(result.model.arrays["params"])


@pytest.mark.parametrize(("jobs", "frequency"), [(1, 1), (1, BATCHES), (4, 1), (3, 2)])
def test_the_plan_gives_a_schedule_its_length(jobs: int, frequency: int) -> None:
    run = resolved(conf(jobs_per_round=jobs, averaging_frequency=frequency))
    updates = updates_of(run)[-1]
    assert run.conf.network_conf.conf.updater.schedule == LinearSchedule(iterations=updates)
    assert updates == 4 * {(1, 1): BATCHES, (1, BATCHES): BATCHES, (4, 1): 4, (3, 2): 5}[jobs, frequency]
    assert learning_rate_at(run.conf.network_conf, updates - 1) == pytest.approx(0.02 / updates, rel=1e-9)


@pytest.mark.parametrize("schedule", [LinearSchedule(), CosineSchedule(warm_up=0.1)])
def test_any_number_of_workers_takes_the_same_steps(schedule: Any) -> None:
    two = trained(conf(schedule))
    assert sha(two) == sha(trained(conf(schedule, workers=4))) == sha(trained(conf(schedule, workers=1)))
    assert sha(two) != sha(trained(conf(None)))


def test_linearly_is_the_schedule_that_knows_the_number_of_updates() -> None:
    length = updates_of(resolved(conf()))[-1]
    assert sha(trained(conf())) == sha(trained(conf(PolySchedule(max_iterations=length))))


def test_pretraining_has_the_base_rate_and_does_not_count() -> None:
    run = resolved(conf(first=AutoEncoder, pretrain_epochs=3))
    assert run.conf.network_conf.conf.updater.schedule.iterations == 4 * 4
    assert learning_rate_at(run.conf.network_conf, 9, pretrained=0) == 0.02
    only = conf(first=AutoEncoder)
    only = resolved(only.replace(multi_layer_conf=only.multi_layer_conf.replace(backprop=False)))
    assert only.conf.network_conf.conf.updater.schedule.iterations == 4


def test_a_run_from_a_trained_network_begins_its_schedule_anew() -> None:
    first = resolved(conf())
    updates = updates_of(first)[-1]
    run = resolved(first.conf.replace(first_epoch=4, first_iteration=updates, epochs=2, run="another"))
    assert run.conf.network_conf.conf.updater.schedule == LinearSchedule(
        first_iteration=updates, iterations=updates // 2
    )
    rates = [learning_rate_at(run.conf.network_conf, updates + t) for t in range(updates // 2)]
    assert rates[0] == 0.02 and rates == sorted(rates, reverse=True) and rates[-1] < 0.003


class Copies:
    """Keeps a copy of the checkpoints that were there when so many rounds were done."""

    def __init__(self, folder: Path, copy: Path, rounds: int) -> None:
        self.folder, self.copy, self.rounds = folder, copy, rounds

    def save(self, head: Any, model: Any) -> None:
        if head.round >= self.rounds and not self.copy.exists():
            shutil.copytree(self.folder, self.copy)


def test_a_resumed_run_takes_the_steps_that_it_would_have_taken_and_more_epochs_stretch_it(tmp_path: Path) -> None:
    folder, kept, longer = tmp_path / "run", tmp_path / "kept", tmp_path / "longer"
    wanted = conf(checkpoint_dir=str(folder), checkpoint_every=1, jobs_per_round=1)
    whole = trained(wanted, saver=Copies(folder, kept, BATCHES))
    shutil.copytree(kept, longer)
    assert sha(trained(wanted.replace(checkpoint_dir=str(kept)), resume=True)) == sha(whole)
    stretched = trained(wanted.replace(checkpoint_dir=str(longer), epochs=8), resume=True)
    assert stretched.head.round == 8 * BATCHES
    assert sha(stretched) not in (sha(whole), sha(trained(conf(jobs_per_round=1, epochs=8))))
    before, after = resolved(wanted).conf, resolved(wanted.replace(epochs=8)).conf
    assert before.digest() == after.digest() == wanted.replace(run=before.run).digest()
    assert before.digest() != resolved(conf(CosineSchedule(), jobs_per_round=1)).conf.digest()
