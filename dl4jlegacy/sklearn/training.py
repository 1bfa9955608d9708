"""Training for the estimators: on arrays in this process, by one thread or by several workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets.batches import BatchIterator
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.datasets.validation import split_off
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.fitting.early_stopping import (
    EarlyStoppingConfiguration,
    EarlyStoppingTrainer,
    MaxEpochsTerminationCondition,
    ScoreImprovementEpochTerminationCondition,
)
from dl4jlegacy.nn.fitting.score_calculators import DataSetLossCalculator
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.network.input_rows import check_sparse_input
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Updater, create_updater, with_learning_rate
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.scoring import EarlyStopping
from dl4jlegacy.sklearn.checks import units_of

__all__ = ["Beginning", "TrainedNetwork", "TrainingOptions", "dense_layers", "shared_configuration", "train"]


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options of a training.

    Attributes:
        batch_size, epochs, seed: as in a ``Conf``.
        workers: threads that train.
        jobs_per_round: batches processed in parallel before the results are averaged; 0: one per worker.
        validation_fraction: the share of the examples held out for early stopping; 0: no early stopping.
        epochs_without_improvement: the number in a row after which training stops.

    Raises:
        ConfError: a number is out of range.
    """

    batch_size: int
    epochs: int
    seed: int
    workers: int = 1
    jobs_per_round: int = 0
    validation_fraction: float = 0.0
    epochs_without_improvement: int = 1

    def __post_init__(self) -> None:
        least = {"batch_size": 1, "epochs": 1, "workers": 1, "jobs_per_round": 0, "epochs_without_improvement": 1}
        for name, smallest in least.items():
            value = int(getattr(self, name))  # NumPy numbers, in a search over them
            if value < smallest:
                raise ConfError(f"{name} is {value}; it must be at least {smallest}")
            object.__setattr__(self, name, value)
        if not 0 <= self.validation_fraction < 1:
            raise ConfError(f"validation_fraction is {self.validation_fraction}; it must lie between 0 and 1")

    @property
    def jobs(self) -> int:
        """Number of jobs in a round."""
        return self.jobs_per_round or self.workers


@dataclass(frozen=True, slots=True)
class Beginning:
    """The state from which training continues, instead of newly drawn parameters; there is no pretraining then.

    Attributes:
        params: the flat parameter vector.
        updater_state: of the updater; None: that of a new network.
        epoch, iteration: passes over the data, and updates, before this training: the order of the examples and the
            random numbers of drop-out continue from there.
    """

    params: Array
    updater_state: Array | None = None
    epoch: int = 0
    iteration: int = 0

    def network(self, conf: MultiLayerConfiguration) -> MultiLayerNetwork:
        """Return a network with these parameters."""
        network = MultiLayerNetwork(conf, init=False)
        network.set_params(self.params)
        if self.updater_state is not None:
            network.set_updater_state(self.updater_state)
        network.iteration = self.iteration
        return network


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    """The result of a training.

    Attributes:
        network: the trained network; with early stopping the one with the best score.
        epochs: passes over the data in this training.
        iteration: updates of the network, including those before this training.
        losses: the mean loss of the training examples in each of these passes, measured during training.
        validation_losses: the loss of the held-out examples after each of these passes; empty without early stopping.
    """

    network: MultiLayerNetwork
    epochs: int
    iteration: int
    losses: tuple[float, ...]
    validation_losses: tuple[float, ...] = ()


def shared_configuration(
    *, updater: str | Updater, learning_rate: float | None, seed: int, **fields: Any
) -> NeuralNetConfiguration:
    """Return the settings of all layers.

    Args:
        updater: its name, or an updater.
        learning_rate: of the updater; None: the updater's own.
        seed: of the weights and of drop-out.
        fields: further fields of ``NeuralNetConfiguration``.

    Raises:
        ConfError: a value out of range, or an unknown name; names the nearest.
    """
    chosen = create_updater(updater) if isinstance(updater, str) else updater
    return NeuralNetConfiguration(seed=seed, updater=with_learning_rate(chosen, learning_rate), **fields)


def dense_layers(sizes: int | Sequence[int]) -> tuple[Layer, ...]:
    """Return hidden layers with ``sizes`` units, from the input up; raises ``ConfError`` if a size is not positive."""
    units = units_of(sizes)
    if any(size < 1 for size in units):
        raise ConfError(f"hidden_layer_sizes is {sizes}; every layer needs at least 1 unit")
    return tuple(DenseLayer(n_out=size) for size in units)


def train(
    conf: MultiLayerConfiguration, data: DataSet, options: TrainingOptions, beginning: Beginning | None = None
) -> TrainedNetwork:
    """Train a network on examples in memory. Blocks.

    With one job per round, this thread trains by ``network.fit``; with more, workers train in a run of
    ``ActorNetworkRunner``. The result depends on the jobs per round and not on the number of workers, bit for bit.
    Sparse features that the network cannot take are converted to arrays batch by batch.

    Raises:
        ConfError: network and data do not fit.
        NotFiniteError: a score or a parameter became NaN or infinite.
        JobError: a worker's job failed on every attempt; carries its traceback.
    """
    batches, validation = _parts(conf, data, options)
    if options.jobs > 1:
        return _train_by_workers(conf, batches, validation, options, beginning)
    with one_thread():  # as in workers
        return _train_here(conf, batches, validation, options, beginning)


