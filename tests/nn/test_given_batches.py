"""Whoever takes batches takes them as a list, a generator or an iterator, of DataSets and of MultiDataSets alike.

A table: places that take batches x forms of the same batches x kinds. What a place answers is that of the iterator, bit
for bit; what a kind of network cannot take is refused everywhere in the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, ParallelWrapper
from dl4jlegacy.datasets import (
    DataSet,
    ImagePreProcessingScaler,
    ListDataSetIterator,
    ListMultiDataSetIterator,
    MultiDataSet,
    NormalizerMinMaxScaler,
    NormalizerStandardize,
    Reading,
)
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.nn import (
    LSTM,
    Adam,
    ComputationGraph,
    ComputationGraphConfiguration,
    DenseLayer,
    InputType,
    LastTimeStep,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    ROCMultiClass,
)
from dl4jlegacy.nn.conf.network import GraphBuilder
from dl4jlegacy.nn.evaluation.evaluate import do_evaluation
from dl4jlegacy.nn.fitting.early_stopping import (
    EarlyStoppingConfiguration,
    EarlyStoppingTrainer,
    MaxEpochsTerminationCondition,
    TerminationReason,
)
from dl4jlegacy.nn.fitting.score_calculators import (
    ClassificationScoreCalculator,
    DataSetLossCalculator,
    RegressionScoreCalculator,
    ROCScoreCalculator,
)
from dl4jlegacy.testing import check_iterator

ROWS, BATCH = 22, 8
BASE = NeuralNetConfiguration(seed=3, activation="tanh", updater=Adam(learning_rate=0.01))
RANDOM = np.random.default_rng(5)
X, STEPS = RANDOM.normal(size=(ROWS, 4)).astype("f4"), RANDOM.normal(size=(ROWS, 3, 5)).astype("f4")
CLASSES = np.eye(3, dtype="f4")[np.arange(ROWS) % 3]
EACH = np.eye(2, dtype="f4")[RANDOM.integers(0, 2, (ROWS, 5))].transpose(0, 2, 1).copy()
MASK = (np.arange(5) < RANDOM.integers(2, 6, (ROWS, 1))).astype("f4")


def stack() -> MultiLayerConfiguration:
    return MultiLayerConfiguration(conf=BASE, layers=(DenseLayer(n_in=4, n_out=5), OutputLayer(3, "softmax")))


def one_of_each() -> ComputationGraphConfiguration:
    b = GraphBuilder(BASE).add_inputs("in").add_layer("a", DenseLayer(n_in=4, n_out=5), "in")
    return b.add_layer("out", OutputLayer(n_out=3, activation="softmax"), "a").set_outputs("out").build()


def two_of_each() -> ComputationGraphConfiguration:
    """Rows and sequences of different lengths come in; a class, and one for each time step, come out."""
    b = GraphBuilder(BASE).add_inputs("rows", "steps")
    b.set_input_types(InputType.feed_forward(4), InputType.recurrent(3))
    b.add_layer("each", LSTM(n_out=4), "steps").add_layer("end", LastTimeStep(layer=LSTM(n_out=4)), "steps")
    b.add_layer("a", DenseLayer(n_out=5), "rows", "end").add_layer("class", OutputLayer(3, "softmax"), "a")
    return b.add_layer("kind", RnnOutputLayer(2, "softmax"), "each").set_outputs("class", "kind").build()


SINGLE = DataSet(X, CLASSES)
SOME = MASK * (np.arange(5) % 2 == 0)
SEVERAL = MultiDataSet([X, STEPS], [CLASSES, EACH], [None, MASK], [None, SOME])
KINDS: dict[str, tuple[Callable[[], Any], Any]] = {
    "DataSet, stack": (stack, SINGLE),
    "DataSet, graph": (one_of_each, SINGLE),
    "MultiDataSet": (two_of_each, SEVERAL),
}


class Classic:
    """DL4J's iterator of old."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts, self._next = parts, 1  # as if somebody had begun with it

    def has_next(self) -> bool:
        return self._next < len(self._parts)

    def next(self) -> Any:
        self._next += 1
        return self._parts[self._next - 1]

    def reset(self) -> None:
        self._next = 0


def iterator(data: Any) -> Any:
    kind = ListMultiDataSetIterator if isinstance(data, MultiDataSet) else ListDataSetIterator
    return kind(data, BATCH, shuffle=False)


def parts(data: Any) -> list[Any]:
    return [data.rows(start, min(start + BATCH, ROWS)) for start in range(0, ROWS, BATCH)]


FORMS: dict[str, Callable[[Any], Any]] = {
    "list": parts,
    "tuple": lambda data: tuple(parts(data)),
    "generator": lambda data: (part for part in parts(data)),
    "classic": lambda data: Classic(parts(data)),
    "iterator": iterator,
}


# -- places ----------------------------------------------------------------------------------------------------------


def of(conf: Any) -> Any:
    return (ComputationGraph if isinstance(conf, ComputationGraphConfiguration) else MultiLayerNetwork)(conf)


