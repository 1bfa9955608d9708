"""Links from pages to files of the checkout: readers on GitHub need them, and on the site these files get pages.

A path is relative to the checkout, with ``/``. ``docs/NAME`` is at ``NAME`` on the site, everything else below
``source/``: Markdown unchanged, folders as lists, other text as highlighted code.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["linked", "page_of", "rewritten", "shown", "source_of"]

_DOCS, _SOURCE = "docs/", "source/"
_LINKS = re.compile(
    r"(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)"  # code, in fences or in a line: links in code are ignored
    r"|(?<=\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))",
    re.DOTALL,
)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "sh"}
_HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"  # the search covers only texts about the code


def source_of(page: str) -> str:
    """Return the path of the file that the site shows at ``page`` (as MkDocs names it, with the suffix of Markdown)."""
    return page.removeprefix(_SOURCE) if page.startswith(_SOURCE) else _DOCS + page


def page_of(path: str, root: Path) -> str:
    """Return the site's page for a path of the checkout ``root``; the reverse of ``source_of`` for Markdown."""
    if path.startswith(_DOCS):
        return path.removeprefix(_DOCS)
    if (root / path).is_dir():
        readme = root / path / "README.md"
        return f"{_SOURCE}{path}/{readme.name if readme.exists() else 'index.md'}"
    return _SOURCE + (path if path.endswith(".md") else f"{path}.md")


def linked(text: str, path: str, root: Path) -> set[str]:
    """Return the files and folders outside ``docs/`` to which the page ``text`` at ``path`` links."""
    found: set[str] = set()

    def note(target: str) -> None:
        if not target.startswith(_DOCS) and (root / target).exists():
            found.add(target)

    _replace(text, path, note)
    return found


def rewritten(text: str, path: str, root: Path) -> str:
    """Return the page with its links changed for the site; broken links stay, so that MkDocs reports them."""
    here = posixpath.dirname(page_of(path, root))

    def moved(target: str) -> str | None:
        return posixpath.relpath(page_of(target, root), here or ".") if (root / target).exists() else None

    return _replace(text, path, moved)


def _replace(text: str, path: str, new: Callable[[str], str | None]) -> str:
    """Return ``text`` with link targets, as paths of the checkout, replaced by the results of ``new`` unless None."""
    folder = posixpath.dirname(path)

    def link(match: re.Match[str]) -> str:
        if match["target"] is None:
            return match[0]
        target = new(posixpath.normpath(posixpath.join(folder, match["target"])))
        return match[0] if target is None else target + (match["anchor"] or "")

    return _LINKS.sub(link, text)


def shown(path: str, root: Path) -> str:
    """Return the Markdown page for a file or folder of the checkout outside ``docs/``."""
    where = root / path
    if where.is_dir():
        readme = where / "README.md"
        return readme.read_text(encoding="utf-8") if readme.exists() else _listed(path, sorted(where.glob("*.py")))
    text = where.read_text(encoding="utf-8")
    if where.suffix == ".md":
        return text
    fence = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
    return f"{_HIDDEN}# {path}\n\n{fence} {_LANGUAGES.get(where.suffix, 'text')}\n{text}\n{fence}\n"


def _listed(path: str, files: Iterable[Path]) -> str:
    lines = [f"- [{file.name}]({file.name}): {_summary(file)}" for file in files]
    return f"{_HIDDEN}# {path}\n\n" + "\n".join(lines) + "\n"


def _summary(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())
