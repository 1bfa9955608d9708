"""Recurrent layers: gradients, an explicit reference, masks, truncated backpropagation, and step by step."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.numpy import kernels as numpy_kernels
from dl4jlegacy.kernels.numpy.recurrent import over_time, over_time_back, stepping, stepping_back
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.interchange.dl4j.json import to_dl4j
from dl4jlegacy.nn.interchange.dl4j.reader import from_dl4j
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_multi_layer_network, write_model
from dl4jlegacy.nn.layers.bidirectional import Bidirectional, GravesBidirectionalLSTM, LastTimeStep
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.lstm import LSTM, GravesLSTM, general_cells
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.layers.subsampling import GlobalPoolingLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Adam, Sgd

N_IN, UNITS, N_OUT, STEPS, ROWS = 3, 4, 2, 6, 5
CHECKED = 60
"""So many parameters' gradients are checked, evenly spread."""
RECURRENT = {
    "lstm": LSTM(n_out=UNITS),
    "graves": GravesLSTM(n_out=UNITS),
    "softsign": GravesLSTM(n_out=UNITS, activation="softsign"),
    "graves_bidirectional": GravesBidirectionalLSTM(n_out=UNITS),
    "concat": Bidirectional(layer=LSTM(n_out=UNITS)),
    "add": Bidirectional(layer=GravesLSTM(n_out=UNITS), mode="add"),
    "average": Bidirectional(layer=LSTM(n_out=UNITS), mode="average"),
    "mul": Bidirectional(layer=LSTM(n_out=UNITS), mode="mul"),
}
every_layer = pytest.mark.parametrize("kind", sorted(RECURRENT))
KERNELS = ("numpy", "numba")
both_kernels = pytest.mark.parametrize("kernels", KERNELS)


def network(
    *layers: Layer, kernels: str = "numpy", dtype: str = "float64", list_fields: dict | None = None, **conf: object
) -> MultiLayerNetwork:
    fields = {"seed": 5, "activation": "tanh", "dtype": dtype, "weight_init": "xavier"} | conf
    return MultiLayerNetwork(
        MultiLayerConfiguration(
            conf=NeuralNetConfiguration(**fields),
            layers=layers,
            input_type=InputType.recurrent(N_IN),
            **(list_fields or {}),
        ),
        kernels=load(kernels),
    )


def sequences(seed: int = 2, *, labels: int = 3, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, N_IN, STEPS)).astype(dtype)
    shape = (ROWS, STEPS) if labels == 3 else (ROWS,)
    one_hot = np.eye(N_OUT, dtype=dtype)[rng.integers(0, N_OUT, shape)]
    return x, np.ascontiguousarray(np.moveaxis(one_hot, -1, 1))


def lengths_mask(dtype: type = np.float64) -> np.ndarray:
    return (np.arange(STEPS)[None, :] < np.array([6, 3, 1, 5, 4])[:, None]).astype(dtype)


@both_kernels
@every_layer
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.everyday(5)
def test_gradient_is_the_derivative_of_the_score(kind: str, masked: bool, kernels: str) -> None:
    x, labels = sequences()
    mask = lengths_mask() if masked else None
    net = network(RECURRENT[kind], LSTM(n_out=3), RnnOutputLayer(n_out=N_OUT), kernels=kernels, l2=0.01, l1=0.01)
    report = GradientCheckUtil.check_gradients(net, x, labels, features_mask=mask, max_params=CHECKED)
    assert report.passed, report.failures[:3]
    assert report.max_rel_error < 1e-4


@every_layer
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.everyday(5)
def test_the_last_time_step_passes_its_gradient_to_where_the_sequence_ended(kind: str, masked: bool) -> None:
    x, labels = sequences(labels=2)
    mask = lengths_mask() if masked else None
    net = network(LastTimeStep(layer=RECURRENT[kind]), DenseLayer(n_out=3), OutputLayer(n_out=N_OUT))
    report = GradientCheckUtil.check_gradients(net, x, labels, features_mask=mask, max_params=CHECKED)
    assert report.passed, report.failures[:3]


