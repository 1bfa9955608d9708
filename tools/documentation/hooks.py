"""MkDocs hooks: they add what the site has besides the files in ``docs/``."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from tools.documentation import checkout, generated

__all__ = ["on_files", "on_page_markdown"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file and folder of the checkout that the navigation names or a page links to."""
    root = Path(config.config_file_path).parent
    wanted = {checkout.source_of(page) for page in re.findall(r"'(source/[^']+)'", repr(config.nav))}
    for file in files.documentation_pages():
        wanted |= checkout.linked(file.content_string, checkout.source_of(file.src_uri), root)
    while wanted:
        target = wanted.pop()
        page = checkout.page_of(target, root)
        if (root / target).exists() and files.get_file_from_path(page) is None:
            content = checkout.shown(target, root)
            files.append(File.generated(config, page, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
            wanted |= checkout.linked(content, checkout.source_of(page), root)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the parts generated from the source, and change links to the site's pages."""
    root = Path(config.config_file_path).parent
    return generated.filled(checkout.rewritten(markdown, checkout.source_of(page.file.src_uri), root), root)
