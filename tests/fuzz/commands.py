"""A command of ``dl4j`` in this process: what it answers, and what is wrong with the answer."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from dl4jlegacy.cli import main
from dl4jlegacy.system.console import EXIT_INTERNAL

__all__ = ["OUT", "SECONDS", "Answer", "Attempt", "Late", "answer", "limited"]

OUT = "out"
"""The folder for what commands write; it is emptied before each."""
SECONDS = 30.0
Attempt = Callable[[random.Random], tuple[int, str]]
"""Draws a case and tries it; returns the status of its answer, and what is wrong with that, or ""."""
_ERROR = re.compile(r"^error \[(DL4J-[A-Z0-9]+)\]: .", re.MULTILINE)
_UNEXPECTED = ("DL4J-INTERNAL", "DL4J-MEMORY")
"""Codes that no content may lead to: a bug, and memory that small files do not need."""


class Late(BaseException):
    """A case was not done in time; no ``Exception``, which a command would make an error of."""


@dataclass(frozen=True)
class Answer:
    """What a command left: exit status, stdout, stderr."""

    status: int
    out: str
    err: str

    @property
    def fault(self) -> str:
        """What is wrong with it; "" for a result, and for one error with its code and a text."""
        codes = _ERROR.findall(self.err)
        if "Traceback (most recent call last)" in self.err or self.status == EXIT_INTERNAL:
            return f"a traceback, exit status {self.status}"
        if self.status and len(codes) != 1:
            return f"exit status {self.status} with {len(codes)} errors"
        if bad := [code for code in codes if code in _UNEXPECTED]:
            return f"the code {bad[0]}"
        return "control characters" if "\x1b" in self.out + self.err else ""


@contextlib.contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    """Raise ``Late`` in what is done inside if it takes longer."""

    def late(number: int, frame: FrameType | None) -> NoReturn:
        raise Late(f"not done within {seconds:g} s, at\n{''.join(traceback.format_stack(frame, 12))}")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer(command: Sequence[str]) -> Answer:
    """Run a command in this process; raises ``Late``."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
    status: object = 0
    logger = logging.getLogger("dl4jlegacy")
    with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main.main(list(command))
        except SystemExit as leave:
            status = leave.code
    logger.handlers = []
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="backslashreplace"))  # type: ignore[attr-defined]
    return Answer(int(status or 0), *texts)
