"""The estimators: networks behind scikit-learn's ``fit``, ``predict`` and ``transform``.

They follow scikit-learn's rules for estimators: the constructor only keeps its arguments, what was learned ends in an
underscore, and ``clone``, ``get_params``, pickles and ``check_estimator`` work as they do for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import msgspec
import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dl4jlegacy.backend import Array
from dl4jlegacy.datasets.column_scale import mean_and_std
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.precision import warn_of_equal
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.arrays import as_labels
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.output import BaseOutputLayer, OutputLayer
from dl4jlegacy.nn.updaters import Updater
from dl4jlegacy.sklearn.fitted import FittedNetwork
from dl4jlegacy.sklearn.training import TrainedNetwork, TrainingOptions, dense_layers, shared_configuration, train

__all__ = ["DL4JAutoEncoder", "DL4JClassifier", "DL4JRegressor"]

_FLOATS = (np.float64, np.float32)


class _NetworkEstimator(BaseEstimator):
    """What the estimators share: the arguments that say how to train, and the training."""

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

    def _shared(self, seed: int) -> NeuralNetConfiguration:
        """Return the settings of all layers."""
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
        return TrainingOptions(
            batch_size=self.batch_size,
            epochs=self.epochs,
            seed=seed,
            workers=self.workers,
            jobs_per_round=self.jobs_per_round or 0,
            validation_fraction=self.validation_fraction if self.early_stopping else 0.0,
            epochs_without_improvement=self.epochs_without_improvement,
        )

    def _train(self, conf: MultiLayerConfiguration, data: DataSet, seed: int) -> TrainedNetwork:
        """Train a network, and keep it in ``model_``."""
        trained = train(conf, data, self._options(seed))
        self.model_ = FittedNetwork(trained.network.conf, trained.network.params)
        self.epochs_ = self.n_iter_ = trained.epochs
        return trained

    def _output(self, X: Any) -> Array:
        """Return the outputs of the network in float64, ``(examples, n_out)``."""
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=np.float32)
        return self.model_.output(x)

    def _rounded(self, x: Array) -> Array:
        """Return features to learn from as float32; warns of columns of which that makes different values equal."""
        warn_of_equal(x, "X", tuple(getattr(self, "feature_names_in_", ())))
        rounded: Array = check_array(x, dtype=np.float32, estimator=self, input_name="X")
        return rounded


def _drawn(random_state: Any) -> int:
    """Return a seed for an estimator's ``random_state``."""
    return int(check_random_state(random_state).randint(2**31 - 1))


