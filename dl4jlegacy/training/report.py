"""The report of a finished run: its JSON object, and the verdict on its model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets import DataSource
from dl4jlegacy.errors import CollapsedError, Dl4jError, ModelError
from dl4jlegacy.models.verdicts import verdict_on
from dl4jlegacy.nn.batch_evaluation import NetworkEvaluation
from dl4jlegacy.nn.evaluation.verdict import Verdict
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.nn.summary import summarize
from dl4jlegacy.scaleout.monitoring.outcome import TrainingResult
from dl4jlegacy.scaleout.state.records import batches_set_aside
from dl4jlegacy.training.run import Run

__all__ = ["Report", "params_sha256", "planned", "report_fields", "verdict_of"]

_LEAST_PASSES, _LEAST_ITERATIONS, _MANY_ITERATIONS = 3, 100, 1000


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a finished run: its JSON object, its evaluation, and the verdict on the model.

    ``trained_on`` and ``held_out`` are the numbers of examples in the two parts of the data set. ``misplaced`` is the
    error if the model could not be saved at the requested place; it says where the model is.
    """

    fields: dict[str, Any]
    evaluation: NetworkEvaluation
    warnings: tuple[str, ...]
    trained_on: int
    held_out: int
    misplaced: ModelError | None = None
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def error(self) -> Dl4jError | None:
        """The error with which the command ends after the report: the model is misplaced, or the run has failed."""
        failure = self.verdict.failure
        return self.misplaced or (CollapsedError(f"{failure}; the report says more") if failure else None)


def verdict_of(result: TrainingResult, evaluation: NetworkEvaluation, data: DataSource) -> Verdict:
    """Return the verdict on a run's model."""
    conf, head, plan = result.conf, result.head, result.plan
    passes, iterations = head.examples / plan.examples, head.round * conf.averaging_frequency
    network = conf.network_conf
    assert network is not None
    return verdict_on(
        evaluation,
        network,
        data.train,
        data.test,
        data.reading,
        course=result.course,
        has_had_enough=iterations >= (_LEAST_ITERATIONS if passes >= _LEAST_PASSES else _MANY_ITERATIONS),
    )


def report_fields(
    result: TrainingResult, network: Network, evaluation: NetworkEvaluation, path: str | None
) -> dict[str, Any]:
    """Return the fields of a run's report, for JSON; ``path``: where the model is."""
    conf, head = result.conf, result.head
    return {
        "run": head.run,
        "model": conf.model,
        "dataset": conf.dataset,
        "router": conf.router,
        "workers": conf.workers,
        "jobs_per_round": conf.jobs_per_round,
        "averaging_frequency": conf.averaging_frequency,
        "batch_size": conf.batch_size,
        "epochs": conf.epochs,
        "rounds": head.round,
        "examples": head.examples,
        "batches": head.batches,
        "batches_lost": result.batches_lost,
        "batches_duplicated": result.batches_duplicated,
        "batches_set_aside": batches_set_aside(head, result.plan),
        "updates_dropped": head.updates_dropped,
        "seconds": round(result.seconds, 3),
        "examples_per_second": round(result.examples_per_second, 1),
        "score": head.score,
        **evaluation.fields(),
        "params_sha256": params_sha256(network.params),
        "model_path": path,
        "kernels": conf.kernels,
        "device": ",".join(device.label for device in result.devices),
        "devices": [device.fields() for device in result.devices],
        "precision": conf.precision,
        "choices": conf.choices,
        "mixed_devices": conf.mixed_devices,
        "seed": conf.seed,
        **_scored(result, network),
    }


def planned(run: Run) -> dict[str, Any]:
    """Return what a new run would train, as JSON."""
    conf, plan = run.conf, run.plan
    assert conf.network_conf is not None  # ``prepare`` has chosen it
    validation = None if conf.validation is None else conf.validation.fraction or conf.validation.dataset
    return {
        "dry_run": True,
        "model": conf.model,
        "dataset": conf.dataset,
        "parameters": summarize(conf.network_conf).parameters,
        "examples": plan.examples,
        "batches": plan.batches,
        "batch_size": conf.batch_size,
        "epochs": conf.epochs,
        "pretrain_epochs": conf.pretrain_epochs,
        "rounds": plan.total_rounds,
        "jobs_per_round": conf.jobs_per_round,
        "averaging_frequency": conf.averaging_frequency,
        "validation": validation,
        "choices": conf.choices,
    }


def _scored(result: TrainingResult, network: Network) -> dict[str, Any]:
    """Return the report's fields of a scored run: its best model, which ``network`` is, and why training stopped."""
    conf, best = result.conf, result.best
    if conf.validation is None and conf.early_stopping is None:
        return {}
    said = None
    if best is not None:
        where = {"round": best.round, "epoch": best.epoch, "version": best.version}
        said = {**where, "metric": conf.scoring.metric, "score": best.score}
        said["params_sha256"] = params_sha256(network.params)
        said["figures"] = None if best.figures is None else best.figures.fields()
    validation = None if result.validation is None else result.validation.fields()
    return {"best": said, "validation": validation, "stopped_by": result.stopped_by or None}


def params_sha256(params: Array) -> str:
    """Return the SHA-256 of a flat parameter vector as little-endian float32."""
    return hashlib.sha256(np.ascontiguousarray(params, dtype="<f4").data).hexdigest()
