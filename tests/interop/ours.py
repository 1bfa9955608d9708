"""Networks of this package, over all its layers, vertices and functions, for Deeplearning4j to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.nn import (
    LSTM,
    RBM,
    ActivationLayer,
    AutoEncoder,
    BatchNormalization,
    BernoulliReconstructionDistribution,
    Bidirectional,
    CenterLossOutputLayer,
    ComputationGraph,
    Convolution1DLayer,
    ConvolutionLayer,
    DenseLayer,
    DropoutLayer,
    EmbeddingLayer,
    FrozenLayer,
    GlobalPoolingLayer,
    GravesBidirectionalLSTM,
    GravesLSTM,
    InputType,
    LastTimeStep,
    LocalResponseNormalization,
    LossLayer,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    Subsampling1DLayer,
    SubsamplingLayer,
    VariationalAutoencoder,
    ZeroPadding1DLayer,
    ZeroPaddingLayer,
)
from dl4jlegacy.nn.interchange.dl4j import names
from dl4jlegacy.nn.optimization import schedules as s
from dl4jlegacy.nn.optimization import updaters as u
from dl4jlegacy.nn.vertices import combine, shape
from tests.interop.theirs import labels

Arrays = dict[str, list[np.ndarray]]


@dataclass(frozen=True)
class Ours:
    """One network: the row of the matrix that it counts for, a name, its configuration, shapes of its inputs."""

    row: str
    name: str
    conf: Any
    inputs: tuple[tuple[int, ...], ...]
    mask: bool = False
    kind: str = "onehot"
    one_more_step: bool = True

    def arrays(self, network: Any) -> Arrays:
        """Return a batch for it."""
        rng = np.random.default_rng([4, len(self.name)])
        examples = 6
        x = [rng.normal(size=(examples, *shape)).astype("f4") for shape in self.inputs]
        if self.kind == "index":
            x = [rng.integers(0, 4, size=(examples, *shape)).astype("f4") for shape in self.inputs]
        found: Arrays = {"x": x}
        if self.mask:
            steps = self.inputs[0][-1]
            found["fm"] = [(np.arange(steps) < np.array([steps, 1, steps - 1, 2, steps, 3])[:, None]).astype("f4")]
        is_graph = isinstance(network, ComputationGraph)
        y = network.outputs(*x) if is_graph else [network.output(x[0])]
        found["l"] = [labels(rng, each.shape, self.kind) for each in y]
        if self.mask and y[0].ndim == 3:
            found["lm"] = found["fm"]
        return found

    def trained(self) -> tuple[Any, Arrays]:
        """Return the network after two steps of training, and the batch that it was trained with."""
        is_graph = not isinstance(self.conf, MultiLayerConfiguration)
        network: Any = ComputationGraph(self.conf) if is_graph else MultiLayerNetwork(self.conf)
        arrays = self.arrays(network)
        for step in range(2):
            masks = {"features_mask": arrays.get("fm"), "labels_mask": arrays.get("lm")}
            if is_graph:
                network.fit_batch(arrays["x"], arrays["l"], iteration=step, stream=Stream.of(step), **masks)
            else:
                one = {name: None if mask is None else mask[0] for name, mask in masks.items()}
                network.fit_batch(arrays["x"][0], arrays["l"][0], iteration=step, stream=Stream.of(step), **one)
        network.iteration = 2
        return network, arrays


SOFTMAX = OutputLayer(n_out=3, activation="softmax")
RNN_SOFTMAX = RnnOutputLayer(n_out=3, activation="softmax")
FLAT = InputType.convolutional_flat(8, 8, 2)
IMAGE = InputType.convolutional(8, 7, 2)


def stack(
    row: str, name: str, layers: tuple[Any, ...], kind: Any, inputs: tuple[int, ...], more: dict[str, Any]
) -> Ours:
    fields = {key: more.pop(key) for key in ("mask", "kind", "one_more_step") if key in more}
    top = {key: more.pop(key) for key in ("backprop_type", "tbptt_fwd_length", "tbptt_back_length") if key in more}
    network = NeuralNetConfiguration(**{"seed": 7, "activation": "tanh", **more})
    conf = MultiLayerConfiguration(conf=network, layers=layers, input_type=kind, **top)
    return Ours(row, f"{row}: {name}" if name else row, conf, (inputs,), **fields)


def rows(row: str, *layers: Any, name: str = "", end: Any = SOFTMAX, **more: Any) -> Ours:
    """A network for rows of four values."""
    return stack(row, name, (*layers, end), InputType.feed_forward(4), (4,), more)


def images(row: str, *layers: Any, name: str = "", type: Any = IMAGE, **more: Any) -> Ours:
    """A network for images of two channels."""
    return stack(row, name, (*layers, SOFTMAX), type, type.shape, more)


def steps(row: str, *layers: Any, name: str = "", end: Any = RNN_SOFTMAX, **more: Any) -> Ours:
    """A network for sequences of four values, six steps."""
    return stack(row, name, (*layers, end), InputType.recurrent(4), (4, 6), more)


def everything() -> Iterator[Ours]:
    """Every network."""
    yield from _rows()
    yield from _functions()
    yield from _images()
    yield from _steps()
    yield from _graphs()


def _rows() -> Iterator[Ours]:
    dense = DenseLayer(n_out=5)
    yield rows("DenseLayer", dense)
    yield rows("DenseLayer", DenseLayer(n_out=5, name="first", bias_init=0.5), name="named")
    yield rows("DenseLayer", DenseLayer(n_out=5, drop_out=0.7), name="drop-out", one_more_step=False)
    yield rows("OutputLayer")
    yield rows("LossLayer", DenseLayer(n_out=3), end=LossLayer(loss="mcxent", activation="softmax"))
    yield rows("CenterLossOutputLayer", dense, end=CenterLossOutputLayer(n_out=3, activation="softmax"))
    network = (EmbeddingLayer(n_in=4, n_out=5), OutputLayer(n_out=3, activation="softmax"))
    yield stack("EmbeddingLayer", "", network, None, (1,), {"kind": "index"})
    yield rows("AutoEncoder", AutoEncoder(n_out=5))
    yield rows("RBM", RBM(n_out=5))
    vae = VariationalAutoencoder(n_out=3, encoder_layer_sizes=(6, 5), decoder_layer_sizes=(4,))
    yield rows("VariationalAutoencoder", vae)
    bernoulli = BernoulliReconstructionDistribution()
    yield rows(
        "VariationalAutoencoder",
        VariationalAutoencoder(
            n_out=3,
            encoder_layer_sizes=(6,),
            decoder_layer_sizes=(4,),
            reconstruction_distribution=bernoulli,
            pzx_activation="tanh",
        ),
        name="Bernoulli",
    )
    for lock in (False, True):
        yield rows("BatchNormalization", dense, BatchNormalization(lock_gamma_beta=lock), name=f"lock {lock}")
    yield rows("ActivationLayer", dense, ActivationLayer(activation="relu"))
    yield rows("DropoutLayer", dense, DropoutLayer(drop_out=0.5), one_more_step=False)
    yield rows("FrozenLayer", FrozenLayer(dense), dense, updater=u.Adam(learning_rate=0.01))


def _functions() -> Iterator[Ours]:
    dense = DenseLayer(n_out=5)
    for name in names.ACTIVATIONS:
        yield rows(f"Activation {name}", DenseLayer(n_out=5, activation=name), one_more_step=name != "rrelu")
    for loss, activation, kind in (
        ("mse", "identity", "values"),
        ("l1", "identity", "values"),
        ("l2", "tanh", "values"),
        ("mae", "identity", "values"),
        ("mape", "identity", "positive"),
        ("msle", "sigmoid", "positive"),
        ("xent", "sigmoid", "positive"),
        ("mcxent", "softmax", "onehot"),
        ("negativeloglikelihood", "softmax", "onehot"),
        ("cosine_proximity", "identity", "values"),
        ("hinge", "identity", "signs"),
        ("squared_hinge", "identity", "signs"),
        ("kl_divergence", "softmax", "positive"),
        ("reconstruction_crossentropy", "sigmoid", "positive"),
        ("poisson", "softplus", "positive"),
        ("squared_loss", "identity", "values"),
        ("wasserstein", "identity", "signs"),
    ):
        end = OutputLayer(n_out=3, activation=activation, loss=loss)
        yield rows(f"Loss {loss}", dense, end=end, kind=kind)
    weighted = OutputLayer(n_out=3, activation="softmax", loss_weights=(0.5, 1.0, 3.0))
    yield rows("Loss weights", dense, end=weighted)
    for name, cls in u.UPDATERS.items():
        yield rows(f"Updater {cls.__name__}", dense, updater=cls(), name=name)
    for schedule in (
        s.ExponentialSchedule(gamma=0.9),
        s.InverseSchedule(gamma=0.5, power=2.0),
        s.StepSchedule(decay_rate=0.5, steps=2.0),
        s.TorchStepSchedule(decay_rate=0.5, steps=2),
        s.PolySchedule(max_iterations=9, power=2.0),
        s.SigmoidSchedule(gamma=0.5, steps=2),
        s.MapSchedule(values={0: 0.1, 2: 0.3}),
        s.LinearSchedule(iterations=9),
        s.CosineSchedule(iterations=9),
    ):
        yield rows(f"Schedule {type(schedule).__name__}", dense, updater=u.Sgd(learning_rate=0.1, schedule=schedule))
    changing = u.Nesterovs(learning_rate=0.05, momentum=0.5, momentum_after={2: 0.9})
    yield rows("Schedule momentum_after", dense, updater=changing)
    for penalty in ("l1", "l2", "l1_bias", "l2_bias"):
        yield rows(f"Penalty {penalty}", dense, **{penalty: 0.1})
    for name in (
        "renormalize_l2_per_layer",
        "renormalize_l2_per_param_type",
        "clip_element_wise_absolute_value",
        "clip_l2_per_layer",
        "clip_l2_per_param_type",
    ):
        more = {"gradient_normalization": name, "gradient_normalization_threshold": 0.01}
        yield rows(f"GradientNormalization {name}", dense, **more)
    yield rows("mini_batch=False", dense, mini_batch=False)
    yield rows("minimize=False", dense, minimize=False)
    yield rows("dtype float64", dense, dtype="float64")


def _images() -> Iterator[Ours]:
    conv = ConvolutionLayer(n_out=4, kernel_size=(3, 3))
    yield images("ConvolutionLayer", conv)
    pool = SubsamplingLayer(kernel_size=(2, 2))
    yield images("ConvolutionLayer", conv, pool, DenseLayer(n_out=6), name="LeNet, flat input", type=FLAT)
    yield images(
        "ConvolutionLayer",
        ConvolutionLayer(n_out=4, kernel_size=(2, 3), stride=(1, 2), convolution_mode="same"),
        name="same",
    )
    yield images("ConvolutionLayer", ConvolutionLayer(n_out=4, kernel_size=(3, 3), padding=(1, 1)), name="padded")
    yield images("ConvolutionLayer", ConvolutionLayer(n_out=4, kernel_size=(3, 3), dilation=(2, 2)), name="dilated")
    for kind in ("max", "avg", "sum", "pnorm"):
        fields: dict[str, Any] = {"pooling_type": kind, "kernel_size": (3, 2)}
        yield images("SubsamplingLayer", conv, SubsamplingLayer(stride=(2, 2), **fields), name=kind)
        yield images(
            "SubsamplingLayer", conv, SubsamplingLayer(stride=(2, 1), padding=(1, 1), **fields), name=f"{kind} padded"
        )
        yield images("SubsamplingLayer", conv, SubsamplingLayer(convolution_mode="same", **fields), name=f"{kind} same")
        yield images("GlobalPoolingLayer", conv, GlobalPoolingLayer(pooling_type=kind), name=kind)
    yield images("BatchNormalization", conv, BatchNormalization(), name="images")
    yield images("LocalResponseNormalization", conv, LocalResponseNormalization())
    yield images(
        "LocalResponseNormalization", conv, LocalResponseNormalization(n=3, k=1.0, alpha=0.1, beta=0.5), name="fields"
    )
    yield images("ZeroPaddingLayer", ZeroPaddingLayer(padding=(1, 2, 0, 1)), conv)
    yield images("DropoutLayer", conv, DropoutLayer(drop_out=0.5), name="images", one_more_step=False)
    yield images("ActivationLayer", conv, ActivationLayer(activation="relu"), name="images")


def _steps() -> Iterator[Ours]:
    for cls in (LSTM, GravesLSTM, GravesBidirectionalLSTM):
        name = cls.__name__
        yield steps(name, cls(n_out=5))
        yield steps(name, cls(n_out=5), name="masked", mask=True)
        yield steps(name, cls(n_out=5, gate_activation="hardsigmoid", forget_gate_bias_init=0.5), name="gates")
    bptt = {"backprop_type": "truncated_bptt", "tbptt_fwd_length": 3, "tbptt_back_length": 3}
    yield steps("LSTM", LSTM(n_out=5), name="truncated", **bptt)
    for mode in ("concat", "add", "mul", "average"):
        yield steps("Bidirectional", Bidirectional(layer=LSTM(n_out=5), mode=mode), name=mode)
    yield steps("LastTimeStep", LastTimeStep(layer=LSTM(n_out=5)), end=SOFTMAX)
    yield steps("LastTimeStep", LastTimeStep(layer=LSTM(n_out=5)), end=SOFTMAX, name="masked", mask=True)
    yield steps("DenseLayer", DenseLayer(n_out=5), name="in sequences")
    last = GlobalPoolingLayer(pooling_type="avg")
    for fields in (
        {"kernel_size": 3},
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "convolution_mode": "same"},
    ):
        name = " ".join(f"{key}={value}" for key, value in fields.items())
        yield steps("Convolution1DLayer", Convolution1DLayer(n_out=5, **fields), last, end=SOFTMAX, name=name)
        for kind in ("max", "avg"):
            pool = Subsampling1DLayer(pooling_type=kind, **fields)
            yield steps("Subsampling1DLayer", LSTM(n_out=5), pool, last, end=SOFTMAX, name=f"{kind} {name}")
    yield steps("ZeroPadding1DLayer", ZeroPadding1DLayer(padding=(1, 2)), LSTM(n_out=5), last, end=SOFTMAX)
    for kind in ("max", "avg", "sum", "pnorm"):
        for mask in (False, True):
            pool = GlobalPoolingLayer(pooling_type=kind)
            yield steps(
                "GlobalPoolingLayer",
                LSTM(n_out=5),
                pool,
                end=SOFTMAX,
                mask=mask,
                name=f"sequences, {kind}{' masked' if mask else ''}",
            )


def graph(row: str, *nodes: tuple[str, Any, tuple[str, ...]], name: str = "", inputs: Any = None, **more: Any) -> Ours:
    """A graph of named layers and vertices between inputs ``a`` and ``b`` and output ``out``."""
    kinds = inputs or (InputType.feed_forward(4), InputType.feed_forward(4))
    names_of = ("a", "b")[: len(kinds)]
    network = NeuralNetConfiguration.builder().seed(7).activation("tanh")
    if updater := more.pop("conf", {}).get("updater"):
        network = network.updater(updater)
    builder = network.graph_builder().add_inputs(*names_of)
    for each, vertex, sources in nodes:
        is_layer = hasattr(vertex, "n_in")
        builder = builder.add_layer(each, vertex, *sources) if is_layer else builder.add_vertex(each, vertex, *sources)
    conf = builder.set_outputs("out").set_input_types(*kinds).build()
    shapes = tuple((kind.size, 6) if kind.kind == "recurrent" else kind.shape for kind in kinds)
    return Ours(row, f"{row}: {name}" if name else row, conf, shapes, **more)


def _graphs() -> Iterator[Ours]:
    end = ("out", SOFTMAX, ("v",))
    a, b = ("da", DenseLayer(n_out=5), ("a",)), ("db", DenseLayer(n_out=5), ("b",))
    both = (a, b, ("m", combine.MergeVertex(), ("da", "db")))
    yield graph("MergeVertex", a, b, ("v", combine.MergeVertex(), ("da", "db")), end)
    for op in ("add", "subtract", "product", "average", "max"):
        yield graph("ElementWiseVertex", a, b, ("v", combine.ElementWiseVertex(op=op), ("da", "db")), end, name=op)
    for vertex in (
        combine.SubsetVertex(from_index=1, to_index=6),
        combine.ScaleVertex(scale_factor=0.5),
        combine.ShiftVertex(shift_factor=0.5),
        combine.L2NormalizeVertex(),
        shape.ReshapeVertex(new_shape=(-1, 10)),
    ):
        yield graph(type(vertex).__name__, *both, ("v", vertex, ("m",)), end)
    yield graph("L2Vertex", a, b, ("v", combine.L2Vertex(), ("da", "db")), end)
    yield graph(
        "StackVertex, UnstackVertex",
        ("s", shape.StackVertex(), ("a", "b")),
        ("d", DenseLayer(n_out=5), ("s",)),
        ("u0", shape.UnstackVertex(from_index=0, stack_size=2), ("d",)),
        ("u1", shape.UnstackVertex(from_index=1, stack_size=2), ("d",)),
        ("v", combine.MergeVertex(), ("u0", "u1")),
        end,
    )
    sequences = (InputType.recurrent(4),)
    lstm, last = ("l", LSTM(n_out=5), ("a",)), ("v", shape.LastTimeStepVertex(mask_array_input="a"), ("l",))
    yield graph("LastTimeStepVertex", lstm, last, end, inputs=sequences)
    yield graph("LastTimeStepVertex", lstm, last, end, inputs=sequences, name="masked", mask=True)
    yield graph(
        "DuplicateToTimeSeriesVertex",
        lstm,
        last,
        ("t", shape.DuplicateToTimeSeriesVertex(input_name="a"), ("v",)),
        ("out", RNN_SOFTMAX, ("t",)),
        inputs=sequences,
    )
    conv = ConvolutionLayer(n_out=4, kernel_size=(3, 3), convolution_mode="same")
    yield graph(
        "MergeVertex",
        ("c", conv, ("a",)),
        ("d", conv, ("c",)),
        ("v", combine.MergeVertex(), ("c", "d")),
        end,
        inputs=(IMAGE,),
        name="images",
    )
