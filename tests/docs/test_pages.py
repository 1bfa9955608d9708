"""Every command of the README and of the pages under docs/ is run, in order, and does what the page says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dl4jlegacy.services import ServicesState
from dl4jlegacy.services.ports import free_ports
from dl4jlegacy.services.settings import member_ports
from tests.support import REPOSITORY
from tests.support.cluster_commands import SECRET, Cluster
from tests.support.compiled_kernels import give_kernels
from tests.support.pages import EXPECTED, PAGES, Block, Elsewhere, Shell, Shown, Written, blocks, commands

COMBINED = ("docs/tutorial.md", "docs/tuning.md")
"""Pages whose commands are the README's and docs/cluster.md's, and those of tests/cli/test_tune.py: for releases."""
NOT_COPIED = (".git", ".venv", ".*_cache", ".hypothesis", "build", "dist", "__pycache__", "*.egg-info")


def blocks_to_run(page: str) -> list[Block]:
    """A page's blocks without those in Python, which ``test_readme.py`` runs."""
    return [block for block in blocks(page) if block.language != "python"]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_has_its_expectation(page: str) -> None:
    found = blocks_to_run(page)
    expected = EXPECTED[page].blocks if page in EXPECTED else ()
    for block, wanted in zip(found, expected, strict=False):
        match wanted:
            case Shown():
                assert block.text.splitlines()[0] == wanted.shown
            case Elsewhere():
                assert commands(block) == list(wanted.elsewhere)
            case Written():
                assert block.language == Path(wanted.file).suffix[1:]
            case _:
                assert commands(block) == [command.run for command in wanted]
    assert len(found) == len(expected), f"{page} has {len(found)} blocks, {len(expected)} are expected"


@pytest.mark.parametrize("page", PAGES)
def test_no_block_between_fences_is_overlooked(page: str) -> None:
    fences = PAGES[page].read_text(encoding="utf-8").count("```")
    assert 2 * sum(block.fenced for block in blocks(page)) == fences


def test_no_page_is_expected_that_is_not_there() -> None:
    assert set(EXPECTED) <= set(PAGES)


def test_what_is_run_elsewhere_is_run_there() -> None:
    for page, expected in EXPECTED.items():
        for block in expected.blocks:
            if isinstance(block, Elsewhere):
                path, _, name = block.tested_by.partition("::")
                assert block.why, page
                assert path.startswith("tests/") and name, f"{page}: {block.tested_by} is no test"
                text = (REPOSITORY / path).read_text(encoding="utf-8")
                assert f"\ndef {name}(" in text, f"{page}: {block.tested_by}"


def is_run_here(page: str) -> bool:
    return any(isinstance(block, tuple) for block in EXPECTED[page].blocks)


def copy_project(folder: Path) -> None:
    shutil.copytree(REPOSITORY, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)


def repository(folder: Path) -> Path:
    """Make a repository with what is in this checkout, as one to be cloned."""
    copy_project(folder)
    identity = ("-c", "user.name=reader", "-c", "user.email=reader@localhost")
    for arguments in (("init", "--quiet"), ("add", "--all"), (*identity, "commit", "--quiet", "--message", "all")):
        subprocess.run(["git", *arguments], cwd=folder, check=True, timeout=60)
    return folder


@pytest.fixture
def reader(tmp_path: Path, mnist_dir: str) -> dict[str, str]:
    """The variables of a reader's terminal; what was downloaded before is there."""
    home = tmp_path / "home"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    (home / ".cache" / "dl4jlegacy").mkdir(parents=True)
    for name in ("dl4jlegacy/jars", "pip"):
        if (cache / name).exists():
            (home / ".cache" / name).symlink_to(cache / name)
    proxies = [name for proxy in ("http_proxy", "https_proxy", "no_proxy") for name in (proxy, proxy.upper())]
    kept = (*proxies, "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NUMBA_CACHE_DIR")
    given = {name: value for name, value in os.environ.items() if name in kept or name.startswith("PIP_")}
    member_port, zookeeper_port = free_ports(2, together=member_ports)
    data = {"DL4J_DATA_DIR": mnist_dir} if mnist_dir else {}
    return (
        given
        | data
        | {
            "HOME": str(home),
            "MEMBER_PORT": str(member_port),
            "ZOOKEEPER_PORT": str(zookeeper_port),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "OPENBLAS_NUM_THREADS": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
        }
    )


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.release if page in COMBINED else ())
        for page in EXPECTED
        if is_run_here(page)
    ],
)
def test_every_command_of_a_page_does_what_it_says(
    page: str,
    reader: dict[str, str],
    session_services: ServicesState,
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    """In one terminal; the README is read before anything is installed, the other pages after it."""
    folder = tmp_path / "empty"
    if EXPECTED[page].in_project:
        copy_project(folder)
        (folder / ".venv").symlink_to(sys.prefix)
    else:
        folder.mkdir()
    if page == "README.md":
        reader["PROJECT"] = str(repository(tmp_path / "project"))
        reader["NUMBA_CACHE_DIR"] = str(tmp_path / "kernels")
        give_kernels(tmp_path / "kernels", folder / "dl4jlegacy" / "dl4jlegacy")
    else:
        reader["PATH"] = f"{sys.prefix}/bin:{reader['PATH']}"
    replace = dict(EXPECTED[page].replace)
    if EXPECTED[page].shared_servers:
        cluster.take_back("master")
        reader |= {"DL4J_SERVICES": session_services.folder, "DL4J_SECRET": SECRET}
        replace["dl4j services up"] = "dl4j services status"
    shell = Shell(folder, tmp_path, reader, replace)
    try:
        for block, wanted in zip(blocks_to_run(page), EXPECTED[page].blocks, strict=True):
            if isinstance(wanted, Written):
                shell.write(wanted.file, block.text)
            elif isinstance(wanted, tuple):
                for command in wanted:
                    shell.run(command)
    finally:
        shell.close()
