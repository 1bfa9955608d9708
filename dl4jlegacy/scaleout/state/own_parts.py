"""Error reporting for parts of a user's own program, by class, method and line.

A part is called from deep inside a run, on a thread of the run. Its error could look like an error of the run, and the
traceback would show one line of the program among many. So each call of a part is made inside ``told``.
``check_methods`` checks that a part can be called when it is passed in, not only in the first round.
"""

from __future__ import annotations

import functools
import inspect
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from dl4jlegacy.errors import ContractError, Dl4jError, NotFiniteError, WireError
from dl4jlegacy.system.exits import error_text, exits_as_errors

__all__ = ["check_callable", "check_methods", "in_words", "is_own", "is_unfinished", "name_of", "told"]

_OURS: dict[type, bool] = {}
_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"


def is_own(part: object) -> bool:
    """Return whether the class of a part is not one of this package."""
    kind = type(part)
    if kind not in _OURS:
        _OURS[kind] = kind.__module__.startswith("dl4jlegacy.")
    return not _OURS[kind]


def name_of(function: Any) -> str:
    """Return the name of a function, or of the class of an object, for messages."""
    return getattr(function, "__qualname__", "") or type(function).__name__


def in_words(answer: Any, error: WireError) -> str:
    """Return the type of an answer that cannot be encoded, and the reason, without terms of the wire format."""
    kind, why = (
        type(answer).__name__,
        str(error).partition(";")[0].replace("header.value", "it").replace("header", "it"),
    )
    return kind if why == f"it has a value of type {kind}" else f"{kind}, and {why}"


@contextmanager
def told(
    what: str, error: Callable[[str], Dl4jError] = ContractError, passes: tuple[type[Dl4jError], ...] = ()
) -> Iterator[None]:
    """Turn an exception of the body into an error that names the call ``what``, and the line that raised it.

    Args:
        what: class and method, as ``Mine.work(slot)``.
        error: creates the error from its message.
        passes: errors that are raised unchanged, besides ``ContractError`` and ``NotFiniteError``.
    """
    try:
        with exits_as_errors():
            yield
    except Exception as exc:
        if isinstance(exc, (ContractError, NotFiniteError, *passes)):
            raise
        raise error(f"{what} raised {error_text(exc)}{_place_in_source(exc)}") from exc


def _place_in_source(error: BaseException) -> str:
    """Return the line of the user's program that raised an error, as `` (file, line N)``; "" if there is none."""
    cause = error.__cause__ if type(error).__name__ == "ExitError" and error.__cause__ is not None else error
    frames = [(code, line) for code, line in _frames(cause.__traceback__) if not code.startswith(_PACKAGE)]
    own = [frame for frame in frames if not frame[0].startswith(_libraries())]
    if not frames:
        return ""
    file, line = (own or frames)[-1]
    return f" ({Path(file).name}, line {line})"


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of Python's own modules and of installed packages."""
    paths = sysconfig.get_paths()
    return tuple(sorted({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}))


def check_methods(part: Any, kind: str, contract: type, methods: Sequence[str]) -> None:
    """Raise ``ContractError`` unless a part has the methods of a contract, with the same arguments.

    Args:
        part: the object.
        kind: for messages: ``"an aggregator"``.
        contract: the class with the methods.
        methods: their names.
    """
    if isinstance(part, type) and any(hasattr(part, name) for name in methods):
        raise ContractError(f"{part.__name__} is a class, and {kind} is an object: give {part.__name__}(...)")
    name = name_of(part) if inspect.isroutine(part) else type(part).__name__
    calls = {method: inspect.signature(getattr(contract, method)) for method in methods}
    for method, call in calls.items():
        found = getattr(part, method, None)
        if not callable(found):
            needed = " and ".join(f"{each}{_called(shape)}" for each, shape in calls.items())
            raise ContractError(f"{name} has no method {method}; {kind} has {needed}")
        given = [parameter for parameter in call.parameters.values() if parameter.name != "self"]
        check_callable(
            found,
            f"{name}.{method}",
            f"{method}{_called(call)}",
            *[None for each in given if each.kind is not each.KEYWORD_ONLY],
            **{each.name: None for each in given if each.kind is each.KEYWORD_ONLY},
        )


def check_callable(function: Any, what: str, call: str, *args: Any, **named: Any) -> None:
    """Raise ``ContractError`` unless ``function`` can be called with these arguments.

    Args:
        function: the callable.
        what: its name, for messages.
        call: the call, for messages.
        args, named: as many arguments as in the call, with any values.
    """
    if not callable(function):
        raise ContractError(f"{what} is {function!r}; it must be a function, called as {call}")
    try:
        shape = inspect.signature(function)
    except ValueError:  # a builtin without a signature
        return
    try:
        shape.bind(*args, **named)
    except TypeError as exc:
        takes = ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in shape.parameters.values())
        raise ContractError(f"{what} takes ({takes}), and a run calls it as {call}: {exc}") from exc


def _called(shape: inspect.Signature) -> str:
    """Return the arguments of a call as text: ``(model, version=..., examples=...)``."""
    given = [parameter for parameter in shape.parameters.values() if parameter.name != "self"]
    return f"({', '.join(f'{p.name}=...' if p.kind is p.KEYWORD_ONLY else p.name for p in given)})"


def is_unfinished(answer: Any) -> bool:
    """Return whether an answer is a generator or a coroutine, so that the method has not run yet."""
    return inspect.isgenerator(answer) or inspect.iscoroutine(answer) or inspect.isasyncgen(answer)
