"""Lines for a person before a new run: the model, the time, workers without work, few updates."""

from __future__ import annotations

from dl4jlegacy.datasets import DataSet, DataSource
from dl4jlegacy.errors import counted
from dl4jlegacy.models.model import source_for_model
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.nn.summary import summarize
from dl4jlegacy.scaleout.conf import USUAL_JOBS
from dl4jlegacy.training.choices import training_seconds
from dl4jlegacy.training.run import Run

__all__ = ["few_updates", "multiply_adds", "opening"]

_LONG_SECONDS = 60.0  # from which a run says how long it will take


def opening(run: Run, data: DataSource) -> tuple[str, ...]:
    """Return lines for a person before a new run: the chosen model, the time it takes, and workers without work."""
    conf, lines = run.conf, []
    if "model" in conf.choices:
        lines.append(f"model {conf.choices['model']}")
    if conf.network_conf is not None:
        train = source_for_model(data, conf.model).train
        seconds = training_seconds(multiply_adds(conf.network_conf, train) * run.plan.total_examples)
        if seconds > _LONG_SECONDS:
            lines.append(f"about {counted(round(seconds / 60), 'minute')} of work for one core, by its multiply-adds")
    if "jobs_per_round" in conf.choices:
        lines += _idle_workers(run)
    return tuple(lines)


def _idle_workers(run: Run) -> list[str]:
    """Return a line about the workers without work; a master without workers here does not know how many come."""
    jobs, idle = run.conf.jobs_per_round, run.local_workers - run.conf.jobs_per_round
    suits = f"{counted(jobs, 'job')} a round suits {counted(run.plan.examples, 'row')}"
    if run.local_workers == 0:
        return [f"{suits}: {counted(jobs, 'worker')} at a time, others stand by; --jobs-per-round uses more"]
    them = "them" if idle > 1 else "it"
    words = f"{idle} of {counted(run.local_workers, 'worker')} stand by; --jobs-per-round {run.local_workers} uses"
    return [f"{suits}: {words} {them}"] if idle > 0 else []


def few_updates(run: Run) -> str:
    """Return a warning if many jobs per round mean few updates of the model; "" for up to four jobs.

    The jobs of a round run in parallel and make one update together. With k jobs an epoch has 1/k of the updates, and
    the model is trained less unless something compensates for that.
    """
    conf, plan = run.conf, run.plan
    if conf.router != "iterative-reduce" or conf.jobs_per_round <= USUAL_JOBS or "jobs_per_round" in conf.choices:
        return ""
    batch = conf.batch_size * conf.averaging_frequency
    usual = plan.total_rounds * conf.jobs_per_round // USUAL_JOBS
    epochs = -(-conf.epochs * conf.jobs_per_round // USUAL_JOBS)
    jobs, examples = counted(conf.jobs_per_round, "job"), counted(conf.jobs_per_round * batch, "example")
    return (
        f"{jobs} a round average {examples} to one update of the model: {plan.total_rounds:,} updates in "
        f"{counted(conf.epochs, 'epoch')}, where {counted(USUAL_JOBS, 'job')} make about {usual:,}; for as many give "
        f"--epochs {epochs}, or smaller batches with --examples-per-update {USUAL_JOBS * batch}"
    )


def multiply_adds(network: NetworkConfiguration, train: DataSet) -> int:
    """Return the multiply-adds of a network, forwards, for a training example with all its time steps."""
    has_all_steps = getattr(getattr(network, "input_type", None), "timesteps", 0) > 0
    return summarize(network).multiply_adds * (1 if has_all_steps else train.n_in // train.features.shape[1])
