"""What every command prints with ``--format json`` is of its published schema; a command without one fails here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import jsonschema
import msgspec
import pytest
import typer.main

from dl4jlegacy import MultiLayerNetwork, write_model
from dl4jlegacy.cli import main
from dl4jlegacy.cli.commands import inspect
from dl4jlegacy.cli.commands.schema import schema_of
from dl4jlegacy.cli.outputs.structs import OUTPUTS
from dl4jlegacy.cli.terminal import watch
from dl4jlegacy.cluster.runs import FoundRun, Grid
from dl4jlegacy.datasets import Reading
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.doctor.check import Check, failed
from dl4jlegacy.nn.zoo import char_lstm
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.monitor import ClusterMonitor
from dl4jlegacy.scaleout.monitoring.run_state import RunFacts
from dl4jlegacy.scaleout.persistence.journal import Journal, JournalFile
from dl4jlegacy.scaleout.state.records import WorkerRecord
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.services.servers import Services, ServicesState
from dl4jlegacy.storage.folders import LocalFolder
from dl4jlegacy.training.prepare import Report, train
from tests.cli.test_tune import CONF
from tests.scaleout.test_monitor import Leadership

GRID = ("--tracker", "hazelcast://127.0.0.1:1", "--zookeeper", "127.0.0.1:1")
TRAIN = ("train", "--dataset", "iris", "--epochs", "1", "--workers", "2", "--validation", "0.2")

Dl4j = Callable[..., str]


def checked(command: str, printed: str) -> dict[str, Any]:
    """Return the object that a command has printed, which is one of its schema's, and no other.

    An object that lacks one of its fields, or has one more, is refused: the schema says something.
    """
    found: dict[str, Any] = json.loads(printed)
    validator = jsonschema.Draft202012Validator(schema_of(command))
    validator.validate(found)
    required = [name for name in found if name != "error"]
    assert not validator.is_valid({**found, "more": 1})
    assert required and not validator.is_valid({k: v for k, v in found.items() if k not in (required[0], "error")})
    return found


def with_format(group: click.Group, path: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        words = f"{path} {name}".strip()
        if hasattr(command, "commands"):
            yield from with_format(command, words)
        elif any("--format" in parameter.opts for parameter in command.params):
            yield words


# -- one run, of which most commands have something to say -------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a run was trained that keeps all there is to keep; its report is in ``report.json``."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        printed: list[str] = []
        patch.setattr("dl4jlegacy.cli.terminal.progress.emit", printed.append)
        keeps = ("--checkpoint-dir", "run", "--collect-training-stats", "--out", "model.zip", "--format", "json")
        with pytest.raises(SystemExit) as left:
            main.main([*TRAIN, *keeps])
    assert not left.value.code
    (folder / "report.json").write_text(printed[0])
    table = Path(__file__).parents[2] / "dl4jlegacy/datasets/data/iris.csv"
    shutil.copy(table, folder / "iris.csv")
    rows = table.read_text().splitlines()
    (folder / "rows.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows) + "\n")
    (folder / "conf.yaml").write_text(CONF)
    return folder


@pytest.fixture
def there(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


LOCAL: dict[str, tuple[tuple[str, ...], ...]] = {
    "resume": (("resume", "run"),),
    "evaluate": (("evaluate", "model.zip", "--dataset", "iris"),),
    "predict": (
        ("predict", "model.zip", "rows.csv"),
        ("predict", "model.zip", "rows.csv", "--out", "predictions.txt"),
    ),
    "tune": (("tune", "conf.yaml", "--trials", "1", "--workers", "1"),),
    "export": (
        ("export", "run", "--out", "exported.zip"),
        ("export", "run", "--out", "exported.zip", "--best"),
        ("export", "exported.zip", "--out", "again.safetensors"),
    ),
    "summary": (("summary", "lenet"), ("summary", "mlp", "--dataset", "iris", "--svg", "mlp.svg")),
    "data inspect": (("data", "inspect", "iris.csv"), ("data", "inspect", "iris.csv", "--out", "schema.json")),
    "data validate": (("data", "validate", "iris.csv"),),
    "logs": (("logs", "run", "--history"),),
    "stats": (("stats", "run"),),
    "plot": (("plot", "run", "--out", "curves.svg"),),
    "explain": (("explain",), ("explain", "DL4J-TRACKER"), ("explain", "DL4J-MODEL-LOST")),
    "warm-up": (("warm-up", "mlp"),),
    "schema": (("schema",), ("schema", "data", "inspect")),
}


@pytest.mark.parametrize(
    ("command", "words"), [(name, words) for name, each in LOCAL.items() for words in each], ids=" ".join
)
def test_a_command_prints_what_its_schema_says(command: str, words: tuple[str, ...], there: Path, dl4j: Dl4j) -> None:
    checked(command, dl4j(*words, "--format", "json"))


def test_a_training_prints_its_report(trained: Path) -> None:
    found = checked("train", (trained / "report.json").read_text())
    assert found["best"]["figures"]["accuracy"] > 0 and "cluster" not in found


OTHER = {
    "several labels": (
        "a,b,wet,cold\n" + "".join(f"{i % 7},{i % 5},{i % 2},{int(i % 3 > 0)}\n" for i in range(60)),
        ("--multi-label", "--label", "wet,cold"),
    ),
    "a number": ("a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 7 + 0.5}\n" for i in range(60)), ("--regression",)),
}


@pytest.mark.parametrize("kind", OTHER)
def test_what_else_a_model_may_say_is_of_the_schema(kind: str, here: Path, dl4j: Dl4j) -> None:
    table, options = OTHER[kind]
    Path("table.csv").write_text(table)
    columns = 2
    Path("rows.csv").write_text("\n".join(",".join(row.split(",")[:columns]) for row in table.splitlines()) + "\n")
    words = ("train", "table.csv", *options, "--epochs", "1", "--workers", "1", "--out", "m.zip", "--format", "json")
    checked("train", dl4j(*words))
    checked("evaluate", dl4j("evaluate", "m.zip", "--dataset", "table.csv", "--format", "json"))
    checked("predict", dl4j("predict", "m.zip", "rows.csv", "--format", "json"))
    checked("data inspect", dl4j("data", "inspect", "table.csv", *options, "--format", "json"))


def test_texts_and_images_that_models_make_are_of_the_schema(here: Path, dl4j: Dl4j) -> None:
    network = MultiLayerNetwork(char_lstm(24, 3, hidden=(8,)))
    network.init()
    write_model(network, here / "text.zip", label_names=tuple("abc"), reading=Reading(text=TextReader()))
    checked("generate", dl4j("generate", "text.zip", "--seed-text", "ab", "--length", "5", "--format", "json"))
    images = ("train", "--model", "vae", "--dataset", "digits", "--epochs", "1", "--pretrain-epochs", "1")
    dl4j(*images, "--workers", "1", "--out", "vae.zip")
    checked("reconstruct", dl4j("reconstruct", "vae.zip", "digits", "--out", "grid.png", "--format", "json"))
    checked("sample", dl4j("sample", "vae.zip", "--out", "grid.png", "--rows", "2", "--format", "json"))


def test_servers_of_models_and_pages_say_where_they_are(there: Path, dl4j: Dl4j, monkeypatch) -> None:
    monkeypatch.setattr("dl4jlegacy.serving.server.ModelServer.wait", lambda server: None)
    assert checked("serve", dl4j("serve", "model.zip", "--port", "0", "--format", "json"))["models"]
    monkeypatch.setattr("dl4jlegacy.ui.server.Dashboard.serve", lambda dashboard: None)
    assert checked("dashboard", dl4j("dashboard", "run", "--port", "0", "--format", "json"))["run"]


@pytest.mark.parametrize("needed", [False, True])
def test_a_preflight_is_of_the_schema_with_and_without_its_error(needed: bool, monkeypatch, capsys) -> None:
    found = failed("nothing is there", "put something there")
    check = Check(name="one", area="all", look=lambda settings: found, is_needed=lambda settings: needed)
    monkeypatch.setattr("dl4jlegacy.doctor.all_checks", lambda: (check,))
    with pytest.raises(SystemExit):
        main.main(["doctor", "--format", "json"])
    said = checked("doctor", capsys.readouterr().out)
    assert said["failed"] == 1 and ("error" in said) == needed


def test_data_that_are_refused_have_an_error_besides(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.csv").write_text("a,b,label\n1,2,x\n3,oops,y\n1,2,x\n4,,y\n")
    with pytest.raises(SystemExit) as left:
        main.main(["data", "validate", "bad.csv", "--format", "json"])
    found = checked("data validate", capsys.readouterr().out)
    assert bool(left.value.code) == ("error" in found)
    assert found["files"][0]["problems"]


# -- clusters, without servers: what the commands ask is answered here, what they print is theirs ----------------------


@pytest.fixture
def led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InMemoryStateTracker:
    """A tracker in which ``dl4j master`` leads its run, with workers in this process."""
    tracker = InMemoryStateTracker()

    def run_master(run: Any, data: Any, address: object, options: Any) -> Report:
        monitor = ClusterMonitor(
            run.conf,
            tracker,
            source="host-1-0123abcd",
            definitions={"plan": msgspec.to_builtins(run.plan)},
            leadership=Leadership(),
            takes_over=False,
            folder=LocalFolder(tmp_path / "run"),
        )
        with monitor:
            report = train(replace(run, local_workers=2), data, tracker=tracker, monitor=monitor, progress=False)
            monitor.journal.write("job_failed", worker="w-0", round=1, slot=0, attempt=1, message="m", traceback="t")
            monitor.end()
        return report

    monkeypatch.setattr("dl4jlegacy.cluster.master.run_master", run_master)
    monkeypatch.setattr("dl4jlegacy.cluster.address.find_conf", lambda address, **given: Conf(run="r"))
    monkeypatch.setattr("dl4jlegacy.cluster.address.open_tracker", lambda *given, **more: tracker)
    monkeypatch.setattr(tracker, "shutdown", lambda: None)
    return tracker


MASTER = ("master", *TRAIN[1:], *GRID, "--format", "json")


def test_a_master_reports_with_what_came_of_the_cluster(led: InMemoryStateTracker, dl4j: Dl4j) -> None:
    found = checked("master", dl4j(*MASTER))
    assert found["cluster"]["jobs"] > 0 and found["cluster"]["workers"][0]["jobs"] > 0


def test_a_standby_that_was_not_needed_says_so(led: InMemoryStateTracker, dl4j: Dl4j, monkeypatch) -> None:
    monkeypatch.setattr("dl4jlegacy.cluster.master.stand_by", lambda *given, **more: None)
    assert checked("master", dl4j("master", "--standby", *GRID[2:], "--format", "json"))["standby"]


def test_status_and_journal_are_those_of_a_run(
    led: InMemoryStateTracker, dl4j: Dl4j, monkeypatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspect, "_candidates", lambda address: ({"host": "h", "pid": 1}, [{"host": "b", "pid": 2}]))
    place = ("--zookeeper", "127.0.0.1:1", "--format", "json")
    before = checked("status", dl4j("status", *place))
    assert (before["state"], before["status"]) == ("waiting", None)
    dl4j(*MASTER)
    led.add_worker(WorkerRecord(id="host-1-0123abcd-0", host="host", pid=1, device="gpu:0"))
    status = checked("status", dl4j("status", *place))
    assert (
        (status["state"], status["status"]) == ("ended", "done")
        and status["workers"]
        and status["failures"]
        and status["head"]
    )
    checked("logs", dl4j("logs", str(tmp_path / "run"), "--format", "json"))
    assert JournalFile(LocalFolder(tmp_path / "run")).read() and Journal.read(led)
    assert checked("logs", dl4j("logs", *place))["entries"]
    followed = [json.loads(line) for line in dl4j("logs", "--follow", *place).splitlines()]
    assert followed and "run_began" in {each["event"] for each in followed}
    for each in followed:
        jsonschema.Draft202012Validator(schema_of("logs")).validate(each)
    answers = iter([before, {**status, "state": "running"}, inspect.TrackerError("away"), None])

    def look() -> dict[str, Any] | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch.watch(look, every=0.001, close=lambda: None, as_json=True)
    seen = [checked("status", line) for line in capsys.readouterr().out.splitlines()]
    assert len(seen) >= 4 and any(each["away"] for each in seen) and seen[-1]["over"]


def test_runs_are_listed_as_the_schema_says(dl4j: Dl4j, monkeypatch: pytest.MonkeyPatch) -> None:
    known = FoundRun(
        "r",
        "0123",
        Grid("127.0.0.1:5701"),
        "master",
        "127.0.0.1:2181",
        Conf(run="r", checkpoint_dir="/runs/r"),
        RunFacts(status="running"),
        "",
        3,
        2,
        9,
        1.0,
        100,
        {"host": "h", "pid": 1},
        standing="live",
    )
    monkeypatch.setattr("dl4jlegacy.cluster.runs.find_runs", lambda *given: [known, FoundRun("", "", id="other")])
    found = checked("runs", dl4j("runs", *GRID, "--format", "json"))
    assert [each["registered"] for each in found["runs"]] == [True, False]


def test_servers_are_shown_as_the_schema_says(dl4j: Dl4j, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = ServicesState(cluster_name="dev", folder=str(tmp_path))
    monkeypatch.setattr(Services, "up", lambda **given: state)
    monkeypatch.setattr(Services, "status", lambda folder: state)
    monkeypatch.setattr(Services, "down", lambda folder: ["zookeeper"])
    for name in ("up", "status", "down"):
        checked(f"services {name}", dl4j("services", name, "--format", "json"))


# -- clouds ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cloud(aws_environment: object, dl4j: Dl4j) -> Callable[..., dict[str, Any]]:
    return lambda *words: checked(f"aws {words[0]}", dl4j("aws", *words, "--format", "json"))


@pytest.mark.long
def test_clusters_in_a_cloud_are_shown_as_the_schema_says(cloud, image: str, tmp_path: Path) -> None:
    wheel = tmp_path / "dl4jlegacy-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    up = ("up", "digits", "--allow", "203.0.113.7", "--out", "s3://models-of-mine/m.zip", "-ami", image)
    assert cloud(*up, "--dry-run", "--wheel", str(wheel))["dry_run"]
    assert cloud(*up, "-w", "2", "--no-wait", "--wheel", str(wheel), "--ttl", "90m")["price"]
    assert cloud("join", "digits", "--allow", "2001:db8::7")["boxes"]
    assert cloud("status", "digits")["owner"]
    assert len(cloud("scale", "digits", "-w", "1", "--no-wait")["boxes"]) >= 2
    assert cloud("reap", "--dry-run", "--all")["clusters"]
    assert cloud("down", "digits")["removed"]
    assert cloud("price", "--standby")["witness"]


CLOUD_TESTED = {"aws up", "aws join", "aws status", "aws scale", "aws reap", "aws down", "aws price"}
MADE = {"generate", "reconstruct", "sample", "serve", "dashboard", "doctor"}
TESTED = {*LOCAL, *MADE, "train", "master", "status", "runs", "services up", "services status", "services down"}


# -- all of them -------------------------------------------------------------------------------------------------------


def test_every_command_that_prints_json_has_a_schema_and_is_tried() -> None:
    commands = set(with_format(typer.main.get_group(main.declared())))
    assert commands == set(OUTPUTS)
    assert commands == TESTED | CLOUD_TESTED


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_schema_is_a_schema_and_has_an_object_for_a_failure(command: str, dl4j: Dl4j, capsys) -> None:
    schema = dl4j.json("schema", *command.split())
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(SystemExit) as left:
        main.main([*command.split(), "--nonsense", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert left.value.code == found["error"]["exit"] == 2
    jsonschema.Draft202012Validator(schema).validate(found)


def test_a_command_without_a_schema_is_named(dl4j: Dl4j) -> None:
    assert "there is no schema of 'trian'; did you mean 'train'?" in dl4j("schema", "trian", fails=2)
    assert dl4j("schema").splitlines() == list(OUTPUTS)
