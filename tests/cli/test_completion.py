"""Shell completion, through the protocols of the shells: commands, options, and what an option can be."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import typer.main

from dl4jlegacy.cli import main
from dl4jlegacy.cli.commands.explanations import EXPLANATIONS
from dl4jlegacy.cli.options import completion
from dl4jlegacy.datasets.sources import NAMES
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.optimization.updaters import UPDATERS
from dl4jlegacy.scaleout.strategies import STRATEGIES
from dl4jlegacy.training.network_options import SCHEDULES
from tests.support import REPOSITORY

Complete = Callable[[str], list[str]]


def words_of(shell: str, printed: str) -> list[str]:
    """What a shell makes of an answer in its own format."""
    if shell == "zsh":
        return [] if printed.strip() == "_files" else re.findall(r'(?m)(?:^|\()"([^"]+)"', printed)
    return [line.split("\t")[0] for line in printed.splitlines() if line]


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys) -> Complete:
    """Answers what a shell asks at TAB after a command line."""
    shell = request.param

    def ask(line: str) -> list[str]:
        words = line.split(" ")
        variables = {
            "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
            "zsh": {"_TYPER_COMPLETE_ARGS": line},
            "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }[shell]
        monkeypatch.setenv("COLUMNS", "80")  # to be put back after what the command does to it
        for name, value in {**variables, "_DL4J_COMPLETE": f"complete_{shell}"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            main.main([])
        assert left.value.code == 0
        out, err = capsys.readouterr()
        assert err == ""
        return words_of(shell, out)

    return ask


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("dl4j pl", ["plot"]),
        ("dl4j sta", ["status", "stats"]),
        ("dl4j aws st", ["status"]),
        ("dl4j train --upd", ["--updater"]),
        ("dl4j train --updater adam", ["adam", "adamw", "adamax"]),
        ("dl4j train --model ", list(zoo.ZOO)),
        ("dl4j train --router e", ["easgd"]),
        ("dl4j master --device ", ["cpu", "gpu", "auto"]),
        ("dl4j status --format ", ["text", "json"]),
        ("dl4j plot --over ", ["examples", "rounds", "seconds"]),
        ("dl4j explain DL4J-TR", ["DL4J-TRACKER", "DL4J-TRAINING"]),
        ("dl4j train --checkpoint-dir ", []),
        ("dl4j train --nonsense ", []),
        ("dl4j master --schedule ", ["constant", "linear", "cosine"]),
    ],
)
@pytest.mark.everyday(8)
def test_a_shell_is_told_what_can_come_next(complete: Complete, line: str, found: list[str]) -> None:
    assert complete(line) == found


def test_all_commands_are_offered(complete: Complete) -> None:
    assert complete("dl4j ") == list(main.FAMILIES)


def test_what_is_offered_is_what_there_is() -> None:
    assert tuple(zoo.ZOO) == completion.MODELS
    assert set(UPDATERS) == set(completion.UPDATERS)
    assert tuple(SCHEDULES) == completion.SCHEDULES
    assert tuple(STRATEGIES) == completion.ROUTERS
    assert tuple(NAMES) == completion.DATASETS
    assert all(each.code.startswith("DL4J-") for each in EXPLANATIONS)


def options(group: click.Group, path: str = "dl4j") -> Iterator[tuple[str, click.Parameter]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from options(command, f"{path} {name}")
        else:
            yield from ((f"{path} {name}", parameter) for parameter in command.params if parameter.metavar)


def test_every_value_that_is_offered_is_taken() -> None:
    tried, group = 0, typer.main.get_group(main.declared())
    context = group.make_context("dl4j", ["runs"], resilient_parsing=True)
    for command, parameter in options(group):
        for value in completion.values_of(parameter.opts[0], parameter.metavar):
            parameter.process_value(context, value)
            tried += 1
        if parameter.metavar == "text|json":
            assert completion.values_of(parameter.opts[0], parameter.metavar) == ("text", "json"), command
    assert tried > 100


def test_the_script_for_bash_completes(tmp_path: Path) -> None:
    """The function that is shown, called as bash calls it."""
    called = tmp_path / "dl4j"
    called.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dl4jlegacy "$@"\n')
    called.chmod(0o755)
    script = (
        'eval "$(_DL4J_COMPLETE=source_bash dl4j)"; complete -p dl4j; '
        "COMP_WORDS=(dl4j train --updater ada); COMP_CWORD=3; _dl4j_completion dl4j; echo ${COMPREPLY[@]}"
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == [
        "complete -o default -F _dl4j_completion dl4j",
        "adagrad adam adamw adamax adadelta adabelief",
    ], done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_installing_writes_where_the_shell_looks(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dl4j
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: shell)
    assert f"{shell} completion installed in {tmp_path}" in dl4j("--install-completion")
    first = {each: each.read_text() for each in tmp_path.rglob("*") if each.is_file()}
    assert any("_DL4J_COMPLETE=complete_" in text for text in first.values())
    dl4j("--install-completion")
    assert {each for each in tmp_path.rglob("*") if each.is_file()} == set(first)


def test_a_shell_that_is_not_known_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, dl4j) -> None:
    for shell in ("sh", None):
        monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda shell=shell: shell)
        assert "_DL4J_COMPLETE=source_bash dl4j" in dl4j("--install-completion", fails=2)
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "sh")
    assert "_DL4J_COMPLETE=source_bash dl4j" in dl4j("--show-completion", fails=2)


def test_a_shell_does_not_wait_for_libraries() -> None:
    """What takes time to import is not imported at TAB, nor to start any command."""
    program = (
        "import sys\nfrom dl4jlegacy.cli.main import main\n"
        "try:\n    main([])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'numba', 'hazelcast', 'kazoo', 'boto3', 'pykka', 'optuna'} & set(sys.modules)))"
    )
    asked = {"_DL4J_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "dl4j train --model l"}
    env = {**os.environ, **asked, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    assert '"lenet"' in done.stdout and done.stdout.splitlines()[-1] == "[]"
