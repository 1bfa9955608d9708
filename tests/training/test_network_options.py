"""What a user says about the network of a new run, and the networks with that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn import MultiLayerNetwork
from dl4jlegacy.nn.optimization.schedules import CosineSchedule, LinearSchedule
from dl4jlegacy.nn.optimization.updaters import AdaDelta, AdaGrad, Adam, AdamW, Nesterovs, Sgd
from dl4jlegacy.nn.zoo import ZOO, for_regression, mlp
from dl4jlegacy.training.network_options import NONE_GIVEN, NetworkOptions, run_schedule, trained_by, with_options

SIZES = {"lenet": (784, 10), "alexnet-small": (64, 10), "char-lstm": (24, 8), "deep-autoencoder": (64, 64)}
WITHOUT_HIDDEN_UNITS = "vae"


def built(model: str, **given: Any) -> Any:
    options = NetworkOptions(**given)
    network = ZOO[model].build(*SIZES.get(model, (64, 8)), seed=5, **options.for_builder())
    return with_options(network, options, model=model)


def test_what_is_not_given_changes_nothing() -> None:
    assert NONE_GIVEN.given() == NONE_GIVEN.for_builder() == {}
    for model in ZOO:
        assert built(model) == ZOO[model].build(*SIZES.get(model, (64, 8)), seed=5)
    assert with_options(mlp(4, 3), NONE_GIVEN) == mlp(4, 3)
    assert NetworkOptions(drop_out=0, hidden=(3,)).given() == {"drop_out": 0, "hidden": (3,)}


@pytest.mark.parametrize("model", sorted(ZOO.keys() - {WITHOUT_HIDDEN_UNITS}))
def test_drop_out_is_the_share_of_hidden_units_that_is_kept_and_spares_the_input(model: str) -> None:
    kept = [layer.drop_out for layer in built(model, drop_out=0.75).resolved()]
    assert kept[0] == 0 and kept[-1] == 0.75 and set(kept) == {0, 0.75}
    for off in (0, 1):
        assert not any(layer.drop_out for layer in built(model, drop_out=off).resolved())


@pytest.mark.parametrize("model", ["mlp", "dbn"])
def test_drop_out_counts_in_training(model: str) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random((6, 64), np.float32), np.eye(8, dtype=np.float32)[:6]

    def trained(**given: Any) -> bytes:
        network = MultiLayerNetwork(built(model, hidden=(6,), updater="sgd", **given).replace(pretrain=False))
        network.fit(x, y, epochs=2)
        return bytes(network.params.tobytes())

    assert trained() == trained(drop_out=1) != trained(drop_out=0.5)


def test_drop_out_also_reaches_the_output_of_a_regression() -> None:
    options = NetworkOptions(drop_out=0.5, hidden=(7,))
    network = for_regression(ZOO["mlp"], mlp(4, 1, **options.for_builder()))
    assert [layer.drop_out for layer in with_options(network, options, model="mlp").resolved()] == [0, 0.5]


def test_a_model_without_hidden_units_to_drop_refuses_drop_out() -> None:
    with pytest.raises(ConfError, match=r"drop-out is 0\.8, and model 'vae' has no hidden units to drop; leave it out"):
        built(WITHOUT_HIDDEN_UNITS, drop_out=0.8)


@pytest.mark.parametrize("model", ZOO)
def test_hidden_sizes_are_those_of_the_models_hidden_layers(model: str) -> None:
    network = built(model, hidden=(9, 7))
    sizes = [layer.n_out for layer in network.layers] + [
        size for layer in network.layers for size in getattr(layer, "encoder_layer_sizes", ())
    ]
    assert {9, 7} <= set(sizes)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("constant", None),
        ("linear", LinearSchedule()),
        ("cosine", CosineSchedule()),
        ("linear:0", LinearSchedule()),
        ("cosine:0.05", CosineSchedule(warm_up=0.05)),
    ],
)
def test_a_schedule_is_named_with_its_warm_up(text: str, schedule: Any) -> None:
    assert run_schedule(text) == schedule
    assert trained_by(Sgd(schedule=LinearSchedule()), NetworkOptions(schedule=text)) == Sgd(schedule=schedule)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cosin", r"unknown schedule 'cosin'; did you mean 'cosine'\?"),
        ("", "unknown schedule ''; known: constant, cosine, linear"),
        ("cosine:", r"schedule 'cosine:': '' is no part of a run, from 0 to below 1, .*give for instance cosine:0\.05"),
        ("linear:1", r"schedule 'linear:1': '1' is no part of a run"),
        ("linear:-0.1", "'-0.1' is no part of a run"),
        ("cosine:nan", "'nan' is no part of a run"),
        ("cosine:five", "'five' is no part of a run"),
        ("constant:0.1", r"a constant rate has no warm-up; give constant, or cosine:0\.1"),
    ],
)
def test_a_wrong_schedule_is_found_before_there_is_a_network(text: str, words: str) -> None:
    with pytest.raises(ConfError, match=words):
        NetworkOptions(schedule=text)


def test_an_unknown_updater_is_found_before_there_is_a_network() -> None:
    with pytest.raises(ConfError, match=r"unknown updater 'adagrat'; did you mean 'adagrad'\?"):
        NetworkOptions(updater="adagrat")


def test_weight_decay_makes_adamw_of_adam_and_keeps_its_other_settings() -> None:
    settings: Any = {"learning_rate": 0.1, "beta1": 0.8, "schedule": LinearSchedule()}
    decayed = AdamW(**settings, weight_decay=0.3)
    assert trained_by(Adam(**settings), NetworkOptions(weight_decay=0.3)) == decayed
    assert trained_by(decayed, NetworkOptions(weight_decay=0.2)) == AdamW(**settings, weight_decay=0.2)
    assert trained_by(decayed, NetworkOptions(weight_decay=0)) == AdamW(**settings, weight_decay=0)
    assert trained_by(Sgd(), NetworkOptions(updater="adam", weight_decay=0.2)) == AdamW(weight_decay=0.2)


@pytest.mark.parametrize("updater", [Adam(), Sgd(), AdaDelta()])
def test_no_weight_decay_suits_every_updater(updater: Any) -> None:
    assert trained_by(updater, NetworkOptions(weight_decay=0)) == updater


@pytest.mark.parametrize("updater", [AdaGrad(), Nesterovs(), AdaDelta()])
def test_an_updater_without_decay_refuses_it_and_names_the_one_that_has_it(updater: Any) -> None:
    words = rf"the weight decay is 0\.01, and {type(updater).__name__} has none; leave it out, or give --updater adamw"
    with pytest.raises(ConfError, match=words):
        trained_by(updater, NetworkOptions(weight_decay=0.01))


def test_an_updater_without_a_rate_refuses_a_schedule() -> None:
    with pytest.raises(ConfError, match="the schedule is 'linear', and AdaDelta has no learning rate; leave it out"):
        trained_by(Sgd(), NetworkOptions(updater="adadelta", schedule="linear"))


def test_a_network_that_only_pretrains_refuses_a_schedule() -> None:
    with pytest.raises(ConfError, match="the schedule is 'cosine', and the network is only pretrained"):
        built("vae", schedule="cosine")
    assert built("vae", schedule="constant") == built("vae")


def test_a_given_network_takes_another_updater_and_keeps_its_layers() -> None:
    options = NetworkOptions(updater="adam", learning_rate=0.5, schedule="linear", weight_decay=0.1)
    changed = with_options(mlp(4, 3), options)
    assert changed.conf.updater == AdamW(learning_rate=0.5, schedule=LinearSchedule(), weight_decay=0.1)
    assert changed.layers == mlp(4, 3).layers


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hidden": (256, 128)}, "--hidden 256,128 is for ready models, .* write n_out into its layers"),
        (
            {"drop_out": 0.0},
            r"--drop-out 0\.0 is for ready models, .* write drop_out into its layers, or give a --model",
        ),
    ],
)
def test_a_given_network_says_itself_what_its_layers_are(given: Any, words: str) -> None:
    with pytest.raises(ConfError, match=words):
        with_options(mlp(4, 3), NetworkOptions(**given))
