"""Runs on sparse features, in which only the rows travel that jobs touch: hostile schedules end in the same bits."""

from __future__ import annotations

import functools
import logging

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import DenseLayer, OutputLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import AdaGrad
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.plan import Phase
from dl4jlegacy.scaleout.protocol import inputs, log
from dl4jlegacy.scaleout.scoring import EarlyStopping, Scoring
from dl4jlegacy.scaleout.state.job import DataSetJobIterator, Job, Result, decode_work, encode_work
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.strategies.row_averaging import ROW_AVERAGING, RowAverager
from dl4jlegacy.scaleout.workers.sparse_rows import SparseRowsPerformer
from tests.scaleout.protocol.test_protocol import SCHEDULES
from tests.support import scenarios, simulator

COLUMNS = 40
KERNELS = load("numpy")
CONF = MultiLayerConfiguration(
    (DenseLayer(n_in=COLUMNS, n_out=2, activation="tanh", drop_out=0.8), OutputLayer(n_out=2, activation="softmax")),
    NeuralNetConfiguration(seed=5, updater=AdaGrad(learning_rate=0.1)),
)


def examples(count: int, seed: int) -> DataSet:
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((count, COLUMNS)) < 0.08, rng.random((count, COLUMNS)), 0.0).astype(np.float32)
    return DataSet(SparseFeatures.of(x), np.eye(2, dtype=np.float32)[rng.integers(0, 2, count)])


@functools.cache
def sparse_work(*, stops: bool = False) -> simulator.Work:
    """Rounds of four jobs of an epoch or more; ``stops``: validated, and stopped early."""
    jobs = DataSetJobIterator(
        ListDataSetIterator(examples(21, 3), 2, seed=5),
        jobs_per_round=4,
        phases=(Phase(kind="finetune", epochs=20 if stops else 4),),
        validation=ListDataSetIterator(examples(9, 4), 2, shuffle=False) if stops else None,
        validate_every=2 if stops else 0,
    )
    performer = SparseRowsPerformer(CONF, KERNELS, seed=5)
    known: dict[tuple[object, ...], bytes] = {}

    def perform(slot, version, model, data, router, state=None):
        key = (slot, bytes(model))
        if key not in known:
            performer.update(Result.decode(model))
            job = Job(slot, jobs.plan.work_of(slot.round), decode_work(data), "w", version)
            known[key] = bytes(performer.perform(job).encode())
        return known[key]

    return simulator.Work(
        plan=jobs.plan,
        first_model=lambda: first_model(MultiLayerNetwork(CONF, kernels=KERNELS)).encode(),
        load=lambda slot: encode_work(jobs.work(slot)),
        perform=perform,
        aggregator=lambda name: create_router(name).fold(KERNELS),
        chunk_nbytes=700,
        max_keys=260,
        **({"scoring": Scoring(metric="loss", stopping=EarlyStopping(epochs_without_improvement=2))} if stops else {}),
    )


def simulate(count: int, scenario: str = "hostile", *, stops: bool = False, first: int = 1):
    logging.disable(logging.WARNING)
    try:
        return simulator.simulate(sparse_work(stops=stops), count, first, ROW_AVERAGING, scenarios.SCENARIOS[scenario])
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("stops", [False, True], ids=["to its end", "stopped early"])
@pytest.mark.everyday(1)
def test_a_few_schedules_end_in_the_serial_runs_parameters_with_every_batch_counted_once(stops):
    simulate(6, stops=stops)


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["hostile", "short-logs", "sick-worker", "failing-run"])
def test_every_schedule_ends_in_the_serial_runs_parameters_with_every_batch_counted_once(scenario):
    simulate(max(1, SCHEDULES // 4), scenario)


def test_a_worker_whose_updates_do_not_fit_is_set_aside_and_the_run_goes_on():
    worlds = simulator.simulate(sparse_work(), 3, 2, ROW_AVERAGING, scenarios.GARBLING_WORKER)
    assert {name.partition(".")[0] for world in worlds for name in world.set_aside[-1:]} == {"w2"}


def test_an_update_that_is_added_twice_in_place_is_noticed(monkeypatch):
    """A worker that follows the log in its own frame must not apply an entry again."""

    def twice(fold, plan, model, entries, *, in_place=False):
        return log.model_after(fold, plan, model, [*entries, *entries] if in_place else entries, in_place=in_place)

    monkeypatch.setattr(inputs, "model_after", twice)
    with pytest.raises(AssertionError, match="seed"):
        simulate(20)


def test_a_master_makes_models_in_two_frames_in_turn(monkeypatch):
    """Copied are those after a model that is stored as a whole, which somebody may read."""
    begun, begin = [], RowAverager.begin

    def noted(self, model, *, in_place=False, **more):
        begun.append(in_place)
        return begin(self, model, in_place=in_place, **more)

    monkeypatch.setattr(RowAverager, "begin", noted)
    simulate(2)
    assert 0 < begun.count(False) < len(begun)


def test_a_frame_that_is_used_again_without_its_round_is_noticed(monkeypatch):
    """A master makes each model in the frame of the one before the last, which lacks a round."""
    monkeypatch.setattr(log.Spare, "brought_up", lambda spare, fold, version: spare.frame)
    with pytest.raises(AssertionError, match="seed"):
        simulate(2)
