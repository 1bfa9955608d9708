"""The documentation's site: it is built without a warning and a network, and nothing in it leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import dl4jlegacy.nn
from dl4jlegacy.cli.main import declared
from tests.support.site import faults

ALLOWED = "default-src 'self' file: blob: data: 'unsafe-inline'"
POLICY = f'<meta http-equiv="Content-Security-Policy" content="{ALLOWED}">'
NOBODY = "http://127.0.0.1:9"


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout as its readers do, where no other host can be reached.

    Not with ``--quiet``: MkDocs then overlooks warnings, although it is told to be strict.
    """
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    nobody = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), NOBODY)
    settings = os.environ | nobody | {"PYTHONPATH": str(checkout), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(words, cwd=checkout, env=settings, capture_output=True, text=True, timeout=180)


def commands(group: Any) -> list[str]:
    """The names of all commands, those of groups with the group's before them."""
    inner = {name: commands(command) for name, command in getattr(group, "commands", {}).items()}
    return [*inner, *(f"{name}-{each}" for name, found in inner.items() for each in found)]


@pytest.mark.long
def test_the_site_is_built_and_every_link_leads_somewhere(repository: Path, tmp_path: Path) -> None:
    done = build(repository, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not faults(tmp_path)
    built = ("commands", "reference", "reference-nn")
    pages = [(tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in built]
    described = set(re.findall(r' id="([^"]+)"', "".join(pages)))
    assert described >= {f"dl4j-{name}" for name in commands(typer.main.get_command(declared()))}
    names = {*dl4jlegacy.__all__, *dl4jlegacy.nn.__all__} - {"__version__"}
    assert not [name for name in names if not {f"dl4jlegacy.{name}", f"dl4jlegacy.nn.{name}"} & described]
    assert {f"dl4jlegacy.nn.{name}" for name in ("ListBuilder.layer", "GraphBuilder.add_layer")} <= described
    assert "jobs_per_round: int = 0" in re.sub(r"<[^>]+>", "", pages[1])  # a struct's field, with its type and default


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A site of two pages in which all is well."""
    (tmp_path / "a.html").write_text(f'{POLICY}<h1 id="top">A</h1><a href="b/">b</a><a href="#top">up</a>')
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text(f'{POLICY}<a href="../a.html#top">a</a><img src="../x.svg">')
    (tmp_path / "x.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    return tmp_path


def add(site: Path, text: str) -> None:
    with (site / "a.html").open("a", encoding="utf-8") as file:
        file.write(text)


def test_a_sound_site_is_sound(small: Path) -> None:
    assert faults(small) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('<a href="c.html">', "c.html: no such file"),
        ('<img src="no.png">', "no.png: no such file"),
        ('<a href="b/#no">', "b/#no: no such anchor"),
        ('<a href="#no">', "#no: no such anchor"),
        ('<script src="https://cdn.example/x.js"></script>', "https://cdn.example/x.js: of another host"),
        ('<script src="//cdn.example/x.js"></script>', "//cdn.example/x.js: of another host"),
        ('<link rel="stylesheet" href="https://fonts.example/css">', "https://fonts.example/css: of another host"),
        ('<link rel="preconnect" href="https://fonts.example">', "https://fonts.example: of another host"),
        ('<img srcset="https://cdn.example/x.png 2x">', "https://cdn.example/x.png: of another host"),
        ("<style>@import 'https://fonts.example/css';</style>", "https://fonts.example/css: of another host"),
        ('<p style="background: url(http://cdn.example/x.png)">', "http://cdn.example/x.png: of another host"),
        (POLICY, "policies "),
        ("<p>Either is right:\n- one\n<code>- two</code></p><pre>- no list\n- at all</pre>", "- one: no list"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(small: Path, text: str, told: str) -> None:
    with (small / "a.html").open("a", encoding="utf-8") as file:
        file.write(text)
    [found] = faults(small)
    assert found.startswith(f"a.html: {told}")


def test_a_stylesheet_or_drawing_that_asks_other_hosts_is_found(small: Path) -> None:
    (small / "x.css").write_text("@font-face { src: url(https://fonts.example/x.woff2) }")
    (small / "x.svg").write_text('<svg><image href="https://cdn.example/x.png"/></svg>')
    css, svg = faults(small)
    assert css == "x.css: https://fonts.example/x.woff2: of another host"
    assert svg == "x.svg: https://cdn.example/x.png: of another host"
