"""Model files: exact round trips, files of the real Deeplearning4j (tests/data/dl4j), and every kind of bad file."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.normalizers import ImagePreProcessingScaler, NormalizerMinMaxScaler, NormalizerStandardize
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import InputType, InputTypeConvolutionalFlat
from dl4jlegacy.nn.interchange.dl4j import names
from dl4jlegacy.nn.interchange.dl4j.graph import graph_from_dl4j
from dl4jlegacy.nn.interchange.dl4j.json import to_dl4j
from dl4jlegacy.nn.interchange.dl4j.normalizer_file import read_normalizer, write_normalizer
from dl4jlegacy.nn.interchange.dl4j.reader import from_dl4j
from dl4jlegacy.nn.interchange.dl4j.serializer import (
    restore_computation_graph,
    restore_multi_layer_network,
    restore_normalizer,
    write_model,
)
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.convolution import Convolution1DLayer, ConvolutionLayer
from dl4jlegacy.nn.layers.elementwise import ActivationLayer, DropoutLayer, ZeroPadding1DLayer, ZeroPaddingLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, FrozenLayer
from dl4jlegacy.nn.layers.loss_layers import CenterLossOutputLayer, LossLayer
from dl4jlegacy.nn.layers.lstm import LSTM
from dl4jlegacy.nn.layers.normalization import BatchNormalization, LocalResponseNormalization
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.layers.subsampling import GlobalPoolingLayer, Subsampling1DLayer, SubsamplingLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.schedules import (
    ExponentialSchedule,
    InverseSchedule,
    MapSchedule,
    PolySchedule,
    SigmoidSchedule,
    StepSchedule,
    TorchStepSchedule,
)
from dl4jlegacy.nn.optimization.updaters import UPDATERS, AdaGrad, Adam, AMSGrad, Nesterovs, Sgd
from dl4jlegacy.nn.optimization.weights import NormalDistribution, UniformDistribution
from dl4jlegacy.nn.vertices.combine import MergeVertex
from tests.support import DATA

GOLDEN = DATA / "dl4j"
MODELS = sorted(path.stem for path in GOLDEN.glob("*.zip"))


def configuration(*layers: object, **conf: object) -> MultiLayerConfiguration:
    return MultiLayerConfiguration(conf=NeuralNetConfiguration(**conf), layers=tuple(layers))


def small(**fields: object) -> MultiLayerConfiguration:
    return configuration(
        DenseLayer(n_in=4, n_out=6, **{"activation": "tanh", **fields}),
        OutputLayer(n_in=6, n_out=3, activation="softmax"),
        updater=Adam(learning_rate=0.05),
        seed=9,
    )


def trained(conf: MultiLayerConfiguration, steps: int = 3) -> MultiLayerNetwork:
    network = MultiLayerNetwork(conf)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(8, network.n_in)).astype(network.params.dtype)
    labels = np.eye(network.n_out, dtype=x.dtype)[np.arange(8) % network.n_out]
    for step in range(steps):
        network.fit_batch(x, labels, iteration=step, stream=Stream.of(step))
    network.iteration = steps
    return network


def assert_same(a: MultiLayerNetwork, b: MultiLayerNetwork) -> None:
    assert a.conf == b.conf
    assert a.iteration == b.iteration
    assert a.params.dtype == b.params.dtype
    np.testing.assert_array_equal(a.params, b.params)
    np.testing.assert_array_equal(a.updater_state, b.updater_state)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.zip"
    write_model(trained(small()), path)
    return path


# -- our own files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.9.1", "1.0.0", None])
@pytest.mark.parametrize(
    "conf",
    [
        small(),
        small().replace(conf=NeuralNetConfiguration(dtype="float64", seed=-5)),
        configuration(
            RBM(n_in=4, n_out=5, visible_unit="gaussian", k=3, weight_init="vi"),
            AutoEncoder(n_out=4, corruption_level=0.1, drop_out=0.5),
            OutputLayer(n_out=2, loss="xent", activation="sigmoid", loss_weights=(1.0, 3.0)),
            updater=AMSGrad(schedule=PolySchedule(max_iterations=9)),
        ),
        configuration(OutputLayer(n_in=3, n_out=2, loss="mse", activation="identity"), updater=Sgd(learning_rate=0.1)),
    ],
    ids=["mlp", "float64", "dbn with things DL4J lacks", "no updater state"],
)
def test_a_saved_network_comes_back_exactly(conf: MultiLayerConfiguration, version: str | None, tmp_path: Path) -> None:
    network = trained(conf)
    if version and "rbm" in conf.layers[0].title():  # AMSGrad came when RBMs had gone
        with pytest.raises(ModelError, match=r"cannot take this network: .*leave dl4j_version out"):
            write_model(network, tmp_path / "m.zip", dl4j_version=version)
        version = None
    write_model(network, tmp_path / "m.zip", dl4j_version=version)
    assert_same(restore_multi_layer_network(tmp_path / "m.zip"), network)


def test_training_goes_on_as_if_it_had_not_been_interrupted(model: Path) -> None:
    assert_same(trained(small(), 3), restored := restore_multi_layer_network(model))
    whole = trained(small(), 3)
    x, labels = np.ones((2, 4), np.float32), np.eye(3, dtype=np.float32)[:2]
    for network in (whole, restored):
        network.fit_batch(x, labels, iteration=network.iteration, stream=Stream.of(7))
    np.testing.assert_array_equal(whole.params, restored.params)


def test_equal_networks_give_equal_files_and_nothing_else_is_left(model: Path, tmp_path: Path) -> None:
    write_model(trained(small()), tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == model.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["again.zip", "model.zip"]


def test_the_updater_can_be_left_out_on_either_side(model: Path, tmp_path: Path) -> None:
    assert not restore_multi_layer_network(model, load_updater=False).updater_state.any()
    write_model(trained(small()), tmp_path / "bare.zip", save_updater=False)
    assert not restore_multi_layer_network(tmp_path / "bare.zip").updater_state.any()
    assert "updaterState.bin" not in zipfile.ZipFile(tmp_path / "bare.zip").namelist()


@pytest.mark.parametrize("own", [True, False], ids=["own entry", "as DL4J would keep it"])
@pytest.mark.parametrize("kind", [NormalizerStandardize, NormalizerMinMaxScaler, ImagePreProcessingScaler])
def test_the_normalizer_travels_with_the_model(kind: type, own: bool, tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(3, 2, (20, 4)).astype(np.float32)
    data = DataSet(x, np.ones((20, 3), np.float32))
    normalizer = kind().fit(data)
    path = tmp_path / "m.zip"
    write_model(trained(small()), path, normalizer=normalizer)
    if not own:
        rewrite(path, {"dl4jlegacy.json": None})
    back = restore_normalizer(path)
    np.testing.assert_allclose(back.transform(data).features, normalizer.transform(data).features, rtol=1e-5, atol=1e-6)
    assert not own or back.to_json() == normalizer.to_json()


def test_a_model_without_normalizer_gives_none(model: Path) -> None:
    assert restore_normalizer(model) is None


# -- configuration.json ----------------------------------------------------------------------------------------------


def layer_variants() -> list[MultiLayerConfiguration]:
    confs = [small(activation=name) for name in names.ACTIVATIONS]
    confs += [configuration(DenseLayer(n_in=2, n_out=2), OutputLayer(n_out=2), updater=u()) for u in UPDATERS.values()]
    schedules = [
        ExponentialSchedule(gamma=0.9),
        InverseSchedule(gamma=0.1, power=2.0),
        StepSchedule(decay_rate=0.5, steps=3.0),
        SigmoidSchedule(gamma=-0.5, steps=3),
        PolySchedule(max_iterations=7, power=2.0),
        MapSchedule(values={0: 0.3, 5: 0.1, 20: 0.01}),
    ]
    confs += [small(updater=Sgd(learning_rate=0.3, schedule=schedule)) for schedule in schedules]
    losses = ("cosine_proximity", "hinge", "kl_divergence", "l1", "l2", "mse", "poisson", "squared_hinge", "xent")
    confs += [configuration(OutputLayer(n_in=2, n_out=2, loss=loss)) for loss in losses]
    confs += [
        small(updater=Nesterovs(momentum=0.5, momentum_after={0: 0.5, 4: 0.9})),
        small(gradient_normalization="clip_l2_per_param_type", gradient_normalization_threshold=0.5),
        small(weight_init="distribution", dist=UniformDistribution(lower=-0.1, upper=0.2)),
        small(weight_init="distribution", dist=NormalDistribution(std=0.1), l1=0.1, l2_bias=0.2, drop_out=0.7),
        small(weight_init="var_scaling_normal_fan_in", bias_init=0.5, name="first"),
        configuration(AutoEncoder(n_in=3, n_out=2), OutputLayer(n_out=2), updater=AdaGrad(epsilon=1e-3)),
        configuration(RBM(n_in=3, n_out=2, hidden_unit="rectified", sparsity=0.1), OutputLayer(n_out=2)),
    ]
    return [*confs, image_variant(), sequence_variant()]


def image_variant() -> MultiLayerConfiguration:
    """One of each layer for images."""
    layers = (
        ZeroPaddingLayer(padding=(1, 0, 2, 1)),
        ConvolutionLayer(n_out=4, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), activation="relu"),
        BatchNormalization(decay=0.8, eps=1e-4, is_minibatch=False),
        SubsamplingLayer(kernel_size=(2, 2), stride=(1, 1), pooling_type="pnorm", pnorm=3),
        FrozenLayer(ConvolutionLayer(n_out=4, kernel_size=(2, 2), convolution_mode="same", activation="relu")),
        LocalResponseNormalization(n=3, alpha=0.1),
        ActivationLayer(activation="softsign"),
        DropoutLayer(drop_out=0.5),
        GlobalPoolingLayer(pooling_type="avg"),
        DenseLayer(n_out=5, activation="tanh"),
        CenterLossOutputLayer(n_out=3, activation="softmax", alpha=0.1, lambda_=0.01),
    )
    return MultiLayerConfiguration(layers=layers, input_type=InputType.convolutional_flat(8, 9, 2))


def sequence_variant() -> MultiLayerConfiguration:
    """One of each layer for sequences that has no memory."""
    layers = (
        ZeroPadding1DLayer(padding=(1, 2)),
        Convolution1DLayer(n_out=4, kernel_size=3, dilation=2, activation="relu"),
        Subsampling1DLayer(kernel_size=2, stride=2),
        GlobalPoolingLayer(),
        LossLayer(loss="mse", activation="sigmoid"),
    )
    return MultiLayerConfiguration(layers=layers, input_type=InputType.recurrent(3), backprop_type="truncated_bptt")


@pytest.mark.parametrize("version", ["0.9.1", "1.0.0"])
@pytest.mark.parametrize(
    "conf", layer_variants(), ids=lambda conf: f"{conf.layers[0].title()}-{zlib.crc32(conf.to_json().encode())}"
)
def test_a_configuration_survives_dl4js_json(conf: MultiLayerConfiguration, version: str) -> None:
    back = from_dl4j(json.loads(json.dumps(to_dl4j(conf, version=version))))
    named = [layer.__class__.__name__ for layer in back.layers]
    if back.input_pre_processors and isinstance(conf.input_type, InputTypeConvolutionalFlat):
        assert [stage.pre_processor for stage in back.stages()] == [stage.pre_processor for stage in conf.stages()]
    back = back.replace(input_type=conf.input_type)
    for ours, theirs in zip(conf.resolved(), back.resolved(), strict=True):
        for field in ours.__struct_fields__:
            if field != "name" or ours.name:
                assert getattr(theirs, field) == getattr(ours, field), (named, field)


def test_torchs_steps_are_plain_steps_in_1_0_0() -> None:
    conf = small(updater=Nesterovs(schedule=TorchStepSchedule(decay_rate=0.5, steps=4)))
    assert from_dl4j(to_dl4j(conf)).layers[0].updater == conf.layers[0].updater
    schedule = from_dl4j(to_dl4j(conf, version="1.0.0")).layers[0].updater.schedule
    assert schedule == StepSchedule(decay_rate=0.5, steps=4.0)


@pytest.mark.parametrize("name", MODELS)
def test_a_file_of_the_real_dl4j_answers_as_it_did_there(name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    network = restore_multi_layer_network(GOLDEN / f"{name}.zip")
    m, dtype = 5, network.params.dtype
    x = np.linspace(-1, 1, m * network.n_in).reshape(m, -1).astype(dtype)
    labels = np.eye(network.n_out, dtype=dtype)[np.arange(m) % network.n_out]
    np.testing.assert_allclose(network.params, golden["params"], rtol=1e-6)
    np.testing.assert_allclose(network.output(x).ravel(), golden["output"], atol=1e-6)
    assert network.iteration == 3
    if "updater_state" in golden:
        np.testing.assert_allclose(network.updater_state, golden["updater_state"], rtol=1e-6)
    if name != "mlp_091":  # 0.9.1 divides the L2 penalty by the number of examples, 1.0.0 and we do not
        assert network.score(DataSet(x, labels)) == pytest.approx(golden["score"], abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_json_of_the_real_dl4j_comes_out_as_it_went_in(name: str) -> None:
    """What we write holds every field that DL4J wrote, with the same value, but for those that it ignores itself."""
    tree = json.loads(zipfile.ZipFile(GOLDEN / f"{name}.zip").read("configuration.json"))
    version = "0.9.1" if name.endswith("091") else "1.0.0"
    ours = to_dl4j(from_dl4j(tree), iteration=3, version=version)
    ignored = {"validateOutputLayerConfig", "timeDistributedFormat", "helperAllowFallback"}
    if version == "0.9.1":
        ignored |= {"epsilon", "momentum", "adamMeanDecay", "adamVarDecay", "updater"}  # iupdater says it again
        ignored |= set() if name.startswith(("mlp", "dbn")) else {"l1", "l1ByParam"}  # useRegularization is false

    def check(theirs: object, mine: object, where: str) -> None:
        if isinstance(theirs, dict) and isinstance(mine, dict):
            for key in theirs.keys() - ignored:
                if theirs[key] is not None or mine.get(key) is not None:
                    assert key in mine, f"{where}.{key}"
                    check(theirs[key], mine[key], f"{where}.{key}")
        elif isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
            for i, (left, right) in enumerate(zip(theirs, mine, strict=True)):
                check(left, right, f"{where}[{i}]")
        else:
            assert theirs == mine, where

    check(tree, ours, "")


@pytest.mark.parametrize("kind", ["standardize", "min_max", "image"])
def test_a_normalizer_of_the_real_dl4j_is_read_and_written_alike(kind: str) -> None:
    raw = (GOLDEN / f"normalizer_{kind}_m21.bin").read_bytes()
    normalizer = read_normalizer(raw)
    x = np.linspace(-1, 1, 20).reshape(5, 4)
    if kind == "standardize":
        np.testing.assert_allclose(normalizer.mean, x.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(normalizer.std, x.std(axis=0), rtol=1e-5)
    elif kind == "min_max":
        assert (normalizer.min_range, normalizer.max_range) == (-1.0, 2.0)
        np.testing.assert_allclose(normalizer.max, x.max(axis=0), rtol=1e-6)
    assert read_normalizer(write_normalizer(normalizer)).to_json() == normalizer.to_json()
    for stop in range(len(raw)):
        with pytest.raises(ModelError):
            read_normalizer(raw[:stop])


@pytest.mark.parametrize("kind", ["standardize", "min_max"])
def test_a_normalizer_that_scales_labels_too_is_refused(kind: str) -> None:
    raw = (GOLDEN / f"normalizer_{kind}_m21.bin").read_bytes()
    flag = raw.index(kind.upper().encode()) + len(kind)
    assert raw[flag] == 0
    with pytest.raises(ModelError, match=r"also scales labels \(fitLabel\)"):
        read_normalizer(raw[:flag] + b"\1" + raw[flag + 1 :])


LAYERS = "org.deeplearning4j.nn.conf.layers."


def golden_tree() -> dict:
    return json.loads(zipfile.ZipFile(GOLDEN / "mlp_m21.zip").read("configuration.json"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("confs"), "no list 'confs'"),
        (lambda t: t["confs"].append(7), "no list 'confs'"),
        (lambda t: t.update(inputPreProcessors={"0": {}}), "inputPreProcessors"),
        (lambda t: t["confs"][0]["layer"].update({"@class": LAYERS + "MagicLayer"}), "confs.0..layer is a Magic"),
        (lambda t: t["confs"][0]["layer"].update({"@class": LAYERS + "ConvolutionLayer"}), "without kernelSize"),
        (lambda t: t["confs"][0].update(layer=3), "confs.0..layer does not say its type"),
        (lambda t: t["confs"][0]["layer"].update(nin=0), "nin is 0"),
        (lambda t: t["confs"][0]["layer"].update(nout=7), "n_out=7 but layer 1"),
        (lambda t: t["confs"][1]["layer"].update(biasInit="a lot"), "biasInit is 'a lot'"),
        (lambda t: t["confs"][1]["layer"].update(magic=0.5), r"confs\[1\].layer.magic is 0.5; this is not known"),
        (lambda t: t["confs"][1]["layer"].update(timeDistributedFormat="NWC"), "timeDistributedFormat is NWC"),
        (lambda t: t["confs"][1]["layer"]["activationFn"].update(negativeSlope=0.2), "negativeSlope = 0.2"),
        (lambda t: t["confs"][1]["layer"].update(activationFn={"Blub": {}}), "activation 'Blub' is not known"),
        (lambda t: t["confs"][2]["layer"].update(lossFn={"@class": "org.nd4j.LossFMeasure"}), "loss 'LossFMeasure'"),
        (
            lambda t: t["confs"][1]["layer"]["iupdater"].update({"@class": "org.nd4j.Magic"}),
            "updater 'Magic' is not known",
        ),
        (lambda t: t["confs"][0]["layer"]["iupdater"].update(beta1=2.0), "beta1 is 2.0"),
        (lambda t: t["confs"][0]["layer"]["iupdater"].update(beta1=[]), "Expected `float`"),
        (lambda t: t["confs"][0].update(dataType="UTF8"), "dataType is 'UTF8'"),
    ],
)
def test_what_is_unknown_in_a_foreign_configuration_is_named(change: Callable[[dict], object], message: str) -> None:
    tree = golden_tree()
    change(tree)
    with pytest.raises(ModelError, match=message):
        from_dl4j(tree)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda t: t["confs"][0]["layer"].update({"@class": "com.example.DenseLayer"}), "confs[0].layer.@class"),
        (lambda t: t["confs"][0]["layer"].update({"@class": "DenseLayer"}), "confs[0].layer.@class"),
        (
            lambda t: t["confs"][1]["layer"]["activationFn"].update({"@class": "com.example.ActivationTanH"}),
            "confs[1].layer.activationFn.@class",
        ),
        (
            lambda t: t["confs"][2]["layer"]["lossFn"].update({"@class": "com.example.LossMCXENT"}),
            "confs[2].layer.lossFn.@class",
        ),
        (
            lambda t: t["confs"][0]["layer"]["iupdater"].update({"@class": "com.example.Adam"}),
            "confs[0].layer.iupdater.@class",
        ),
        (
            lambda t: t.update(inputPreProcessors={"1": {"@class": "com.example.ZeroMeanPrePreProcessor"}}),
            "inputPreProcessors[1].@class",
        ),
    ],
)
def test_a_class_of_somebodys_own_is_named_with_its_place(change: Callable[[dict], object], place: str) -> None:
    """Though it is called like one of Deeplearning4j's."""
    tree = golden_tree()
    change(tree)
    with pytest.raises(ModelError, match=rf"{re.escape(place)} is '.*', a class of somebody's own"):
        from_dl4j(tree)


