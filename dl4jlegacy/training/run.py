"""``resolve``: the only way from a ``Conf`` as the user wrote it to a ``Run`` with all values decided.

A process resolves its Conf once. All later steps (``ActorNetworkRunner``, ``training.train``, a cluster's master) take
the ``Run`` and make no such decision again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets import AugmentedDataSetIterator, DataSet, DataSetIterator, MultiDataSet
from dl4jlegacy.datasets.batches import BatchIterator
from dl4jlegacy.datasets.exported import Exported
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.datasets.validation import ValidatedData, in_batches, split_off
from dl4jlegacy.errors import CheckpointError, ConfError, DataError, MissingPartError, ShapeError, counted
from dl4jlegacy.nn.batch_evaluation import (
    CLASS_METRICS,
    NUMBER_METRICS,
    ROWS,
    answers_each,
    is_classified,
    predicts_numbers,
)
from dl4jlegacy.nn.class_weights import balanced_weights, class_counts, named_weights, output_layer, weigh_classes
from dl4jlegacy.nn.fitting.data_checks import check_data
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network, NetworkConfiguration, build_network
from dl4jlegacy.nn.rounding import warn_of_rounding
from dl4jlegacy.scaleout import saved_run
from dl4jlegacy.scaleout.actors.worker_pool import process_name
from dl4jlegacy.scaleout.conf import NETWORK_CLASSES, USUAL_JOBS, Conf
from dl4jlegacy.scaleout.own_jobs import checked_jobs
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity, with_fingerprint
from dl4jlegacy.scaleout.persistence.run_folder import RunFolder
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.scoring import ValidationConf
from dl4jlegacy.scaleout.state.job import DataSetJobIterator, JobIterator
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.strategies import check_servers
from dl4jlegacy.scaleout.strategies.row_averaging import ROW_AVERAGING
from dl4jlegacy.scaleout.workers.device_choice import Compute, host_kernels, resolve_compute
from dl4jlegacy.scaleout.workers.plugins import find_router
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system.resources import check_threads

__all__ = ["Run", "TrainingData", "folder_of", "job_iterator", "resolve", "whole_of"]

TrainingData = BatchIterator | JobIterator | ValidatedData
"""The data of a run: training batches, with or without validation batches, or jobs that train no network."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is ready to start.

    Attributes:
        conf: the Conf with every default filled in: name, jobs per round, device, kernels, fingerprint of the data.
        compute: the devices and kernels of the workers in this process.
        plan: the batches of each job.
        local_workers: the number of workers in this process.
        resumes: whether the run continues from the checkpoints in ``conf.checkpoint_dir``.
        changed_code: whether the run may continue with user code that has changed since its start.
        model_nbytes: bytes of the network's parameters and updater state; 0: the jobs train no network.
    """

    conf: Conf
    compute: Compute
    plan: Plan
    local_workers: int
    resumes: bool = False
    changed_code: bool = False
    model_nbytes: int = 0


def resolve(
    conf: Conf,
    data: TrainingData,
    *,
    compute: Compute | None = None,
    local_workers: int | None = None,
    on_cluster: bool = False,
    resume: bool = False,
    changed_code: bool = False,
) -> Run:
    """Return the run that ``conf`` describes, checked against its data. Writes nothing.

    Args:
        conf: with the network to train, unless ``data`` are jobs that train no network.
        data: the training data. Their fingerprint is computed here, and compared with the one in ``conf``, if any.
        compute: as ``resolve_compute`` returned it with this Conf; None: it is resolved here.
        local_workers: the number of workers in this process; None: ``conf.workers``.
        on_cluster: whether other processes join the run. Then the data are sent with the jobs, or every process must be
            able to load them.
        resume: whether the run continues from the newest good checkpoint in ``conf.checkpoint_dir``. Such a run keeps
            its incarnation; any other run gets a new one.
        changed_code: as for ``Run``.

    Raises:
        ConfError: the Conf is invalid, or does not fit the data.
        DeviceError: its devices are not available.
        CheckpointError: the run began with other data, or ``resume`` finds no usable checkpoint.
    """
    if isinstance(data, ValidatedData) and conf.validation is None:
        conf = conf.replace(validation=ValidationConf())
    if compute is None:
        conf, compute = resolve_compute(conf, local=local_workers != 0)
    conf = conf.replace(
        run=conf.run or (process_name() if on_cluster else f"run-{uuid.uuid4().hex[:8]}"),
        incarnation=(_incarnation_to_resume(conf) if resume else "") or uuid.uuid4().hex[:16],
        jobs_per_round=conf.jobs_per_round or USUAL_JOBS,
        export_directory=storage.absolute(conf.export_directory),
    )
    conf = _with_router_of_data(conf, data)
    if on_cluster:
        conf = _with_place_of_data(conf, data)
    try:
        router = find_router(conf)
    except MissingPartError as exc:
        raise ConfError(f"Conf.router is {conf.router!r}: {exc}") from exc
    workers = conf.workers if local_workers is None else local_workers
    check_threads(workers, 0)  # before any work is done for each worker
    jobs, model_nbytes = job_iterator(conf, data), 0
    if conf.network_conf is not None and isinstance(jobs, DataSetJobIterator):
        network = _build(conf)
        check_servers(router, network.num_params)
        model_nbytes = int(network.params.nbytes + network.updater_state.nbytes)
        check_data(network, jobs.iterator)
        warn_of_rounding(jobs.iterator, jobs.iterator.batch(0, 0), network.params.dtype)
        if conf.augment is not None and not isinstance(jobs.iterator, AugmentedDataSetIterator):
            raise ConfError(
                "Conf.augment is for images that dl4j loads; in a program give the runner an AugmentedDataSetIterator"
            )
        if jobs.validation is not None:
            _check_validation(network, jobs.validation)
        check_threads(workers, 3 * int(network.params.nbytes))
        conf = _with_class_weights(conf, jobs.iterator)
        conf = _with_schedules(conf, jobs.plan)
    checkpoints = _checkpoints_to_resume(conf, jobs.plan) if resume else None
    whole = data.training if isinstance(data, ValidatedData) else data
    conf = with_fingerprint(conf, whole, checkpoints, resume=resume)
    if isinstance(data, ValidatedData):
        conf = _with_validation_fingerprint(conf, data, checkpoints)
    return Run(conf, compute, jobs.plan, workers, resumes=resume, changed_code=changed_code, model_nbytes=model_nbytes)


def _with_router_of_data(conf: Conf, data: TrainingData) -> Conf:
    """Return the Conf with the router that sparse features need; raises ``ConfError`` if it names another router."""
    training = data.training if isinstance(data, ValidatedData) else data
    if not _are_sparse(training):
        if conf.router == ROW_AVERAGING:
            raise ConfError(
                f"Conf.router is {ROW_AVERAGING}, which is for sparse features, and the data have none; leave it out"
            )
        return conf
    if conf.router not in (Conf().router, ROW_AVERAGING):
        raise ConfError(
            f"Conf.router is {conf.router}, and the features are sparse: only {ROW_AVERAGING} sends no more of a model "
            "than a job touches; leave router out"
        )
    if conf.multi_layer_conf is None:
        raise ConfError("the features are sparse, and only a MultiLayerNetwork takes them; give Conf.multi_layer_conf")
    return conf.replace(router=ROW_AVERAGING)


def _are_sparse(training: object) -> bool:
    """Return whether the batches of an iterator have sparse features."""
    if not isinstance(training, DataSetIterator):
        return False
    inside = getattr(training, "dataset", None)
    if isinstance(training, ListDataSetIterator):
        inside = training.whole()
    first = inside if isinstance(inside, DataSet) else training.batch(0, 0)
    return isinstance(first, DataSet) and first.is_sparse


def _with_place_of_data(conf: Conf, data: TrainingData) -> Conf:
    """Return a cluster's Conf with ``data_by_reference`` set; raises ``ConfError`` if workers cannot get the data."""
    by_reference = conf.data_by_reference
    if by_reference is None:
        by_reference = bool(conf.export_directory)
    if by_reference and conf.export_directory and not isinstance(data, Exported):
        raise ConfError(
            f"Conf.export_directory is {conf.export_directory}, and the data are {type(data).__name__}, which were not "
            "exported to it: ActorNetworkRunner does that; a data set that dl4j loads needs none"
        )
    if by_reference and not (conf.export_directory or conf.dataset):
        raise ConfError(
            "Conf.data_by_reference needs data that all processes reach: name a folder that they share, or a prefix in "
            "S3, in Conf.export_directory; or leave data_by_reference out, and the data go with the jobs"
        )
    if by_reference and conf.validation is not None and not conf.validation.fraction:
        raise ConfError(
            "Conf.validation has data of its own, and the jobs name their data: workers would not find those to "
            "validate on; give validation.fraction, or leave data_by_reference and export_directory out"
        )
    return conf.replace(data_by_reference=by_reference)


