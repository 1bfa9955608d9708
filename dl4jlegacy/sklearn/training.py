"""Training for the estimators: a network trained on arrays in this process, by one thread or by several workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dl4jlegacy.datasets.batches import BatchIterator
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.datasets.validation import split_off
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.training.early_stopping import (
    EarlyStoppingConfiguration,
    EarlyStoppingTrainer,
    MaxEpochsTerminationCondition,
    ScoreImprovementEpochTerminationCondition,
)
from dl4jlegacy.nn.training.score_calculators import DataSetLossCalculator
from dl4jlegacy.nn.updaters import Updater, create_updater, with_learning_rate
from dl4jlegacy.runner import ActorNetworkRunner
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.scoring import EarlyStopping

__all__ = ["TrainedNetwork", "TrainingOptions", "dense_layers", "shared_configuration", "train"]


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How a network is trained.

    Attributes:
        batch_size, epochs, seed: as in a ``Conf``.
        workers: threads that train.
        jobs_per_round: batches that are trained on side by side before the results are averaged; 0: one a worker.
        validation_fraction: the share of the examples that is held out for early stopping; 0: no early stopping.
        epochs_without_improvement: so many in a row end the training.

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
            if getattr(self, name) < smallest:
                raise ConfError(f"{name} is {getattr(self, name)}; it must be at least {smallest}")
        if not 0 <= self.validation_fraction < 1:
            raise ConfError(f"validation_fraction is {self.validation_fraction}; it must lie between 0 and 1")

    @property
    def jobs(self) -> int:
        """Jobs of a round."""
        return self.jobs_per_round or self.workers


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    """What training has come to.

    Attributes:
        network: the trained network; with early stopping the one that scored best.
        epochs: passes over the data that were made.
    """

    network: MultiLayerNetwork
    epochs: int


def shared_configuration(
    *, updater: str | Updater, learning_rate: float | None, seed: int, **fields: Any
) -> NeuralNetConfiguration:
    """Return the settings of all layers.

    Args:
        updater: its name, or an updater.
        learning_rate: of the updater; None: its own.
        seed: of the weights and of drop-out.
        fields: further fields of ``NeuralNetConfiguration``.

    Raises:
        ConfError: a value out of range, or an unknown name; names the nearest.
    """
    chosen = create_updater(updater) if isinstance(updater, str) else updater
    return NeuralNetConfiguration(seed=seed, updater=with_learning_rate(chosen, learning_rate), **fields)


def dense_layers(sizes: int | Sequence[int]) -> tuple[Layer, ...]:
    """Return hidden layers of so many units, from the input up; raises ``ConfError`` if one is not positive."""
    units = [int(size) for size in ([sizes] if isinstance(sizes, int) else sizes)]
    if any(size < 1 for size in units):
        raise ConfError(f"hidden_layer_sizes is {sizes}; every layer needs at least 1 unit")
    return tuple(DenseLayer(n_out=size) for size in units)


def train(conf: MultiLayerConfiguration, data: DataSet, options: TrainingOptions) -> TrainedNetwork:
    """Train a network on examples in memory. Blocks.

    With one job a round this thread does it, by ``network.fit``; with more of them workers do, by a run of
    ``ActorNetworkRunner``. The answer depends on the jobs of a round and not on the number of workers, bit for bit.

    Raises:
        ConfError: network and data do not fit.
        NotFiniteError: a score or a parameter became NaN or infinite.
        JobError: a worker's job failed on every attempt; carries its traceback.
    """
    batches: BatchIterator = ListDataSetIterator(data, options.batch_size, seed=options.seed)
    validation = None
    if options.validation_fraction:
        parts = split_off(batches, options.validation_fraction, options.seed)
        batches, validation = parts.training, parts.validation
    if options.jobs > 1:
        return _train_by_workers(conf, batches, validation, options)
    with one_thread():  # as workers compute
        return _train_here(conf, batches, validation, options)


def _train_here(
    conf: MultiLayerConfiguration, batches: Any, validation: Any, options: TrainingOptions
) -> TrainedNetwork:
    if validation is None:
        network = MultiLayerNetwork(conf)
        network.fit(batches, epochs=options.epochs)
        return TrainedNetwork(network, options.epochs)
    network = MultiLayerNetwork(conf.replace(pretrain=False))  # else the trainer pretrains for one epoch
    if conf.pretrain:
        network.pretrain(batches, options.epochs)
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
    return TrainedNetwork(best, result.total_epochs)


def _train_by_workers(
    conf: MultiLayerConfiguration, batches: Any, validation: Any, options: TrainingOptions
) -> TrainedNetwork:
    stopping = EarlyStopping(epochs_without_improvement=options.epochs_without_improvement)
    run = Conf(
        multi_layer_conf=conf,
        batch_size=options.batch_size,
        epochs=options.epochs,
        pretrain_epochs=options.epochs,
        seed=options.seed,
        workers=options.workers,
        jobs_per_round=options.jobs,
        early_stopping=None if validation is None else stopping,
    )
    with ActorNetworkRunner("master", batches, validation=validation) as runner:
        runner.setup(run)
        result = runner.train(progress=False)
        network = runner.network(result, best=validation is not None)
    assert result is not None, "a master has a result"
    return TrainedNetwork(network, result.plan.epochs_before(result.head.round))