def test_labels_that_are_masked_out_do_not_count() -> None:
    x, labels = sequences()
    mask = (np.random.default_rng(1).random((ROWS, STEPS)) < 0.5).astype(float)
    net = network(GravesLSTM(n_out=UNITS), RnnOutputLayer(n_out=N_OUT))
    report = GradientCheckUtil.check_gradients(net, x, labels, labels_mask=mask)
    assert report.passed, report.failures[:3]
    other = labels.copy().transpose(0, 2, 1)
    other[mask == 0] = other[mask == 0][:, ::-1]
    other = np.ascontiguousarray(other.transpose(0, 2, 1))
    scores = [net.gradient_and_score(x, given, Stream.of(1), None, mask)[1] for given in (labels, other)]
    assert scores[0] == scores[1]
    assert scores[0] == pytest.approx(net.score(DataSet(x, labels, labels_mask=mask)), rel=1e-12)


OTHERS = ("softsign", "elu", "identity", "tanh", "softmax")


@pytest.mark.parametrize(
    ("activation", "gate"),  # a cell without a bound would meet the corner of the hard sigmoid
    [*((name, "sigmoid") for name in OTHERS), *((name, "hardsigmoid") for name in OTHERS if name != "identity")],
)
def test_other_activations_take_the_general_path(activation: str, gate: str) -> None:
    x, labels = sequences()
    layer = GravesLSTM(n_out=UNITS, activation=activation, gate_activation=gate, forget_gate_bias_init=0.3)
    net = network(layer, RnnOutputLayer(n_out=N_OUT))
    report = GradientCheckUtil.check_gradients(net, x, labels, features_mask=lengths_mask(), max_params=CHECKED)
    assert report.passed, report.failures[:3]


def test_the_general_path_equals_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = sequences()

    def gradient() -> np.ndarray:
        net = network(GravesLSTM(n_out=UNITS), RnnOutputLayer(n_out=N_OUT))
        return net.gradient_and_score(x, labels, Stream.of(1), lengths_mask())[0].copy()

    fused = gradient()
    cell, cell_back = general_cells("tanh", "sigmoid")
    there, back = stepping(cell), stepping_back(cell_back)
    monkeypatch.setattr(numpy_kernels, "lstm_forward", lambda *args: over_time(there, *args))
    monkeypatch.setattr(numpy_kernels, "lstm_backward", lambda *args: over_time_back(back, *args))
    np.testing.assert_allclose(gradient(), fused, rtol=1e-12, atol=1e-14)


# -- an independent reference: one number at a time ------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def reference_loss(params: np.ndarray, x: np.ndarray, labels: np.ndarray, mask: np.ndarray, n: int) -> float:
    """Mean cross-entropy of GravesLSTM -> RnnOutput, from the flat vector in DL4J's order."""
    x, labels, mask = (array.astype(np.float64) for array in (x, labels, mask))
    sizes = [N_IN * 4 * n, n * (4 * n + 3), 4 * n, n * N_OUT, N_OUT]
    W, RW, b, V, d = np.split(params, np.cumsum(sizes)[:-1])
    W, RW, V = W.reshape(4 * n, N_IN), RW.reshape(4 * n + 3, n), V.reshape(N_OUT, n)  # columns, one after the other
    total = 0.0
    for row in range(len(x)):
        h, c = [0.0] * n, [0.0] * n
        for t in range(x.shape[2]):
            s = [b[k] + float(W[k] @ x[row, :, t]) + float(RW[k] @ np.array(h)) for k in range(4 * n)]
            on = mask[row, t]
            for k in range(n):
                block, old = math.tanh(s[k]), c[k]
                forget = sigmoid(s[n + k] + RW[4 * n, k] * old)
                admit = sigmoid(s[3 * n + k] + RW[4 * n + 2, k] * old)
                new = forget * old + admit * block
                out = sigmoid(s[2 * n + k] + RW[4 * n + 1, k] * new)
                c[k], h[k] = on * new, on * out * math.tanh(new)
            y = [math.exp(d[k] + float(V[k] @ np.array(h))) for k in range(N_OUT)]
            total -= on * sum(labels[row, k, t] * math.log(y[k] / sum(y)) for k in range(N_OUT))
    return total / len(x)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", [4, 18])
