"""ParallelWrapper: a network trained in place by workers: the runner's answer, and with one worker that of ``fit``."""

from __future__ import annotations

import _thread
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dl4jlegacy import ActorNetworkRunner, Conf, ParallelWrapper
from dl4jlegacy.arrays.backend import to_host
from dl4jlegacy.datasets import (
    DataSet,
    IrisDataSetIterator,
    ListDataSetIterator,
    ListMultiDataSetIterator,
    MnistDataSetIterator,
    MultiDataSet,
)
from dl4jlegacy.errors import ConfError, DataError, NotFiniteError, UsageError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.conf.network import (
    ComputationGraphConfiguration,
    GraphBuilder,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
)
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.layers.convolution import ConvolutionLayer
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.listeners import CollectScoresListener
from dl4jlegacy.nn.network.dbn import DBN
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.nn.optimization.schedules import MapSchedule
from dl4jlegacy.nn.optimization.updaters import Adam, Nesterovs, RmsProp, Sgd
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.state.job import Result


@pytest.fixture(autouse=True)
def _one_thread_for_matrices() -> Iterator[None]:
    """As a run computes, so that ``network.fit`` rounds as it does."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def data(examples: int = 64, n_in: int = 6, n_out: int = 3) -> DataSet:
    random = np.random.default_rng(1)
    labels = np.eye(n_out, dtype=np.float32)[random.integers(0, n_out, examples)]
    return DataSet(random.random((examples, n_in), dtype=np.float32), labels)


def batches(size: int = 10) -> ListDataSetIterator:
    return ListDataSetIterator(data(), size, seed=5)


def stack(updater: Any = None, **shared: Any) -> MultiLayerConfiguration:
    conf = NeuralNetConfiguration(seed=4, updater=updater or Adam(learning_rate=0.05), activation="tanh", **shared)
    layers = (DenseLayer(n_in=6, n_out=5), OutputLayer(n_out=3, activation="softmax"))
    return MultiLayerConfiguration(conf=conf, layers=layers)


def graph(**shared: Any) -> ComputationGraphConfiguration:
    conf = NeuralNetConfiguration(seed=4, updater=Adam(learning_rate=0.05), activation="tanh", **shared)
    builder = GraphBuilder(conf).add_inputs("left", "right")
    builder.add_layer("a", DenseLayer(n_in=3, n_out=5), "left").add_layer("b", DenseLayer(n_in=3, n_out=4), "right")
    return builder.add_layer("out", OutputLayer(n_out=3, activation="softmax"), "a", "b").set_outputs("out").build()


def halves() -> ListMultiDataSetIterator:
    whole = data()
    both = MultiDataSet([whole.features[:, :3], whole.features[:, 3:]], [whole.labels])
    return ListMultiDataSetIterator(both, 10, seed=5)


def of(conf: MultiLayerConfiguration | ComputationGraphConfiguration) -> Network:
    return ComputationGraph(conf) if isinstance(conf, ComputationGraphConfiguration) else MultiLayerNetwork(conf)


def fitted(network: Network, iterator: Any, *epochs: int, **options: Any) -> Network:
    """Fit so many epochs, with one wrapper, call by call; return the network."""
    with ParallelWrapper(network, **options) as wrapper:
        for count in epochs or (1,):
            wrapper.fit(iterator, count)
    return network


def bits(network: Network) -> tuple[bytes, bytes, int]:
    """What training changes of a network."""
    return network.params.tobytes(), network.updater_state.tobytes(), network.iteration


# --- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"averaging_frequency": 3},
        {"average_updaters": False},
        {"training_mode": "shared-gradients", "router_args": {"threshold": "fixed", "tau": 1e-2}},
    ],
    ids=str,
)
@pytest.mark.parametrize("drop_out", [0.0, 0.8])
def test_the_parameters_are_those_of_the_runner_with_an_equal_conf(options: dict[str, Any], drop_out: float) -> None:
    network = of(stack(drop_out=drop_out))
    fitted(network, batches(), 3, workers=2, **options)
    conf = Conf(
        multi_layer_conf=stack(drop_out=drop_out),
        epochs=3,
        seed=4,
        workers=4,
        jobs_per_round=2,
        averaging_frequency=options.get("averaging_frequency", 1),
        average_updater_state=options.get("average_updaters", True),
        router="gradient-sharing" if "training_mode" in options else "iterative-reduce",
        router_args=options.get("router_args", {}),
    )
    with ActorNetworkRunner("master", batches()) as runner:
        runner.setup(conf)
        result = runner.train(deadline=60)
    assert result is not None
    assert network.params.tobytes() == result.model.arrays["params"].tobytes()
    assert network.updater_state.tobytes() == result.model.arrays["updater_state"].tobytes()
    assert bits(network) != bits(of(stack(drop_out=drop_out)))


def test_a_graph_of_several_inputs_has_the_parameters_of_the_runner() -> None:
    network = fitted(of(graph(drop_out=0.8)), halves(), 2, workers=3)
    conf = Conf(computation_graph_conf=graph(drop_out=0.8), epochs=2, seed=4, workers=2, jobs_per_round=3)
    with ActorNetworkRunner("master", halves()) as runner:
        runner.setup(conf)
        result = runner.train(deadline=60)
    assert result is not None
    assert network.params.tobytes() == result.model.arrays["params"].tobytes()


def test_the_answer_depends_on_the_jobs_of_a_round_and_not_on_the_threads_or_their_timing() -> None:
    conf = stack(drop_out=0.8)
    answers = {
        bits(fitted(of(conf), batches(5), 2, workers=workers, jobs_per_round=3)) for workers in (1, 2, 3, 3, 3, 5)
    }
    assert len(answers) == 1
    assert bits(fitted(of(conf), batches(5), 2, workers=3)) in answers
    assert bits(fitted(of(conf), batches(5), 2, workers=2)) not in answers


def images() -> tuple[MultiLayerConfiguration, DataSet]:
    """A small stack of convolutions, and images for it; Sgd(0.5), as in DL4J's test."""
    conf = NeuralNetConfiguration(seed=12345, updater=Sgd(learning_rate=0.5), activation="tanh")
    layers = (
        ConvolutionLayer(n_out=3, kernel_size=(2, 2)),
        ConvolutionLayer(n_out=3, kernel_size=(2, 2)),
        OutputLayer(n_out=10, activation="softmax"),
    )
    random = np.random.default_rng(3)
    features = random.random((120, 3, 10, 10), dtype=np.float32)
    labels = np.eye(10, dtype=np.float32)[random.integers(0, 10, 120)]
    kind = InputType.convolutional(10, 10, 3)
    return MultiLayerConfiguration(conf=conf, layers=layers, input_type=kind), DataSet(features, labels)


