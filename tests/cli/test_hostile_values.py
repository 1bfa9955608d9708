"""The command line answers every path, size and text: no traceback, no exit 70, nothing that hangs.

Commands are drawn from a grammar: a command, its arguments, and for each a value that is good or hostile.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.cli.options.values import json_object
from dl4jlegacy.errors import UsageError
from dl4jlegacy.nn import MultiLayerNetwork, write_model, zoo

PATHS = (
    "", " ", ".", "..", "/", "~", "~nosuchuser/x", "no/such/file", "x" * 256, "/".join(["y" * 200] * 30), "\udcff.csv",
    "closed/x.csv", "closed", "loop", "pipe", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "a\nb",
    "\x1b[31m",
    "good.csv", "good.zip", "empty", "junk", "folder", "run", "dangling", "names.zip", "twice.zip", "lzma.zip",
    "tree.zip", "idx", "zero", "good.csv/x", "{}", "-", "--", "NUL", "ünï.csv", "\u202e.csv", "wide.csv", "conf.json",
    "huge.json", "text.json", "many.yaml", "header.csv",
)  # fmt: skip
NUMBERS = (
    "0",
    "1",
    "-1",
    "1_000",
    "\uff11\uff12",
    "1e3",
    "nan",
    "inf",
    "",
    " ",
    "9" * 30,
    "1000000000000",
    "2",
    "0x10",
    "\udcff",
    "\u0663",
)
FOREIGN = '{"vertices": {"a": 1}, "networkInputs": [1, {}], "vertexInputs": 3}'
FORMATS = ("text", "json", "xml", "")
SECONDS_A_COMMAND = 60


def hostile_files(folder: Path) -> None:
    """Fill a folder with everything that a path can lead to."""
    (folder / "closed").mkdir(mode=0)
    for name in ("folder", "run", "idx", "zero"):
        (folder / name).mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    texts = {
        "empty": "",
        "junk": "\x00\xff" * 99,
        "good.csv": "1,2,0\n3,4,1\n" * 9,
        "wide.csv": "1_0,2,0\n\uff11,4,1\n",
        "header.csv": "NA,NA,NA\n" + "1,2,0\n3,4,1\n" * 9,
        "conf.json": "{}",
        "run/conf.json": "{}",
        "text.json": '{"run": "\\ud800"}',
        "many.yaml": "[" * 2000,
        "huge.json": '{"layers": [{"type": "dense", "n_in": 2, "n_out": 1000000000000}]}',
    }
    for name, content in texts.items():
        (folder / name).write_text(content, encoding="utf-8")
    for part in ("train", "t10k"):
        for name, dims in (("images-idx3-ubyte", bytes([0, 0, 8, 65])), ("labels-idx1-ubyte", bytes([0, 0, 8, 1]))):
            (folder / "idx" / f"{part}-{name}").write_bytes(dims + bytes(4 * dims[3]))
            (folder / "zero" / f"{part}-{name}").write_bytes(
                bytes([0, 0, 8, min(3, dims[3])]) + bytes(4 * min(3, dims[3]))
            )
    network = MultiLayerNetwork(zoo.mlp(2, 2, hidden=(2,)))
    for name, labels in (("good", ("a", "\x1b[31mb")), ("names", ("a",)), ("twice", ("a", "a"))):
        write_model(network, folder / f"{name}.zip", label_names=labels)
    with zipfile.ZipFile(folder / "lzma.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("configuration.json", "{}" * 999)
    damaged = bytearray((folder / "lzma.zip").read_bytes())
    damaged[60:80] = bytes(20)
    (folder / "lzma.zip").write_bytes(damaged)
    with zipfile.ZipFile(folder / "tree.zip", "w") as archive:
        archive.writestr("configuration.json", FOREIGN)


def commands(draw: random.Random) -> Iterator[list[str]]:
    """Yield commands without end."""

    def path(*good: str) -> str:
        return draw.choice(good) if good and draw.random() < 0.5 else draw.choice(PATHS)

    def number(good: str = "2") -> str:
        return good if draw.random() < 0.7 else draw.choice(NUMBERS)

    train = ["train", "--epochs", "1"]
    forms = (
        lambda: ["predict", path("good.zip", "names.zip"), path("good.csv")],
        lambda: [
            "evaluate",
            path("good.zip"),
            "--dataset",
            path("good.csv"),
            "--split",
            draw.choice(("test", "all", "x")),
        ],
        lambda: ["summary", path("good.zip", "huge.json"), "--svg", path("s.svg"), "--batch-size", number()],
        lambda: ["summary", draw.choice(("mlp", "lenet", "huge.json")), "--dataset", path("good.csv")],
        lambda: ["resume", path("run"), "--workers", number(), "--out", path("m.zip")],
        lambda: ["train", path("conf.json", "text.json"), "--epochs", number("1"), "--batch-size", number("9")],
        lambda: [*train, "--dataset", path("good.csv"), "--out", path("m.zip"), "--learning-rate", number("0.1")],
        lambda: [*train, "--dataset", "good.csv", "--checkpoint-dir", path("new"), "--workers", number()],
        lambda: [*train, "--dataset", "mnist", "--data-dir", path("idx")],
        lambda: [*train, "--dataset", "good.csv", "--batch-size", number(), "--seed", number()],
        lambda: ["logs", path("run")],
        lambda: [path("predict", "logs"), path()],
    )
    while True:
        yield [*draw.choice(forms)(), "--format", draw.choice(FORMATS[:2] * 9 + FORMATS)]


def run(command: list[str]) -> tuple[int, str, str]:
    """Run a command in this process with at most 20 seconds; return exit status, stdout and stderr."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"{command} takes more than {SECONDS_A_COMMAND} s")

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS_A_COMMAND)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as leave:
            main.main(command)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="backslashreplace"))  # type: ignore[attr-defined]
    return int(leave.value.code or 0), texts[0], texts[1]