def test_a_vertex_of_somebodys_own_is_named_with_its_place() -> None:
    vertex = {"@class": "com.example.MergeVertex"}
    tree = {"networkInputs": ["in"], "networkOutputs": ["v"], "vertices": {"v": vertex}, "vertexInputs": {"v": ["in"]}}
    with pytest.raises(ModelError, match=r"vertices\.v\.@class is 'com\.example\.MergeVertex', a class of somebody's"):
        graph_from_dl4j({**tree, "defaultConfiguration": {"dataType": "FLOAT"}})


def test_a_file_of_the_first_betas_is_named(caplog: pytest.LogCaptureFixture) -> None:
    tree = golden_tree()
    for conf in tree["confs"]:
        del conf["dataType"]
    with caplog.at_level(logging.WARNING):
        from_dl4j(tree)
    assert "confs[0].dataType is missing: the file is of 1.0.0-beta to 1.0.0-beta3" in caplog.text


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (Convolution1DLayer(n_out=3, kernel_size=2), "one-dimensional convolution keeps its weights"),
        (Subsampling1DLayer(kernel_size=3, padding=1), "pooling counts padding"),
    ],
)
def test_layers_of_the_first_betas_that_may_answer_otherwise_are_refused(layer: object, what: str) -> None:
    conf = configuration(layer, GlobalPoolingLayer(), OutputLayer(n_out=2)).replace(input_type=InputType.recurrent(4))
    tree = to_dl4j(conf, version="1.0.0")
    from_dl4j(tree)
    for each in tree["confs"]:
        del each["dataType"]
    with pytest.raises(
        ModelError, match=rf"confs\[0\]\.layer is of a version whose {what}.*1\.0\.0-beta to 1\.0\.0-beta3"
    ):
        from_dl4j(tree)