@pytest.mark.parametrize("updater", [Sgd(learning_rate=0.1), Nesterovs(), Adam(learning_rate=0.05), RmsProp()], ids=str)
def test_one_worker_that_averages_after_each_batch_does_what_fit_does(updater: Any) -> None:
    """DL4J's testOneExecutor, to the bit, shuffled, and with a short last batch."""
    ours = fitted(of(stack(updater, l2=1e-3)), batches(), 2, 1, workers=1)
    theirs = of(stack(updater, l2=1e-3))
    before = bits(theirs)
    theirs.fit(batches(), epochs=3)
    assert bits(ours) == bits(theirs) != before
    assert ours.iteration == 21


def test_one_worker_does_what_fit_does_with_a_graph_and_with_images() -> None:
    theirs: Network = of(graph())
    theirs.fit(halves(), epochs=2)
    assert bits(fitted(of(graph()), halves(), 2, workers=1)) == bits(theirs)
    conf, pictures = images()
    theirs = of(conf)
    theirs.fit(ListDataSetIterator(pictures, 16), epochs=2)
    assert bits(fitted(of(conf), ListDataSetIterator(pictures, 16), 2, workers=1)) == bits(theirs)


# --- going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frequency", [1, 2])
@pytest.mark.parametrize("updater", [Sgd(learning_rate=0.1), Nesterovs(), Adam(learning_rate=0.05)], ids=str)
def test_two_fits_of_one_epoch_are_one_of_two(updater: Any, frequency: int) -> None:
    """With drop-out and shuffling, too: what is random goes on with the iterator's epochs and the iterations."""
    options = {"workers": 2, "averaging_frequency": frequency}
    once = fitted(of(stack(updater, drop_out=0.8)), batches(), 3, **options)
    thrice = fitted(of(stack(updater, drop_out=0.8)), batches(), 1, 2, **options)
    assert bits(once) == bits(thrice)
    assert once.iteration == 3 * (4 if frequency == 1 else 2 * 2)


