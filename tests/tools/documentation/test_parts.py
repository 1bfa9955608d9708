"""What the site is built of: links out of ``docs/``, parts made from the source, docstrings, drawings."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import griffe
import pytest

from tests.support import REPOSITORY
from tools.documentation import checkout, generated
from tools.documentation.griffe_extension import as_markdown, fields
from tools.promises import PROMISES

SVG = "{http://www.w3.org/2000/svg}"
CONFIGURATION = f"""
site_name: small
strict: true
use_directory_urls: false
hooks: [{REPOSITORY / "tools" / "documentation" / "hooks.py"}]
validation: {{links: {{not_found: warn, anchors: warn}}}}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkout with a page, and files beside ``docs/`` that it links to."""
    (tmp_path / "mkdocs.yml").write_text(CONFIGURATION)
    for name in ("docs", "examples", "docker"):
        (tmp_path / name).mkdir()
    (tmp_path / "docs" / "index.md").write_text("[a](../examples), [b](../docker), [c](../run.py), `[d](../no.py)`\n")
    (tmp_path / "examples" / "one.py").write_text('"""What it\nshows.\n\nMore."""\n')
    (tmp_path / "docker" / "README.md").write_text("# Boxes\n\n[back](../docs/index.md) and [code](../run.py)\n")
    (tmp_path / "run.py").write_text('TEXT = "```"\n')
    return tmp_path


def build(small: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "mkdocs", "build"]
    settings = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(words, cwd=small, env=settings, capture_output=True, text=True, timeout=60)


def test_files_beside_the_pages_have_pages_of_their_own(small: Path) -> None:
    done = build(small)
    assert done.returncode == 0, done.stdout + done.stderr
    index = (small / "site" / "index.html").read_text()
    for link in ("source/examples/index.html", "source/docker/index.html", "source/run.py.html"):
        assert f'href="{link}"' in index and (small / "site" / link).exists()
    listed = (small / "site" / "source" / "examples" / "index.html").read_text()
    assert 'href="one.py.html"' in listed and "What it shows." in listed
    readme = (small / "site" / "source" / "docker" / "index.html").read_text()
    assert 'href="../../index.html"' in readme and 'href="../run.py.html"' in readme


def test_links_to_nowhere_end_the_build(small: Path) -> None:
    links = ["../no.py", "no.md", "#no", "../docker/README.md#no"]
    with (small / "docs" / "index.md").open("a") as page:
        page.writelines(f"\n[broken]({link})\n" for link in links)
    done = build(small)
    assert done.returncode != 0
    assert f"Aborted with {len(links)} warnings in strict mode" in done.stdout + done.stderr


def test_code_with_fences_is_shown_between_longer_ones(small: Path) -> None:
    page = checkout.shown("run.py", small)
    assert page.endswith('# run.py\n\n```` python\nTEXT = "```"\n\n````\n')


def test_a_part_that_there_is_not_is_no_part() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        generated.filled("<!-- generated: nonsense -->", REPOSITORY)


def test_summaries_of_commands_are_whole() -> None:
    text = generated.filled("<!-- generated: commands -->", REPOSITORY)
    worker = "Work for the run that a master has registered, until it ends; with --stay for the next ones, too."
    assert f"* [`worker`](#dl4j-worker): {worker}\n" in text
    assert "* [`data inspect`](#dl4j-data-inspect): " in text and "### dl4j data inspect\n" in text
    assert "...\n" not in text.partition("**Commands**")[2].partition("##")[0]


def test_the_page_of_promises_has_all_of_them() -> None:
    page = (REPOSITORY / "docs" / "promises.md").read_text(encoding="utf-8")
    rows = set(generated.filled(page, REPOSITORY).splitlines())
    for promise in (each for group in PROMISES.values() for each in group):
        [row] = [row for row in rows if row.startswith(f"| {promise.text} | ")]
        assert row.endswith(f" | {promise.how} |") and all(test.partition("/")[2] in row for test in promise.tests)


def test_colons_before_a_block_of_code_are_markdown_s() -> None:
    assert as_markdown("First.\n\n::\n\n    code::\n\nSo::\n\n    x") == "First.\n\n\n\n    code::\n\nSo:\n\n    x"


def test_names_that_are_described_together_stay_together() -> None:
    text = as_markdown("What.\n\nAttributes:\n    a, b_c: both; x, y: more.\n    d: one.")
    assert text == "What.\n\nAttributes:\n    a,\N{NO-BREAK SPACE}b_c: both; x, y: more.\n    d: one."
    _, attributes = griffe.Docstring(text).parse("google")
    assert [each.name for each in attributes.value] == ["a,\N{NO-BREAK SPACE}b_c", "d"]


def test_a_struct_is_made_with_the_fields_of_its_bases() -> None:
    source = """
import msgspec
class Base(msgspec.Struct):
    a: int
    kind: ClassVar[str] = "base"
    @property
    def b(self) -> int: ...
class Derived(Base):
    c: str = "x"
    _d: int = 0
class Plain:
    e: int = 1
"""
    with griffe.temporary_visited_module(source) as module:
        assert [(each.name, each.default) for each in fields(module["Derived"])] == [("a", None), ("c", "'x'")]
        assert fields(module["Plain"]) == []


@pytest.mark.parametrize("path", sorted((REPOSITORY / "docs" / "assets").glob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_is_described_and_fits_a_dark_page(path: Path) -> None:
    svg = ElementTree.parse(path).getroot()
    named = {svg.find(f"{SVG}{tag}").get("id") for tag in ("title", "desc")}
    assert svg.get("role") == "img" and set(svg.get("aria-labelledby", "").split()) == named
    style = svg.find(f"{SVG}style").text
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    assert "text {" in light and "text {" in dark and ".page {" in light and ".page {" in dark
    assert path.stat().st_size < 10_000