def test_what_only_training_would_miss_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    tree = golden_tree()
    tree["confs"][0]["layer"]["constraints"] = [{"@class": "org.deeplearning4j.nn.conf.constraint.MaxNormConstraint"}]
    with caplog.at_level(logging.WARNING):
        from_dl4j(tree)
    assert "confs[0].layer: constraints is left out" in caplog.text


# -- bad files -------------------------------------------------------------------------------------------------------


def rewrite(path: Path, changes: dict[str, bytes | None]) -> None:
    """Replace entries of a zip (None: drop)."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()} | changes
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            if data is not None:
                archive.writestr(name, data)


def test_a_file_cut_short_at_any_byte_is_a_model_error(model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    cut = tmp_path / "cut.zip"
    for stop in range(0, len(whole), 7):
        cut.write_bytes(whole[:stop])
        with pytest.raises(ModelError, match=r"cut\.zip"):
            restore_multi_layer_network(cut)


def test_a_damaged_byte_gives_the_same_model_or_a_model_error(model: Path, tmp_path: Path) -> None:
    whole, network = model.read_bytes(), restore_multi_layer_network(model)
    damaged_file = tmp_path / "damaged.zip"
    for position in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        damaged_file.write_bytes(damaged)
        try:
            restored = restore_multi_layer_network(damaged_file)
        except ModelError:
            continue
        np.testing.assert_array_equal(restored.params, network.params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coefficients.bin": None}, r"coefficients\.bin is missing"),
        ({"coefficients.bin": b"garbage"}, "ends early|not an ND4J"),
        ({"configuration.json": None, "dl4jlegacy.json": None}, r"configuration\.json is missing"),
        ({"dl4jlegacy.json": b"{"}, "is not JSON"),
        ({"dl4jlegacy.json": b"[1]"}, "JSON list instead of an object"),
        ({"dl4jlegacy.json": b'{"format": 99}'}, "format 99.*upgrade"),
        ({"dl4jlegacy.json": b'{"format": 1, "configuration": {"layerz": []}}'}, "layerz"),
        ({"dl4jlegacy.json": b"[" * 100_000}, "is not JSON"),
        ({"../evil.txt": b"x"}, "points outside"),
        ({"/etc/evil": b"x"}, "points outside"),
        ({f"entry{i}": b"" for i in range(300)}, "entries"),
        ({"bomb": bytes(300 << 20)}, "zip bomb"),
    ],
)
def test_a_wrong_entry_is_named(model: Path, changes: dict[str, bytes | None], message: str) -> None:
    rewrite(model, changes)
    with pytest.raises(ModelError, match=message) as caught:
        restore_multi_layer_network(model)
    assert str(model) in str(caught.value) and caught.value.exit_status == 8


def test_coefficients_of_another_network_are_refused(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.zip"
    write_model(trained(small(name="wide").replace(layers=(DenseLayer(n_in=4, n_out=9), OutputLayer(n_out=3)))), other)
    larger = zipfile.ZipFile(other).read("coefficients.bin")
    smaller = zipfile.ZipFile(model).read("coefficients.bin")
    rewrite(model, {"coefficients.bin": larger})
    rewrite(other, {"coefficients.bin": smaller})
    for path in (model, other):
        with pytest.raises(ModelError, match=r"holds (75|51) float32 numbers, the configuration .* needs (51|75)"):
            restore_multi_layer_network(path)


def test_a_diverged_model_is_refused(tmp_path: Path) -> None:
    network = trained(small())
    network.params[3] = np.nan
    write_model(network, tmp_path / "nan.zip")
    with pytest.raises(ModelError, match="NaN or infinity"):
        restore_multi_layer_network(tmp_path / "nan.zip")


def test_a_missing_file_a_folder_and_a_foreign_file_say_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        restore_multi_layer_network(tmp_path / "none.zip")
    with pytest.raises(ModelError, match="cannot be read"):
        restore_multi_layer_network(tmp_path)
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(ModelError, match="no model at all"):
        restore_multi_layer_network(tmp_path / "text.zip")


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model.read_bytes()

    def full(source: object, target: object, **folders: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ModelError, match="No space left"):
        write_model(trained(small(), 1), model)
    assert model.read_bytes() == before and os.listdir(tmp_path) == ["model.zip"]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        write_model(trained(small()), tmp_path / "missing" / "model.zip")


def test_a_copy_made_by_dl4j_keeps_working_without_our_entry(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.zip"
    shutil.copy(model, copy)
    rewrite(copy, {"dl4jlegacy.json": None})
    network, restored = restore_multi_layer_network(model), restore_multi_layer_network(copy)
    np.testing.assert_array_equal(network.params, restored.params)
    np.testing.assert_array_equal(network.updater_state, restored.updater_state)
    assert restored.iteration == 3


@pytest.mark.parametrize("kind", ["feed_forward", "recurrent"])
def test_the_size_of_an_input_beside_others_in_a_merge_follows_from_what_reads_it(kind: str, tmp_path: Path) -> None:
    """No file of Deeplearning4j says it."""
    of = getattr(InputType, kind)
    builder = NeuralNetConfiguration.builder().seed(7).activation("tanh").graph_builder().add_inputs("a", "b")
    below = LSTM(n_out=5) if kind == "recurrent" else DenseLayer(n_out=5)
    end = RnnOutputLayer(n_out=2) if kind == "recurrent" else OutputLayer(n_out=2)
    builder.add_layer("d", below, "a").add_vertex("v", MergeVertex(), "d", "b", "a").add_layer("out", end, "v")
    network = ComputationGraph(builder.set_outputs("out").set_input_types(of(4), of(3)).build())
    write_model(network, tmp_path / "m.zip", dl4j_version="1.0.0")
    rewrite(tmp_path / "m.zip", {"dl4jlegacy.json": None})
    back = restore_computation_graph(tmp_path / "m.zip")
    assert [each.size for each in back.input_types] == [4, 3]
    x = [np.ones((2, size, 3)[: 3 if kind == "recurrent" else 2], np.float32) for size in (4, 3)]
    np.testing.assert_array_equal(back.outputs(*x), network.outputs(*x))