def test_two_wrappers_one_after_the_other_do_what_one_does() -> None:
    network, iterator = of(stack(drop_out=0.8)), batches()
    for _ in range(2):
        fitted(network, iterator)
    assert bits(network) == bits(fitted(of(stack(drop_out=0.8)), batches(), 2))


@pytest.mark.parametrize("make", [batches, halves], ids=["DataSet", "MultiDataSet"])
def test_fit_of_the_network_and_fit_with_workers_go_on_from_each_other(make: Callable[[], Any]) -> None:
    conf = stack() if make is batches else graph()
    turns, iterator = of(conf), make()
    turns.fit(iterator)
    fitted(turns, iterator, workers=1)
    turns.fit(iterator)
    alone = of(conf)
    alone.fit(make(), epochs=3)
    assert bits(turns) == bits(alone)


def test_batches_that_are_read_once_go_on_too() -> None:
    conf, once = stack(drop_out=0.8), [batches().batch(0, index) for index in range(7)]
    assert bits(fitted(of(conf), once, 2)) == bits(fitted(of(conf), once, 1, 1))
    generated = fitted(of(conf), (batch for batch in once))
    assert bits(generated) == bits(fitted(of(conf), once))


@pytest.mark.parametrize("frequency", [1, 5, 10])
def test_iterations_count_the_batches_of_a_worker(frequency: int) -> None:
    """DL4J's testIterationCounts: ten minibatches for each of two workers."""
    network = of(stack())
    wrapper = ParallelWrapper(network, workers=2, averaging_frequency=frequency)
    seen = []
    for _ in range(2):
        wrapper.fit(ListDataSetIterator(data(60), 3))
        seen.append(network.iteration)
    assert seen == [10, 20]


def test_a_network_that_was_pretrained_is_finetuned() -> None:
    conf = zoo.dbn(6, 3, hidden=(5, 4), seed=7)
    ours, theirs = DBN(conf), DBN(conf)
    with pytest.raises(UsageError, match=r"to be pretrained \(2 layers\).*network\.pretrain\(iterator\)"):
        ParallelWrapper(ours).fit(batches())
    for network in (ours, theirs):
        network.pretrain(batches())
    fitted(ours, batches(), 2, workers=1)
    theirs.finetune(batches(), 2)
    assert bits(ours) == bits(theirs)


def test_a_network_on_a_gpu_is_trained_there(device_arrays: Any) -> None:
    def on_gpu() -> Network:
        return MultiLayerNetwork(stack(drop_out=0.8), kernels=load("cupy"))

    once, twice, here = on_gpu(), on_gpu(), of(stack(drop_out=0.8))
    fitted(once, batches(), 2, workers=2)
    fitted(twice, batches(), 1, 1, workers=2)
    fitted(here, batches(), 2, workers=2)
    assert isinstance(once.params, device_arrays.ndarray)
    np.testing.assert_array_equal(to_host(once.params), to_host(twice.params))
    np.testing.assert_allclose(to_host(once.params), here.params, rtol=0, atol=1e-5)
    assert once.iteration == here.iteration == 8