def _with_schedules(conf: Conf, plan: Plan) -> Conf:
    """Return the Conf with the plan's updates in the network's schedules over a run."""
    updates = plan.iteration_at(plan.total_rounds) - conf.first_iteration
    return conf.over_run(conf.first_iteration, max(0, updates))  # a run that only pretrains has none


def _with_class_weights(conf: Conf, training: BatchIterator) -> Conf:
    """Return the Conf with its class weights in the network, computed from the training examples if necessary.

    Raises:
        ConfError: the network does not classify, or the weights name other classes. DataError: the labels are no
            classes.
    """
    network, weights = conf.network_conf, conf.class_weights
    if weights is None or network is None:
        return conf
    if not isinstance(training, DataSetIterator):
        raise ConfError("Conf.class_weights is for a DataSet, whose labels are classes; leave it out for MultiDataSets")
    n_classes = output_layer(network).n_out
    if isinstance(weights, str):
        found = balanced_weights(_class_counts(training, n_classes))
    else:
        known = getattr(training, "label_names", ())
        found = named_weights(weights, known if len(known) == n_classes else tuple(map(str, range(n_classes))))
    weighed = weigh_classes(network, found)
    field = "multi_layer_conf" if conf.multi_layer_conf is not None else "computation_graph_conf"
    return conf.replace(**{field: weighed})


