"""Networks that the real Deeplearning4j's own builders make, described for ``RealDl4j.java``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Node = dict[str, Any]
BOTH = ("0.9.1", "1.0.0-M2.1")
NEW = ("1.0.0-M2.1",)


@dataclass(frozen=True)
class Theirs:
    """One network: the row of the matrix it counts for, its builder, the shapes of its inputs, its labels.

    ``is_plain``: 0.9.1 trains it as this package does, with plain gradient descent.
    """

    row: str
    name: str
    network: Node
    inputs: tuple[tuple[int, ...], ...]
    labels: tuple[tuple[int, ...], ...]
    versions: tuple[str, ...] = BOTH
    mask: bool = False
    kind: str = "onehot"
    steps: int = 2
    one_more_step: bool = True
    is_plain: bool = True
    padded_with_zeros: bool = False

    def arrays(self) -> dict[str, list[np.ndarray]]:
        """Return its batch."""
        rng = np.random.default_rng([3, len(self.name)])
        examples = 6
        x = [rng.normal(size=(examples, *shape)).astype("f4") for shape in self.inputs]
        if self.kind == "index":
            x = [rng.integers(0, 4, size=(examples, *shape)).astype("f4") for shape in self.inputs]
        found = {"x": x, "l": [labels(rng, (examples, *shape), self.kind) for shape in self.labels]}
        if self.mask:
            steps = self.inputs[0][-1]
            ends = np.array([steps, 1, steps - 1, 2, steps, 3])
            found["fm"] = [(np.arange(steps) < ends[:, None]).astype("f4")]
            if self.padded_with_zeros:
                found["x"] = [each * found["fm"][0][:, None, :] for each in x]
            if len(self.labels[0]) == 2:
                found["lm"] = found["fm"]
        return found


def labels(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Return labels for outputs of a shape: classes along axis 1, or values."""
    if kind == "values":
        return rng.normal(size=shape).astype("f4")
    if kind == "positive":
        return rng.uniform(0.1, 0.9, size=shape).astype("f4")
    if kind == "signs":
        return rng.choice([-1.0, 1.0], size=shape).astype("f4")
    found = np.zeros(shape, "f4")
    flat = np.moveaxis(found, 1, -1).reshape(-1, shape[1])
    flat[np.arange(len(flat)), rng.integers(0, shape[1], len(flat))] = 1
    return np.moveaxis(flat.reshape(*shape[:1], *shape[2:], shape[1]), -1, 1).astype("f4")


def new(cls: str, *args: Any, calls: Sequence[Any] = ()) -> Node:
    """Return what makes an object and calls it; the result of the last call counts."""
    return {"class": cls, "args": list(args), "calls": [list(call) for call in calls]}


def layer(cls: str, *args: Any, **fields: Any) -> Node:
    """Return a layer by its builder: ``nOut=5`` is ``.nOut(5)``."""
    return new(f"{cls}$Builder", *args, calls=[*fields.items(), ("build",)])


def input_type(name: str, *sizes: int) -> Node:
    """Return ``InputType.name(sizes)``."""
    return {"class": "InputType", "static": name, "args": list(sizes)}


def stack(*layers: Node, kind: Node | None = None, around: Sequence[Any] = (), after: Sequence[Any] = ()) -> Node:
    """Return a multi-layer network: ``around`` is called on the builder, ``after`` on the list."""
    calls = [("seed", 7), ("activation", "TANH"), *around, ("list",)]
    calls += [("layer", i, each) for i, each in enumerate(layers)]
    calls += list(after)
    if kind is not None:
        calls.append(("setInputType", kind))
    return new("NeuralNetConfiguration$Builder", calls=[*calls, ("build",)])


def graph(inputs: Sequence[str], *calls: Any, outputs: Sequence[str], kinds: Sequence[Node] = ()) -> Node:
    """Return a graph."""
    steps = [("seed", 7), ("activation", "TANH"), ("graphBuilder",), ("addInputs", list(inputs)), *calls]
    steps.append(("setOutputs", list(outputs)))
    if kinds:
        steps.append(("setInputTypes", list(kinds)))
    return new("NeuralNetConfiguration$Builder", calls=[*steps, ("build",)])


SOFTMAX = layer("OutputLayer", "MCXENT", nOut=3, activation="SOFTMAX")
RNN_SOFTMAX = layer("RnnOutputLayer", "MCXENT", nOut=3, activation="SOFTMAX")
FLAT = input_type("convolutionalFlat", 8, 8, 2)
IMAGE = input_type("convolutional", 8, 7, 2)
STEPS = input_type("recurrent", 4)


