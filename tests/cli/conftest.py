"""Fixtures for tests of commands that read and write files of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class CommandLine:
    """Runs ``dl4j`` in this process; ``out`` and ``err`` are what the last command printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.out, self.err = capsys, "", ""

    def __call__(self, *arguments: object, fails: int = 0) -> str:
        """Return what a command prints, or what it says if it ``fails`` with that status."""
        with pytest.raises(SystemExit) as leave:
            main.main([*map(str, arguments)])
        self.out, self.err = self._capsys.readouterr()
        assert (leave.value.code or 0) == fails, self.err
        return self.err if fails else self.out

    def json(self, *arguments: object) -> Any:
        """Return the object that a command prints with ``--format json``."""
        return json.loads(self(*arguments, "--format", "json"))


@pytest.fixture
def dl4j(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Runs commands; see ``CommandLine``."""
    return CommandLine(capsys)