def _class_counts(training: DataSetIterator, n_classes: int) -> Array:
    """Return the number of examples of each class in an epoch of the training data, ``(n_classes,)``."""
    whole = getattr(training, "dataset", None)
    if isinstance(whole, DataSet):
        return class_counts(whole, n_classes)
    counts = [class_counts(training.batch(0, index), n_classes) for index in range(training.total_batches)]
    return np.asarray(np.sum(counts, axis=0))


def _check_validation(network: Network, validation: BatchIterator) -> None:
    """Check the validation data with ``check_data``, and say in its errors that they are about the validation data."""
    try:
        check_data(network, validation)
    except (ConfError, ShapeError, DataError) as exc:
        raise type(exc)(f"the validation data: {exc}") from exc


def _with_validation_fingerprint(conf: Conf, data: ValidatedData, checkpoints: CheckpointStore | None) -> Conf:
    """Return the Conf with the fingerprint of the validation data; raises ``CheckpointError`` if they changed."""
    found = fingerprint(data.validation)
    began = conf.validation_fingerprint or ("" if checkpoints is None else checkpoints.kept("validation_fingerprint"))
    if began and began != found:
        raise CheckpointError(
            f"run {conf.run} began with validation data of fingerprint {began[:16]}; those that are there now have "
            f"{found[:16]}: give it the ones that it began with"
        )
    return conf.replace(validation_fingerprint=found)