# --- averaging --------------------------------------------------------------------------------------------------------


def test_averaging_after_every_step_is_a_step_on_the_joined_batch() -> None:
    """DL4J's testAverageEveryStep and its likes: four workers with ten examples, three rounds, or batches of 40."""
    conf, pictures = images()
    flat = DataSet(pictures.features.reshape(120, 300), pictures.labels)
    shared = NeuralNetConfiguration(seed=12345, updater=Sgd(learning_rate=0.5), activation="tanh")
    layers = (DenseLayer(n_in=300, n_out=10), OutputLayer(n_out=10, activation="softmax"))
    dense = MultiLayerConfiguration(conf=shared, layers=layers)
    builder = GraphBuilder(shared).add_inputs("in").add_layer("a", layers[0], "in")
    joined = builder.add_layer("out", layers[1], "a").set_outputs("out").build()
    for kind, examples in ((conf, pictures), (dense, flat), (joined, flat)):
        alone, scores = of(kind), CollectScoresListener()
        start = alone.params.copy()
        alone.listeners.append(scores)
        alone.fit(ListDataSetIterator(examples, 40, shuffle=False))
        ours, told = of(kind), CollectScoresListener()
        with ParallelWrapper(ours, workers=4) as wrapper:
            wrapper.set_listeners(told)
            wrapper.fit(ListDataSetIterator(examples, 10, shuffle=False))
        np.testing.assert_allclose(ours.params, alone.params, rtol=0, atol=1e-6)
        assert np.abs(ours.params - start).max() > 1e-3
        assert [number for number, _ in told.scores] == [number for number, _ in scores.scores] == [0, 1, 2]
        np.testing.assert_allclose([s for _, s in told.scores], [s for _, s in scores.scores], atol=1e-5)


def test_fewer_batches_than_workers_are_no_error() -> None:
    network = fitted(of(stack()), ListDataSetIterator(data(7), 5), workers=4, averaging_frequency=3)
    assert bits(network) != bits(of(stack()))


def test_the_seed_decides() -> None:
    """DL4J's testSeedRepeatability, to the bit."""

    def trained(seed: int) -> Network:
        layers = (DenseLayer(n_in=4, n_out=4), OutputLayer(n_out=3, activation="softmax"))
        conf = NeuralNetConfiguration(seed=seed, updater=RmsProp(), activation="tanh", drop_out=0.9)
        return fitted(of(MultiLayerConfiguration(conf=conf, layers=layers)), IrisDataSetIterator(10), workers=4)

    assert bits(trained(12345)) == bits(trained(12345)) != bits(trained(98765))


def test_frozen_layers_stay_as_they_are() -> None:
    shared = NeuralNetConfiguration(seed=4, updater=Sgd(learning_rate=0.1), activation="tanh")
    layers = (DenseLayer(n_in=6, n_out=5, frozen=True), OutputLayer(n_out=3, activation="softmax"))
    network = of(MultiLayerConfiguration(conf=shared, layers=layers))
    before, frozen = network.params.copy(), network.layer_slices[0]
    fitted(network, batches())
    np.testing.assert_array_equal(network.params[frozen], before[frozen])
    assert (network.params != before)[network.layer_slices[1]].all()


@pytest.mark.long
@pytest.mark.mnist
def test_lenet_learns_mnist_with_two_workers(mnist_dir: str) -> None:
    """DL4J's ParallelWrapperTest: 15 batches of 128, five epochs, an average every three batches."""
    training = MnistDataSetIterator(128, 15 * 128, data_dir=mnist_dir or None)
    held_out = MnistDataSetIterator(128, 1280, train=False, data_dir=mnist_dir or None)
    network = of(zoo.lenet(784, 10))
    fitted(network, training, 5, workers=2, averaging_frequency=3)
    assert network.evaluate(held_out).accuracy() > 0.5
    assert network.iteration == 5 * (3 + 3 + 2)  # the last round of an epoch has three batches for both