def fit(conf: Any, given: Any) -> Any:
    network = of(conf)
    network.fit(given)
    return network.params.tobytes(), network.iteration


def evaluated(conf: Any, given: Any) -> Any:
    return of(conf).evaluate(given).confusion.tolist()


def curve(conf: Any, given: Any) -> Any:
    return of(conf).evaluate(given, ROCMultiClass()).calculate_average_auc()


def compared(conf: Any, given: Any) -> Any:
    found = ROCMultiClass()
    do_evaluation(of(conf), given, found)
    return found.calculate_average_auc()


def calculated(make: Callable[[Any], Any], conf: Any, given: Any) -> Any:
    return make(given).calculate_score(of(conf))


def stopped_early(conf: Any, given: Any) -> Any:
    network = of(conf)
    ends = EarlyStoppingConfiguration((MaxEpochsTerminationCondition(1),))
    result = EarlyStoppingTrainer(ends, network, given).fit()
    if result.error is not None:
        raise result.error
    return network.params.tobytes(), result.best_score


def wrapped(conf: Any, given: Any) -> Any:
    network = of(conf)
    with ParallelWrapper(network, workers=2) as wrapper:
        wrapper.fit(given, epochs=2)
    return network.params.tobytes()


def trained(conf: Any, given: Any, validation: Any = None, **changes: Any) -> Any:
    field = "computation_graph_conf" if isinstance(conf, ComputationGraphConfiguration) else "multi_layer_conf"
    with ActorNetworkRunner("master", given, validation=validation) as runner:
        runner.setup(Conf(**{field: conf}, workers=2, epochs=2, **changes))
        result = runner.train(deadline=60)
        assert result is not None and (result.batches_lost, result.batches_duplicated) == (0, 0)
        return runner.network(result).params.tobytes(), result.validation


def validated(conf: Any, given: Any) -> Any:
    whole = SEVERAL if isinstance(conf, ComputationGraphConfiguration) and len(conf.network_inputs) > 1 else SINGLE
    return trained(conf, iterator(whole), given)


def checked(conf: Any, given: Any) -> Any:
    return check_iterator(given)


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "network.fit": fit,
    "network.evaluate": evaluated,
    "network.evaluate, another kind": curve,
    "network.score": lambda conf, given: of(conf).score(given),
    "network.score_examples": lambda conf, given: of(conf).score_examples(given).tolist(),
    "do_evaluation": compared,
    "DataSetLossCalculator": partial(calculated, DataSetLossCalculator),
    "ClassificationScoreCalculator": partial(calculated, partial(ClassificationScoreCalculator, "f1")),
    "RegressionScoreCalculator": partial(calculated, partial(RegressionScoreCalculator, "mse")),
    "ROCScoreCalculator": partial(calculated, partial(ROCScoreCalculator, "multi_class")),
    "EarlyStoppingTrainer": stopped_early,
    "ParallelWrapper": wrapped,
    "ActorNetworkRunner": trained,
    "ActorNetworkRunner, validation": validated,
    "check_iterator": checked,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.everyday(12)
def test_a_place_that_takes_batches_takes_them_in_every_form(place: str, kind: str) -> None:
    conf, data = KINDS[kind]
    wanted = PLACES[place](conf(), iterator(data))
    for form, make in FORMS.items():
        if (place, form) != ("check_iterator", "classic"):  # which checks what can be gone through
            assert PLACES[place](conf(), make(data)) == wanted, form


@pytest.mark.parametrize("place", [place for place in PLACES if place != "check_iterator"])
def test_a_stack_of_layers_says_that_it_takes_no_multi_data_sets(place: str) -> None:
    words = r"a MultiLayerNetwork takes DataSets, and batch 0 is MultiDataSet\(\(8, 4\), \(8, 3, 5\) -> .*; give Data"
    for form in ("iterator", "generator"):
        with pytest.raises(ConfError, match=words):
            PLACES[place](stack(), FORMS[form](SEVERAL))


@pytest.mark.parametrize("place", ["network.fit", "network.score", "network.evaluate", "ParallelWrapper"])
def test_a_graph_of_several_inputs_says_that_a_data_set_has_one(place: str) -> None:
    with pytest.raises(ShapeError, match=r"1 arrays? of (features for \['rows', 'steps'\]|labels)"):
        PLACES[place](two_of_each(), parts(SINGLE))


# -- what is no batch, or there no more ------------------------------------------------------------------------------

NO_BATCH: dict[str, tuple[Callable[[], Any], str]] = {
    "a word behind them": (
        lambda: [*parts(SEVERAL), "rows"],
        "batch 3 is str; a batch is a DataSet, a M",
    ),
    "none": (lambda: iter(()), "the data have no batch: the iterator ended before its first one"),
    "without examples": (lambda: [parts(SEVERAL)[0], SEVERAL.rows(0, 0)], "batch 1 has no example"),
}


