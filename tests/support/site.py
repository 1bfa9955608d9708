"""A built site, read as a browser does: what its pages link to and load, and what a reader sees of them as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["faults"]

_POLICY = "default-src 'self' file: blob: data: 'unsafe-inline'"
_LOADING = {"script", "img", "iframe", "source", "embed", "object", "video", "audio", "image", "use", "input", "track"}
_LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class _Page(HTMLParser):
    """What is in one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.policies: list[str] = []
        self.paragraphs: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and _LOADED_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given["href"])
        elif tag in _LOADING:
            self.loads += [given[name] for name in ("src", "href", "xlink:href", "data", "poster") if name in given]
            self.loads += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        elif tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(given["content"])
        self.loads += re.findall(r"url\(\s*['\"]?([^'\")]+)", given.get("style", ""))
        if tag not in _VOID:
            self._open.append(tag)
        if tag in ("p", "li"):
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        while tag in self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" in self._open[-1:]:
            self.loads += _loaded_by_css(data)
        elif self.paragraphs and {"p", "li"} & set(self._open) and not {"pre", "code"} & set(self._open):
            self.paragraphs[-1] += data


def _loaded_by_css(text: str) -> list[str]:
    return [url or name for url, name in re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", text)]


def faults(site: Path) -> list[str]:
    """Return what is wrong with a site.

    These are links, and what pages load, that are not in the site (links to other hosts are not followed); what asks
    other hosts for something, and pages whose browser would be free to; and lines of paragraphs that look like a list.
    GitHub makes a list of those; Python-Markdown wants an empty line before it, and four columns for what is inside an
    entry.
    """
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        here = (*page.links, *page.loads)
        told = [
            *(f"{link}: no such {what}" for link in here if (what := _missing(link, path, site, pages))),
            *(f"{load}: of another host" for load in page.loads if _is_elsewhere(load)),
            *([] if page.policies == [_POLICY] else [f"policies {page.policies}"]),
            *(f"{line}: no list" for text in page.paragraphs for line in _entries(text)),
        ]
        found += [f"{path.relative_to(site)}: {each}" for each in told]
    for path in sorted((*site.rglob("*.css"), *site.rglob("*.svg"))):
        text = path.read_text(encoding="utf-8")
        loads = [*_loaded_by_css(text), *re.findall(r"""(?:href|src)=["']([^"']+)""", text)]
        found += [f"{path.relative_to(site)}: {load}: of another host" for load in loads if _is_elsewhere(load)]
    return found


def _missing(link: str, path: Path, site: Path, pages: dict[Path, _Page]) -> str:
    """Return ``"file"`` or ``"anchor"`` if a link of the page ``path`` leads to none, else ``""``."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    folder = site if parts.path.startswith("/") else path.parent  # 404.html may be shown for any address
    target = (folder / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "file"
    known = target not in pages or not parts.fragment or unquote(parts.fragment) in pages[target].anchors
    return "" if known else "anchor"


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _entries(paragraph: str) -> list[str]:
    return [line for line in paragraph.strip().splitlines()[1:] if re.match(r"\s*(?:[-*]|\d+\.)(?: |$)", line)]