def rows(row: str, *layers: Node, name: str = "", **more: Any) -> Theirs:
    """A network for rows of four values; its first layer has ``nIn``."""
    fields = {key: more.pop(key) for key in ("around", "after") if key in more}
    end = more.pop("end", SOFTMAX)
    tail = [end] if end is not None else []
    kind = more.pop("type", input_type("feedForward", 4))
    return Theirs(row, name or row, stack(*layers, *tail, kind=kind, **fields), ((4,),), ((3,),), **more)


def images(row: str, *layers: Node, name: str = "", **more: Any) -> Theirs:
    """A network for images 2 x 8 x 7."""
    fields = {key: more.pop(key) for key in ("around", "after") if key in more}
    kind = more.pop("type", IMAGE)
    shape = more.pop("shape", (2, 8, 7))
    return Theirs(row, name or row, stack(*layers, SOFTMAX, kind=kind, **fields), (shape,), ((3,),), **more)


def steps(row: str, *layers: Node, name: str = "", ends: bool = False, **more: Any) -> Theirs:
    """A network for sequences of 4 values, 6 steps."""
    fields = {key: more.pop(key) for key in ("around", "after") if key in more}
    end = more.pop("end", SOFTMAX if ends else RNN_SOFTMAX)
    long = more.pop("long", 6)
    out = (3,) if ends else (3, long)
    kind = more.pop("type", STEPS)
    return Theirs(row, name or row, stack(*layers, end, kind=kind, **fields), ((4, 6),), (out,), **more)


def everything() -> Iterator[Theirs]:
    """Every network."""
    yield from _rows()
    yield from _functions()
    yield from _updaters()
    yield from _images()
    yield from _steps()
    yield from _graphs()
    softmax = {"activation": "SOFTMAX"}
    yield images("ConvolutionLayer", layer("ConvolutionLayer", [3, 3], nOut=4, **softmax), name="softmax")
    yield images(
        "ActivationLayer",
        layer("ConvolutionLayer", [3, 3], nOut=4),
        layer("ActivationLayer", **softmax),
        name="softmax",
    )
    last = layer("GlobalPoolingLayer", "AVG")
    for name in ("LSTM", "GravesLSTM", "GravesBidirectionalLSTM"):
        yield steps(name, layer(name, nOut=4, **softmax), name="softmax")
    yield steps(
        "Convolution1DLayer", layer("Convolution1DLayer", 3, nOut=5, **softmax), last, name="softmax", ends=True
    )
    yield steps(
        "ActivationLayer", layer("LSTM", nOut=4), layer("ActivationLayer", **softmax), name="softmax in sequences"
    )