@pytest.mark.parametrize("what", NO_BATCH)
@pytest.mark.parametrize("place", [place for place in PLACES if place != "check_iterator"])
def test_what_is_no_batch_is_named_by_its_number(place: str, what: str) -> None:
    make, words = NO_BATCH[what]
    with pytest.raises(DataError, match=words):
        PLACES[place](two_of_each(), make())


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_that_is_used_up_trains_no_second_epoch_in_silence(kind: str) -> None:
    conf, data = KINDS[kind]
    with pytest.raises(DataError, match="epoch 1 of 3 has no batch: the generator was used up by the one before"):
        of(conf()).fit(FORMS["generator"](data), epochs=3)
    ends = EarlyStoppingConfiguration((MaxEpochsTerminationCondition(3),))
    result = EarlyStoppingTrainer(ends, of(conf()), FORMS["generator"](data)).fit()
    assert result.reason is TerminationReason.ERROR and "was it used up already?" in result.details


# -- what a run says of its validation ---------------------------------------------------------------------------------

LAST: dict[str, tuple[OutputLayer, Any]] = {
    "classes": (OutputLayer(3, "softmax"), CLASSES),
    "numbers": (OutputLayer(2, "identity", loss="mse"), 10 + RANDOM.normal(size=(ROWS, 2))),
    "answers": (OutputLayer(2, "sigmoid", loss="xent"), RANDOM.integers(0, 2, (ROWS, 2))),
}


@pytest.mark.parametrize("what", LAST)
def test_a_validation_says_of_multi_data_sets_what_it_says_of_data_sets(what: str) -> None:
    """Of several outputs the first one counts."""
    last, labels = LAST[what]
    data = DataSet(X, labels)
    b = (
        GraphBuilder(BASE)
        .add_inputs("in")
        .add_layer("a", DenseLayer(n_in=4, n_out=5), "in")
        .add_layer("out", last, "a")
    )
    one = b.set_outputs("out").build()
    both = b.add_layer("also", OutputLayer(1, "identity", loss="mse"), "a").set_outputs("out", "also").build()
    two = MultiDataSet([X], [labels, X[:, :1]])
    wanted, found = trained(one, iterator(data), data)[1], trained(one, iterator(data), MultiDataSet.of(data))[1]
    assert found == wanted and (found.r2 is not None) == (what == "numbers")
    assert (found.accuracy is not None) == (what != "numbers")
    several = trained(both, iterator(two), two)[1]
    assert {name for name in found.__struct_fields__ if getattr(found, name) is not None} == {
        name for name in several.__struct_fields__ if getattr(several, name) is not None
    }


# -- what takes DataSets only ----------------------------------------------------------------------------------------

FITTED = NormalizerStandardize().fit(SINGLE)
DATA_SETS_ONLY: dict[str, tuple[Callable[[], Any], str]] = {
    "fit": (lambda: NormalizerStandardize().fit(parts(SEVERAL)), "a normalizer takes DataSets, and was given"),
    "fit, one": (lambda: NormalizerMinMaxScaler().fit(SEVERAL), "a normalizer takes DataSets, and was given"),
    "transform": (lambda: FITTED.transform(SEVERAL), "scale each array in a DataSet of its own"),
    "revert": (lambda: FITTED.revert(SEVERAL), "scale each array in a DataSet of its own"),
    "pixels": (lambda: ImagePreProcessingScaler().transform(SEVERAL), "scale each array in a DataSet of its own"),
    "merge": (lambda: DataSet.merge([SINGLE, SEVERAL]), "DataSet.merge takes DataSets, and part 1 is MultiDataSet"),
    "iterator": (lambda: ListDataSetIterator(SEVERAL, 8), "batches are ListMultiDataSetIterator's"),
}


@pytest.mark.parametrize("what", DATA_SETS_ONLY)
def test_what_takes_data_sets_only_names_the_multi_data_set(what: str) -> None:
    make, words = DATA_SETS_ONLY[what]
    with pytest.raises(DataError, match=words):
        make()


def test_a_saved_model_evaluates_batches_of_either_kind() -> None:
    plain, graph = TrainedModel(of(stack()), Reading(normalizer=FITTED)), TrainedModel(of(two_of_each()))
    several = graph.network.evaluate(SEVERAL).confusion.tolist()
    scaled = plain.network.evaluate(FITTED.transform(SINGLE)).confusion.tolist()
    for form, make in FORMS.items():
        assert plain.evaluate(make(SINGLE)).confusion.tolist() == scaled, form
        assert graph.evaluate(make(SEVERAL)).confusion.tolist() == several, form
    with pytest.raises(ConfError, match="a MultiLayerNetwork takes DataSets"):
        TrainedModel(of(stack())).evaluate(parts(SEVERAL))
    both, alone = ListMultiDataSetIterator(SINGLE, 8, seed=3), ListDataSetIterator(SINGLE, 8, seed=3)
    np.testing.assert_array_equal(both.batch(1, 0).features[0], alone.batch(1, 0).features)
