"""Parts of pages generated from the source; the line ``<!-- generated: NAME -->`` marks the place of a part."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tools.break_promises import is_long
from tools.promises import PROMISES

__all__ = ["PARTS", "filled"]

_PLACE = re.compile(r"<!-- generated: (\S+) -->")
_TITLES = {
    "conf": "Configurations",
    "dl4j": "Model files",
    "evaluation": "Evaluation",
    "graph": "Graphs",
    "input_type": "Types of inputs",
    "layers": "Layers",
    "listeners": "Listeners",
    "network": "Networks",
    "preprocessors": "Preprocessors",
    "schedules": "Schedules",
    "training": "Training",
    "updaters": "Updaters",
    "vertices": "Vertices of graphs",
    "weights": "Distributions of weights",
    "datasets": "Data",
    "scaleout": "Runs: their parts and what they leave",
    "storage": "Runs: their parts and what they leave",
    "runner": "Training",
    "parallel_wrapper": "Training",
    "inference": "Trained models",
    "parallel_inference": "Trained models",
    "saved_model": "Trained models",
    "seeding": "Random streams",
}
"""Headings for the names of a module, or of a folder of modules; without an entry the module's name is the heading."""


def filled(markdown: str, root: Path) -> str:
    """Return a page with its generated parts; raises ``KeyError`` for an unknown part."""
    return _PLACE.sub(lambda place: PARTS[place[1]](root), markdown)


def _commands(root: Path) -> str:
    """Return all commands and options of ``dl4j``, as Typer documents them."""
    words = ("-m", "typer", "tools.documentation.commands", "utils", "docs", "--name", "dl4j")
    done = subprocess.run([sys.executable, *words], cwd=root, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    sections = re.split(r"(?m)^##+ `dl4j (.+)`$", done.stdout)
    commands = dict(zip(sections[1::2], sections[2::2], strict=True))
    listed = {name: _with_whole_summaries(section, name + " ", commands) for name, section in commands.items()}
    untitled = sections[0].partition("\n")[2]  # the page has a title
    first = _with_whole_summaries(untitled, "", commands)
    return first + "".join(f"{'#' * (2 + name.count(' '))} dl4j {name}\n{text}" for name, text in listed.items())


def _with_whole_summaries(section: str, group: str, commands: dict[str, str]) -> str:
    """Return a section in which the list of commands has links, and summaries that are not cut off."""

    def line(match: re.Match[str]) -> str:
        name = group + match[1]
        summary = " ".join(commands[name].strip().partition("\n\n")[0].split())
        return f"* [`{name}`](#dl4j-{name.replace(' ', '-')}): {summary}"

    options, title, listed = section.partition("**Commands**:\n")
    return options + title + re.sub(r"(?m)^\* `([\w-]+)`: .+$", line, listed)


def _package(root: Path) -> str:
    names = _exported(root / "dl4jlegacy" / "__init__.pyi")
    networks = [f"[`{name}`][dl4jlegacy.nn.{name}]" for name, module in names.items() if module[0] == "nn"]
    own = {name: module for name, module in names.items() if module[0] not in ("nn", "version")}
    note = f"Documented with [networks](reference-nn.md), where they are, too: {', '.join(sorted(networks))}.\n\n"
    return note + _grouped("dl4jlegacy", own)


def _networks(root: Path) -> str:
    names = _exported(root / "dl4jlegacy" / "nn" / "__init__.py")
    return _grouped("dl4jlegacy.nn", {n: m[2:] for n, m in names.items() if m[:2] == ("dl4jlegacy", "nn")})


def _exported(file: Path) -> dict[str, tuple[str, ...]]:
    """Return the names that a package's file imports for export, with the parts of each name's module."""
    imported = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: tuple(str(node.module).split(".")) for node in imported for alias in node.names}


def _grouped(package: str, names: dict[str, tuple[str, ...]]) -> str:
    groups: dict[str, list[str]] = {}
    for name, module in names.items():
        title = _TITLES.get(module[0], module[0].replace("_", " ").capitalize())
        groups.setdefault(title, []).append(name)
    return "\n".join(_group(title, package, sorted(groups[title])) for title in sorted(groups))


def _group(title: str, package: str, names: Iterable[str]) -> str:
    inherited = "    options: {inherited_members: true}\n"  # a builder's methods are those of its base, too
    shown = (f"::: {package}.{name}\n{inherited if name.endswith('Builder') else ''}\n" for name in names)
    return f"## {title}\n\n" + "".join(shown)


def _promises(_root: Path) -> str:
    """Return a table of the promises of each group."""
    head = "| promise | tests | how it was broken |\n| --- | --- | --- |\n"
    return "\n".join(
        f"### {title}\n\n{head}"
        + "".join(f"| {each.text} | {'<br>'.join(map(_test, each.tests))} | {each.how} |\n" for each in group)
        for title, group in PROMISES.items()
    )


def _test(test: str) -> str:
    return f"`{test.removeprefix('tests/')}`{' (long)' if is_long(test) else ''}"


PARTS: dict[str, Callable[[Path], str]] = {
    "commands": _commands,
    "package": _package,
    "networks": _networks,
    "promises": _promises,
}