def _rows() -> Iterator[Theirs]:
    dense = layer("DenseLayer", nOut=5)
    yield rows("DenseLayer", dense)
    yield rows("DenseLayer", layer("DenseLayer", nOut=5, hasBias=False), name="no bias", versions=NEW)
    yield rows("DenseLayer", layer("DenseLayer", nOut=5, hasLayerNorm=True), name="layer normalization", versions=NEW)
    yield rows("DenseLayer", layer("DenseLayer", nOut=5, biasInit=0.3, name="first"), name="named")
    yield rows("OutputLayer")
    yield rows(
        "OutputLayer",
        dense,
        end=layer("OutputLayer", "MCXENT", nOut=3, activation="SOFTMAX", hasBias=False),
        name="no bias",
        versions=NEW,
    )
    yield rows("LossLayer", layer("DenseLayer", nOut=3), end=layer("LossLayer", "MCXENT", activation="SOFTMAX"))
    yield rows(
        "LossLayer",
        layer("DenseLayer", nOut=3),
        end=layer("LossLayer", "MSE", activation="TANH"),
        name="mse",
        kind="values",
    )
    yield rows(
        "CenterLossOutputLayer",
        dense,
        end=layer("CenterLossOutputLayer", "MCXENT", nOut=3, activation="SOFTMAX", alpha=0.1),
    )
    yield rows(
        "EmbeddingLayer",
        layer("EmbeddingLayer", nIn=4, nOut=5),
        dense,
        type=None,
        name="by index",
        end=layer("OutputLayer", "MCXENT", nIn=5, nOut=3, activation="SOFTMAX"),
        kind="index",
        versions=(),
    )
    embedded = [("nIn", 4), ("nOut", 5)]
    for has_bias, versions in ((True, BOTH), (False, NEW)):
        first = new(
            "EmbeddingLayer$Builder",
            calls=[*embedded, *([] if has_bias and versions == BOTH else [("hasBias", has_bias)]), ("build",)],
        )
        network = stack(first, layer("OutputLayer", "MCXENT", nIn=5, nOut=3, activation="SOFTMAX"))
        yield Theirs("EmbeddingLayer", f"bias {has_bias}", network, ((1,),), ((3,),), versions, kind="index")
    first = new("EmbeddingLayer$Builder", calls=[*embedded, ("hasBias", True), ("build",)])
    network = stack(first, layer("OutputLayer", "MCXENT", nIn=5, nOut=3, activation="SOFTMAX"))
    yield Theirs("EmbeddingLayer", "with bias", network, ((1,),), ((3,),), NEW, kind="index")
    yield rows("AutoEncoder", layer("AutoEncoder", nOut=5))
    yield rows("RBM", layer("RBM", nOut=5), versions=("0.9.1",))
    yield rows(
        "VariationalAutoencoder",
        layer("variational.VariationalAutoencoder", nOut=3, encoderLayerSizes=[6, 5], decoderLayerSizes=[4]),
    )
    yield rows(
        "VariationalAutoencoder",
        layer(
            "variational.VariationalAutoencoder",
            nOut=3,
            encoderLayerSizes=[6],
            decoderLayerSizes=[4],
            reconstructionDistribution=new("variational.BernoulliReconstructionDistribution", "SIGMOID"),
            pzxActivationFunction="TANH",
        ),
        name="Bernoulli",
        versions=NEW,
    )
    for lock in (False, True):
        yield rows("BatchNormalization", dense, layer("BatchNormalization", lockGammaBeta=lock), name=f"lock {lock}")
    yield rows("BatchNormalization", dense, layer("BatchNormalization", useLogStd=True), name="log std", versions=NEW)
    yield rows("BatchNormalization", dense, layer("BatchNormalization", useLogStd=False), name="variance", versions=NEW)
    yield rows(
        "BatchNormalization",
        dense,
        layer("BatchNormalization", decay=0.7, eps=1e-3, minibatch=False),
        name="no minibatch",
        one_more_step=False,
    )
    yield rows("ActivationLayer", dense, layer("ActivationLayer", activation="RELU"))
    yield rows("DropoutLayer", dense, layer("DropoutLayer", 0.5), one_more_step=False)
    yield rows("DenseLayer", layer("DenseLayer", nOut=5, dropOut=0.7), name="drop-out", one_more_step=False)
    frozen = new("misc.FrozenLayer", dense)
    yield rows("FrozenLayer", frozen, dense, around=[("updater", new("Adam", 0.01))], versions=NEW)
    yield rows(
        "FrozenLayer",
        frozen,
        dense,
        around=[("updater", "ADAM"), ("learningRate", 0.05)],
        versions=("0.9.1",),
        is_plain=False,
    )
    yield rows("FrozenLayer", frozen, dense, around=[("updater", "SGD")], name="plain", versions=("0.9.1",))
    yield rows("BatchNormalization", dense, layer("BatchNormalization", eps=1e-3), name="eps")
    yield rows("PReLULayer", dense, layer("PReLULayer"), versions=NEW)
    yield rows(
        "ElementWiseMultiplicationLayer",
        dense,
        layer("misc.ElementWiseMultiplicationLayer", nIn=5, nOut=5),
        versions=NEW,
    )


