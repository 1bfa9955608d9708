"""Input types, the preprocessors that follow from them, masks on their way, and what of a layer is no parameter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, DataSource, ListDataSetIterator, NormalizerMinMaxScaler
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    LSTM,
    BatchNormalization,
    ConvolutionLayer,
    DenseLayer,
    GlobalPoolingLayer,
    InputType,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    RnnToCnnPreProcessor,
    SubsamplingLayer,
    restore_multi_layer_network,
    write_model,
)
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.scaleout import Conf
from dl4jlegacy.scaleout.state.job import decode_work, encode_work
from dl4jlegacy.training import prepare as training
from dl4jlegacy.training import run_data
from dl4jlegacy.training.run import resolve

RNG = np.random.default_rng(3)
MASK = (np.arange(5) < np.array([5, 3, 1])[:, None]).astype(float)


def configuration(*layers: Layer, dtype: str = "float64", **fields: Any) -> MultiLayerConfiguration:
    conf = NeuralNetConfiguration(activation="tanh", dtype=dtype, seed=5)
    return MultiLayerConfiguration(conf=conf, layers=layers, **fields)


def images_in_sequences() -> MultiLayerConfiguration:
    """Sequences -> images -> sequences -> rows -> sequences."""
    return configuration(
        ConvolutionLayer(n_out=3, kernel_size=(2, 2)),
        SubsamplingLayer(kernel_size=(2, 1), stride=(1, 1), pooling_type="avg"),
        LSTM(n_out=4),
        DenseLayer(n_out=3),
        LSTM(n_out=3),
        RnnOutputLayer(n_out=2, activation="softmax"),
        input_type=InputType.recurrent(12),
        input_pre_processors={0: RnnToCnnPreProcessor(height=4, width=3)},
    )


def test_preprocessors_follow_from_the_kinds_of_neighbours() -> None:
    stages = images_in_sequences().stages()
    assert [stage.pre_processor.title() if stage.pre_processor else "" for stage in stages] == [
        *("rnn_to_cnn", "", "cnn_to_rnn", "rnn_to_feed_forward", "feed_forward_to_rnn", ""),
    ]
    assert [str(stage.layer_input_type) for stage in stages] == [
        *("convolutional 1x4x3", "convolutional 3x3x2", "recurrent 12xany"),
        *("feed_forward 4", "recurrent 3xany", "recurrent 3xany"),
    ]
    flat = configuration(
        ConvolutionLayer(n_out=2, kernel_size=(2, 2)), DenseLayer(n_out=3), OutputLayer(n_out=2),
        input_type=InputType.convolutional_flat(4, 3, 1),
    )  # fmt: skip
    titles = [stage.pre_processor.title() if stage.pre_processor else "" for stage in flat.stages()]
    assert titles == ["feed_forward_to_cnn", "cnn_to_feed_forward", ""]
    assert [layer.n_in for layer in flat.resolved()] == [1, 12, 3]


@pytest.mark.parametrize("masks", [{}, {"features_mask": MASK}, {"features_mask": MASK, "labels_mask": MASK}])
@pytest.mark.everyday(1)
def test_gradients_pass_all_preprocessors(masks: dict[str, np.ndarray]) -> None:
    net = MultiLayerNetwork(images_in_sequences(), kernels=load("numpy"))
    x, labels = RNG.standard_normal((3, 12, 5)), np.eye(2)[RNG.integers(0, 2, (3, 5))].transpose(0, 2, 1)
    report = GradientCheckUtil.check_gradients(net, x, np.ascontiguousarray(labels), **masks)
    assert report.passed, report.failures[:4]


def test_time_steps_of_images_are_what_single_images_are() -> None:
    net = MultiLayerNetwork(images_in_sequences(), kernels=load("numpy"))
    x = RNG.standard_normal((3, 12, 5))
    activations = net.feed_forward(x)
    shapes = [a.shape for a in activations]
    assert shapes == [(3, 12, 5), (15, 3, 3, 2), (15, 3, 2, 2), (3, 4, 5), (15, 3), (3, 3, 5), (3, 2, 5)]
    alone = net.feed_forward(x[1:2, :, 2:3])[1]
    np.testing.assert_allclose(activations[1][2 * 3 + 1], alone[0], rtol=1e-12)
    np.testing.assert_allclose(net.output(x), activations[-1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_comes_out_is_what_lies_inside(dtype: str) -> None:
    conf = configuration(
        BatchNormalization(), OutputLayer(n_out=2), input_type=InputType.convolutional(4, 3, 2), dtype=dtype
    )
    net = MultiLayerNetwork(conf)
    x = RNG.standard_normal((21, 2, 4, 3)).astype(dtype)
    np.testing.assert_allclose(net.feed_forward(x)[1], x, rtol=1e-4)
    np.testing.assert_array_equal(net.output(x), net.output(x.reshape(21, -1)))


def test_images_of_one_channel_need_no_channel() -> None:
    conf = configuration(ConvolutionLayer(n_out=2, kernel_size=(2, 2)), OutputLayer(n_out=2),
                         input_type=InputType.convolutional_flat(4, 3, 1))  # fmt: skip
    net = MultiLayerNetwork(conf)
    x = RNG.standard_normal((5, 4, 3))
    np.testing.assert_array_equal(net.output(x), net.output(x.reshape(5, 12)))


@pytest.mark.parametrize("conf", [images_in_sequences(), configuration(
    BatchNormalization(decay=0.5), GlobalPoolingLayer(pooling_type="pnorm", pnorm=3), OutputLayer(n_out=2),
    input_type=InputType.convolutional(4, 3, 2), backprop_type="truncated_bptt", tbptt_fwd_length=7)])  # fmt: skip
def test_a_configuration_survives_json_and_yaml(conf: MultiLayerConfiguration) -> None:
    assert MultiLayerConfiguration.from_json(conf.to_json()) == conf
    assert MultiLayerConfiguration.from_yaml(conf.to_yaml()) == conf
    assert MultiLayerConfiguration.from_json(conf.to_json()).to_json() == conf.to_json()


def test_the_builder_says_it_as_dl4j_does() -> None:
    conf = (
        NeuralNetConfiguration.builder()
        .list()
        .layer(0, ConvolutionLayer(n_out=2, kernel_size=(2, 2)))
        .layer(1, OutputLayer(n_out=2))
        .set_input_type(InputType.convolutional_flat(4, 3, 1))
        .build()
    )
    assert conf.resolved()[1].n_in == 12


def test_sizes_of_the_data_are_checked_against_the_input_type() -> None:
    layers = (ConvolutionLayer(n_out=2, kernel_size=(2, 2)), OutputLayer())
    conf = configuration(*layers, input_type=InputType.convolutional_flat(4, 3, 1))
    assert conf.with_sizes(12, 2).resolved()[1].n_out == 2
    with pytest.raises(ShapeError, match="rows of 1x4x3 images but the data has 13 feature columns"):
        conf.with_sizes(13, 2)
    sequences = configuration(LSTM(n_out=2), RnnOutputLayer(), input_type=InputType.recurrent(4))
    assert sequences.with_sizes(20, 2).resolved()[1].n_out == 2
    with pytest.raises(ShapeError, match="recurrent 4xany but the data has 21"):
        sequences.with_sizes(21, 2)


def test_bad_places_of_preprocessors_and_lengths_are_named() -> None:
    with pytest.raises(ConfError, match=r"input_pre_processors\[2\]: there are only layers 0 to 1"):
        configuration(LSTM(n_out=2), OutputLayer(n_out=2),
                      input_pre_processors={2: RnnToCnnPreProcessor(height=1, width=1)})  # fmt: skip
    with pytest.raises(ConfError, match="tbptt_fwd_length is 0"):
        configuration(OutputLayer(n_out=2), tbptt_fwd_length=0)
    with pytest.raises(ShapeError, match="rnn_to_cnn takes sequences of 6 values a time step, what comes in is recurr"):
        configuration(ConvolutionLayer(n_out=2, kernel_size=(1, 1)), input_type=InputType.recurrent(4),
                      input_pre_processors={0: RnnToCnnPreProcessor(height=3, width=2)}).stages()  # fmt: skip


# -- data sets -------------------------------------------------------------------------------------------------------


def sequences(examples: int = 6) -> DataSet:
    mask = (np.arange(4) < RNG.integers(1, 5, examples)[:, None]).astype(np.float32)
    x = RNG.standard_normal((examples, 3, 4), dtype=np.float32)
    return DataSet(x, np.ones((examples, 2, 4)), mask, mask)


def test_masks_go_where_their_rows_go() -> None:
    data = sequences()
    assert data.features_mask is not None and not data.features_mask.flags.writeable
    part = data.take(np.array([4, 1]))
    np.testing.assert_array_equal(part.features_mask, data.features_mask[[4, 1]])
    np.testing.assert_array_equal(data.rows(2, 4).labels_mask, data.labels_mask[2:4])
    merged = DataSet.merge([data.rows(0, 2), DataSet(data.features[:1], data.labels[:1])])
    np.testing.assert_array_equal(merged.features_mask, [*data.features_mask[:2], np.ones(4)])
    assert data != DataSet(data.features, data.labels) and data == data.take(np.arange(6))
    batch = ListDataSetIterator(data, 4, seed=1).batch(0, 0)
    assert batch.features_mask is not None and batch.features_mask.shape == (4, 4)
    normalizer = NormalizerMinMaxScaler()
    normalizer.fit(data)
    np.testing.assert_array_equal(normalizer.transform(data).features_mask, data.features_mask)


def test_masks_travel_with_a_job() -> None:
    plain = DataSet(np.ones((2, 3)), np.ones((2, 1)))
    back = decode_work(bytes(encode_work([sequences(), plain])))
    assert back[0].features_mask.shape == (6, 4) and back[0].labels_mask.shape == (6, 4)
    assert back[1] == plain and back[1].features_mask is None


def test_masks_that_do_not_fit_are_refused() -> None:
    x, y = np.ones((3, 2, 4)), np.ones((3, 2))
    with pytest.raises(DataError, match=r"features mask has shape \(3, 5\).*expected \(3, 4\)"):
        DataSet(x, y, np.ones((3, 5)))
    with pytest.raises(DataError, match="only sequences have one"):
        DataSet(np.ones((3, 2)), y, np.ones((3, 2)))
    with pytest.raises(DataError, match=r"labels mask has shape \(2,\)"):
        DataSet(x, y, None, np.ones(2))
    with pytest.raises(DataError, match="nan"):
        DataSet(x, y, np.full((3, 4), np.nan))


# -- state -----------------------------------------------------------------------------------------------------------


def normalized() -> MultiLayerConfiguration:
    return configuration(
        ConvolutionLayer(n_out=4, kernel_size=(3, 3), activation="relu"),
        BatchNormalization(),
        SubsamplingLayer(kernel_size=(2, 2)),
        OutputLayer(n_out=10),
        input_type=InputType.convolutional_flat(8, 8, 1),
        dtype="float32",
    )


def test_running_statistics_are_averaged_and_do_not_depend_on_the_number_of_workers() -> None:
    data = run_data.first_examples(run_data.load_data("digits", ""), 300)
    hashes = set()
    for workers in (1, 3):
        conf = Conf(multi_layer_conf=normalized(), dataset="digits", workers=workers, jobs_per_round=3, batch_size=20,
                    epochs=1, averaging_frequency=2, run=f"bn{workers}")  # fmt: skip
        hashes.add(training.train(resolve(conf, training.batches(conf, data)), data).fields["params_sha256"])
    assert len(hashes) == 1


def test_running_statistics_are_saved_and_training_goes_on_as_if_nothing_had_been(tmp_path: Any) -> None:
    net = MultiLayerNetwork(normalized())
    x = RNG.random((40, 64), dtype=np.float32)
    data = ListDataSetIterator(DataSet.of_classes(x, np.arange(40) % 10, 10), 10)
    net.fit(data)
    write_model(net, tmp_path / "model.zip")
    back = restore_multi_layer_network(tmp_path / "model.zip")
    assert (back.param_table["1_mean"] != 0).any()
    np.testing.assert_array_equal(back.output(x), net.output(x))
    for one in (net, back):
        one.fit(data.dataset)
    np.testing.assert_array_equal(back.params, net.params)


def test_data_sources_of_images_train_through_the_launcher() -> None:
    data = run_data.load_data("digits", "")
    assert isinstance(data, DataSource)
    conf = training.with_network(Conf(multi_layer_conf=normalized()), data, frozenset())
    assert conf.multi_layer_conf is not None and conf.multi_layer_conf.input_type == InputType.convolutional_flat(
        8, 8, 1
    )
