"""The README and the pages under docs/, block by block, and a shell that walks through them as a reader does.

What every block must do is in ``tests/data/pages.yaml``, in the order of the pages.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from tests.support import DATA, REPOSITORY

__all__ = [
    "EXPECTED",
    "PAGES",
    "Block",
    "Command",
    "Elsewhere",
    "Expected",
    "Shell",
    "Shown",
    "Written",
    "blocks",
    "commands",
]

PAGES = {
    path.relative_to(REPOSITORY).as_posix(): path
    for path in (
        REPOSITORY / "README.md",
        *sorted((REPOSITORY / "docs").glob("*.md")),
        REPOSITORY / "docker" / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
    )
}
DEADLINE_SECONDS = 900.0
ENDING_SECONDS = 60.0


class Block(msgspec.Struct, frozen=True):
    """A block of a page: its language (``""`` if the page names none), its text, whether it stands between fences."""

    language: str
    text: str
    fenced: bool = False


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a command of a page must do.

    Attributes:
        run: the command, word for word as on the page, without the comment behind it.
        prints: patterns that stdout and stderr together must contain.
        floors: patterns with one group, a number that must be at least this.
        exit: its exit status.
        remember: names of variables, and patterns with one group that is the value; for commands that come later. One
            that is remembered again must have the same value. Of a command that stays and has ``floors``, at its end.
        stays: it goes on while later commands run, once it has printed ``prints``; at the page's end it gets Ctrl-C, or
            with ``floors`` its own end is waited for.
        gets: it gets this signal once it has printed ``prints``.
        first_prints: and once the first of the commands that stay, such as a master, has printed these.
        ends_all: whatever went on ends by itself soon after it.
        writes: files that are there afterwards.
        given: what the page takes for granted has happened before.
        variables: set for this command only, so that a training is shorter and its line stays as it is.
    """

    run: str
    prints: tuple[str, ...] = ()
    floors: dict[str, float] = {}
    exit: int = 0
    remember: dict[str, str] = {}
    stays: bool = False
    gets: Literal["", "SIGINT", "SIGKILL", "SIGQUIT"] = ""
    first_prints: tuple[str, ...] = ()
    ends_all: bool = False
    writes: tuple[str, ...] = ()
    given: tuple[Command, ...] = ()
    variables: dict[str, str] = {}