def test_float32_agrees_with_an_explicit_reference(n: int, masked: bool) -> None:
    x, labels = sequences(dtype=np.float32)
    mask = lengths_mask(np.float32) if masked else np.ones((ROWS, STEPS), np.float32)
    nets = [network(GravesLSTM(n_out=n), RnnOutputLayer(n_out=N_OUT), kernels=k, dtype="float32") for k in KERNELS]
    params = nets[0].params.astype(np.float64)
    wanted, gradients = reference_loss(params, x, labels, mask, n), []
    for net in nets:
        assert np.array_equal(net.params, nets[0].params)
        gradient, score = net.gradient_and_score(x, labels, Stream.of(1), mask if masked else None)
        assert score == pytest.approx(wanted, rel=1e-5)
        gradients.append(gradient)
    largest = float(np.abs(gradients[0]).max())
    for place in np.linspace(0, params.size - 1, 20).astype(int):
        sides = []
        for sign in (1, -1):
            moved = params.copy()
            moved[place] += sign * 1e-5
            sides.append(reference_loss(moved, x, labels, mask, n))
        for gradient in gradients:
            assert gradient[place] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5, abs=1e-5 * largest)


# -- order and beginnings of the parameters --------------------------------------------------------------------------


def test_parameters_have_dl4js_names_shapes_and_order() -> None:
    def table(layer: Layer) -> dict[str, tuple[int, ...]]:
        return {name: view.shape for name, view in network(layer, RnnOutputLayer(n_out=2)).param_table.items()}

    assert table(GravesLSTM(n_out=4)) == {"0_W": (3, 16), "0_RW": (4, 19), "0_b": (16,), "1_W": (4, 2), "1_b": (2,)}
    assert list(table(LSTM(n_out=4)).values())[1] == (4, 16)
    both = {"0_WF": (3, 16), "0_RWF": (4, 19), "0_bF": (16,), "0_WB": (3, 16), "0_RWB": (4, 19), "0_bB": (16,)}
    assert table(GravesBidirectionalLSTM(n_out=4)).items() >= both.items()
    assert list(table(Bidirectional(layer=LSTM(n_out=4))))[:6] == ["0_fW", "0_fRW", "0_fb", "0_bW", "0_bRW", "0_bb"]
    assert table(Bidirectional(layer=LSTM(n_out=4)))["1_W"] == (8, 2)


def test_forget_gates_begin_open_and_the_other_biases_at_zero() -> None:
    net = network(GravesLSTM(n_out=2, forget_gate_bias_init=3.0), LSTM(n_out=2), RnnOutputLayer(n_out=2))
    assert net.param_table["0_b"].tolist() == [0, 0, 3, 3, 0, 0, 0, 0]
    assert net.param_table["1_b"].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert net.param_table["0_RW"].std() > 0.1


def test_recurrent_layers_survive_json_and_say_what_they_inherit() -> None:
    layers = (*RECURRENT.values(), LastTimeStep(layer=RECURRENT["concat"]), RnnOutputLayer(n_out=2))
    assert msgspec.json.decode(msgspec.json.encode(layers), type=tuple[Layer, ...]) == layers
    wrapped = Bidirectional(layer=LSTM(n_out=3, activation="softsign", l2=0.5))
    resolved = network(wrapped, RnnOutputLayer(n_out=2), l1=0.25).layers[0]
    assert (resolved.n_in, resolved.n_out, resolved.l1, resolved.l2) == (N_IN, 6, 0.25, 0.5)
    assert (resolved.inner().activation, resolved.inner().n_out) == ("softsign", 3)


# -- masks -----------------------------------------------------------------------------------------------------------


@both_kernels
@every_layer
def test_what_lies_behind_the_end_of_a_sequence_changes_nothing(kind: str, kernels: str) -> None:
    x, labels = sequences(dtype=np.float32)
    mask = lengths_mask(np.float32)
    rubbish = x + 100 * (1 - mask)[:, None, :]
    net = network(RECURRENT[kind], RnnOutputLayer(n_out=N_OUT), kernels=kernels, dtype="float32")
    results = [net.gradient_and_score(given, labels, Stream.of(1), mask) for given in (x, rubbish)]
    assert results[0][1] == results[1][1]
    short = net.output(x[1:2, :, :3])
    np.testing.assert_allclose(net.output(rubbish, mask)[1:2, :, :3], short, rtol=1e-5, atol=1e-6)


def test_global_pooling_sees_the_mask_behind_a_recurrent_layer() -> None:
    x, labels = sequences(labels=2)
    net = network(GravesLSTM(n_out=UNITS), GlobalPoolingLayer(pooling_type="avg"), OutputLayer(n_out=N_OUT))
    report = GradientCheckUtil.check_gradients(net, x, labels, features_mask=lengths_mask())
    assert report.passed, report.failures[:3]