def _build(conf: Conf) -> Network:
    """Return the network that the Conf describes, without parameters; raises ``ConfError``."""
    kernels = host_kernels(conf.kernels)
    if conf.multi_layer_conf is not None:
        return NETWORK_CLASSES[conf.multi_layer_clazz](conf.multi_layer_conf, kernels=kernels, init=False)
    if conf.multi_layer_clazz != MultiLayerNetwork.__name__:
        raise ConfError(f"Conf.multi_layer_clazz is {conf.multi_layer_clazz!r}, and the network is a graph")
    assert conf.computation_graph_conf is not None
    return build_network(conf.computation_graph_conf, kernels, init=False)


def job_iterator(conf: Conf, data: TrainingData) -> JobIterator:
    """Return the jobs of a run with a resolved Conf.

    Raises:
        ConfError: there are data sets but no network; or the validation that the Conf asks for is impossible.
        ContractError: the program's own jobs could not be read.
    """
    training, validation = _parts(conf, data)
    if not isinstance(training, BatchIterator):
        return checked_jobs(training)
    if conf.network_conf is None:
        raise ConfError("Conf.multi_layer_conf is missing; a run over data sets needs the network to train")
    classifies = validation is None or is_classified(conf.network_conf, whole_of(validation))
    if conf.validation is not None and validation is not None:
        _check_metric(conf.validation.metric, conf.network_conf, whole_of(validation), classifies=classifies)
    return DataSetJobIterator(
        training,
        jobs_per_round=conf.jobs_per_round,
        averaging_frequency=conf.averaging_frequency,
        phases=conf.phases(),
        validation=validation,
        validate_every=0 if conf.validation is None else conf.validation.every_rounds,
        classifies=classifies,
        label_scale=conf.reading.label_scale,
        first_epoch=conf.first_epoch,
        first_iteration=conf.first_iteration,
        warm_start=conf.warm_start,
        warm_start_jobs=conf.warm_start_jobs,
    )


def _check_metric(
    metric: str, network: NetworkConfiguration, examples: DataSet | MultiDataSet, *, classifies: bool
) -> None:
    """Raise ``ConfError`` if a validation does not compute this metric."""
    is_answered = not classifies and answers_each(network)
    if metric in CLASS_METRICS and not classifies and not is_answered:
        has_numbers = predicts_numbers(network, examples)
        remedy = f"'loss', or one of {', '.join(NUMBER_METRICS)}" if has_numbers else "'loss'"
        what = "numbers to predict" if has_numbers else "the features, or numbers to predict"
        raise ConfError(
            f"validation.metric is {metric!r}, and nothing is classified: the labels are {what}; give {remedy}"
        )
    if metric in NUMBER_METRICS and (classifies or not predicts_numbers(network, examples)):
        what = "the labels are classes" if classifies else "the network has no loss of one that predicts numbers"
        remedy = f"'loss', or one of {', '.join(CLASS_METRICS)}" if classifies else "'loss'"
        raise ConfError(f"validation.metric is {metric!r}, and no number is predicted: {what}; give {remedy}")


def _parts(conf: Conf, data: TrainingData) -> tuple[BatchIterator | JobIterator, BatchIterator | None]:
    """Return the training data, and the validation data, if any."""
    given = conf.validation
    if given is None:
        return (data.training if isinstance(data, ValidatedData) else data), None
    if isinstance(data, ValidatedData):
        if given.fraction:
            raise ConfError(
                f"validation.fraction is {given.fraction}, and there are validation data besides; give one of them"
            )
        parts = data
    elif not isinstance(data, BatchIterator):
        raise ConfError("Conf.validation is given, and the jobs are no network's, which cannot be evaluated")
    elif given.fraction:
        by_class = conf.stratify or (given.stratify and _has_classes(conf, data))
        parts = split_off(data, given.fraction, conf.seed, stratify=by_class, fewest=int(conf.stratify))
    else:
        raise ConfError(
            "Conf.validation names no data; give fraction=0.1, or the runner the data (ActorNetworkRunner(..., "
            "validation=...))"
        )
    return parts.training, in_batches(parts.validation, ROWS)


def _has_classes(conf: Conf, data: BatchIterator) -> bool:
    """Return whether the labels are one class for each example."""
    network, whole = conf.network_conf, whole_of(data)
    if network is None or not isinstance(whole, DataSet):
        return False
    return whole.labels.ndim == 2 and is_classified(network, whole)


