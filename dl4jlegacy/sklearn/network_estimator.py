"""Base classes of the estimators: arguments, training, and its continuation by ``partial_fit`` and warm starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.validation import check_is_fitted

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.precision import warn_of_equal
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.output import BaseOutputLayer, OutputLayer
from dl4jlegacy.nn.optimization.updaters import Updater
from dl4jlegacy.nn.parameters import ParamLayout
from dl4jlegacy.sklearn.checks import validated
from dl4jlegacy.sklearn.fitted import FittedNetwork, Learned
from dl4jlegacy.sklearn.training import (
    Beginning,
    TrainedNetwork,
    TrainingOptions,
    dense_layers,
    shared_configuration,
    train,
)

__all__ = ["FLOATS", "NetworkEstimator", "NetworkPredictor", "drawn"]

FLOATS = (np.float64, np.float32)


class NetworkEstimator(BaseEstimator):
    """Base of all estimators: the arguments of training, and the training."""

    hidden_layer_sizes: int | Sequence[int]
    activation: str
    weight_init: str
    updater: str | Updater
    learning_rate: float | None
    batch_size: int
    epochs: int
    l2: float
    drop_out: float
    early_stopping: bool
    validation_fraction: float
    epochs_without_improvement: int
    workers: int
    jobs_per_round: int | None
    random_state: Any

    _takes_sparse: str | bool = False  # the format of sparse features
    loss_curve_: list[float]
    validation_scores_: list[float] | None

    def _shared(self, seed: int) -> NeuralNetConfiguration:
        """Return the settings of all layers; raises ``ConfError`` for an invalid argument."""
        return shared_configuration(
            updater=self.updater,
            learning_rate=self.learning_rate,
            seed=seed,
            activation=self.activation,
            weight_init=self.weight_init,
            l2=float(self.l2),
            drop_out=float(self.drop_out),
        )

    def _options(self, seed: int) -> TrainingOptions:
        """Return the training options; raises ``ConfError`` for an invalid argument."""
        return TrainingOptions(
            batch_size=self.batch_size,
            epochs=self.epochs,
            seed=seed,
            workers=self.workers,
            jobs_per_round=self.jobs_per_round or 0,
            validation_fraction=self.validation_fraction if self.early_stopping else 0.0,
            epochs_without_improvement=self.epochs_without_improvement,
        )

    def _train(
        self,
        conf: MultiLayerConfiguration,
        data: DataSet,
        options: TrainingOptions,
        beginning: Beginning | None = None,
    ) -> TrainedNetwork:
        """Train a network; store it in ``model_``, and its losses in the other attributes."""
        trained = train(conf, data, options, beginning)
        scores = tuple(-loss for loss in trained.validation_losses)
        if beginning is None:
            self.loss_curve_, self.validation_scores_ = [], None
        self.loss_curve_ += trained.losses
        self.loss_ = self.loss_curve_[-1]
        if options.validation_fraction:
            self.validation_scores_ = [*(self.validation_scores_ or ()), *scores]
        best = self.validation_scores_
        self.best_loss_ = min(self.loss_curve_) if best is None else None
        self.best_validation_score_ = None if best is None else max(best)
        self.model_ = FittedNetwork(trained.network.conf, trained.network.params)
        self.epochs_ = self.n_iter_ = trained.epochs
        return trained

    def _output(self, X: Any) -> Array:
        """Return the outputs of the network in float64, ``(examples, n_out)``."""
        check_is_fitted(self)
        x = validated(self, X, reset=False, dtype=np.float32, accept_sparse=self._takes_sparse)
        return self.model_.output(x)

    def _rounded(self, x: Array) -> Array:
        """Return training features as float32; warns of columns in which this makes different values equal."""
        warn_of_equal(x, "X", tuple(getattr(self, "feature_names_in_", ())))
        takes = self._takes_sparse
        rounded: Array = check_array(x, dtype=np.float32, estimator=self, input_name="X", accept_sparse=takes)
        return rounded


def drawn(random_state: Any) -> int:
    """Return a seed for an estimator's ``random_state``."""
    return int(check_random_state(random_state).randint(2**31 - 1))