def _functions() -> Iterator[Theirs]:
    old = [
        "CUBE",
        "ELU",
        "HARDSIGMOID",
        "HARDTANH",
        "IDENTITY",
        "LEAKYRELU",
        "RATIONALTANH",
        "RELU",
        "RRELU",
        "SELU",
        "SIGMOID",
        "SOFTMAX",
        "SOFTPLUS",
        "SOFTSIGN",
        "TANH",
        "RECTIFIEDTANH",
    ]
    newer = ["RELU6", "SWISH", "THRESHOLDEDRELU", "GELU", "MISH"]
    for name in (*old, *newer):
        versions = BOTH if name in old else NEW
        yield rows(
            f"Activation {name}",
            layer("DenseLayer", nOut=5, activation=name),
            versions=versions,
            one_more_step=name != "RRELU",
        )
    for name, args in (("LReLU", [0.3]), ("ELU", [0.5])):
        act = new(f"Activation{name}", *args)
        yield rows(f"Activation {name}({args[0]})", layer("DenseLayer", nOut=5, activation=act))
    yield rows(
        "Activation ReLU(max)",
        layer("DenseLayer", nOut=5, activation=new("ActivationReLU", 1.0, 0.1, 0.2)),
        versions=NEW,
    )
    losses = (
        ("MSE", "IDENTITY", "values"),
        ("L1", "IDENTITY", "values"),
        ("L2", "TANH", "values"),
        ("XENT", "SIGMOID", "positive"),
        ("MCXENT", "SOFTMAX", "onehot"),
        ("SQUARED_LOSS", "IDENTITY", "values"),
        ("NEGATIVELOGLIKELIHOOD", "SOFTMAX", "onehot"),
        ("COSINE_PROXIMITY", "IDENTITY", "values"),
        ("HINGE", "IDENTITY", "signs"),
        ("SQUARED_HINGE", "IDENTITY", "signs"),
        ("KL_DIVERGENCE", "SOFTMAX", "positive"),
        ("RECONSTRUCTION_CROSSENTROPY", "SIGMOID", "positive"),
        ("MEAN_ABSOLUTE_ERROR", "IDENTITY", "values"),
        ("POISSON", "SOFTPLUS", "positive"),
        ("MEAN_ABSOLUTE_PERCENTAGE_ERROR", "IDENTITY", "positive"),
        ("MEAN_SQUARED_LOGARITHMIC_ERROR", "SIGMOID", "positive"),
    )
    for loss, activation, kind in losses:
        end = layer("OutputLayer", loss, nOut=3, activation=activation)
        yield rows(f"Loss {loss}", layer("DenseLayer", nOut=5), end=end, kind=kind)
    yield rows(
        "Loss WASSERSTEIN",
        layer("DenseLayer", nOut=5),
        end=layer("OutputLayer", "WASSERSTEIN", nOut=3, activation="IDENTITY"),
        kind="signs",
        versions=NEW,
    )
    yield rows(
        "Loss weights",
        layer("DenseLayer", nOut=5),
        end=layer("OutputLayer", nOut=3, activation="SOFTMAX", lossFunction=new("LossMCXENT", [0.5, 1.0, 3.0])),
    )


def _updaters() -> Iterator[Theirs]:
    dense = layer("DenseLayer", nOut=5)
    for name, args in (
        ("Sgd", [0.1]),
        ("Nesterovs", [0.05, 0.8]),
        ("AdaGrad", [0.1]),
        ("RmsProp", [0.01]),
        ("Adam", [0.01]),
        ("AdaMax", [0.01]),
        ("Nadam", [0.01]),
        ("AdaDelta", []),
        ("NoOp", []),
    ):
        yield rows(f"Updater {name}", dense, around=[("updater", new(name, *args))], versions=NEW)
    for name in ("SGD", "NESTEROVS", "ADAGRAD", "RMSPROP", "ADAM", "ADAMAX", "NADAM", "ADADELTA", "NONE"):
        yield rows(
            f"Updater {name}",
            dense,
            around=[("updater", name), ("learningRate", 0.05)],
            versions=("0.9.1",),
            is_plain=name in ("SGD", "NONE"),
        )
    for name in ("AMSGrad", "AdaBelief"):
        yield rows(f"Updater {name}", dense, around=[("updater", new(name, 0.01))], versions=NEW)
    yield rows("Updater AdaGrad", dense, around=[("updater", new("AdaGrad", 0.1, 0.01))], name="epsilon", versions=NEW)
    yield rows(
        "Updater RmsProp", dense, around=[("updater", new("RmsProp", 0.1, 0.9, 0.01))], name="epsilon", versions=NEW
    )
    decayed = [("updater", new("Adam", 0.01)), ("weightDecay", 0.05)]
    yield rows("Updater AdamW", dense, around=decayed, versions=NEW)
    for name, args in (
        ("ExponentialSchedule", ["ITERATION", 0.1, 0.9]),
        ("StepSchedule", ["ITERATION", 0.1, 0.5, 2.0]),
        ("InverseSchedule", ["ITERATION", 0.1, 0.5, 2.0]),
        ("PolySchedule", ["ITERATION", 0.1, 2.0, 9]),
        ("SigmoidSchedule", ["ITERATION", 0.1, 0.5, 2]),
        ("MapSchedule", ["ITERATION", [[0, 0.1], [2, 0.3]]]),
        ("CycleSchedule", ["ITERATION", 0.01, 0.1, 10, 2, 0.1]),
        ("RampSchedule", [new("FixedSchedule", 0.1), 4]),
        ("ExponentialSchedule", ["EPOCH", 0.1, 0.9]),
    ):
        label = f"{name}{' by epoch' if args[0] == 'EPOCH' else ''}"
        yield rows(f"Schedule {label}", dense, around=[("updater", new("Sgd", new(name, *args)))], versions=NEW)
    for penalty, versions in (("l1", BOTH), ("l2", BOTH), ("l1Bias", BOTH), ("l2Bias", BOTH), ("weightDecay", NEW)):
        used = [("regularization", True)] if versions == BOTH else []
        if versions == BOTH:
            yield rows(f"Penalty {penalty}", dense, around=[*used, (penalty, 0.1)], versions=("0.9.1",), is_plain=False)
        yield rows(f"Penalty {penalty}", dense, around=[(penalty, 0.1)], versions=NEW)
    for name in (
        "RenormalizeL2PerLayer",
        "RenormalizeL2PerParamType",
        "ClipElementWiseAbsoluteValue",
        "ClipL2PerLayer",
        "ClipL2PerParamType",
    ):
        calls = [("gradientNormalization", name), ("gradientNormalizationThreshold", 0.01)]
        yield rows(f"GradientNormalization {name}", dense, around=calls, is_plain=False)
    yield rows("minimize(false)", dense, around=[("minimize", False)])
    yield rows("miniBatch(false)", dense, around=[("miniBatch", False)])
    yield rows("iterations(3)", dense, around=[("iterations", 3)], versions=("0.9.1",))
    for name in ("XAVIER", "ZERO", "RELU", "UNIFORM", "XAVIER_UNIFORM", "SIGMOID_UNIFORM", "XAVIER_FAN_IN"):
        yield rows(f"WeightInit {name}", dense, around=[("weightInit", name)])
    yield rows(
        "WeightInit distribution",
        dense,
        around=[("weightInit", "DISTRIBUTION"), ("dist", new("NormalDistribution", 0.0, 0.5))],
    )