def sweep(folder: Path, seed: int, count: int) -> Counter[int]:
    """Run so many commands in a folder of hostile files; return how many ended with each exit status."""
    statuses: Counter[int] = Counter()
    for command, _ in zip(commands(random.Random(seed)), range(count), strict=False):
        status, out, err = run(command)
        assert status != 70, f"{command}: {err}"
        assert "Traceback" not in err, f"{command}: {err}"
        assert "\x1b" not in out + err, f"{command}: {out}{err}"
        assert Path("/dev/null").is_char_device()
        assert (folder / "pipe").is_fifo(), f"{command} replaced the pipe"
        statuses[status] += 1
    print(f"{count} hostile commands, by exit status: {dict(sorted(statuses.items()))}")
    return statuses


@pytest.fixture
def hostile(tmp_path, monkeypatch, no_network):
    hostile_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "folder"))
    for name in [name for name in os.environ if name.startswith("DL4J_")]:
        monkeypatch.delenv(name)
    yield tmp_path
    (tmp_path / "closed").chmod(0o700)


def test_a_few_dozen_hostile_commands_are_answered(hostile):
    assert sum(sweep(hostile, 0, 40).values()) == 40


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.release)])
def test_hundreds_of_hostile_commands_are_answered(hostile, seed):
    assert sum(sweep(hostile, seed, 100).values()) == 100


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (["predict", "names.zip", "good.csv"], 8, "1 label name, 1 different, for 2 outputs"),
        (["predict", "twice.zip", "good.csv"], 8, "2 label names, 1 different"),
        (["predict", "lzma.zip", "good.csv"], 8, "lzma.zip"),
        (["predict", "tree.zip", "good.csv"], 8, "tree.zip"),
        (["predict", "~nosuchuser/m.zip", "good.csv"], 8, "no home folder for ~nosuchuser"),
        (["predict", "pipe", "good.csv"], 8, "device, pipe or socket"),
        (["train", "--dataset", "pipe"], 3, "device, pipe or socket"),
        (["train", "--dataset", "loop"], 3, "symbolic links"),
        (["train", "--dataset", "x" * 256], 3, "File name too long"),
        (["train", "--dataset", "idx"], 3, "not an IDX file"),
        (["train", "--dataset", "zero"], 3, "is empty"),
        (["train", "--dataset", "wide.csv"], 3, "'1_0' is not a number"),
        (["train", "--workers", "1_0"], 2, "--workers is '1_0'"),
        (["train", "--workers", "\uff11\uff12"], 2, "--workers is"),
        (["resume", "run"], 8, "is no run's"),
        (["resume", "."], 8, "is no run's"),
        (["train", "many.yaml"], 3, "nested more than 100 deep"),
        (["train", "huge.json"], 3, "huge.json"),
    ],
)
def test_each_is_told_what_is_wrong_with_what(hostile, command, status, words):
    found, _, err = run(command)
    assert (found, words in err) == (status, True), err


def test_a_row_that_may_be_an_example_and_is_taken_for_a_header_is_told(hostile):
    _, _, err = run(["train", "--dataset", "header.csv", "--epochs", "1"])
    assert "header.csv, line 1 is taken for a header, not for an example: 'NA', 'NA', 'NA'" in err


def test_names_in_a_model_do_not_command_the_terminal(hostile):
    (hostile / "x.csv").write_text("1,2\n-3,4\n5,-6\n")
    _, out, _ = run(["predict", "good.zip", "x.csv"])
    assert "\x1b" not in out


def test_an_object_with_bytes_that_are_no_utf_8_is_refused() -> None:
    """As Python hands over such a word of a command line."""
    with pytest.raises(UsageError, match="give a JSON object"):
        json_object("--router-args", '{"a": "\udce4"}')