def whole_of(data: BatchIterator) -> DataSet | MultiDataSet:
    """Return the data set behind an iterator; the first batch, if there is no data set."""
    whole = getattr(data, "dataset", None)
    return whole if isinstance(whole, DataSet | MultiDataSet) else data.batch(0, 0)


def folder_of(conf: Conf, *, resumes: bool) -> RunFolder:
    """Return the checkpoint folder of a new or resumed run; nothing is read or written yet."""
    store = None
    if conf.checkpoint_dir:
        store = saved_run.open_checkpoints(conf.checkpoint_dir, keep=conf.checkpoints_kept, owner=RunIdentity.of(conf))
    return RunFolder(store, conf, resumes=resumes)


def _incarnation_to_resume(conf: Conf) -> str:
    """Return the incarnation of the run to resume; "" if an older version began it. Raises ``CheckpointError``."""
    if not conf.checkpoint_dir:
        raise CheckpointError("resume needs Conf.checkpoint_dir")
    kept = saved_run.open_checkpoints(conf.checkpoint_dir, keep=conf.checkpoints_kept).kept("incarnation")
    if conf.incarnation and kept and conf.incarnation != kept:
        raise CheckpointError(
            f"{conf.checkpoint_dir} holds checkpoints of another run ({kept}) and not of run {conf.run} "
            f"({conf.incarnation}); give the folder of this one"
        )
    return conf.incarnation or kept


def _checkpoints_to_resume(conf: Conf, plan: Plan) -> CheckpointStore:
    """Return the checkpoints to continue from; raises ``CheckpointError`` if they do not fit the plan."""
    owner = RunIdentity.of(conf)
    checkpoints = saved_run.open_checkpoints(conf.checkpoint_dir, keep=conf.checkpoints_kept, owner=owner)
    newest = checkpoints.newest()
    if newest is not None:
        _check_continues(newest[0], plan)
        if checkpoints.is_of_before(newest[0].version):
            _check_trains_alike(conf, plan)
    elif not checkpoints.has_conf():
        raise CheckpointError(
            f"{checkpoints.place} holds no run that could go on: neither checkpoints nor a conf.json; give what "
            "--checkpoint-dir was, or begin a new run"
        )
    return checkpoints


def _check_trains_alike(conf: Conf, plan: Plan) -> None:
    """Raise ``CheckpointError`` if an older version began the run, and this one would train it differently."""
    begins = conf.network_conf is not None and build_network(conf.network_conf, init=False).updater.beginnings
    what = ["its AdaGrad or RmsProp took other steps there"] if begins else []
    if plan.has_short_rounds:
        what.append("its short rounds counted as more updates there than they were")
    if what:
        raise CheckpointError(
            f"run {conf.run} was begun by an older version of dl4jlegacy and cannot go on here: {', and '.join(what)}; "
            "go on with that version, or take the model as it is (dl4j export) and begin a new run"
        )


def _check_continues(head: Head, plan: Plan) -> None:
    """Raise ``CheckpointError`` if the plan ends before the head, or disagrees with the examples already trained on."""
    if head.round > plan.total_rounds:
        raise CheckpointError(
            f"run {head.run} has finished {counted(head.round, 'round')}, and {counted(plan.total_epochs, 'epoch')}, "
            f"as the Conf has now, are {plan.total_rounds}: a run cannot be resumed with fewer epochs than it has "
            "trained; give more (Conf.epochs), or take the model as it is"
        )
    numbers = [number for first, last in head.folded for number in range(first, min(last, plan.total_slots))]
    expected = sum(map(plan.batches_of, numbers)), sum(map(plan.examples_of, numbers))
    if (head.batches, head.examples) != expected:
        raise CheckpointError(
            f"run {head.run} has trained on {counted(head.examples, 'example')} in "
            f"{counted(head.batches, 'batch', 'batches')}; with the data as they are now that would have been "
            f"{expected[1]} in {expected[0]}: give it the data that it began with"
        )
