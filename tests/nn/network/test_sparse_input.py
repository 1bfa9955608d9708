"""Networks on sparse features: the same training as on all columns, of which only those are read that have values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import (
    AdaGrad,
    Adam,
    DataSet,
    DenseLayer,
    ListDataSetIterator,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    Nesterovs,
    NeuralNetConfiguration,
    OutputLayer,
    Sgd,
)
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.datasets.tables.sparse_files import SvmLightDataSetIterator
from dl4jlegacy.errors import ConfError, DataError, Dl4jError, ShapeError

COLUMNS = 700


def examples(rows: int = 60, seed: int = 1) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows of which most values are 0, one of them with none, and a class for each."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((rows, COLUMNS)) < 0.02, rng.normal(size=(rows, COLUMNS)), 0.0)
    x[rows // 2] = 0
    return x, np.eye(3)[rng.integers(0, 3, rows)]


def network(*, dtype: str = "float64", **first: Any) -> MultiLayerNetwork:
    layers = (
        DenseLayer(n_in=COLUMNS, n_out=6, activation="tanh", **first),
        DenseLayer(n_out=5, activation="tanh", updater=Nesterovs(learning_rate=0.1), l2=1e-3),
        OutputLayer(n_out=3, activation="softmax", l1=1e-4),
    )
    conf = NeuralNetConfiguration(seed=4, dtype=dtype, updater=Sgd(learning_rate=0.5))
    return MultiLayerNetwork(MultiLayerConfiguration(layers, conf))


def trained(net: MultiLayerNetwork, data: DataSet, batches: int = 6) -> list[float]:
    scores = []
    for number in range(batches):
        part = data.rows(number * 10, number * 10 + 10)
        scores.append(net.fit_batch(part.features, part.labels, iteration=number, stream=Stream.of(number)))
    return scores


@pytest.mark.parametrize("updater", [Sgd(learning_rate=0.5), AdaGrad(learning_rate=0.1)], ids=["sgd", "adagrad"])
def test_it_is_trained_as_on_all_columns(updater: Any) -> None:
    x, y = examples()
    dense, sparse = network(updater=updater), network(updater=updater)
    before = sparse.params.copy()
    scores = trained(sparse, DataSet(SparseFeatures.of(x), y))
    np.testing.assert_allclose(scores, trained(dense, DataSet(x, y)), rtol=1e-12)
    np.testing.assert_allclose(sparse.params, dense.params, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(sparse.updater_state, dense.updater_state, rtol=1e-11, atol=1e-14)
    unused = np.setdiff1d(np.arange(COLUMNS), np.nonzero(x)[1])
    assert len(unused) and len(unused) < COLUMNS
    W, first = sparse.param_table["0_W"], before[: COLUMNS * 6].reshape(6, COLUMNS).T
    assert (W[unused] == first[unused]).all(), "a weight has changed that no example has touched"
    assert not (first == W).all()


def test_its_gradient_is_that_of_the_loss() -> None:
    x, y = examples(8)
    net = network()
    features = SparseFeatures.of(x)
    columns, gradient, _ = net.sparse_input().gradient_and_score(features, y, Stream.of(1))
    whole = DataSet(features, y)
    for name, of_name in gradient.items():
        values = net.param_table[name]
        places = columns if name == "0_W" else np.arange(len(values))
        for at in np.ndindex(*np.minimum(of_name.shape, 3)):
            place = (places[at[0]], *at[1:])
            found = []
            for step in (1e-6, -1e-6):
                values[place] += step
                found.append(net.score(whole))
                values[place] -= step
            slope = (found[0] - found[1]) / 2e-6
            expected = of_name[at] + _penalty_slope(net, name, place)
            assert abs(slope - expected) < 1e-8 + 1e-3 * abs(expected), (name, at)


def _penalty_slope(net: MultiLayerNetwork, name: str, place: tuple[Any, ...]) -> float:
    value = float(net.param_table[name][place])
    return {"1_W": 1e-3 * value, "2_W": 1e-4 * np.sign(value)}.get(name, 0.0)


def test_what_is_asked_of_it_is_as_of_all_columns() -> None:
    x, y = examples()
    net, sparse, dense = network(), DataSet(SparseFeatures.of(x), y), DataSet(x, y)
    np.testing.assert_allclose(net.output(sparse.features), net.output(x), rtol=1e-12)
    np.testing.assert_allclose(net.score_examples(sparse), net.score_examples(dense), rtol=1e-12)
    assert net.score(sparse) == pytest.approx(net.score(dense), rel=1e-12)
    assert (net.predict(sparse.features) == net.predict(x)).all()
    batches = ListDataSetIterator(sparse, 7)
    assert net.evaluate(batches).to_dict() == net.evaluate(ListDataSetIterator(dense, 7)).to_dict()


def test_a_data_set_of_a_file_is_learned(tmp_path: Path) -> None:
    """Half of the million columns tell one class, half the other; few of them are touched."""
    rng = np.random.default_rng(2)
    lines = []
    for _ in range(120):
        label = int(rng.integers(0, 2))
        indices = np.unique(rng.integers(1, 40, 5) * 25_000 - label)
        lines.append(f"{label} " + " ".join(f"{index}:1" for index in indices))
    (tmp_path / "a.svm").write_text("\n".join(lines))
    data = SvmLightDataSetIterator(20, tmp_path / "a.svm", columns=1_000_000)
    assert data.input_columns == 1_000_000 and data.label_names == ("0", "1")
    layers = (
        DenseLayer(n_in=1_000_000, n_out=4, activation="tanh", drop_out=0.9),
        OutputLayer(n_out=2, activation="softmax"),
    )
    conf = MultiLayerConfiguration(layers, NeuralNetConfiguration(seed=4, updater=Sgd(learning_rate=1.0)))
    net, again = MultiLayerNetwork(conf), MultiLayerNetwork(conf)
    for each in (net, again):
        each.fit(SvmLightDataSetIterator(20, tmp_path / "a.svm", columns=1_000_000), epochs=10)
    assert net.params.tobytes() == again.params.tobytes()
    assert net.evaluate(data).accuracy() > 0.95


REFUSED: list[tuple[dict[str, Any], type[Dl4jError], str]] = [
    ({"updater": Adam()}, ConfError, r"updater Adam changes weights that a batch does not touch; .* Sgd or AdaGrad"),
    ({"l2": 0.1}, ConfError, "l1 or l2 shrinks all of its weights"),
    ({"l1": 0.1}, ConfError, "l1 or l2 shrinks all of its weights"),
]


@pytest.mark.parametrize(("first", "error", "said"), REFUSED)
def test_what_would_change_other_weights_is_refused(first: Any, error: type[Dl4jError], said: str) -> None:
    x, y = examples(10)
    with pytest.raises(error, match=said):
        trained(network(**first), DataSet(SparseFeatures.of(x), y), 1)


def test_a_layer_of_another_kind_and_another_number_of_columns_are_refused() -> None:
    x, _ = examples(10)
    with pytest.raises(ShapeError, match=r"the features have 701 columns, layer 0 \(dense\) has n_in=700"):
        network().output(SparseFeatures.of(np.eye(701)))
    with pytest.raises(DataError, match="features are sparse, 10 rows of 700 columns"):
        network().feed_forward(SparseFeatures.of(x))  # type: ignore[arg-type]