def _images() -> Iterator[Theirs]:
    conv = layer("ConvolutionLayer", [3, 3], nOut=4)
    pool = layer("SubsamplingLayer", "MAX", [2, 2], [2, 2])
    yield images("ConvolutionLayer", conv)
    yield images(
        "ConvolutionLayer", conv, pool, layer("DenseLayer", nOut=6), name="LeNet, flat input", type=FLAT, shape=(128,)
    )
    yield images("ConvolutionLayer", conv, pool, layer("DenseLayer", nOut=6), name="LeNet, images")
    for mode in ("Strict", "Truncate", "Same"):
        yield images(
            "ConvolutionLayer", layer("ConvolutionLayer", [2, 3], [1, 2], nOut=4, convolutionMode=mode), name=mode
        )
    yield images(
        "ConvolutionLayer",
        layer("ConvolutionLayer", [2, 3], [1, 2], nOut=4, convolutionMode="Causal"),
        name="Causal",
        versions=NEW,
    )
    yield images("ConvolutionLayer", layer("ConvolutionLayer", [3, 3], [1, 1], [1, 1], nOut=4), name="padded")
    yield images(
        "ConvolutionLayer", layer("ConvolutionLayer", [3, 3], nOut=4, dilation=[2, 2]), name="dilated", versions=NEW
    )
    yield images(
        "ConvolutionLayer", layer("ConvolutionLayer", [3, 3], nOut=4, hasBias=False), name="no bias", versions=NEW
    )
    nhwc = {"class": "InputType", "static": "convolutional", "args": [8, 7, 2, "NHWC"]}
    yield images(
        "ConvolutionLayer",
        layer("ConvolutionLayer", [3, 3], nOut=4, dataFormat="NHWC"),
        name="NHWC",
        versions=NEW,
        type=nhwc,
        shape=(8, 7, 2),
    )
    for kind in ("MAX", "AVG", "SUM", "PNORM"):
        more = {"pnorm": 2} if kind == "PNORM" else {}
        versions = NEW if kind == "SUM" else BOTH
        yield images(
            "SubsamplingLayer",
            conv,
            layer("SubsamplingLayer", kind, [2, 2], [2, 2], **more),
            name=kind,
            versions=versions,
        )
        yield images(
            "SubsamplingLayer",
            conv,
            layer("SubsamplingLayer", kind, [3, 2], [2, 1], [1, 1], **more),
            name=f"{kind} padded",
            versions=versions,
        )
        yield images(
            "SubsamplingLayer",
            conv,
            layer("SubsamplingLayer", kind, [3, 2], [2, 2], convolutionMode="Same", **more),
            name=f"{kind} same",
            versions=versions,
        )
        yield images("GlobalPoolingLayer", conv, layer("GlobalPoolingLayer", kind, **more), name=kind)
    yield images(
        "SubsamplingLayer",
        conv,
        layer("SubsamplingLayer", "AVG", [3, 2], [2, 1], [1, 1], avgPoolIncludePadInDivisor=True),
        name="AVG, padding counted",
        versions=NEW,
    )
    yield images(
        "SubsamplingLayer",
        conv,
        layer("SubsamplingLayer", "MAX", [2, 2], [1, 1], dilation=[2, 2]),
        name="dilated",
        versions=NEW,
    )
    yield images("BatchNormalization", conv, layer("BatchNormalization"), name="images")
    yield images("LocalResponseNormalization", conv, layer("LocalResponseNormalization"))
    yield images(
        "LocalResponseNormalization",
        conv,
        layer("LocalResponseNormalization", n=3.0, k=1.0, alpha=0.1, beta=0.5),
        name="fields",
    )
    yield images("ZeroPaddingLayer", layer("ZeroPaddingLayer", [1, 2]), conv, name="two")
    yield images("ZeroPaddingLayer", layer("ZeroPaddingLayer", [1, 2, 0, 1]), conv, name="four")
    yield images("DropoutLayer", conv, layer("DropoutLayer", 0.5), name="images", one_more_step=False)
    yield images("ActivationLayer", conv, layer("ActivationLayer", activation="RELU"), name="images")
    yield images("Cropping2D", layer("convolutional.Cropping2D", [1, 1]), conv, versions=NEW)
    yield images("Upsampling2D", conv, layer("Upsampling2D", 2), versions=NEW)
    yield images("SeparableConvolution2D", layer("SeparableConvolution2D", [3, 3], nOut=4), versions=NEW)
    yield images("DepthwiseConvolution2D", layer("DepthwiseConvolution2D", [3, 3], depthMultiplier=2), versions=NEW)
    yield images("Deconvolution2D", layer("Deconvolution2D", [3, 3], nOut=4), versions=NEW)
    yield images(
        "SpaceToDepthLayer",
        layer("ConvolutionLayer", [1, 2], nOut=4),
        layer("SpaceToDepthLayer", 2, "NCHW"),
        versions=NEW,
    )