# --- ends -------------------------------------------------------------------------------------------------------------


class Recorder:
    """Keeps the parameters of each average by the number of the last iteration before it, and calls somebody."""

    def __init__(self, then: Callable[[int], None] = lambda iteration: None) -> None:
        self.params: dict[int, bytes] = {}
        self._then = then

    def iteration_done(self, network: Any, iteration: int, score: float, *, examples: int = 0) -> None:
        assert network.iteration == iteration + 1
        self.params[iteration] = network.params.tobytes()
        self._then(iteration)


def test_a_fit_that_is_stopped_leaves_the_last_average_and_the_next_one_goes_on() -> None:
    network, iterator = of(stack()), batches()
    wrapper = ParallelWrapper(network, workers=2)
    wrapper.stop_fit()  # there is none yet
    told = Recorder(lambda iteration: wrapper.stop_fit() if iteration == 5 else None)
    wrapper.set_listeners(told)
    wrapper.fit(iterator, 1000)
    assert list(told.params) == [0, 1, 2, 3, 4, 5]
    assert (network.params.tobytes(), network.iteration) == (told.params[5], 6)
    assert iterator.position == (1, 7)  # the second epoch was begun, and does not come again
    wrapper.fit(iterator)
    assert network.iteration == 10
    assert iterator.position == (2, 7)
    assert network.params.tobytes() == told.params[9]


def test_ctrl_c_leaves_the_last_average() -> None:
    assert threading.current_thread() is threading.main_thread()
    network = of(stack())
    told = Recorder(lambda iteration: _thread.interrupt_main() if iteration == 5 else None)
    wrapper = ParallelWrapper(network)
    wrapper.set_listeners(told)
    with pytest.raises(KeyboardInterrupt) as caught:
        wrapper.fit(batches(), 1000)
    assert caught.value.__notes__ == ["the network is as the last average left it, and fit goes on from there"]
    assert 6 <= network.iteration < 4000
    assert network.params.tobytes() == told.params[network.iteration - 1]


def test_a_number_that_is_not_finite_leaves_the_average_before_it() -> None:
    updater = Sgd(learning_rate=0.1, schedule=MapSchedule(values={2: 1e39}))
    network, other = of(stack(updater)), of(stack(updater))
    with pytest.raises(NotFiniteError, match="round"):
        fitted(network, batches(), workers=1)
    other.fit([batches().batch(0, index) for index in range(2)])
    assert bits(network) == bits(other)


def test_after_shutdown_there_is_no_fit_and_the_network_is_as_it_was() -> None:
    network = of(stack())
    with ParallelWrapper(network) as wrapper:
        told = Recorder(lambda iteration: wrapper.close() if iteration == 1 else None)
        wrapper.set_listeners([told])
        wrapper.fit(batches())
    assert (network.params.tobytes(), network.iteration) == (told.params[1], 2)
    with pytest.raises(UsageError, match="was shut down; make a new one"):
        wrapper.fit(batches())


def test_a_second_fit_at_the_same_time_is_refused() -> None:
    wrapper, refused = ParallelWrapper(of(stack())), []

    def fit_again(iteration: int) -> None:
        with pytest.raises(UsageError, match="at work in another thread"):
            wrapper.fit(batches())
        refused.append(iteration)

    wrapper.set_listeners(Recorder(fit_again))
    wrapper.fit(batches())
    assert refused == [0, 1, 2, 3]


# --- listeners --------------------------------------------------------------------------------------------------------


