"""``actor-network-runner``: the flags of 2014, their defaults, and runs with them."""

from __future__ import annotations

import pytest

from dl4jlegacy import load_model
from dl4jlegacy.cli.commands import legacy
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.optimization.updaters import AdaGrad, Sgd
from tests.support.progress_lines import without_progress

SHORT = ("-data", "iris", "-hl", "8", "-fte", "2", "-pte", "1", "-sp", "10")


@pytest.fixture
def runner(capsys):
    """Run the command; return (exit status, stdout, stderr)."""

    def run(*arguments: str):
        with pytest.raises(SystemExit) as leave:
            legacy.main(list(arguments))
        return (leave.value.code or 0, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("flag", "default"),
    [
        *(("a", None), ("i", 0), ("o", 0), ("fte", 100), ("pte", 100), ("r", 123), ("k", 1), ("c", 0.3)),
        *(("ftl", 0.1), ("ptl", 0.1), ("hl", (300, 300, 300)), ("sp", 10), ("data", None), ("datasetpath", None)),
        *(("e", -1), ("adg", True), ("h", "localhost"), ("t", "master"), ("ad", None), ("stp", -1)),
    ],
)
def test_every_flag_has_the_legacy_default(flag, default):
    assert getattr(legacy._parser().parse_args([]), flag) == default


def test_flags_reach_the_network():
    flags = ["-a", "dbn", "-k", "3", "-ptl", "0.2", "-ftl", "0.05", "-hl", "7,6", "-r", "9"]
    conf = legacy._network(legacy._parser().parse_args(flags), 4, 3)
    first, second, output = conf.layers
    assert isinstance(first, RBM)
    assert isinstance(second, RBM)
    assert (first.n_in, first.n_out, second.n_out, output.n_out, first.k) == (4, 7, 6, 3, 3)
    assert first.pretrain_learning_rate == second.pretrain_learning_rate == 0.2
    assert conf.conf.updater == AdaGrad(learning_rate=0.05)
    assert all(layer.updater == AdaGrad(learning_rate=0.05) for layer in conf.resolved())
    assert conf.conf.seed == 9
    sda = legacy._network(legacy._parser().parse_args(["-a", "sda", "-c", "0.5", "-adg", "false", "-hl", "7"]), 4, 3)
    assert isinstance(sda.layers[0], AutoEncoder)
    assert sda.layers[0].corruption_level == 0.5
    assert sda.conf.updater == Sgd(learning_rate=0.1)


@pytest.mark.parametrize("algorithm", ["dbn", "sda", "mlp"])
def test_a_short_run_trains_and_prints_the_evaluation(runner, algorithm):
    status, out, err = runner("-a", algorithm, *SHORT)
    assert status == 0
    assert without_progress(err).splitlines() == [
        "The evaluation is of the held-out fifth of the data: 30 examples, which training never saw",
        "The model was not saved; --out FILE keeps it: add --out model.zip to the command",
    ]
    assert f"{algorithm} on iris" in out
    assert "Accuracy" in out


def test_a_master_keeps_its_model_where_it_is_told(runner, tmp_path):
    status, _, err = runner("-a", "mlp", *SHORT, "--out", str(tmp_path / "model.zip"))
    assert status == 0 and "Evaluate the saved model again" in err
    assert load_model(tmp_path / "model.zip").network.layers[0].n_in == 4


def test_a_worker_takes_the_id_and_the_modules_of_the_environment_or_of_flags(runner, monkeypatch):
    given = []
    monkeypatch.setattr(legacy, "worker", given.append)
    monkeypatch.setattr(legacy, "import_used", lambda modules: given.append(modules))
    monkeypatch.setenv("DL4J_ID", "words")
    monkeypatch.setenv("DL4J_USE", "wordcount")
    assert runner("-t", "worker", "-ad", "127.0.0.1")[0] == 0
    assert runner("-t", "worker", "-ad", "127.0.0.1", "--use", "other", "--stay")[0] == 0
    (first, one, second, two) = given
    assert (first, second) == ("wordcount", "other")
    assert (one.id, one.use, one.stay) == ("words", "wordcount", False)
    assert (two.id, two.use, two.stay) == ("words", "other", True)


def test_data_may_be_named_by_the_java_class_or_be_a_file(runner, tmp_path):
    name = "org.deeplearning4j.datasets.iterator.impl.IrisDataSetIterator"
    assert runner("-a", "mlp", *SHORT, "-data", name, "-e", "40", "-i", "4", "-o", "3")[0] == 0
    (tmp_path / "rows.csv").write_text("\n".join(f"{i},{i % 5},{i % 2}" for i in range(30)))
    assert runner("-a", "mlp", *SHORT[2:], "-datasetpath", str(tmp_path / "rows.csv"))[0] == 0


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        ((), 2, ("-a is missing", "dbn, mlp, sda")),
        (("-a", "dnb", "-data", "iris"), 2, ("-a dnb", "did you mean 'dbn'?")),
        (("-a", "dbn"), 2, ("one of -data and -datasetpath", "neither")),
        (("-a", "dbn", "-data", "iris", "-datasetpath", "x"), 2, ("one of -data and -datasetpath", "both")),
        (("-a", "dbn", "-data", "iriss"), 3, ("'iriss'", "did you mean 'iris'?")),
        (("-a", "dbn", "-data", "iris", "-i", "5"), 3, ("-i 5 does not fit", "have 4")),
        (("-a", "dbn", "-data", "iris", "-sp", "0"), 2, ("-sp", "'0'", "at least 1")),
        (("-a", "dbn", "-data", "iris", "-hl", "5,x"), 2, ("-hl", "'5,x'", "500,250,100")),
        (("-a", "dbn", "-data", "iris", "-adg", "maybe"), 2, ("'maybe' is neither true nor false",)),
        (("-a", "dbn", "-data", "iris", "-ptl", "nan"), 2, ("-ptl", "'nan'")),
        (("-a", "sda", "-data", "iris", "-c", "1"), 3, ("corruption_level=1",)),
        pytest.param(
            ("-t", "worker", "-ad", "127.0.0.9"), 4, ("DL4J-TRACKER", "127.0.0.9:2181"), marks=pytest.mark.long
        ),  # it waits for the server
        (("-t", "worker", "-ad", "h", "-fte", "5", "-stp", "1"), 2, ("-fte, -stp with -t worker", "the master's")),
        (("-t", "worker", "-ad", "a", "-h", "b"), 2, ("-ad and -h both name",)),
        (("-a", "dbn", "-data", "iris", "-ad", "h"), 2, ("-ad h: it tells a worker", "-h")),
        (("-a", "dbn", "-data", "iris", "-h", "h"), 2, ("-h h without -stp", "-stp 5701")),
        (("-t", "slave"), 2, ("-t slave", "master or worker")),
        (("-x",), 2, ("-x",)),
    ],
)
def test_bad_flags_are_named_with_what_is_allowed(runner, flags, status, words):
    code, out, err = runner(*flags)
    assert (code, out) == (status, "")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_help_lists_every_flag(runner, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    status, out, _ = runner("--help")
    assert status == 0
    assert "-datasetpath PATH" in out
    assert max(map(len, out.splitlines())) <= 60
