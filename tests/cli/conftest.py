"""Fixtures for tests of commands that read and write files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def dl4j(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line; returns what it prints, or what it says if it ``fails`` with that status."""

    def run(*arguments: str, fails: int = 0) -> str:
        with pytest.raises(SystemExit) as leave:
            main.main(list(arguments))
        out, err = capsys.readouterr()
        assert (leave.value.code or 0) == fails, err
        return err if fails else out

    return run