def test_listeners_are_told_what_fit_tells_them() -> None:
    ours, theirs = of(stack()), of(stack())
    told, own, scores = CollectScoresListener(), CollectScoresListener(), CollectScoresListener()
    ours.listeners.append(own)
    theirs.listeners.append(scores)
    wrapper = ParallelWrapper(ours, workers=1)
    wrapper.set_listeners(told, own)
    for _ in range(2):
        wrapper.fit(batches())
        theirs.fit(batches())
    assert told.scores == own.scores == scores.scores
    assert [number for number, _ in told.scores] == list(range(14))


def test_an_average_after_several_batches_has_the_number_of_the_last_one() -> None:
    told = Recorder()
    wrapper = ParallelWrapper(of(stack()), workers=2, averaging_frequency=3)
    wrapper.set_listeners(told)
    wrapper.fit(batches(), 2)
    assert list(told.params) == [2, 3, 6, 7]  # an epoch's last average is after one batch for each worker


def test_a_listener_that_fails_is_named_and_the_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail(iteration: int) -> None:
        raise ValueError(f"no luck at {iteration}")

    wrapper, told = ParallelWrapper(of(stack())), CollectScoresListener()
    wrapper.set_listeners(Recorder(fail), told)
    wrapper.fit(batches())
    assert len(told.scores) == 4
    assert [r.getMessage() for r in caplog.records] == ["Recorder failed, and the run goes on without what it does"]