class _Predictor(_NetworkEstimator):
    """What a classifier and a regressor share: their arguments, and a configuration in their place."""

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
        self.random_state = random_state

    def _conf(self, output: OutputLayer, n_in: int, n_out: int, seed: int) -> MultiLayerConfiguration:
        """Return the configuration of the network for data of these sizes.

        Args:
            output: the output layer where the hidden layers are given by their sizes.
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


class DL4JClassifier(ClassifierMixin, _Predictor):
    """A network that classifies, with softmax and cross-entropy at its end.

    Features are best standardized (``StandardScaler`` in a pipeline). It trains in float32.

    Args:
        hidden_layer_sizes: units of the hidden layers, from the input up.
        activation, weight_init: of the hidden layers, by their names.
        updater: its name, or an updater such as ``Nesterovs(learning_rate=0.1)``.
        learning_rate: of the updater; None: its own.
        batch_size: examples of a batch.
        epochs: passes over the data, at most.
        l2: penalty on the weights.
        drop_out: probability with which an input of a layer is *retained* while training; 0: off.
        early_stopping: whether a part of the examples is held out, ``validation_fraction`` of them, the training ends
            when the loss on these was no better ``epochs_without_improvement`` epochs in a row, and the best network
            is kept.
        workers: threads that train side by side, on ``jobs_per_round`` batches; then what they found is averaged.
        jobs_per_round: None: as many as workers. The answer depends on it and not on ``workers``, bit for bit; with 4,
            100 batches make 25 updates of the network.
        configuration: a ``MultiLayerConfiguration``, which takes the place of everything from ``hidden_layer_sizes`` to
            ``learning_rate``, of ``l2`` and of ``drop_out``; sizes of its ends may be left out.
        random_state: a number, for the same network every time; a ``RandomState``; or None: the configuration's seed if
            there is one, else any.

    Attributes:
        classes_: the classes, sorted; outputs are in their order.
        model_: the trained network (``model_.network()``).
        epochs_, n_iter_: passes over the data that were made.
        n_features_in_, feature_names_in_: of the data it was trained on.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train a new network. Blocks.

        Args:
            X: features, ``(examples, n_in)``.
            y: the class of every example, numbers or words.

        Raises:
            ValueError: they are no such arrays.
            ConfError: an argument is out of range, or the configuration does not fit the data.
            NotFiniteError: a score or a parameter became NaN or infinite.
        """
        x, y = validate_data(self, X, y, dtype=_FLOATS)
        x = self._rounded(x)
        check_classification_targets(y)
        self.classes_, classes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        seed = _drawn(self.random_state)
        output = OutputLayer(activation="softmax", loss="mcxent")
        conf = self._conf(output, x.shape[1], len(self.classes_), seed)
        last = conf.resolved()[-1]
        assert isinstance(last, BaseOutputLayer), "_conf has looked"
        if last.forward_activation() != "softmax":
            raise ConfError(
                f"DL4JClassifier: the output layer has activation {last.forward_activation()!r}, whose outputs are no "
                "probabilities of classes; give it activation='softmax'"
            )
        self._train(conf, DataSet(x, as_labels(classes, last)), seed)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of every class, ``(examples, classes)``."""
        return self._output(X)

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of the probability of every class, ``(examples, classes)``."""
        with np.errstate(divide="ignore"):
            found: Array = np.log(self.predict_proba(X))
        return found

    def predict(self, X: Any) -> Array:
        """Return the most probable class of every example, ``(examples,)``."""
        columns = self._output(X).argmax(axis=1)
        chosen: Array = self.classes_[columns]
        return chosen


class DL4JRegressor(RegressorMixin, _Predictor):
    """A network that predicts numbers, one or several, with the mean squared error at its end.

    Features are best standardized (``StandardScaler`` in a pipeline). Targets are: the network learns them with mean 0
    and standard deviation 1, and ``predict`` gives them back as they were. With a ``configuration`` it learns them as
    they are. It trains in float32.

    Args:
        hidden_layer_sizes, ..., random_state: those of ``DL4JClassifier``.

    Attributes:
        model_: the trained network (``model_.network()``).
        target_mean_, target_scale_: what is taken off the targets, and what they are divided by, ``(targets,)``.
        epochs_, n_iter_: passes over the data that were made.
        n_features_in_, feature_names_in_: of the data it was trained on.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train a new network. Blocks.

        Args:
            X: features, ``(examples, n_in)``.
            y: the targets, ``(examples,)`` or ``(examples, targets)``.

        Raises:
            ValueError: they are no such arrays.
            ConfError: an argument is out of range, or the configuration does not fit the data.
            NotFiniteError: a score or a parameter became NaN or infinite.
        """
        x, y = validate_data(self, X, y, dtype=_FLOATS, multi_output=True, y_numeric=True)
        x = self._rounded(x)
        targets = np.asarray(y, np.float64).reshape(len(x), -1)
        self.target_mean_, self.target_scale_ = np.zeros(targets.shape[1]), np.ones(targets.shape[1])
        if self.configuration is None:
            self.target_mean_, self.target_scale_ = mean_and_std([targets])
        self._is_column = np.ndim(y) > 1
        seed = _drawn(self.random_state)
        conf = self._conf(OutputLayer(activation="identity", loss="mse"), x.shape[1], targets.shape[1], seed)
        labels = (targets - self.target_mean_) / self.target_scale_
        warn_of_equal(labels, "y")
        self._train(conf, DataSet(x, labels.astype(np.float32)), seed)
        return self

    def predict(self, X: Any) -> Array:
        """Return the predicted targets, of the shape that ``fit`` was given."""
        outputs = self._output(X) * self.target_scale_ + self.target_mean_
        return outputs if self._is_column else outputs[:, 0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class DL4JAutoEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _NetworkEstimator):
    """A network that learns to reconstruct its input through a narrow layer; ``transform`` returns what that has.

    The layers behind the narrow one mirror those before it. With ``corruption_level`` it reconstructs what it saw only
    a part of (a denoising autoencoder: Vincent et al. 2010). Features are best standardized. It trains in float32.

    Args:
        hidden_layer_sizes: units of the layers down to the narrow one, which is the last.
        activation, ..., jobs_per_round: those of ``DL4JClassifier``.
        corruption_level: the share of the inputs that is blanked out while training.
        random_state: a number, for the same network every time; a ``RandomState``; or None: any.

    Attributes:
        model_: the trained network (``model_.network()``).
        encoder_, decoder_: its two halves.
        epochs_, n_iter_: passes over the data that were made.
        n_features_in_, feature_names_in_: of the data it was trained on.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (32,),
        *,
        activation: str = "tanh",
        weight_init: str = "xavier",
        updater: str | Updater = "adam",
        learning_rate: float | None = None,
        batch_size: int = 32,
        epochs: int = 200,
        l2: float = 0.0,
        drop_out: float = 0.0,
        corruption_level: float = 0.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        epochs_without_improvement: int = 10,
        workers: int = 1,
        jobs_per_round: int | None = None,
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
        self.corruption_level = corruption_level
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.epochs_without_improvement = epochs_without_improvement
        self.workers = workers
        self.jobs_per_round = jobs_per_round
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train a new network to reconstruct ``X (examples, n_in)``. Blocks; ``y`` is not looked at.

        Raises:
            ValueError: it is no such array.
            ConfError: an argument is out of range.
            NotFiniteError: a score or a parameter became NaN or infinite.
        """
        x = self._rounded(validate_data(self, X, dtype=_FLOATS))
        seed = _drawn(self.random_state)
        conf = MultiLayerConfiguration(conf=self._shared(seed), layers=self._layers())
        trained = self._train(conf.with_sizes(x.shape[1], x.shape[1]), DataSet(x, x), seed).network
        layers, depth = trained.conf.resolved(), len(conf.layers) // 2
        cut = trained.layer_slices[depth].start
        self.encoder_ = FittedNetwork(trained.conf.replace(layers=layers[:depth]), trained.params[:cut])
        self.decoder_ = FittedNetwork(trained.conf.replace(layers=layers[depth:]), trained.params[cut:])
        self._n_features_out = layers[depth - 1].n_out
        return self

    def _layers(self) -> tuple[Layer, ...]:
        """Return the layers: down to the narrow one, and up again."""
        if not 0 <= self.corruption_level < 1:
            raise ConfError(f"DL4JAutoEncoder: corruption_level is {self.corruption_level}; it must be in [0, 1)")
        down = dense_layers(self.hidden_layer_sizes)
        if not down:
            raise ConfError("DL4JAutoEncoder: hidden_layer_sizes is empty; give the size of the narrow layer")
        first = down[0]
        if self.corruption_level:
            first = msgspec.structs.replace(first, drop_out=1.0 - self.corruption_level)
        return (first, *down[1:], *down[-2::-1], OutputLayer(activation="identity", loss="mse"))

    def transform(self, X: Any) -> Array:
        """Return what the narrow layer has, ``(examples, units)``, in float32 if ``X`` is, else in float64."""
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        return self.encoder_.output(x).astype(x.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """Return the reconstructions ``(examples, n_in)`` of what ``transform`` has returned."""
        check_is_fitted(self)
        return self.decoder_.output(check_array(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean squared error of the reconstructions, negated: larger is better."""
        outputs = self._output(X)
        return -float(np.mean((outputs - np.asarray(X)) ** 2))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