# -- truncated backpropagation ---------------------------------------------------------------------------------------


def truncated(forward: int, back: int) -> dict[str, object]:
    return {"backprop_type": "truncated_bptt", "tbptt_fwd_length": forward, "tbptt_back_length": back}


def test_truncation_at_the_whole_length_is_backpropagation_through_time() -> None:
    x, labels = sequences()
    nets = [
        network(GravesLSTM(n_out=UNITS), RnnOutputLayer(n_out=N_OUT), list_fields=fields)
        for fields in ({}, truncated(STEPS, STEPS), truncated(50, 50))
    ]
    scores = [net.fit_batch(x, labels, iteration=0, stream=Stream.of(1)) for net in nets]
    assert scores[0] == scores[1] == scores[2]
    assert nets[0].params.tobytes() == nets[1].params.tobytes() == nets[2].params.tobytes()


def test_segments_go_on_from_each_others_state_and_each_makes_an_update() -> None:
    x, labels = sequences()
    layers = (GravesLSTM(n_out=UNITS), RnnOutputLayer(n_out=N_OUT))
    still = network(*layers, updater=Sgd(learning_rate=0.0), list_fields=truncated(4, 4))
    whole = network(*layers, updater=Sgd(learning_rate=0.0))
    score = still.fit_batch(x, labels, iteration=0, stream=Stream.of(1), features_mask=lengths_mask())
    assert score == pytest.approx(
        whole.fit_batch(x, labels, iteration=0, stream=Stream.of(1), features_mask=lengths_mask()), rel=1e-12
    )
    moving = network(*layers, updater=Adam(), list_fields=truncated(4, 4))
    by_hand = network(*layers, updater=Adam())
    moving.fit_batch(x, labels, iteration=3, stream=Stream.of(1))
    memory: dict = {}
    for index, cut in enumerate((slice(0, 4), slice(4, 6))):
        by_hand.gradient_and_score(x[:, :, cut], labels[:, :, cut], Stream.of(1), None, None, memory=memory)
        by_hand._apply(6 + index)
    assert moving.params.tobytes() == by_hand.params.tobytes()


def test_the_back_length_cuts_the_gradient_off() -> None:
    """Against central differences of a loss in which earlier time steps are constants."""
    x, labels = sequences()
    back = 2
    net = network(LSTM(n_out=UNITS), RnnOutputLayer(n_out=N_OUT), list_fields=truncated(STEPS, back))
    gradient = net.gradient_and_score(x, labels, Stream.of(1), None, None, memory={})[0].copy()
    state: dict = {}
    network_of_prefix = net.clone()
    network_of_prefix.rnn_time_step(x[:, :, : STEPS - back])
    state = {(0, name): value for name, value in network_of_prefix.rnn_get_previous_state(0).items()}
    span = next(span for span in net.layout.spans if (span.layer, span.name) == (0, "RW"))
    for place in list(span.indices)[::7]:
        kept, sides = net.params[place], []
        for sign in (1, -1):
            net.params[place] = kept + sign * 1e-6
            tail = slice(STEPS - back, STEPS)
            sides.append(
                net.gradient_and_score(x[:, :, tail], labels[:, :, tail], Stream.of(1), None, None, memory=dict(state))[
                    1
                ]
            )
        net.params[place] = kept
        assert gradient[place] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4, abs=1e-8)


def test_fit_with_truncation_learns_to_remember() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (64, 24))
    x = np.eye(2, dtype=np.float32)[bits].transpose(0, 2, 1).copy()
    labels = np.roll(x, 2, axis=2)
    labels[:, :, :2] = np.array([1, 0])[None, :, None]
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(activation="tanh", updater=Adam(learning_rate=0.02), seed=1),
        layers=(LSTM(n_out=16), RnnOutputLayer(n_out=2)),
        input_type=InputType.recurrent(2),
        backprop_type="truncated_bptt",
        tbptt_fwd_length=8,
        tbptt_back_length=8,
    )
    net = MultiLayerNetwork(conf)
    net.fit(DataSet(x, labels), epochs=60)
    assert net.score(DataSet(x, labels)) / 24 < 0.05


# -- one time step after the other -----------------------------------------------------------------------------------