def _parts(conf: MultiLayerConfiguration, data: DataSet, options: TrainingOptions) -> tuple[BatchIterator, Any]:
    """Return the batches to train on, and the held-out data or None."""
    size, seed = options.batch_size, options.seed
    batches = ListDataSetIterator(data, size, seed=seed)
    validation: Any = None
    if options.validation_fraction:
        parts: Any = split_off(batches, options.validation_fraction, seed)
        batches, validation = parts.training, parts.validation
    if data.is_sparse and not _takes_sparse(conf):
        batches = ListDataSetIterator(batches.dataset, size, seed=seed, pre_processor=_dense)
        if validation is not None:
            validation = ListDataSetIterator(validation, size, shuffle=False, pre_processor=_dense)
    return batches, validation


def _takes_sparse(conf: MultiLayerConfiguration) -> bool:
    """Return whether the first layer can take sparse features directly."""
    try:
        check_sparse_input(conf.resolved())
    except ConfError:
        return False
    return True


def _dense(batch: DataSet) -> DataSet:
    """Return a batch of sparse features as a dense one."""
    columns = np.arange(batch.features.columns, dtype=np.int32)
    return DataSet(batch.features.dense(columns), batch.labels, labels_mask=batch.labels_mask)


class _EpochLosses:
    """A training listener that records the mean loss of every pass over ``examples`` examples."""

    def __init__(self, examples: int) -> None:
        self._examples, self._seen, self._sum = examples, 0, 0.0
        self.means: list[float] = []

    def iteration_done(self, network: object, iteration: int, score: float, *, examples: int = 0) -> None:
        """Add the score of a batch, or of a round of batches."""
        self._seen += examples
        self._sum += score * examples
        if self._seen >= self._examples:
            self.means.append(self._sum / self._seen)
            self._seen, self._sum = 0, 0.0


def _train_here(
    conf: MultiLayerConfiguration, batches: Any, validation: Any, options: TrainingOptions, beginning: Beginning | None
) -> TrainedNetwork:
    losses = _EpochLosses(batches.total_examples)
    pretrains = conf.pretrain
    if validation is not None:
        conf = conf.replace(pretrain=False)  # otherwise the trainer pretrains for only one epoch
    network = MultiLayerNetwork(conf) if beginning is None else beginning.network(conf)
    if beginning is not None:
        batches.seek(beginning.epoch, 0)
    elif pretrains:
        network.pretrain(batches, options.epochs)
    network.listeners.append(losses)
    if validation is None:
        network.finetune(batches, options.epochs)
        return TrainedNetwork(network, options.epochs, network.iteration, tuple(losses.means))
    stopping = EarlyStoppingConfiguration(
        epoch_termination_conditions=(
            MaxEpochsTerminationCondition(options.epochs),
            ScoreImprovementEpochTerminationCondition(options.epochs_without_improvement),
        ),
        score_calculator=DataSetLossCalculator(validation),
    )
    result = EarlyStoppingTrainer(stopping, network, batches).fit()
    if result.error is not None:
        raise result.error
    best = result.best_model
    assert isinstance(best, MultiLayerNetwork), "the first epoch is evaluated, and is the best so far"
    scores = tuple(result.score_vs_epoch.values())
    return TrainedNetwork(best, result.total_epochs, best.iteration, tuple(losses.means), scores)


def _train_by_workers(
    conf: MultiLayerConfiguration, batches: Any, validation: Any, options: TrainingOptions, beginning: Beginning | None
) -> TrainedNetwork:
    stopping = EarlyStopping(epochs_without_improvement=options.epochs_without_improvement)
    before = beginning or Beginning(np.zeros(0))
    run = Conf(
        multi_layer_conf=conf if beginning is None else conf.replace(pretrain=False),
        batch_size=options.batch_size,
        epochs=options.epochs,
        pretrain_epochs=options.epochs,
        seed=options.seed,
        workers=options.workers,
        jobs_per_round=options.jobs,
        early_stopping=None if validation is None else stopping,
        first_epoch=before.epoch,
        first_iteration=before.iteration,
    )
    losses, scores = _EpochLosses(batches.total_examples), _Scores()
    with ActorNetworkRunner(
        "master",
        batches,
        validation=validation,
        first_model=None if beginning is None else beginning.network(conf.replace(pretrain=False)),
        listeners=(losses,),
        stop_if=None if validation is None else scores,
    ) as runner:
        runner.setup(run)
        result = runner.train(progress=False)
        network = runner.network(result, best=validation is not None)
    assert result is not None, "a master has a result"
    made = result.plan.epochs_before(result.head.round)
    pretrained = sum(phase.epochs for phase in result.plan.phases[:-1])
    iteration = before.iteration + made * result.plan.rounds_per_epoch
    if result.head.scores is not None:  # the score that ended the run, if one did
        scores(result.head.scores.round, result.head.scores.score)
    found = tuple(scores.of_round.values())
    return TrainedNetwork(network, made, iteration, tuple(losses.means[pretrained:]), found)


class _Scores:
    """Records the scores of a run by round, and never stops the run."""

    def __init__(self) -> None:
        self.of_round: dict[int, float] = {}

    def __call__(self, number: int, score: float) -> str:
        self.of_round[number] = score
        return ""
