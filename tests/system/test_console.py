"""Log lines and a reader of stderr who has paused, as behind ``2>&1 | less``, or who is gone."""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import select
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from dl4jlegacy.system import console
from dl4jlegacy.system.console import emit, open_console, run_guarded

PATIENCE = 20.0
LOGGER = logging.getLogger("dl4jlegacy.of_this_test")
LINE = "x" * 1000


@contextlib.contextmanager
def stderr_to(stream: TextIO) -> Iterator[None]:
    """Have a stream in the place of stderr; not a fixture, since pytest sets stderr again when a test begins."""
    logger, before = logging.getLogger("dl4jlegacy"), sys.stderr
    handlers, sys.stderr = logger.handlers, stream
    try:
        yield
    finally:
        logger.handlers, sys.stderr = handlers, before


@contextlib.contextmanager
def paused() -> Iterator[TextIO]:
    """Yield the other end of stderr, which is a pipe in which a few lines find room."""
    end, start = os.pipe()
    fcntl.fcntl(start, fcntl.F_SETPIPE_SZ, 4096)
    writing = open(start, "w", encoding="utf-8")  # noqa: SIM115  # closed last: whoever waits there goes on then
    try:
        with stderr_to(writing), open(end, encoding="utf-8") as reading:
            yield reading
    finally:
        with contextlib.suppress(OSError):
            writing.close()


def log_in_a_thread(count: int) -> None:
    """Log on a thread as actors have it, which does not wait for anybody."""

    def log() -> None:
        for number in range(count):
            LOGGER.warning("%d %s", number, LINE)

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for a reader"


def numbers(reader: TextIO, count: int) -> list[int]:
    """Read so many lines; return which they are."""
    return [int(reader.readline().split()[1]) for _ in range(count)]


def test_a_thread_that_logs_waits_for_no_reader_and_no_line_is_lost() -> None:
    with paused() as reader:
        open_console()
        log_in_a_thread(200)
        log_in_a_thread(200)
        assert numbers(reader, 400) == [*range(200)] * 2


def test_what_is_left_out_is_told_where_it_would_have_been(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_MOST_LINES", 10)
    came, left_out = 0, 0
    with paused() as reader:
        open_console()
        log_in_a_thread(200)
        while came < 200:
            words = reader.readline().split()
            if LINE in words:
                assert int(words[1]) == came
                came += 1
            else:
                assert words[2:] in (
                    f"{lines} of the log left out: nobody read on".split() for lines in ("line", "lines")
                )
                came, left_out = came + int(words[1]), left_out + int(words[1])
        assert 100 < left_out <= 190  # 10 lines wait at least, and more came if the printer began while they did
        log_in_a_thread(3)
        assert numbers(reader, 3) == [0, 1, 2]


def test_a_command_ends_when_its_threads_lines_are_read_and_they_stand_before_its_error() -> None:
    def command() -> None:
        log_in_a_thread(20)
        raise OSError("it is no more")

    with paused() as reader:
        ended = threading.Thread(target=run_guarded, args=(command,), daemon=True)
        ended.start()
        assert numbers(reader, 20) == [*range(20)]
        assert "it is no more" in reader.readline()
        ended.join(PATIENCE)
        assert not ended.is_alive()


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_where_stderr_cannot_be_written_to_the_work_goes_on(in_a_thread: bool) -> None:
    full = open("/dev/full", "w", encoding="utf-8", buffering=1)  # noqa: SIM115  # closing it fails, too
    with stderr_to(full):
        open_console()
        if in_a_thread:
            log_in_a_thread(3)
        else:
            LOGGER.warning(LINE)
        [handler] = logging.getLogger("dl4jlegacy").handlers
        handler.flush()
    with pytest.raises(OSError, match="No space left"):
        full.close()


@pytest.mark.parametrize("cell", ["0", "é" * 9, "\U0001f40e" * 700, "x" * 3000])
def test_a_pipe_takes_each_write_of_results_as_one_piece(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``2>&1`` a log line never comes into a result: no write is torn, and all end at a line's end."""
    written: list[bytes] = []

    class Pipe(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            written.append(bytes(data))  # type: ignore[call-overload]  # a buffer
            return len(written[-1])

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Pipe()), encoding="utf-8"))
    text = "\n".join([cell] * 5000)
    assert emit(text)
    assert b"".join(written) == f"{text}\n".encode()
    assert max(map(len, written)) <= select.PIPE_BUF
    assert all(data.endswith(b"\n") for data in written)