class Elsewhere(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commands that need what a machine for tests does not have: why, and what runs them or the like instead."""

    elsewhere: tuple[str, ...]
    why: str
    tested_by: str


class Shown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block that is no command: its first line, and what it is."""

    shown: str
    what: str


class Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block that the reader writes into a file; a program's language is ``py``, for ``python`` is run by itself."""

    file: str


Expectation = tuple[Command, ...] | Elsewhere | Shown | Written


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a page's blocks must do, in order.

    ``replace`` has the page's placeholders and what stands for them here. A page is typed in an empty folder, or
    ``in_project``: in the project's. With ``shared_servers`` the suite's servers are there already, and ``dl4j services
    up`` is not run, but shows them as ``status`` does.
    """

    blocks: tuple[Expectation, ...]
    replace: dict[str, str] = {}
    in_project: bool = False
    shared_servers: bool = False


def _expected() -> dict[str, Expected]:
    found = msgspec.yaml.decode((DATA / "pages.yaml").read_bytes())
    return {
        page: Expected(**{**entry, "blocks": tuple(_block(block) for block in entry["blocks"])})
        for page, entry in found.items()
    }


def _block(block: object) -> Expectation:
    if isinstance(block, list):
        return msgspec.convert(block, tuple[Command, ...])
    assert isinstance(block, dict)
    kinds = {"elsewhere": Elsewhere, "shown": Shown, "file": Written}
    return msgspec.convert(block, next(kind for key, kind in kinds.items() if key in block))


EXPECTED: Mapping[str, Expected] = _expected()
"""By page."""


def blocks(page: str) -> Iterator[Block]:
    """Yield a page's blocks in order: those between fences, and those indented by four columns."""
    lines: list[str] = []
    fence: str | None = None
    before = ""
    for line in [*PAGES[page].read_text(encoding="utf-8").splitlines(), ""]:
        if fence is not None:
            if line.strip() == "```":
                yield Block(fence, "\n".join(lines), fenced=True)
                fence, lines = None, []
            else:
                lines.append(line)
        elif line.lstrip().startswith("```"):
            fence = line.strip()[3:]
        elif line.startswith("    ") and (lines or not before):
            lines.append(line[4:])
        elif lines and line:
            yield Block("", "\n".join(lines))
            lines = []
        before = line
    if lines:
        yield Block("", "\n".join(lines))


def commands(block: Block) -> list[str]:
    """Return the lines of a block without empty ones and comments."""
    lines = [re.sub(r"(^|\s+)# .*$", "", line).strip() for line in block.text.splitlines()]
    return [line for line in lines if line]


class Running:
    """A command that runs; what it prints is read as it comes, by a thread of its own."""

    def __init__(self, script: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C reaches all of its processes, as a terminal sends it
        )
        self._printed, self._ended = bytearray(), False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def printed(self) -> str:
        """All that it has printed so far."""
        with self._news:
            return self._printed.decode(errors="replace")

    def wait_for(self, patterns: tuple[str, ...], seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until it has printed all patterns; fails when it ends without, or after ``seconds``."""

        def is_there() -> bool:
            text = self._printed.decode(errors="replace")
            return all(re.search(pattern, text) for pattern in patterns)

        with self._news:
            self._news.wait_for(lambda: self._ended or is_there(), seconds)
            assert is_there(), f"wanted {patterns}, printed was:\n{self._printed.decode(errors='replace')}"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and all that it started, as a terminal sends Ctrl-C."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait for its end and return its exit status; kills it and fails after ``seconds``."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on after {seconds:.0f} s; printed was:\n{self.printed}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill what is left of it."""
        self.send(signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                with self._news:
                    self._printed += chunk
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class Shell:
    """Runs a page's commands one after the other, as one terminal would: folder and variables stay.

    ``replace`` has the page's placeholders and what stands for them; variables in it are the ``remember``ed ones.
    """

    def __init__(self, folder: Path, notes: Path, environment: Mapping[str, str], replace: Mapping[str, str]) -> None:
        self._folder, self._notes, self._environment = folder, notes, dict(environment)
        self._replace, self._has_servers = replace, False
        self._staying: list[tuple[Command, Running]] = []

    def run(self, command: Command) -> None:
        """Run a command and look at all that is expected of it; fails by name of the command."""
        for before in command.given:
            self.run(before)
        try:
            self._run(command)
        except AssertionError as exc:
            raise AssertionError(f"{command.run}\n{exc}") from exc

    def write(self, name: str, text: str) -> None:
        """Write a file that a page shows."""
        (self._folder / name).write_text(text + "\n", encoding="utf-8")

    def _run(self, command: Command) -> None:
        text = command.run
        for placeholder, value in self._replace.items():
            text = text.replace(placeholder, value)
        self._has_servers |= "services up" in text
        goes_on = command.stays or bool(command.gets)
        kept = f"\nstatus=$?; pwd > {self._notes}/folder; env -0 > {self._notes}/variables; exit $status"
        shorter = self._environment | command.variables
        running = Running(f"exec {text}" if goes_on else text + kept, self._folder, shorter)
        if goes_on:
            try:
                running.wait_for(command.prints)
                if command.first_prints:
                    self._staying[0][1].wait_for(command.first_prints)
            except AssertionError:
                running.kill()
                raise
        if command.stays:
            self._staying.append((command, running))
            if not command.floors:
                self._remember(command, running.printed)
            return
        if command.gets:
            running.send(signal.Signals[command.gets])
        status = running.end()
        if not goes_on:
            self._keep_folder_and_variables(command.variables)
        self._check(command, status, running.printed)
        if command.ends_all:
            self._end_all(by_itself=True)

    def _keep_folder_and_variables(self, shorter: Mapping[str, str]) -> None:
        self._folder = Path((self._notes / "folder").read_text(encoding="utf-8").rstrip("\n"))
        variables = (self._notes / "variables").read_text(encoding="utf-8").split("\0")
        kept = dict(line.split("=", 1) for line in variables if line)
        self._environment = {name: value for name, value in kept.items() if name not in shorter}

    def _check(self, command: Command, status: int, printed: str) -> None:
        assert status == command.exit, f"exit status {status}, {command.exit} is expected; printed was:\n{printed}"
        for pattern in command.prints:
            assert re.search(pattern, printed), f"{pattern!r} is missing; printed was:\n{printed}"
        for pattern, floor in command.floors.items():
            found = re.findall(pattern, printed)
            assert found and float(found[-1]) >= floor, f"{pattern!r} found {found}, at least {floor} is expected"
        for name in command.writes:
            assert (self._folder / name).exists(), f"{name} was not written"
        self._remember(command, printed)

    def _remember(self, command: Command, printed: str) -> None:
        for name, pattern in command.remember.items():
            found = re.search(pattern, printed)
            assert found, f"{pattern!r} is missing; printed was:\n{printed}"
            before = self._environment.setdefault(name, found[1])
            assert before == found[1], f"{name} was {before}, and now it is {found[1]}"

    def _end_all(self, *, by_itself: bool) -> None:
        while self._staying:
            command, running = self._staying.pop()
            try:
                if command.floors:
                    self._check(command, running.end(), running.printed)
                elif by_itself:
                    self._check(command, running.end(ENDING_SECONDS), running.printed)
                else:
                    running.send(signal.SIGINT)
                    running.end(ENDING_SECONDS)
            except AssertionError as exc:
                raise AssertionError(f"{command.run}\n{exc}") from exc

    def close(self) -> None:
        """Stop what still runs, as Ctrl-C does, and the servers that ``dl4j services`` started; nothing may hang."""
        try:
            self._end_all(by_itself=False)
        finally:
            for _, running in self._staying:
                running.kill()
            if self._has_servers:
                Running("dl4j services down", self._folder, self._environment).end(ENDING_SECONDS)