class NetworkPredictor(NetworkEstimator):
    """Base of classifier and regressor: their arguments, the alternative ``configuration``, and continued training."""

    _takes_sparse = "csr"
    _learned: Learned

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        *,
        activation: str = "relu",
        weight_init: str = "xavier",
        updater: str | Updater = "adam",
        learning_rate: float | None = None,
        batch_size: int = 32,
        epochs: int = 200,
        l2: float = 0.0,
        drop_out: float = 0.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        epochs_without_improvement: int = 10,
        workers: int = 1,
        jobs_per_round: int | None = None,
        configuration: MultiLayerConfiguration | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.weight_init = weight_init
        self.updater = updater
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.l2 = l2
        self.drop_out = drop_out
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.epochs_without_improvement = epochs_without_improvement
        self.workers = workers
        self.jobs_per_round = jobs_per_round
        self.configuration = configuration
        self.warm_start = warm_start
        self.random_state = random_state

    def _goes_on(self, *, partial: bool) -> bool:
        """Return whether this call continues the training of the current network."""
        return hasattr(self, "model_") and (partial or self.warm_start)

    def _seed(self, *, partial: bool) -> int:
        """Return the seed of a training: the previous seed if ``partial_fit`` continues."""
        return self._learned.seed if partial and hasattr(self, "model_") else drawn(self.random_state)

    def _learn(self, conf: MultiLayerConfiguration, data: DataSet, seed: int, *, partial: bool) -> None:
        """Train a new network, or continue with the current one: for all epochs, or for one (``partial_fit``)."""
        options, beginning = self._options(seed), None
        if partial:
            options = replace(options, epochs=1)
            self._check_partial(conf)
        if self._goes_on(partial=partial):
            beginning = self._beginning(conf, partial=partial)
        trained = self._train(conf, data, options, beginning)
        epochs = trained.epochs + (0 if beginning is None else beginning.epoch)
        self._learned = Learned(seed, epochs, trained.iteration, np.array(trained.network.updater_state))

    def _check_partial(self, conf: MultiLayerConfiguration) -> None:
        """Raise ``ConfError`` for arguments that need more than one pass over the data."""
        name = type(self).__name__
        if self.early_stopping:
            raise ConfError(
                f"{name}.partial_fit makes one pass over its data, and early_stopping=True chooses among several; set "
                "early_stopping=False, or call fit"
            )
        if conf.pretrain and not hasattr(self, "model_"):
            raise ConfError(
                f"{name}.partial_fit does not pretrain, and the configuration has pretrain=True; call fit first, or "
                "give it pretrain=False"
            )

    def _beginning(self, conf: MultiLayerConfiguration, *, partial: bool) -> Beginning:
        """Return the state to continue from; raises ``ConfError`` if the network's sizes have changed."""
        before, now = self.model_.conf.resolved(), conf.resolved()
        if ParamLayout.of(before) != ParamLayout.of(now):
            call = "partial_fit" if partial else "fit with warm_start=True"
            raise ConfError(
                f"{type(self).__name__}.{call} goes on from a network with layers of {_sizes(before)} units, and "
                f"the arguments make one with layers of {_sizes(now)}; set them as they were, or fit a clone of the "
                "estimator"
            )
        if not partial:
            return Beginning(self.model_.params)
        is_known = [type(layer.updater) for layer in before] == [type(layer.updater) for layer in now]
        state = self._learned.updater_state if is_known else None
        return Beginning(self.model_.params, state, self._learned.epochs, self._learned.iteration)

    def _conf(self, output: OutputLayer, n_in: int, n_out: int, seed: int) -> MultiLayerConfiguration:
        """Return the configuration of the network for data of these sizes.

        Args:
            output: the output layer, used if the hidden layers are given by their sizes.
        """
        if self.configuration is None:
            layers = (*dense_layers(self.hidden_layer_sizes), output)
            return MultiLayerConfiguration(conf=self._shared(seed), layers=layers).with_sizes(n_in, n_out)
        given = self.configuration
        if not isinstance(given, MultiLayerConfiguration):
            raise ConfError(
                f"{type(self).__name__}: configuration is {type(given).__name__}; give a MultiLayerConfiguration"
            )
        if not given.backprop or not isinstance(given.layers[-1], BaseOutputLayer):
            raise ConfError(
                f"{type(self).__name__}: the configuration does not end in an output layer that is trained, so it "
                "predicts nothing; add an OutputLayer, and leave backprop=True"
            )
        own = given.conf.seed if self.random_state is None else seed
        return given.replace(conf=given.conf.replace(seed=own)).with_sizes(n_in, n_out)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _sizes(layers: Sequence[Layer]) -> str:
    return ", ".join(str(getattr(layer, "n_out", "no")) for layer in layers)