@both_kernels
def test_time_steps_one_by_one_give_what_the_whole_sequence_gives(kernels: str) -> None:
    x, _ = sequences(dtype=np.float32)
    net = network(
        GravesLSTM(n_out=17), DenseLayer(n_out=5), LSTM(n_out=UNITS), RnnOutputLayer(n_out=N_OUT),
        kernels=kernels, dtype="float32",
    )  # fmt: skip
    whole = net.output(x)
    steps = [net.rnn_time_step(x[:, :, t]) for t in range(STEPS)]
    np.testing.assert_allclose(np.stack(steps, axis=2), whole, rtol=1e-5, atol=1e-6)
    net.rnn_clear_previous_state()
    parts = [net.rnn_time_step(x[:, :, :2]), net.rnn_time_step(x[:, :, 2:])]
    np.testing.assert_allclose(np.concatenate(parts, axis=2), whole, rtol=1e-5, atol=1e-6)


def test_a_state_can_be_read_set_and_cleared() -> None:
    x, _ = sequences()
    net = network(LSTM(n_out=UNITS), RnnOutputLayer(n_out=N_OUT))
    assert net.rnn_get_previous_state(0) == {}
    first = net.rnn_time_step(x[:, :, 0])
    state = net.rnn_get_previous_state(0)
    assert {name: value.shape for name, value in state.items()} == {"h": (ROWS, UNITS), "c": (ROWS, UNITS)}
    second = net.rnn_time_step(x[:, :, 1])
    net.rnn_set_previous_state(0, state)
    assert net.rnn_time_step(x[:, :, 1]).tobytes() == second.tobytes()
    net.rnn_clear_previous_state()
    assert net.rnn_time_step(x[:, :, 0]).tobytes() == first.tobytes()
    with pytest.raises(ShapeError, match=r"remembers 5 sequences of 4 units, now 2 .*rnn_clear_previous_state"):
        net.rnn_time_step(x[:2, :, 0])


def test_training_and_output_leave_the_stored_state_alone() -> None:
    x, labels = sequences()
    net = network(LSTM(n_out=UNITS), RnnOutputLayer(n_out=N_OUT), updater=Sgd(learning_rate=0.0))
    net.rnn_time_step(x[:, :, 0])
    state = net.rnn_get_previous_state(0)
    before = net.output(x).tobytes()
    net.fit_batch(x, labels, iteration=0, stream=Stream.of(1))
    assert net.output(x).tobytes() == before
    assert net.rnn_get_previous_state(0)["h"].tobytes() == state["h"].tobytes()


# -- what cannot work is said before training ------------------------------------------------------------------------


def test_a_bidirectional_network_runs_neither_step_by_step_nor_truncated() -> None:
    x, labels = sequences()
    net = network(GravesBidirectionalLSTM(n_out=3), RnnOutputLayer(n_out=N_OUT))
    with pytest.raises(ConfError, match=r"layer 0 \(graves_bidirectional_lstm\).*rnn_time_step"):
        net.rnn_time_step(x[:, :, 0])
    net = network(Bidirectional(layer=LSTM(n_out=3)), RnnOutputLayer(n_out=N_OUT), list_fields=truncated(2, 2))
    with pytest.raises(ConfError, match="truncated_bptt"):
        net.fit_batch(x, labels, iteration=0, stream=Stream.of(1))
    with pytest.raises(ConfError, match=r"layer 0 \(bidirectional\)"):
        net.conf.validate()


def test_truncation_needs_sequences_on_both_sides() -> None:
    x, labels = sequences(labels=2)
    net = network(LastTimeStep(layer=LSTM(n_out=3)), OutputLayer(n_out=N_OUT), list_fields=truncated(2, 2))
    with pytest.raises(ShapeError, match=r"\(5, 3, 6\) and \(5, 2\).*backprop_type='standard'"):
        net.fit_batch(x, labels, iteration=0, stream=Stream.of(1))