def _steps() -> Iterator[Theirs]:
    for name in ("LSTM", "GravesLSTM", "GravesBidirectionalLSTM"):
        rnn = layer(name, nOut=5)
        yield steps(name, rnn)
        yield steps(name, rnn, name="masked", mask=True)
        yield steps(
            name, layer(name, nOut=5, gateActivationFunction="HARDSIGMOID", forgetGateBiasInit=0.5), name="gates"
        )
        bptt = [("backpropType", "TruncatedBPTT"), ("tBPTTForwardLength", 3), ("tBPTTBackwardLength", 3)]
        yield steps(name, rnn, name="truncated", after=bptt)
    lstm = layer("LSTM", nOut=5)
    for mode in ("CONCAT", "ADD", "MUL", "AVERAGE"):
        yield steps("Bidirectional", new("recurrent.Bidirectional", mode, lstm), name=mode, versions=NEW)
    yield steps("Bidirectional", new("recurrent.Bidirectional", "ADD", lstm), name="masked", mask=True, versions=NEW)
    yield steps(
        "Bidirectional",
        new("recurrent.Bidirectional", "ADD", layer("recurrent.SimpleRnn", nOut=5)),
        name="of SimpleRnn",
        versions=NEW,
    )
    yield steps("SimpleRnn", layer("recurrent.SimpleRnn", nOut=5), versions=NEW)
    yield steps("LastTimeStep", new("recurrent.LastTimeStep", lstm), ends=True, versions=NEW)
    yield steps("LastTimeStep", new("recurrent.LastTimeStep", lstm), ends=True, name="masked", mask=True, versions=NEW)
    yield steps(
        "TimeDistributed", lstm, new("recurrent.TimeDistributed", layer("DenseLayer", nIn=5, nOut=4)), versions=NEW
    )
    yield steps("MaskZeroLayer", layer("util.MaskZeroLayer", underlying=lstm, maskValue=0.0), versions=())
    yield steps(
        "RnnOutputLayer", lstm, end=layer("RnnOutputLayer", "MSE", nOut=3, activation="IDENTITY"), kind="values"
    )
    yield steps(
        "RnnLossLayer", layer("LSTM", nOut=3), end=layer("RnnLossLayer", "MCXENT", activation="SOFTMAX"), versions=NEW
    )
    yield steps("DenseLayer", layer("DenseLayer", nOut=5), name="in sequences")
    nwc = {"class": "InputType", "static": "recurrent", "args": [4, "NWC"]}
    yield Theirs(
        "LSTM",
        "NWC",
        stack(
            layer("LSTM", nOut=5, dataFormat="NWC"),
            layer("RnnOutputLayer", "MCXENT", nOut=3, activation="SOFTMAX", dataFormat="NWC"),
            kind=nwc,
        ),
        ((6, 4),),
        ((6, 3),),
        NEW,
        one_more_step=False,
        steps=0,
    )
    for kernel, more in ((3, {}), (2, {"stride": 2}), (3, {"padding": 1}), (3, {"convolutionMode": "Same"})):
        conv = layer("Convolution1DLayer", kernel, nOut=5, **more)
        pool = layer("Subsampling1DLayer", "MAX", kernel, **more)
        average = layer("Subsampling1DLayer", "AVG", kernel, **more)
        named = f"kernel {kernel} {' '.join(f'{k}={v}' for k, v in more.items())}".strip()
        last = layer("GlobalPoolingLayer", "AVG")
        yield steps("Convolution1DLayer", conv, last, name=named, ends=True)
        yield steps("Subsampling1DLayer", layer("LSTM", nOut=5), pool, last, name=named, ends=True)
        yield steps("Subsampling1DLayer", layer("LSTM", nOut=5), average, last, name=f"AVG {named}", ends=True)
    yield steps(
        "Convolution1DLayer",
        layer("Convolution1DLayer", 3, nOut=5, convolutionMode="Causal"),
        name="Causal",
        versions=NEW,
    )
    yield steps(
        "ZeroPadding1DLayer",
        layer("ZeroPadding1DLayer", 1),
        lstm,
        layer("GlobalPoolingLayer", "MAX"),
        ends=True,
        versions=NEW,
    )
    for kind in ("MAX", "AVG", "SUM", "PNORM"):
        more = {"pnorm": 2} if kind == "PNORM" else {}
        for mask in (False, True):
            yield steps(
                "GlobalPoolingLayer",
                lstm,
                layer("GlobalPoolingLayer", kind, **more),
                ends=True,
                name=f"sequences, {kind}{' masked' if mask else ''}",
                mask=mask,
            )
    yield steps(
        "BatchNormalization",
        lstm,
        layer("GlobalPoolingLayer", "MAX"),
        layer("BatchNormalization"),
        ends=True,
        name="behind pooling",
    )
    sequence = layer("EmbeddingSequenceLayer", nIn=4, nOut=5, inputLength=6)
    yield Theirs(
        "EmbeddingSequenceLayer",
        "EmbeddingSequenceLayer",
        stack(
            sequence,
            layer("LSTM", nIn=5, nOut=4),
            layer("RnnOutputLayer", "MCXENT", nIn=4, nOut=3, activation="SOFTMAX"),
        ),
        ((6,),),
        ((3, 6),),
        NEW,
        kind="index",
    )


