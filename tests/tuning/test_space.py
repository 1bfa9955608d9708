"""What a search may vary, and what is refused when it is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.optimization.updaters import Adam, Sgd
from dl4jlegacy.nn.zoo import select
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.tuning import SearchSpace, read_search

LEARNING_RATE = "updater.learning_rate"


def conf() -> Conf:
    network = select("mlp").build(4, 3, seed=1)
    assert isinstance(network, MultiLayerConfiguration)
    return Conf(multi_layer_conf=network, dataset="iris", model="mlp")


def check(found: Conf) -> None:
    assert found.network_conf is not None
    found.network_conf.validate()


def fitted(written: Any) -> SearchSpace:
    return SearchSpace.of(written).fitted_to(conf(), check)


def test_whole_numbers_stay_whole_and_others_do_not() -> None:
    space = fitted(
        {
            LEARNING_RATE: {"low": "1e-4", "high": 1, "log": True},
            "layers[0].n_out": {"low": 16, "high": 64, "step": 16},
            "epochs": {"low": 1, "high": 2},
            "layers[1].drop_out": {"low": 0.5, "high": 1},
            "batch_size": ["8", 16],
            "multi_layer_conf.conf.updater": ["adam", {"type": "Sgd", "learning_rate": 0.5}],
        }
    )
    assert space.distributions() == {
        "epochs": IntDistribution(1, 2),
        "batch_size": CategoricalDistribution([8, 16]),
        "multi_layer_conf.conf.updater": CategoricalDistribution(["adam", '{"type": "Sgd", "learning_rate": 0.5}']),
        LEARNING_RATE: FloatDistribution(1e-4, 1, log=True),
        "layers[0].n_out": IntDistribution(16, 64, step=16),
        "layers[1].drop_out": FloatDistribution(0.5, 1),
    }


def test_what_is_drawn_is_in_the_conf_and_nothing_else_changes() -> None:
    before = conf()
    space = fitted({"updater": ["sgd", "adam"], LEARNING_RATE: {"low": 0.01, "high": 1}, "batch_size": [8, 16]})
    drawn = {"updater": "sgd", LEARNING_RATE: 0.25, "batch_size": 16}
    after = space.apply(before, drawn)
    assert after.network_conf is not None and before.network_conf is not None
    assert (after.network_conf.conf.updater, after.batch_size) == (Sgd(learning_rate=0.25), 16)
    assert space.values(drawn) == drawn
    back = after.network_conf.conf.replace(updater=before.network_conf.conf.updater)
    assert after.replace(multi_layer_conf=after.network_conf.replace(conf=back), batch_size=32) == before


def test_the_start_is_the_conf_as_it_is_or_nothing() -> None:
    rate = {"low": 1e-4, "high": 1e-1, "log": True}
    assert fitted({LEARNING_RATE: rate, "updater": ["sgd", "adam"], "batch_size": [8, 32]}).start(conf()) == {
        LEARNING_RATE: Adam().learning_rate,
        "updater": "adam",
        "batch_size": 32,
    }
    assert fitted({LEARNING_RATE: {"low": 0.5, "high": 1}}).start(conf()) is None
    assert fitted({"batch_size": {"low": 1, "high": 34, "step": 3}}).start(conf()) is None  # 31 is no multiple of 3
    assert fitted({"updater": [{"type": "Adam", "learning_rate": 0.5}]}).start(conf()) is None


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({}, "search is {}; give fields by path"),
        ([1], r"search is \[1\]; give fields by path"),
        ({"updatr.learning_rate": [1]}, "search.updatr.learning_rate: unknown field 'updatr'; did you mean 'updater'?"),
        ({"updater.lerning_rate": [1]}, "'lerning_rate'.*did you mean 'learning_rate'"),
        ({"layers[0].nout": [1]}, "'nout'.*did you mean 'n_out'"),
        ({"layers[3].n_out": [1]}, r"layers has no \[3\]; it has 3, counted from 0"),
        ({"layers.n_out": [1]}, "layers has no 'n_out'"),
        ({"layers[0].foo.bar": [1]}, "has no 'foo' to look into"),
        ({"layers[0]n_out": [1]}, "is no path of a field"),
        ({"layers[0].n_out": ["many"]}, "cannot be 'many': Expected `int`, got `str`"),
        ({"layers[0].n_out": {"low": 0.5, "high": 2}}, "cannot be 0.5: Expected `int`, got `float`"),
        ({"layers[0].n_out": {"low": 1, "high": 9, "step": 0.5}}, "step 0.5; the field takes whole numbers only"),
        ({"batch_size": {"low": 0, "high": 9}}, "cannot be 0: Conf.batch_size is 0; it must be at least 1"),
        ({"batch_size": {"low": 9, "high": 9}}, "search.batch_size is empty: low is 9 and high is 9"),
        ({"batch_size": {"low": 9, "high": 8}}, "search.batch_size is empty: low is 9 and high is 8"),
        ({"batch_size": {"low": 1, "high": 8, "step": 9}}, "step 9; from 1 to 8 it must be above 0, and at most 7"),
        ({"batch_size": {"low": 1, "high": 8, "step": 3}}, "from 1 to 8, which is no multiple of step 3"),
        ({"batch_size": {"low": 1, "high": 8, "stop": 9}}, "unknown field 'stop'; did you mean 'step'?"),
        ({"batch_size": {"low": 1}}, "missing required field `high`"),
        ({"batch_size": {"low": 1, "high": "many"}}, "search.batch_size: Expected"),
        ({"batch_size": 3}, "search.batch_size is 3; give {low: ..., high: ...}, or a list of choices"),
        ({"batch_size": []}, "search.batch_size has no choices"),
        ({"batch_size": [8, 8]}, "search.batch_size has the choice 8 twice"),
        ({LEARNING_RATE: {"low": 0, "high": 1, "log": True}}, "has log and low 0; a logarithm needs a low above 0"),
        ({LEARNING_RATE: {"low": 1, "high": 2, "log": True, "step": 1}}, "has log and step 1; leave one of them out"),
        ({LEARNING_RATE: {"low": 1, "high": float("inf")}}, "goes from 1 to inf; both must be finite"),
        ({"updater": ["adm"]}, "unknown updater 'adm'; did you mean 'adam'?"),
        ({"updater": ["adam", "adadelta"], LEARNING_RATE: [1]}, "cannot be 1: unknown field 'learning_rate'"),
        ({"batch_size": [1], "multi_layer_conf.conf.l2": [0], "l2": [0]}, "are the same field; leave one out"),
        ({"dataset": ["iris"]}, "search.dataset: dataset is the same for all trials"),
        ({"validation.metric": ["loss"]}, "search.validation.metric: validation is the same for all trials"),
        ({"images.height": [8]}, "search.images.height: images is the same for all trials"),
        ({"seed": [1, 2]}, "search.seed: seed is the same for all trials"),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(written: Any, message: str) -> None:
    with pytest.raises(ConfError, match=message.replace("{}", r"\{\}").replace("{low", r"\{low").replace("?", r"\?")):
        fitted(written)


def test_a_file_is_a_conf_with_a_section(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("model: mlp\nepochs: 3\nsearch: {updater.learning_rate: {low: 1e-4, high: 1e-1, log: true}}\n")
    found, given, space = read_search(file)
    assert (found, given) == (Conf(model="mlp", epochs=3), {"model", "epochs"})
    assert space.fitted_to(conf(), check).distributions() == {LEARNING_RATE: FloatDistribution(1e-4, 1e-1, log=True)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "model: mlp", "there is no section search"),
        ("a.yaml", "modl: mlp\nsearch: {epochs: [1]}", "unknown field 'modl' at .*did you mean 'model'"),
        ("a.yaml", "search: [", "this is no YAML"),
        ("a.json", "{", "this is no JSON"),
        ("a.json", "[]", "Expected `object`, got `array`"),
        ("a.json", '{"search": {"epochs": [1, 1]}}', "search.epochs has the choice 1 twice"),
        ("none.yaml", None, "cannot be read: No such file"),
    ],
)
def test_a_wrong_file_is_named(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfError, match=f"{re.escape(str(tmp_path / name))}.*{message}"):
        read_search(tmp_path / name)