@pytest.mark.parametrize("fields", [{}, truncated(2, 2)])
def test_masks_ranks_and_labels_that_do_not_fit_are_named(fields: dict) -> None:
    x, labels = sequences()
    net = network(LSTM(n_out=3), RnnOutputLayer(n_out=N_OUT), list_fields=fields)

    def fit(x: np.ndarray, labels: np.ndarray, **masks: np.ndarray) -> None:
        net.fit_batch(x, labels, iteration=0, stream=Stream.of(1), **masks)

    before = net.params.tobytes()
    with pytest.raises(ShapeError, match=r"features mask has shape \(5, 7\).*expected \(5, 6\)"):
        fit(x, labels, features_mask=np.ones((ROWS, STEPS + 1)))
    with pytest.raises(ShapeError, match=r"labels mask has shape \(4, 6\).*expected \(5, 6\)"):
        fit(x, labels, labels_mask=np.ones((ROWS - 1, STEPS)))
    with pytest.raises(ShapeError, match=r"\(5, 3\).*time steps|\(5, 3\) and"):
        fit(x[:, :, 0], labels)
    with pytest.raises(ShapeError, match=r"\(5, 4, 6\)|labels have shape \(5, 4"):
        fit(x, np.repeat(labels, 2, axis=1))
    with pytest.raises(ShapeError, match=r"\(5, 2, 5\)"):
        fit(x, labels[:, :, :-1])
    with pytest.raises(ShapeError, match=r"\(5, 2\)"):
        fit(x, labels[:, :, 0])
    with pytest.raises((ShapeError, DataError), match=r"4|\(4, 2"):
        fit(x, labels[:-1])
    assert net.params.tobytes() == before


def test_configurations_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfError, match="lstm: unknown gate_activation 'tanh'; known: hardsigmoid, sigmoid"):
        LSTM(n_out=3, gate_activation="tanh")
    with pytest.raises(ConfError, match="unknown mode 'median'"):
        Bidirectional(layer=LSTM(n_out=3), mode="median")
    with pytest.raises(ShapeError, match=r"n_out is 4, but its lstm makes it 6"):
        network(Bidirectional(layer=LSTM(n_out=3), n_out=4), RnnOutputLayer(n_out=2))
    with pytest.raises(ShapeError, match=r"layer 1 \(lstm\): n_in=9.*n_in=3"):
        network(LSTM(n_out=3), LSTM(n_in=9, n_out=3), RnnOutputLayer(n_out=2))


# -- the same bits ---------------------------------------------------------------------------------------------------


def test_training_gives_the_same_bits_whatever_ran_before_in_the_workspace() -> None:
    x, labels = sequences(dtype=np.float32)
    layers = (GravesLSTM(n_out=17, drop_out=0.5), Bidirectional(layer=LSTM(n_out=5, drop_out=0.7)))
    nets = [network(*layers, RnnOutputLayer(n_out=N_OUT), kernels="numba", dtype="float32") for _ in range(2)]
    start = nets[1].params.copy()
    big, big_labels = (np.concatenate([array] * 3) for array in (x, labels))
    nets[1].fit_batch(big, big_labels, iteration=0, stream=Stream.of(9))
    nets[1].set_params(start)
    for net in nets:
        for iteration in range(3):
            net.fit_batch(x, labels, iteration=iteration, stream=Stream.of(iteration))
    assert nets[0].params.tobytes() == nets[1].params.tobytes()


# -- Deeplearning4j's JSON and model files ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.9.1", "1.0.0"])
@pytest.mark.parametrize("last", [False, True])
@every_layer
def test_a_recurrent_network_survives_dl4js_json_and_model_file(
    kind: str, last: bool, version: str, tmp_path: Path
) -> None:
    x, _ = sequences(dtype=np.float32)
    whole, short = (
        (RECURRENT[kind], RnnOutputLayer(n_out=2)),
        (LastTimeStep(layer=RECURRENT[kind]), OutputLayer(n_out=2)),
    )
    net = network(*(short if last else whole), dtype="float32", list_fields=truncated(7, 5), l2=0.25, updater=Adam())
    back = from_dl4j(json.loads(json.dumps(to_dl4j(net.conf, version=version))))
    assert (back.backprop_type, back.tbptt_fwd_length, back.tbptt_back_length) == ("truncated_bptt", 7, 5)
    copy = MultiLayerNetwork(back, kernels=load("numpy"))
    assert [(s.name, s.shape) for s in copy.layout.spans] == [(s.name, s.shape) for s in net.layout.spans]
    copy.set_params(net.params)
    np.testing.assert_array_equal(copy.output(x), net.output(x))
    assert copy.layers[0].l2 == 0.25
    path = tmp_path / "model.zip"
    write_model(net, path)
    np.testing.assert_array_equal(restore_multi_layer_network(path).params, net.params)
