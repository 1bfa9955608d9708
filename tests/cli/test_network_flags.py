"""Flags of ``dl4j train`` about the network: what they change, and where they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_multi_layer_network
from dl4jlegacy.nn.optimization.schedules import CosineSchedule
from dl4jlegacy.nn.optimization.updaters import AdamW
from tests.cli.conftest import CommandLine

SHORT = ("train", "--dataset", "iris", "--epochs", "2")


def test_they_say_what_a_models_network_is_and_how_it_learns(dl4j: CommandLine, here: Path) -> None:
    flags = ("--hidden", "7,5", "--drop-out", "0.9", "--updater", "adam", "--learning-rate", "0.02")
    dl4j(*SHORT, "--model", "mlp", *flags, "--schedule", "cosine:0.1", "--weight-decay", "3", "--out", "m.zip")
    network = restore_multi_layer_network("m.zip").conf
    assert [(layer.n_out, layer.drop_out) for layer in network.resolved()] == [(7, 0), (5, 0.9), (3, 0.9)]
    updater = network.conf.updater
    assert isinstance(updater, AdamW) and isinstance(updater.schedule, CosineSchedule)
    assert (updater.learning_rate, updater.weight_decay, updater.schedule.warm_up) == (0.02, 3, 0.1)


def test_those_about_layers_are_refused_for_a_network_in_a_file(dl4j: CommandLine, here: Path) -> None:
    Path("conf.json").write_text(f'{{"multi_layer_conf": {zoo.mlp(4, 3).to_json()}}}')
    for flag, value in (("--hidden", "7,5"), ("--drop-out", "0.5")):
        error = dl4j(*SHORT, "conf.json", flag, value, fails=3)
        assert f"{flag} {value} is for ready models, and the network of this run is given layer by layer" in error
    dl4j(*SHORT, "conf.json", "--hidden", "7,5", "--model", "mlp")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--model", "dbn", "--weight-decay", "0.1"),
            "the weight decay is 0.1, and AdaGrad has none; leave it out, or",
        ),
        (("--updater", "none", "--schedule", "linear"), "the schedule is 'linear', and NoOp has no learning rate"),
        (("--model", "vae", "--drop-out", "0.5"), "model 'vae' has no hidden units to drop"),
        (("--schedule", "cosine:2"), "schedule 'cosine:2': '2' is no part of a run, from 0 to below 1"),
    ],
)
def test_those_that_do_not_fit_each_other_say_what_to_do(
    dl4j: CommandLine, here: Path, flags: tuple[str, ...], words: str
) -> None:
    assert words in dl4j(*SHORT, *flags, fails=3)


def test_the_variable_of_one_is_named_where_its_value_is_wrong(
    dl4j: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DL4J_DROP_OUT", "20%")
    assert "DL4J_DROP_OUT is '20%'; it must be a number from 0 to 1" in dl4j(*SHORT, fails=2)
