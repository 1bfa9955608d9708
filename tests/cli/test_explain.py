"""``dl4j explain``: every code that the package can print has a text, whose commands and options there are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
import typer.main

from dl4jlegacy import errors
from dl4jlegacy.cli.commands.explanations import EXPLANATIONS, Explanation
from dl4jlegacy.cli.main import declared
from tests.support import REPOSITORY

CODE = re.compile(r"DL4J-[A-Z]+(?:-[A-Z]+)*")
SIGNALS = {"DL4J-SIGHUP": 129, "DL4J-SIGINT": 130, "DL4J-SIGTERM": 143}


def classes(root: type[errors.Dl4jError] = errors.Dl4jError) -> Iterator[type[errors.Dl4jError]]:
    yield root
    for below in root.__subclasses__():
        yield from classes(below)


def commands(group: click.Group, path: str = "dl4j") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


ALL = dict(commands(typer.main.get_group(declared())))
IDS = [each.code for each in EXPLANATIONS]


def text(each: Explanation) -> str:
    return " ".join([each.means, *(part for remedy in each.remedies for part in remedy)])


def test_every_code_in_the_package_is_explained_and_no_other() -> None:
    sources = [path for path in (REPOSITORY / "dl4jlegacy").rglob("*.py") if path.name != "explanations.py"]
    named = {code for path in sources for code in CODE.findall(path.read_text())}
    assert named | set(SIGNALS) == set(IDS)
    assert sorted(set(IDS)) == IDS


def test_the_exit_statuses_are_those_that_commands_end_with() -> None:
    statuses = {each.code: each.exit_status for each in EXPLANATIONS}
    assert {of.code: of.exit_status for of in classes()}.items() <= statuses.items()
    assert SIGNALS.items() <= statuses.items()


@pytest.mark.parametrize("each", EXPLANATIONS, ids=IDS)
def test_what_it_tells_to_do_can_be_done(each: Explanation) -> None:
    assert each.remedies and all(cause and remedy for cause, remedy in each.remedies)
    for named in re.findall(r"dl4j(?: [a-z]+)+", text(each)):
        words = named.split()
        assert " ".join(words[:2]) in ALL, f"there is no command {named!r}"
        if isinstance(ALL[" ".join(words[:2])], click.Group):
            assert " ".join(words[:3]) in ALL, f"there is no command {named!r}"
    options = {name for command in ALL.values() for option in command.params for name in option.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", text(each))) <= options | {"--help"}
    for page in re.findall(r"docs/\S+\.md", text(each)):
        assert (REPOSITORY / page).is_file()


@pytest.mark.parametrize("name", ["DL4J-TRACKER", "tracker", "[DL4J-TRACKER]", " dl4j-tracker"])
def test_a_code_is_known_however_it_was_copied(dl4j, name: str) -> None:
    said = dl4j("explain", name)
    assert said.startswith("DL4J-TRACKER (exit 4)\n") and "dl4j services up" in said
    assert max(map(len, said.splitlines())) <= 100


def test_an_exit_status_stands_for_all_codes_that_end_with_it(dl4j) -> None:
    found = dl4j.json("explain", "8")["codes"]
    assert [(each["code"], each["exit"]) for each in found] == [("DL4J-CHECKPOINT", 8), ("DL4J-MODEL", 8)]
    assert all(remedy["cause"] and remedy["remedy"] for each in found for remedy in each["remedies"])


def test_without_a_code_all_are_listed(dl4j) -> None:
    lines = dl4j("explain").splitlines()
    assert [line.split()[0] for line in lines] == IDS
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("trakcer", "did you mean 'DL4J-TRACKER'"),
        ("99", "no error ends a command with 99; known are 1, 2, 3, 4,"),
        ("0", "no error ends a command with 0"),
        ("9" * 5000, "no error ends a command with 9"),
        (" ", "there is no code ''"),
        ("DL4J-", "there is no code 'DL4J-'"),
    ],
)
def test_what_there_is_not_is_a_usage_error(dl4j, given: str, words: str) -> None:
    assert words in dl4j("explain", given, fails=2)
