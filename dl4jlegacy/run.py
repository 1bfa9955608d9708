"""``resolve``: the one way from the ``Conf`` that somebody wrote to a ``Run``, in which nothing is left open.

A process resolves its Conf once. Whatever comes after (``ActorNetworkRunner``, ``training.train``, a cluster's master)
takes the ``Run`` and decides nothing about it again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from dl4jlegacy import storage
from dl4jlegacy.datasets import DataSetIterator, ListMultiDataSetIterator
from dl4jlegacy.errors import CheckpointError, ConfError
from dl4jlegacy.machine import check_threads
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.nn.training.data_checks import check_data
from dl4jlegacy.scaleout.checkpoint import CheckpointStore, RunIdentity, check_same_data, with_fingerprint
from dl4jlegacy.scaleout.compute import Compute, host_kernels, resolve_compute
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.job import DataSetJobIterator, JobIterator
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.worker_pool import process_name

__all__ = ["Run", "TrainingData", "job_iterator", "open_checkpoints", "resolve"]

TrainingData = DataSetIterator | ListMultiDataSetIterator | JobIterator
"""The data of a run: batches of examples, or jobs that are no network's."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is ready to begin.

    Attributes:
        conf: with every default filled in: name, jobs per round, device, kernels, the data's fingerprint.
        compute: the devices and kernels of the workers in this process.
        plan: which batches make up which job.
        local_workers: the number of workers in this process.
        resumes: whether the run continues from the checkpoints in ``conf.checkpoint_dir``.
    """

    conf: Conf
    compute: Compute
    plan: Plan
    local_workers: int
    resumes: bool = False


def resolve(
    conf: Conf,
    data: TrainingData,
    *,
    compute: Compute | None = None,
    local_workers: int | None = None,
    on_cluster: bool = False,
    resume: bool = False,
) -> Run:
    """Return the run that ``conf`` describes, checked against its data. Writes nothing.

    Args:
        conf: with the network to train, unless ``data`` are jobs that are no network's.
        data: the training data. Their fingerprint is computed here, and compared with the one in ``conf``, if any.
        compute: as ``resolve_compute`` returned it beside this Conf; None: it is resolved here.
        local_workers: the number of workers in this process; None: ``conf.workers``.
        on_cluster: whether other processes join the run: data then travel with the jobs.
        resume: whether the run continues from the newest good checkpoint in ``conf.checkpoint_dir``. It keeps its
            incarnation then; any other run gets a new one.

    Raises:
        ConfError: the Conf is invalid, or does not fit the data.
        DeviceError: its devices are not available.
        CheckpointError: the run began with other data, or ``resume`` finds no usable checkpoint.
    """
    if compute is None:
        conf, compute = resolve_compute(conf, local=local_workers != 0)
    conf = conf.replace(
        run=conf.run or (process_name() if on_cluster else f"run-{uuid.uuid4().hex[:8]}"),
        incarnation=(_incarnation_to_resume(conf) if resume else "") or uuid.uuid4().hex[:16],
        jobs_per_round=conf.jobs_per_round or conf.workers,
        data_by_reference=conf.data_by_reference and not on_cluster,
    )
    workers = conf.workers if local_workers is None else local_workers
    check_threads(workers, 0)  # before anything is done for each of them
    plan = job_iterator(conf, data).plan
    if conf.network_conf is not None and isinstance(data, DataSetIterator | ListMultiDataSetIterator):
        network = build_network(conf.network_conf, host_kernels(conf.kernels))
        check_data(network, data)
        check_threads(workers, 3 * int(network.params.nbytes))
    conf = with_fingerprint(conf, data, _checkpoints_to_resume(conf, plan) if resume else None, resume=resume)
    return Run(conf, compute, plan, workers, resumes=resume)


def job_iterator(conf: Conf, data: TrainingData) -> JobIterator:
    """Return the jobs of a run with a resolved Conf; raises ``ConfError`` if data sets come without a network."""
    if not isinstance(data, DataSetIterator | ListMultiDataSetIterator):
        return data
    if conf.network_conf is None:
        raise ConfError("Conf.multi_layer_conf is missing; a run over data sets needs the network to train")
    return DataSetJobIterator(
        data,
        jobs_per_round=conf.jobs_per_round,
        averaging_frequency=conf.averaging_frequency,
        phases=conf.phases(),
    )


def open_checkpoints(run: Run) -> CheckpointStore | None:
    """Return the run's checkpoints; None if it keeps none.

    Raises:
        CheckpointError: the folder of a new run holds another run's checkpoints.
    """
    conf = run.conf
    if not conf.checkpoint_dir:
        return None
    owner = RunIdentity.of(conf)
    checkpoints = storage.open_checkpoints(conf.checkpoint_dir, keep=conf.checkpoints_kept, owner=owner)
    if not run.resumes and checkpoints.versions():
        raise CheckpointError(
            f"{checkpoints.place} already holds checkpoints of a run; `dl4j resume {checkpoints.place}` goes on with "
            "it, or choose another --checkpoint-dir"
        )
    return checkpoints


def _incarnation_to_resume(conf: Conf) -> str:
    """Return which run it is that continues; "" if an older version began it. Raises ``CheckpointError``."""
    if not conf.checkpoint_dir:
        raise CheckpointError("resume needs Conf.checkpoint_dir")
    kept = storage.open_checkpoints(conf.checkpoint_dir, keep=conf.checkpoints_kept).kept("incarnation")
    if conf.incarnation and kept and conf.incarnation != kept:
        raise CheckpointError(
            f"{conf.checkpoint_dir} holds checkpoints of another run ({kept}) and not of run {conf.run} "
            f"({conf.incarnation}); give the folder of this one"
        )
    return conf.incarnation or kept


def _checkpoints_to_resume(conf: Conf, plan: Plan) -> CheckpointStore:
    """Return the checkpoints to continue from; raises ``CheckpointError`` if they do not fit the plan."""
    owner = RunIdentity.of(conf)
    checkpoints = storage.open_checkpoints(conf.checkpoint_dir, keep=conf.checkpoints_kept, owner=owner)
    newest = checkpoints.newest()
    if newest is not None:
        check_same_data(newest[0], plan)
    return checkpoints
