"""The base of all structs of ``cli.outputs``, and the output of a command that fails."""

from __future__ import annotations

import msgspec

__all__ = ["ErrorFields", "Failed", "Output"]


class Output(msgspec.Struct, forbid_unknown_fields=True):
    """Has these fields, and no others."""


class ErrorFields(Output):
    """What went wrong; ``dl4j explain CODE`` says more, ``exit`` is the exit status."""

    code: str
    message: str
    exit: int


class Failed(Output):
    """What every command prints if it fails."""

    error: ErrorFields
