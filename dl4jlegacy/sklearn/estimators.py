"""The estimators: networks with scikit-learn's ``fit``, ``predict`` and ``transform``.

They follow scikit-learn's rules for estimators: the constructor only stores its arguments, learned attributes end in an
underscore, and ``clone``, ``get_params``, pickle and ``check_estimator`` work as for scikit-learn's own estimators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np
from sklearn.base import (
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_array
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, column_or_1d

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.column_scale import mean_and_std, weighted_mean_and_std
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.precision import warn_of_equal
from dl4jlegacy.errors import ConfError, counted
from dl4jlegacy.nn.arrays import as_labels
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.output import BaseOutputLayer, OutputLayer
from dl4jlegacy.nn.optimization.updaters import Updater
from dl4jlegacy.sklearn.checks import check_arguments, validated
from dl4jlegacy.sklearn.fitted import FittedNetwork
from dl4jlegacy.sklearn.network_estimator import FLOATS, NetworkEstimator, NetworkPredictor, drawn
from dl4jlegacy.sklearn.sample_weights import class_factors, given_weights, shown, weighted
from dl4jlegacy.sklearn.training import dense_layers

__all__ = ["DL4JAutoEncoder", "DL4JClassifier", "DL4JRegressor"]


class DL4JClassifier(ClassifierMixin, NetworkPredictor):
    """A classification network with softmax output and cross-entropy loss.

    Features should be standardized (``StandardScaler`` in a pipeline). Training is in float32.

    Args:
        hidden_layer_sizes: units of the hidden layers, from the input up.
        activation, weight_init: of the hidden layers, by name.
        updater: its name, or an updater such as ``Nesterovs(learning_rate=0.1)``.
        learning_rate: of the updater; None: the updater's own.
        batch_size: examples of a batch.
        epochs: maximum number of passes over the data.
        l2: penalty on the weights.
        drop_out: probability that an input of a layer is *retained* in training; 0: off.
        early_stopping: whether to hold out a part of the examples, ``validation_fraction`` of them. Training then stops
            when the loss on these did not improve for ``epochs_without_improvement`` epochs in a row, and the best
            network is kept.
        workers: threads that train in parallel on ``jobs_per_round`` batches; their results are then averaged.
        jobs_per_round: None: as many as workers. The result depends on this number and not on ``workers``, bit for bit;
            with 4, 100 batches give 25 updates of the network.
        configuration: a ``MultiLayerConfiguration``, which replaces all arguments from ``hidden_layer_sizes`` to
            ``learning_rate``, ``l2`` and ``drop_out``; input and output size may be left out.
        class_weight: a map from class to its examples' weight in the loss, with 1 for classes not in the map; or
            "balanced", which gives all classes the same total weight; None: all 1. It multiplies ``sample_weight``.
        warm_start: whether ``fit`` continues from the trained network, with a fresh updater.
        random_state: a number, for the same network every time; a ``RandomState``; or None: the configuration's seed if
            there is one, else a random one.

    Attributes:
        classes_: the classes, sorted; the outputs have this order.
        model_: the trained network (``model_.network()``).
        epochs_, n_iter_: passes over the data in the last call.
        loss_curve_, loss_: the mean training loss of every pass, and of the last pass; ``partial_fit`` and warm
            starts extend the list.
        best_loss_: the lowest of them; None with early stopping.
        validation_scores_, best_validation_score_: with early stopping, the negated loss of the held-out examples after
            every pass (larger is better), and the best of them; else None.
        n_features_in_, feature_names_in_: of the training data.
    """

    classes_: Array

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
        class_weight: Mapping[Any, float] | str | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            activation=activation,
            weight_init=weight_init,
            updater=updater,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
            l2=l2,
            drop_out=drop_out,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            epochs_without_improvement=epochs_without_improvement,
            workers=workers,
            jobs_per_round=jobs_per_round,
            configuration=configuration,
            warm_start=warm_start,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network; with ``warm_start`` continue with the network of the previous call. Blocks.

        Args:
            X: features, ``(examples, n_in)``: an array, a data frame, or a matrix of scipy.sparse.
            y: the class of every example, numbers or strings.
            sample_weight: weight of every example in the loss, ``(examples,)``; only ratios matter. Examples of weight
                0 are left out. None: equal weights.

        Raises:
            ValueError: X, y or sample_weight is not such an array.
            ConfError: an argument is out of range, or the configuration does not fit the data.
            NotFiniteError: a score or a parameter became NaN or infinite.
        """
        return self._fit(X, y, sample_weight, None, partial=False)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train the network of the previous call for one pass over more examples; a first call makes one. Blocks.

        Several calls with the same examples give the same bits as ``fit`` with that number of epochs.

        Args:
            X, y, sample_weight: as for ``fit``.
            classes: all classes of all later calls; required in the first call.

        Raises:
            ValueError: X, y or sample_weight is not such an array, or y has a class that is not in ``classes``.
            ConfError, NotFiniteError: as for ``fit``; or with early stopping.
        """
        return self._fit(X, y, sample_weight, classes, partial=True)

    def _fit(self, X: Any, y: Any, sample_weight: Any, classes: Any, *, partial: bool) -> Self:
        goes_on = self._goes_on(partial=partial)
        check_arguments(self)
        x, y = validated(self, X, y, dtype=FLOATS, accept_sparse=self._takes_sparse, reset=not goes_on)
        x = self._rounded(x)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        if not goes_on:
            self.classes_ = self._first_classes(y, classes, partial=partial)
        self._check_classes(y, classes, partial=partial)
        numbers = np.searchsorted(self.classes_, y)
        weights = given_weights(sample_weight, len(numbers))
        factors = self._class_factors(numbers, weights, partial=partial)
        seed = self._seed(partial=partial)
        output = OutputLayer(activation="softmax", loss="mcxent")
        conf = self._conf(output, x.shape[1], len(self.classes_), seed)
        last = conf.resolved()[-1]
        assert isinstance(last, BaseOutputLayer), "_conf has looked"
        if last.forward_activation() != "softmax":
            raise ConfError(
                f"DL4JClassifier: the output layer has activation {last.forward_activation()!r}, whose outputs are no "
                "probabilities of classes; give it activation='softmax'"
            )
        if factors is not None:
            weights = factors if weights is None else factors * weights
        self._learn(conf, weighted(x, as_labels(numbers, last), weights), seed, partial=partial)
        return self

    @staticmethod
    def _first_classes(y: Array, classes: Any, *, partial: bool) -> Array:
        if not partial:
            return np.unique(y)
        if classes is None:
            raise ValueError(
                "the first call of DL4JClassifier.partial_fit has no classes; give it all classes that any call will "
                "have: classes=np.unique(all of y)"
            )
        found: Array = unique_labels(classes)
        return found

    def _check_classes(self, y: Array, classes: Any, *, partial: bool) -> None:
        """Raise ``ValueError`` unless the classes of y, and the given classes, are those of the network."""
        known, found = self.classes_.tolist(), np.unique(y).tolist()
        is_known = set(known).__contains__
        if classes is not None and unique_labels(classes).tolist() != known:
            raise ValueError(f"classes are {shown(classes)}, and were {shown(known)} in the first call; leave them out")
        if unknown := [name for name in found if not is_known(name)]:
            raise ValueError(
                f"y has {unknown[0]!r}, which is none of the classes {shown(known)}; name all classes in the first "
                "call, or fit a clone of the estimator"
            )
        if not partial and len(found) < len(known):
            raise ValueError(
                f"y has the classes {shown(found)}, and fit with warm_start=True goes on with a network for "
                f"{shown(known)}; give examples of all, or call partial_fit"
            )

    def _class_factors(self, numbers: Array, weights: Array | None, *, partial: bool) -> Array | None:
        if partial and isinstance(self.class_weight, str) and self.class_weight == "balanced":
            counts = "compute_class_weight('balanced', classes=classes, y=all of y)"
            raise ValueError(
                "class_weight is 'balanced', and partial_fit sees only some of the examples; give a weight for each "
                f"class: dict(zip(classes, {counts}))"
            )
        return class_factors(self.class_weight, self.classes_, numbers, weights)

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


class DL4JRegressor(RegressorMixin, NetworkPredictor):
    """A regression network for one or several targets, with the mean squared error as loss.

    Features should be standardized (``StandardScaler`` in a pipeline). Targets are standardized internally: the network
    learns them with mean 0 and standard deviation 1, and ``predict`` returns them in the original scale. With a
    ``configuration`` it learns the targets unchanged. Training is in float32.

    Args:
        hidden_layer_sizes, ..., random_state: those of ``DL4JClassifier``.

    Attributes:
        target_mean_, target_scale_: the number subtracted from the targets, and their divisor, ``(targets,)``; computed
            from the first call's examples if ``partial_fit`` or a warm start continues.
        model_, ..., feature_names_in_: those of ``DL4JClassifier``.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network; with ``warm_start`` continue with the network of the previous call. Blocks.

        Args:
            X, sample_weight: as for ``DL4JClassifier``.
            y: the targets, ``(examples,)`` or ``(examples, targets)``.

        Raises:
            ValueError: X, y or sample_weight is not such an array.
            ConfError: an argument is out of range, or the configuration does not fit the data.
            NotFiniteError: a score or a parameter became NaN or infinite.
        """
        return self._fit(X, y, sample_weight, partial=False)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network of the previous call for one pass over more examples; a first call makes one. Blocks.

        The targets are scaled by mean and standard deviation of the first call's targets. Several calls with the same
        examples give the same bits as ``fit`` with that number of epochs. Arguments and errors as for ``fit``.
        """
        return self._fit(X, y, sample_weight, partial=True)

    def _fit(self, X: Any, y: Any, sample_weight: Any, *, partial: bool) -> Self:
        goes_on, takes = self._goes_on(partial=partial), self._takes_sparse
        check_arguments(self)
        x, y = validated(
            self, X, y, dtype=FLOATS, multi_output=True, y_numeric=True, accept_sparse=takes, reset=not goes_on
        )
        x = self._rounded(x)
        targets = np.asarray(y, np.float64).reshape(x.shape[0], -1)
        weights = given_weights(sample_weight, len(targets))
        if not goes_on:
            self.target_mean_, self.target_scale_ = self._spread(targets, weights)
        elif targets.shape[1] != len(self.target_mean_):
            raise ValueError(
                f"y has {counted(targets.shape[1], 'target')} a row, and had {len(self.target_mean_)} before; give as "
                "many, or fit a clone of the estimator"
            )
        self._is_column = np.ndim(y) > 1
        seed = self._seed(partial=partial)
        conf = self._conf(OutputLayer(activation="identity", loss="mse"), x.shape[1], targets.shape[1], seed)
        labels = (targets - self.target_mean_) / self.target_scale_
        warn_of_equal(labels, "y")
        self._learn(conf, weighted(x, labels.astype(np.float32), weights), seed, partial=partial)
        return self

    def _spread(self, targets: Array, weights: Array | None) -> tuple[Array, Array]:
        """Return the number to subtract from targets, and their divisor."""
        if self.configuration is not None:
            return np.zeros(targets.shape[1]), np.ones(targets.shape[1])
        return mean_and_std([targets]) if weights is None else weighted_mean_and_std(targets, weights)

    def predict(self, X: Any) -> Array:
        """Return the predicted targets, in the shape of the targets of ``fit``."""
        outputs = self._output(X) * self.target_scale_ + self.target_mean_
        return outputs if self._is_column else outputs[:, 0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class DL4JAutoEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, NetworkEstimator):
    """A network that learns to reconstruct its input through a narrow layer; ``transform`` returns that layer's output.

    The layers behind the narrow one mirror those before it. With ``corruption_level`` it reconstructs corrupted inputs
    (a denoising autoencoder: Vincent et al. 2010). Features should be standardized. Training is in float32.

    Args:
        hidden_layer_sizes: units of the layers down to the narrow one, which is the last.
        activation, ..., jobs_per_round: those of ``DL4JClassifier``.
        corruption_level: the share of the inputs that is set to 0 in training.
        random_state: a number, for the same network every time; a ``RandomState``; or None: a random seed.

    Attributes:
        model_: the trained network (``model_.network()``).
        encoder_, decoder_: its two halves.
        epochs_, n_iter_: passes over the data.
        n_features_in_, feature_names_in_: of the training data.
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
        """Train a new network to reconstruct ``X (examples, n_in)``. Blocks; ``y`` is ignored.

        Raises:
            ValueError: X is not such an array.
            ConfError: an argument is out of range.
            NotFiniteError: a score or a parameter became NaN or infinite.
        """
        check_arguments(self)
        x = self._rounded(validated(self, X, dtype=FLOATS))
        seed = drawn(self.random_state)
        conf = MultiLayerConfiguration(conf=self._shared(seed), layers=self._layers())
        options = self._options(seed)
        trained = self._train(conf.with_sizes(x.shape[1], x.shape[1]), DataSet(x, x), options).network
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
        """Return the narrow layer's output, ``(examples, units)``, in float32 if ``X`` is float32, else in float64."""
        check_is_fitted(self)
        x = validated(self, X, reset=False, dtype=(np.float64, np.float32))
        return self.encoder_.output(x).astype(x.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """Return the reconstructions ``(examples, n_in)`` from the output of ``transform``."""
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
