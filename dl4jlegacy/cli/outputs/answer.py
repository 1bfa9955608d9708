"""The result of a command, and the only place that prints it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.system.console import emit, error_fields
from dl4jlegacy.system.strict_json import to_json

__all__ = ["Answer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command.

    Attributes:
        fields: the object of ``--format json``: a struct of ``structs.OUTPUTS``, or a dict with its fields.
        text: the same for people; lazy, so lines that are not printed are not computed.
        error: raised after the answer was printed; the JSON object contains it as ``error``.
        exit_status: of a command without an error.
    """

    fields: Any
    text: str | Iterable[str]
    error: Dl4jError | None = None
    exit_status: int = 0

    def print(self, *, as_json: bool) -> int:
        """Print the result on stdout, as one JSON object or as text; return the exit status, or raise the error."""
        if as_json:
            from msgspec import to_builtins

            fields = self.fields if isinstance(self.fields, dict) else to_builtins(self.fields)
            emit(to_json(fields if self.error is None else {**fields, "error": error_fields(self.error)}))
        elif text := self.text if isinstance(self.text, str) else "\n".join(self.text):
            emit(text)
        if self.error is not None:
            self.error.is_printed = as_json
            raise self.error
        return self.exit_status
