"""Whatever command takes a path: one that looks like S3's is taken there or refused, and never a folder here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from dl4jlegacy.cli import main
from dl4jlegacy.scaleout.conf import Conf

GRID = ("--tracker", "hazelcast://127.0.0.1:1", "--zookeeper", "127.0.0.1:1")
IRIS = ("--dataset", "iris", "--epochs", "1")
UP = ("aws", "up", "digits", "--allow", "203.0.113.7", "--dry-run", "--out", "s3://bucket/m.zip")
FILES = ("--data-dir", "--checkpoint-dir", "--out", "--schema", "--tensorboard")
COMMANDS = [
    ("logs", "@"),
    ("plot", "@", "--out", "curves.svg"),
    ("plot", "folder", "--out", "@"),
    ("dashboard", "@"),
    ("stats", "@"),
    *(("stats", "folder", flag, "@") for flag in ("--html", "--trace")),
    ("summary", "@"),
    ("summary", "mlp", "--dataset", "@"),
    ("summary", "mlp", "--svg", "@"),
    ("train", "@"),
    ("train", "conf.json"),
    ("train", "--dataset", "@"),
    *(("train", *IRIS, flag, "@") for flag in FILES),
    ("master", "@", *GRID),
    ("master", "conf.json", *GRID),
    ("master", "--dataset", "@", *GRID),
    *(("master", *IRIS, *GRID, flag, "@") for flag in FILES),
    ("worker", *GRID[2:], "--data-dir", "@"),
    ("doctor", "--data-dir", "@"),
    *(("tune", *words) for words in (("@",), ("conf.json",), ("conf.json", "--storage", "@"))),
    *(("tune", "conf.json", flag, "@") for flag in ("--out", "--out-conf", "--plot")),
    ("resume", "@"),
    ("resume", "@", *GRID),
    ("resume", "run", "--data-dir", "@"),
    ("resume", "run", "--out", "@"),
    ("resume", "run", "--tensorboard", "@"),
    ("evaluate", "@"),
    ("evaluate", "mlp", "--dataset", "@"),
    ("evaluate", "mlp", "--data-dir", "@"),
    ("evaluate", "mlp", "--dataset", "iris", "--scores", "@"),
    ("export", "@", "--out", "model.zip"),
    ("export", "folder", "--out", "@"),
    ("predict", "@", "file"),
    ("predict", "mlp", "@"),
    ("predict", "mlp", "file", "--out", "@"),
    ("generate", "@", "--seed-text", "a"),
    *(("reconstruct", *words) for words in (("@", "file", "--out", "x.png"), ("mlp", "@", "--out", "x.png"))),
    *(("reconstruct", "mlp", "file", flag, "@") for flag in ("--out", "--data-dir")),
    ("serve", "@", "--port", "0"),
    ("serve", "mlp", "--port", "0", "--token-file", "@"),
    *(("sample", *words) for words in (("@", "--out", "x.png"), ("mlp", "--out", "@"))),
    ("data", "inspect", "table.csv", "--out", "@"),
    *(("services", command, "--folder", "@") for command in ("up", "status", "down")),
    (*UP[:-1], "@"),
    *((*UP, flag, "@") for flag in ("-wscript", "-mscript", "--wheel", "--requirements")),
    (*UP, "-kp", "pair", "-kpath", "@"),
    *(("aws", command, "digits", "-kpath", "@") for command in ("status", "scale", "ssh", "logs")),
]
PATHS = {"CONF", "DIR", "DIR|FILE", "FILE", "MODEL", "MODEL...", "RUN|DIR", "S3"}
"""The metavars of what takes a path; ``--dataset`` takes one beside names."""
QUIET = {("aws", "ssh"), ("aws", "logs")}
"""They have no ``--format``."""


def takers(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every command with the name of each of its parameters that takes a path."""
    for name, below in getattr(command, "commands", {}).items():
        yield from takers(below, (*words, name))
    for parameter in getattr(command, "params", ()):
        if parameter.metavar in PATHS or "--dataset" in parameter.opts:
            yield words, parameter.opts[0]


def test_every_command_that_takes_a_path_is_tried() -> None:
    tried = set()
    for command in COMMANDS:
        at = command.index("@") if "@" in command else command.index("conf.json")
        words = command[:2] if command[0] in ("aws", "services", "data") else command[:1]
        before = command[at - 1]
        tried.add((words, before if before.startswith("-") and before not in GRID else at - len(words)))
    for words, option in takers(typer.main.get_command(main.declared())):
        assert (words, option) in tried or (not option.startswith("-") and (words, 0) in tried), (words, option)


@pytest.mark.parametrize("path", ["s3:/x", pytest.param("S3://bucket/x", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=[pytest.mark.long] * (each[0] == "aws"), id=" ".join(each)) for each in COMMANDS],
)
def test_a_path_that_is_nearly_one_in_s3_is_refused_and_nothing_is_written(
    command: tuple[str, ...], path: str, tmp_path: Path, no_network: None, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "conf.json").write_text(Conf(dataset="iris", epochs=1, checkpoint_dir=path).to_json())
    words = [path if word == "@" else word for word in command]
    with pytest.raises(SystemExit) as leave:
        main.main([*words, *([] if command[:2] in QUIET else ["--format", "json"])])
    said = "".join(capsys.readouterr())
    assert leave.value.code in (1, 2, 3, 6, 8), said
    assert "Traceback" not in said
    assert [each.name for each in tmp_path.rglob("*")] == ["conf.json"]
