"""What is done with a network on a GPU: the zoo, updaters, jobs, evaluation, files; and what goes wrong there.

On a stand-in that refuses NumPy's arrays and functions on the device, and runs our CUDA C on the CPU.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.backend import get_array_module, to_host
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.errors import ConfError, DeviceMemoryError, NotFiniteError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.fitting.transfer_learning import TransferLearning
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_model, write_model
from dl4jlegacy.nn.layers.convolution import ConvolutionLayer
from dl4jlegacy.nn.layers.embedding import EmbeddingLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.lstm import LSTM
from dl4jlegacy.nn.layers.normalization import BatchNormalization
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.network.dbn import DBN
from dl4jlegacy.nn.network.generative import (
    generate_at_mean_given_z,
    generate_random_given_z,
    reconstruction_log_probability,
)
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.nn.optimization.gradient_normalization import GRADIENT_NORMALIZATIONS
from dl4jlegacy.nn.optimization.updaters import UPDATERS, Adam, Sgd, create_updater
from dl4jlegacy.nn.zoo import ZOO
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.plan import Phase
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE
from dl4jlegacy.scaleout.state.job import DataSetJobIterator, Job, Result
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer
from tests.nn.graph import test_computation_graph
from tests.nn.layers import test_recurrent, test_variational
from tests.nn.training import test_early_stopping
from tests.support.device_twins import STREAM, alike, close, gpu, pretrained_alike  # noqa: F401  # gpu is a fixture
from tests.support.standin import counters

pytestmark = pytest.mark.usefixtures("gpu")
RNG = np.random.default_rng(4)
X = RNG.random((12, 5), dtype=np.float32)
LABELS = np.eye(3, dtype=np.float32)[RNG.integers(0, 3, 12)]


def conf(*layers: Layer, input_type: Any = None, **fields: Any) -> MultiLayerConfiguration:
    own = {"seed": 6, "activation": "tanh", "updater": Sgd(learning_rate=0.05)} | fields
    return MultiLayerConfiguration(conf=NeuralNetConfiguration(**own), layers=layers, input_type=input_type)


def dense(**fields: Any) -> MultiLayerConfiguration:
    return conf(DenseLayer(n_in=5, n_out=7), OutputLayer(n_out=3, activation="softmax"), **fields)


def pair(of: MultiLayerConfiguration) -> tuple[MultiLayerNetwork, MultiLayerNetwork]:
    return MultiLayerNetwork(of, kernels=load("numpy")), MultiLayerNetwork(of, kernels=load("cupy"))


def fit(net: MultiLayerNetwork, iteration: int = 0) -> Any:
    return net.fit_batch(X, LABELS, iteration=iteration, stream=Stream.of(iteration))


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ZOO))
def test_every_model_of_the_zoo_trains_as_on_the_cpu(name: str) -> None:
    model = ZOO[name]
    if name == "char-lstm":
        characters = RNG.integers(0, 5, (4, 6))
        x = np.moveaxis(np.eye(5)[characters], 2, 1).copy()
        network = build_network(model.build(5, 5, hidden=(4,)), load("numpy"))
        labels: Any = np.roll(x, -1, axis=2)
    elif name == "word-lstm":
        words = RNG.integers(0, 5, (4, 6))
        x = words[:, None, :].astype(np.float64)
        network = build_network(model.build(6, 5, hidden=(4,)), load("numpy"))
        labels = np.moveaxis(np.eye(5)[np.roll(words, -1, axis=1)], 2, 1).copy()
    elif name == "lstm":
        x = RNG.random((4, 3, 6))
        network = build_network(model.build(3, 2, hidden=(4,)), load("numpy"))
        labels = np.moveaxis(np.eye(2)[RNG.integers(0, 2, (4, 6))], 2, 1).copy()
    elif name in ("lenet", "alexnet-small", "cnn"):
        x = RNG.random((3, 784 if name == "lenet" else 3072))
        network, labels = build_network(model.build(x.shape[1], 10), load("numpy")), np.eye(10)[[1, 5, 7]]
    else:
        x = RNG.random((6, 12))
        labels = x if model.reconstructs else np.eye(3)[RNG.integers(0, 3, 6)]
        network = build_network(model.build(12, labels.shape[1], hidden=(8, 5)), load("numpy"))
    if network.conf.backprop:
        alike(network, x, labels, {})
    for layer in network.pretrain_layers:
        pretrained_alike(network, layer, x)


@pytest.mark.parametrize("name", sorted(UPDATERS))
def test_every_updater_steps_as_on_the_cpu(name: str) -> None:
    host, device = pair(dense(updater=create_updater(name, 0.01), l1=1e-3, l2=1e-2, dtype="float64"))
    for iteration in range(4):
        scores = [fit(net, iteration) for net in (host, device)]
        assert float(scores[1]) == pytest.approx(scores[0], rel=1e-9)
    np.testing.assert_allclose(to_host(device.params), host.params, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(to_host(device.updater_state), host.updater_state, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("rule", sorted(GRADIENT_NORMALIZATIONS))
@pytest.mark.parametrize("threshold", [1e-3, 100.0])
def test_gradients_are_normalized_as_on_the_cpu(rule: str, threshold: float) -> None:
    fields = {"gradient_normalization": rule, "gradient_normalization_threshold": threshold}
    host, device = pair(dense(**fields))
    for net in (host, device):
        fit(net)
    close(device.params, host.params, "parameters")
    kept = device.params.copy()
    device.update_from(np.zeros(device.num_params, np.float32), iteration=1)
    assert (to_host(device.params) == to_host(kept)).all(), "no gradient, no step"


def test_networks_of_every_kind_begin_with_the_same_parameters() -> None:
    for of in (dense(), conf(RBM(n_in=5, n_out=4), BatchNormalization(), OutputLayer(n_out=3))):
        host, device = pair(of)
        assert get_array_module(device.params).__name__ == "cupy"
        assert to_host(device.params).tobytes() == host.params.tobytes()
        device.set_params(host.params + 1)
        assert to_host(device.init().params).tobytes() == host.params.tobytes()


def test_fit_pretrains_finetunes_and_tells_listeners_floats() -> None:
    told: list[float] = []

    class Listener:
        def iteration_done(self, network: Any, iteration: int, score: float, *, examples: int) -> None:
            assert type(score) is float and examples == 4
            told.append(score)

    of = conf(RBM(n_in=5, n_out=4), OutputLayer(n_out=3, activation="softmax"))
    nets = [DBN(of, kernels=load(name)) for name in ("numpy", "cupy")]
    for net in nets:
        net.listeners.append(Listener())  # type: ignore[arg-type]
        net.fit(ListDataSetIterator(DataSet(X, LABELS), 4), epochs=2)
    half = len(told) // 2
    np.testing.assert_allclose(told[half:], told[:half], rtol=1e-4)
    close(nets[1].params, nets[0].params, "parameters")


def test_without_listeners_nothing_waits_until_the_end_of_fit() -> None:
    _, net = pair(dense())
    net.fit(DataSet(X, LABELS))
    counters.reset()
    net.fit(ListDataSetIterator(DataSet(X, LABELS), 12), epochs=8)
    assert counters.synchronisations <= 3, "the parameters and the sum of the scores are looked at once"


# -- using it ----------------------------------------------------------------------------------------------------------


def test_evaluation_prediction_and_scores_come_to_the_host() -> None:
    host, device = pair(dense(l2=0.01))
    data = DataSet(X, LABELS)
    np.testing.assert_array_equal(device.predict(X), host.predict(X))
    np.testing.assert_allclose(device.score_examples(data), host.score_examples(data), rtol=1e-5)
    assert type(device.score(data)) is float and device.score(data) == pytest.approx(host.score(data), rel=1e-5)
    assert device.evaluate(data).accuracy() == host.evaluate(data).accuracy()
    for ours, theirs in zip(device.feed_forward(X), host.feed_forward(X), strict=True):
        close(ours, theirs, "activations")
    many = np.tile(X, (100, 1))
    close(device.output(many), host.output(many), "a batch of more than one pass")


def test_a_graph_is_scored_evaluated_and_looked_into() -> None:
    of = test_computation_graph.every_vertex()
    host, device = (ComputationGraph(of, kernels=load(name)) for name in ("numpy", "cupy"))
    x, masks = (
        [test_computation_graph.sequences(6), test_computation_graph.vectors(36)],
        [test_computation_graph.MASK, None],
    )
    found = [net.outputs(*x, features_masks=masks) for net in (device, host)]
    for ours, wanted in zip(*found, strict=True):
        close(ours, wanted, "outputs")
    theirs = host.feed_forward(*x)
    for name, y in device.feed_forward(*x).items():
        close(y, theirs[name], name)
    labels = [test_computation_graph.steps_hot(2), test_computation_graph.one_hot(2)]
    data = test_computation_graph.MultiDataSet(x, labels, masks)
    assert device.score(data) == pytest.approx(host.score(data), rel=1e-5)
    np.testing.assert_allclose(device.score_examples(data), host.score_examples(data), rtol=1e-4)
    assert device.evaluate(data).accuracy() == host.evaluate(data).accuracy()


def test_time_steps_one_by_one_and_states_are_those_of_the_cpu() -> None:
    x, labels = test_recurrent.sequences(dtype=np.float32)
    mask = test_recurrent.lengths_mask(np.float32)
    layers = (LSTM(n_out=4), RnnOutputLayer(n_out=2, activation="softmax"))
    of = conf(*layers, input_type=InputType.recurrent(3))
    host, device = pair(of)
    whole = host.output(x)
    for t in range(3):
        close(device.rnn_time_step(x[:, :, t]), whole[:, :, t], f"time step {t}")
    state = device.rnn_get_previous_state(0)
    device.rnn_clear_previous_state()
    device.rnn_set_previous_state(0, {name: to_host(value) for name, value in state.items()})
    close(device.rnn_time_step(x[:, :, 3:]), whole[:, :, 3:], "the rest")
    truncated = of.replace(backprop_type="truncated_bptt", tbptt_fwd_length=4, tbptt_back_length=2)
    host, device = pair(truncated)
    for iteration in range(3):
        for net in (host, device):
            net.fit_batch(x, labels, iteration=iteration, stream=STREAM, features_mask=mask, labels_mask=mask)
    close(device.params, host.params, "parameters after truncated backpropagation")
    data = DataSet(x, labels, mask, mask)
    np.testing.assert_allclose(device.score_examples(data), host.score_examples(data), rtol=1e-4)
    assert device.evaluate(data).accuracy() == host.evaluate(data).accuracy()


def test_a_variational_autoencoder_generates_and_estimates() -> None:
    of = test_variational.network(test_variational.vae("bernoulli"), OutputLayer(n_out=2, activation="softmax")).conf
    host, device = pair(of)
    z, x = np.linspace(-2, 2, 6).reshape(3, 2), test_variational.data()
    close(generate_at_mean_given_z(device, z), generate_at_mean_given_z(host, z), "means")
    close(generate_random_given_z(device, z, STREAM), generate_random_given_z(host, z, STREAM), "samples")
    ours, theirs = (reconstruction_log_probability(net, x, 3, STREAM) for net in (device, host))
    close(ours, theirs, "log probabilities")


def test_an_rbms_free_energy_is_that_of_the_cpu() -> None:
    host, device = pair(conf(RBM(n_in=5, n_out=4), OutputLayer(n_out=3)))
    layer = host.layers[0]
    assert isinstance(layer, RBM)
    given = {net: {name: net.param_table[f"0_{name}"] for name in ("W", "b", "vb")} for net in (host, device)}
    xp = device.kernels.xp
    close(layer.free_energy(given[device], xp.asarray(X)), layer.free_energy(given[host], X), "free energy")


def test_a_file_of_a_device_is_that_of_the_cpu_and_is_read_to_either(tmp_path: Path) -> None:
    host, device = pair(dense(updater=Adam()))
    fit(host)
    device.set_params(host.params)
    device.set_updater_state(host.updater_state)
    for name, net in (("host.zip", host), ("device.zip", device)):
        write_model(net, tmp_path / name)
    assert (tmp_path / "host.zip").read_bytes() == (tmp_path / "device.zip").read_bytes()
    for kernels in ("numpy", "cupy"):
        net = restore_model(tmp_path / "device.zip", kernels=load(kernels))
        assert get_array_module(net.params).__name__ == {"numpy": "numpy", "cupy": "cupy"}[kernels]
        assert to_host(net.params).tobytes() == host.params.tobytes()
        assert to_host(net.updater_state).tobytes() == host.updater_state.tobytes()


def test_clones_and_tuned_networks_stay_on_the_device() -> None:
    _, device = pair(dense(updater=Adam()))
    fit(device)
    copy = device.clone()
    assert (to_host(copy.updater_state) == to_host(device.updater_state)).all()
    fit(copy, 1)
    assert (to_host(copy.params) != to_host(device.params)).any()
    tuned = TransferLearning.builder(device).set_feature_extractor(0).n_out_replace(1, 4, "xavier").build()
    kept = to_host(tuned.param_table["0_W"])
    assert (kept == to_host(device.param_table["0_W"])).all()
    tuned.fit_batch(X, np.eye(4, dtype=np.float32)[RNG.integers(0, 4, 12)], iteration=0, stream=STREAM)
    assert (to_host(tuned.param_table["0_W"]) == kept).all(), "frozen"


@pytest.mark.parametrize("make", [test_early_stopping.stack, test_early_stopping.graph])
def test_early_stopping_finds_the_best_epoch_on_the_device(make: Any) -> None:
    device = build_network(make().conf, load("cupy"))
    condition = test_early_stopping.MaxEpochsTerminationCondition(2)
    result = test_early_stopping.run(device, epoch_termination_conditions=(condition,))
    assert result.total_epochs == 2 and get_array_module(result.best_model.params).__name__ == "cupy"
    assert result.best_model.score(test_early_stopping.iris()[1]) == pytest.approx(result.best_score, rel=1e-6)


# -- jobs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["params", "delta"])
@pytest.mark.parametrize("state", [True, False])
def test_a_job_comes_to_the_same_on_the_device_and_waits_once(kind: str, state: bool) -> None:
    of = conf(RBM(n_in=5, n_out=4), OutputLayer(n_out=3, activation="softmax", drop_out=0.8), updater=Adam())
    jobs = DataSetJobIterator(
        ListDataSetIterator(DataSet(X, LABELS), 3, seed=5),
        jobs_per_round=1, averaging_frequency=4,
        phases=(Phase(kind="pretrain", layer=0, epochs=1), Phase(kind="finetune", epochs=2)),
    )  # fmt: skip
    nets = pair(of)
    performers = [MultiLayerNetworkPerformer(n, seed=5, update_kind=kind, sends_updater_state=state) for n in nets]
    model = Result.decode(first_model(nets[0]).encode())  # a copy: the network's own change
    for round_ in range(jobs.plan.total_rounds):
        slot = jobs.plan.slot(round_, 0)
        job = Job(slot, jobs.plan.phases[slot.phase], jobs.work(slot), "w", round_)
        results = []
        for performer in performers:
            performer.update(model)
            counters.reset()
            results.append(performer.perform(job))
            waits = counters.synchronisations - counters.downloads
        host, device = results
        assert host is not None and device is not None
        assert device.encode() and type(device.values["score"]) is float
        assert waits <= 3, "the score, whether all is finite"
        assert device.values["score"] == pytest.approx(host.values["score"], rel=1e-4)
        assert set(device.arrays) == set(host.arrays) == ({STATE} if state else set()) | {kind}
        for name, array in device.arrays.items():
            close(array, host.arrays[name], name)


def test_a_job_whose_numbers_blow_up_says_where() -> None:
    _, net = pair(dense())
    data = DataSet(X, LABELS)
    performer = MultiLayerNetworkPerformer(net, seed=1)
    model = first_model(net)
    model.arrays[PARAMS][3] = np.inf
    performer.update(model)
    jobs = DataSetJobIterator(ListDataSetIterator(data, 4), jobs_per_round=1, averaging_frequency=3)
    slot = jobs.plan.slot(0, 0)
    where = r"round 0, slot 0, batches 0 to 2 of epoch 0 \(finetune\): layer 0 \(dense"
    with pytest.raises(NotFiniteError, match=where):
        performer.perform(Job(slot, jobs.plan.phases[0], jobs.work(slot)))


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_score_that_is_no_number_is_found_even_where_all_parameters_are() -> None:
    _, net = pair(dense())
    fit(net)
    net.check_finite()
    net.gradient_and_score(np.full_like(X, np.nan), LABELS, STREAM)  # no update
    with pytest.raises(NotFiniteError, match=r"layer 1 \(output\): the score is nan"):
        net.check_finite()
    net.check_finite()


def test_scores_of_a_job_that_was_given_up_are_not_held_against_the_next_one() -> None:
    _, net = pair(dense())
    model = first_model(net)
    net.gradient_and_score(np.full_like(X, np.nan), LABELS, STREAM)  # and then nobody wanted the job any more
    performer = MultiLayerNetworkPerformer(net, seed=1)
    performer.update(model)
    jobs = DataSetJobIterator(ListDataSetIterator(DataSet(X, LABELS), 4), jobs_per_round=1, averaging_frequency=3)
    slot = jobs.plan.slot(0, 0)
    result = performer.perform(Job(slot, jobs.plan.phases[0], jobs.work(slot)))
    assert result is not None and np.isfinite(result.values["score"])


def test_fit_ends_with_a_look_at_what_came_out() -> None:
    _, net = pair(dense(updater=Sgd(learning_rate=1e38)))
    with pytest.raises(NotFiniteError, match="try a smaller learning rate"):
        net.fit(DataSet(X, LABELS), epochs=4)


def test_class_indices_that_are_none_make_the_score_no_number() -> None:
    embedding = conf(EmbeddingLayer(n_in=4, n_out=3), OutputLayer(n_out=3, activation="softmax"))
    sparse = conf(DenseLayer(n_in=5, n_out=3), OutputLayer(n_out=3, activation="softmax", loss="sparse_mcxent"))
    indices, classes = np.arange(12.0)[:, None] % 4, np.arange(12.0)[:, None] % 3
    for of, x, labels, wrong in ((embedding, indices, LABELS, indices), (sparse, X, classes, classes)):
        for value in (-1.0, 4.0, 0.5):
            _, net = pair(of)
            assert np.isfinite(float(net.fit_batch(x, labels, iteration=0, stream=STREAM)))
            given, kept = wrong.copy(), (x, labels)
            given[5] = value
            x2, labels2 = (given if array is wrong else array for array in kept)
            assert np.isnan(float(net.fit_batch(x2, labels2, iteration=1, stream=STREAM)))
            with pytest.raises(NotFiniteError):
                net.check_finite()


def test_arrays_of_both_places_do_not_meet() -> None:
    host, device = pair(dense())
    there = device.kernels.xp.asarray(X)
    with pytest.raises(ConfError, match=r"array \(12, 5\) on the GPU came to a network on the host; give NumPy arrays"):
        host.output(there)
    message = r"argument 0 \(12, 5\) on the host, argument 1 \(12, 5\) on the GPU; move the data with backend.asarray"
    with pytest.raises(ConfError, match=message):
        get_array_module(X, there)
    close(device.output(there), host.output(X), "a batch that is there already")
    assert host.set_params(device.params) is None and (host.params == to_host(device.params)).all()


def test_a_full_memory_names_layer_buffer_batch_and_remedy(gpu: ModuleType) -> None:  # noqa: F811
    layers = (ConvolutionLayer(n_out=8, kernel_size=(3, 3)), OutputLayer(n_out=3))
    _, net = pair(conf(*layers, input_type=InputType.convolutional(16, 16, 3)))
    net.output(np.zeros((1, 3, 16, 16), np.float32))
    pool = gpu.get_default_memory_pool()
    pool.set_limit(size=pool.used_bytes() + 4_000_000)
    message = r"gpu:0 .* is full: layer 0 \(convolution\) asked for its buffer 'y' .* take --batch-size \d+ or less"
    with pytest.raises(DeviceMemoryError, match=message) as caught:
        net.output(np.zeros((400, 3, 16, 16), np.float32))
    for word in ("of the batch of 400", "the network's input 1.2 MiB"):
        assert word in str(caught.value)
    net.output(np.zeros((40, 3, 16, 16), np.float32))


def test_gradient_checks_run_on_the_device_and_leave_the_parameters() -> None:
    _, net = pair(dense(dtype="float64", l2=0.1))
    before = to_host(net.params).tobytes()
    report = GradientCheckUtil.check_gradients(net, X, LABELS)
    assert report.passed and report.checked == net.num_params and to_host(net.params).tobytes() == before