def _graphs() -> Iterator[Theirs]:
    four = input_type("feedForward", 4)
    end = ("addLayer", "out", SOFTMAX, ["v"])

    def one(row: str, *calls: Any, name: str = "", versions: tuple[str, ...] = BOTH, **more: Any) -> Theirs:
        built = graph(["a", "b"], *calls, end, outputs=["out"], kinds=[four, four])
        return Theirs(row, name or row, built, ((4,), (4,)), ((3,),), versions, **more)

    a = ("addLayer", "da", layer("DenseLayer", nOut=5), ["a"])
    b = ("addLayer", "db", layer("DenseLayer", nOut=5), ["b"])
    yield one("MergeVertex", a, b, ("addVertex", "v", new("MergeVertex"), ["da", "db"]))
    yield one("MergeVertex", ("addVertex", "v", new("MergeVertex"), ["a", "b"]), name="of inputs")
    for op in ("Add", "Subtract", "Product", "Average", "Max"):
        versions = BOTH if op in ("Add", "Subtract", "Product") else NEW
        inputs = ["da", "db"]
        yield one(
            "ElementWiseVertex",
            a,
            b,
            ("addVertex", "v", new("ElementWiseVertex", op), inputs),
            name=op,
            versions=versions,
        )
        if versions == NEW:
            yield one(
                "ElementWiseVertex",
                a,
                b,
                ("addVertex", "v", new("ElementWiseVertex", op), inputs),
                name=op,
                versions=("0.9.1",),
            )
    yield one("ElementWiseVertex", ("addVertex", "v", new("ElementWiseVertex", "Add"), ["a", "b"]), name="of inputs")
    yield one(
        "SubsetVertex",
        a,
        b,
        ("addVertex", "m", new("MergeVertex"), ["da", "db"]),
        ("addVertex", "v", new("SubsetVertex", 1, 6), ["m"]),
    )
    yield one(
        "ScaleVertex",
        a,
        b,
        ("addVertex", "m", new("MergeVertex"), ["da", "db"]),
        ("addVertex", "v", new("ScaleVertex", 0.5), ["m"]),
    )
    yield one(
        "ShiftVertex",
        a,
        b,
        ("addVertex", "m", new("MergeVertex"), ["da", "db"]),
        ("addVertex", "v", new("ShiftVertex", 0.5), ["m"]),
    )
    yield one(
        "L2NormalizeVertex",
        a,
        b,
        ("addVertex", "m", new("MergeVertex"), ["da", "db"]),
        ("addVertex", "v", new("L2NormalizeVertex"), ["m"]),
    )
    yield one("L2Vertex", a, b, ("addVertex", "v", new("L2Vertex"), ["da", "db"]))
    yield one(
        "PreprocessorVertex",
        a,
        b,
        ("addVertex", "m", new("MergeVertex"), ["da", "db"]),
        ("addVertex", "v", new("PreprocessorVertex", new("UnitVarianceProcessor")), ["m"]),
        one_more_step=False,
        versions=("0.9.1",),
    )
    stacked = ("addVertex", "s", new("StackVertex"), ["a", "b"])
    dense = ("addLayer", "d", layer("DenseLayer", nOut=5), ["s"])
    yield one(
        "StackVertex, UnstackVertex",
        stacked,
        dense,
        ("addVertex", "u0", new("UnstackVertex", 0, 2), ["d"]),
        ("addVertex", "u1", new("UnstackVertex", 1, 2), ["d"]),
        ("addVertex", "v", new("MergeVertex"), ["u0", "u1"]),
    )
    yield one(
        "ReshapeVertex",
        a,
        b,
        ("addVertex", "m", new("MergeVertex"), ["da", "db"]),
        ("addVertex", "v", new("ReshapeVertex", [-1, 10]), ["m"]),
        versions=NEW,
    )
    yield one(
        "ReshapeVertex",
        a,
        b,
        ("addVertex", "m", new("MergeVertex"), ["da", "db"]),
        ("addVertex", "v", new("ReshapeVertex", "f", [-1, 10], None), ["m"]),
        name="order f",
        versions=NEW,
    )
    recurrent = input_type("recurrent", 4)
    lstm = ("addLayer", "l", layer("LSTM", nOut=5), ["a"])
    last = ("addVertex", "v", new("rnn.LastTimeStepVertex", "a"), ["l"])
    built = graph(["a"], lstm, last, end, outputs=["out"], kinds=[recurrent])
    yield Theirs("LastTimeStepVertex", "LastTimeStepVertex", built, ((4, 6),), ((3,),))
    yield Theirs("LastTimeStepVertex", "masked", built, ((4, 6),), ((3,),), mask=True)
    built = graph(
        ["a"],
        lstm,
        last,
        ("addVertex", "t", new("rnn.DuplicateToTimeSeriesVertex", "a"), ["v"]),
        ("addLayer", "out", RNN_SOFTMAX, ["t"]),
        outputs=["out"],
        kinds=[recurrent],
    )
    yield Theirs("DuplicateToTimeSeriesVertex", "DuplicateToTimeSeriesVertex", built, ((4, 6),), ((3, 6),))
    conv = layer("ConvolutionLayer", [3, 3], nOut=4, convolutionMode="Same")
    built = graph(
        ["a"],
        ("addLayer", "c", conv, ["a"]),
        ("addLayer", "d", conv, ["c"]),
        ("addVertex", "v", new("MergeVertex"), ["c", "d"]),
        end,
        outputs=["out"],
        kinds=[IMAGE],
    )
    yield Theirs("MergeVertex", "images", built, ((2, 8, 7),), ((3,),))
    built = graph(
        ["a"],
        ("addLayer", "c", conv, ["a"]),
        ("addLayer", "d", conv, ["c"]),
        ("addVertex", "v", new("ElementWiseVertex", "Add"), ["c", "d"]),
        end,
        outputs=["out"],
        kinds=[FLAT],
    )
    yield Theirs("ElementWiseVertex", "images, flat input", built, ((128,),), ((3,),))