def test_the_score_of_each_average_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    network = of(stack())
    network.listeners.append(scores := CollectScoresListener())
    with caplog.at_level(logging.INFO, "dl4jlegacy.cluster.parallel_wrapper"):
        fitted(network, batches(), report_score_after_averaging=True)
    said = [r.getMessage() for r in caplog.records if r.name == "dl4jlegacy.cluster.parallel_wrapper"]
    assert said == [f"Score at iteration {number} is {score:.6g}" for number, score in scores.scores]
    assert len(said) == 4


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "ParallelWrapper workers is 0; it must be a whole number of at least 1"),
        ({"workers": 1.5}, "ParallelWrapper workers is 1.5; it must be a whole number of at least 1"),
        ({"prefetch_buffer": -1}, "ParallelWrapper prefetch_buffer is -1; it must be a whole number of at least 0"),
        ({"averaging_frequency": 0}, "averaging_frequency is 0; it must be a whole number of at least 1"),
        ({"jobs_per_round": 0}, "jobs_per_round is 0; it must be a whole number of at least 1"),
        ({"training_mode": "custom"}, "ParallelWrapper training_mode is 'custom'; there is 'averaging'"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ParallelWrapper(of(stack()), **options)


@pytest.mark.parametrize("network", [None, stack(), MultiLayerNetwork], ids=["None", "conf", "class"])
def test_what_is_no_network_is_refused(network: Any) -> None:
    with pytest.raises(UsageError, match=r"no network that is initialised; give it a network: MultiLayerNetwork\(conf"):
        ParallelWrapper(network)


def test_a_network_that_is_only_pretrained_is_refused() -> None:
    conf = zoo.dbn(6, 3, hidden=(5,)).replace(pretrain=True, backprop=False)
    with pytest.raises(UsageError, match=r"backprop=False.*network\.pretrain\(iterator\)"):
        ParallelWrapper(MultiLayerNetwork(conf))


def test_data_that_do_not_fit_and_no_epochs_are_refused_and_the_network_stays() -> None:
    network = of(stack())
    wrapper = ParallelWrapper(network)
    for wrong, kind, words in (
        ([], DataError, "the data have no batch"),
        (data(), DataError, "and no batches"),
        (ListDataSetIterator(data(n_in=7), 5), ConfError, "the network has 6 inputs, the data set 7"),
        (halves(), ConfError, "takes DataSets"),
    ):
        with pytest.raises(kind, match=words):
            wrapper.fit(wrong)
    with pytest.raises(ConfError, match="iterative-reduce has 'tau'"):
        ParallelWrapper(network, router_args={"tau": 1e-3}).fit(batches())
    with pytest.raises(UsageError, match="epochs is 0"):
        wrapper.fit(batches(), 0)
    assert bits(network) == bits(of(stack()))
    wrapper.fit(batches())  # none of these has spoiled it
    assert bits(network) == bits(fitted(of(stack()), batches()))


# --- a run that begins with a network ---------------------------------------------------------------------------------


def test_a_runner_begins_with_the_network_that_it_is_given() -> None:
    trained = of(stack())
    trained.fit(batches(), epochs=2)
    before = bits(trained)
    conf = Conf(
        multi_layer_conf=stack(), seed=4, workers=1, jobs_per_round=1, first_epoch=2, first_iteration=trained.iteration
    )
    with ActorNetworkRunner("master", batches(), first_model=trained) as runner:
        runner.setup(conf)
        network = runner.network(runner.train(deadline=60))
    assert bits(trained) == before
    trained.fit(iterator := batches(), epochs=0)
    iterator.seek(2, 0)
    trained.fit(iterator)
    assert network.params.tobytes() == trained.params.tobytes()


def test_a_first_model_that_does_not_fit_is_refused() -> None:
    other = MultiLayerConfiguration(conf=stack().conf, layers=(OutputLayer(n_in=6, n_out=3, activation="softmax"),))
    for given, words in (
        (of(other), "first_model is no network of the Conf's: the given params"),
        (of(stack(Sgd())), "first_model is no network of the Conf's: the given updater state"),
        (Result({}), "first_model is a Result, and the run trains a network"),
    ):
        with (
            ActorNetworkRunner("master", batches(), first_model=given) as runner,
            pytest.raises(ConfError, match=words),
        ):
            runner.setup(Conf(multi_layer_conf=stack()))


def test_a_plan_goes_on_behind_what_was_trained_before() -> None:
    phases = (Phase(kind="pretrain", layer=0, epochs=1), Phase(epochs=2))
    whole: dict[str, Any] = {"batches": 6, "examples": 6, "batch_size": 1, "jobs_per_round": 1}
    plan = Plan(phases=phases, averaging_frequency=3, first_epoch=5, first_iteration=12, **whole)
    slots = [plan.slot(round_, 0) for round_ in range(plan.total_rounds)]
    assert [slot.epoch for slot in slots] == [5, 5, 6, 6, 7, 7]
    assert [slot.iteration for slot in slots] == [0, 3, 12, 15, 18, 21]
    assert [slot.training_round for slot in slots] == [4, 5, 6, 7, 8, 9]
    assert [(slot.round, slot.first) for slot in slots] == [(r, 3 * (r % 2)) for r in range(6)]
    with pytest.raises(ConfError, match="first_iteration is -1; it must not be negative"):
        Plan(phases=phases, first_iteration=-1, **whole)


def test_a_conf_whose_run_begins_anew_has_the_digest_that_it_had() -> None:
    conf = Conf(multi_layer_conf=stack(), seed=4)
    assert conf.digest() == conf.replace(first_epoch=0, first_iteration=0).digest()
    assert len({conf.digest(), conf.replace(first_epoch=1).digest(), conf.replace(first_iteration=1).digest()}) == 3
    for name in ("first_epoch", "first_iteration"):
        with pytest.raises(ConfError, match=f"Conf.{name} is -1; it must not be negative"):
            Conf(**{name: -1})


def test_batches_of_a_multi_data_set_can_be_gone_on_with() -> None:
    iterator = halves()
    assert iterator.position == (0, 0)
    iterator.seek(2, 3)
    assert iterator.position == (2, 3)
    [first, *_] = iterator
    np.testing.assert_array_equal(first.features[0], halves().batch(3, 0).features[0])
    assert iterator.position == (3, iterator.total_batches)
    with pytest.raises(DataError, match="no batch 8 of epoch 0"):
        iterator.seek(0, 8)
