"""The exceptions of dl4jlegacy, each with a stable code and the exit status of the process.

* Dl4jError                      DL4J-INTERNAL   70
  x OutputError                  DL4J-OUTPUT      1
  x UsageError                   DL4J-USAGE       2
  x ConfError                    DL4J-CONF        3
    - ShapeError                 DL4J-SHAPE       3
    - DeviceError                DL4J-DEVICE      3
  x DataError                    DL4J-DATA        3
    - DownloadError              DL4J-DOWNLOAD    4
  x TrainingError                DL4J-TRAINING    1
    - JobError                   DL4J-JOB         1
    - CaptureError               DL4J-CAPTURE     1
    - ContractError              DL4J-CONTRACT    1
    - NotFiniteError             DL4J-NOTFINITE  13
    - DeviceMemoryError          DL4J-MEMORY      1
    - PoisonJobError             DL4J-POISON     12
    - CollapsedError             DL4J-COLLAPSED  13
  x WireError                    DL4J-WIRE        1
  x TrackerError                 DL4J-TRACKER     4
    - TrackerClosedError         DL4J-CLOSED      4
  x CloudError                   DL4J-CLOUD       4
  x DeadlineError                DL4J-DEADLINE    5
  x NotAuthorisedError           DL4J-AUTH        6
  x NotEnoughWorkersError        DL4J-WORKERS     7
  x ModelError                   DL4J-MODEL       8
    - CheckpointError            DL4J-CHECKPOINT  8
  x VersionError                 DL4J-VERSION     9
  x MissingPartError             DL4J-PART       10
  x PreflightError               DL4J-DOCTOR     11

Catch broadly at the root, recover narrowly at the leaf. A message says what happened, to which object, with which
values, and what to do about it. Errors of other libraries are wrapped where they enter (``raise ... from``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

__all__ = [
    "CaptureError",
    "CellError",
    "CheckpointError",
    "CloudError",
    "CollapsedError",
    "ConfError",
    "ContractError",
    "DataError",
    "DeadlineError",
    "DeviceError",
    "DeviceMemoryError",
    "Dl4jError",
    "DownloadError",
    "JobError",
    "MissingPartError",
    "ModelError",
    "NotAuthorisedError",
    "NotEnoughWorkersError",
    "NotFiniteError",
    "OutputError",
    "PoisonJobError",
    "PreflightError",
    "ShapeError",
    "TrackerClosedError",
    "TrackerError",
    "TrainingError",
    "UsageError",
    "VersionError",
    "WireError",
    "closest",
    "counted",
    "how_to_install",
    "nearest",
]


class Dl4jError(Exception):
    """Root of every error that this package raises on purpose."""

    code: ClassVar[str] = "DL4J-INTERNAL"
    exit_status: ClassVar[int] = 70
    is_printed = False
    """Whether stdout has the results already, for JSON including this error: only one object may be printed."""


class OutputError(Dl4jError):
    """Standard output does not take the results, for example because its reader has ended."""

    code = "DL4J-OUTPUT"
    exit_status = 1
    is_printed = True  # as far as stdout accepted it


class UsageError(Dl4jError):
    """The command line names something that does not exist, or options that cannot be combined."""

    code = "DL4J-USAGE"
    exit_status = 2


class ConfError(Dl4jError):
    """A configuration is invalid: unknown field, value out of range, contradiction."""

    code = "DL4J-CONF"
    exit_status = 3


class ShapeError(ConfError, ValueError):
    """Two sizes that must agree are different; the message names both."""

    code = "DL4J-SHAPE"


class DeviceError(ConfError):
    """A GPU was requested but is not available, or not in this combination; the message names the remedy."""

    code = "DL4J-DEVICE"


class DataError(Dl4jError):
    """A data set is missing, cannot be read, or holds values that cannot be trained on."""

    code = "DL4J-DATA"
    exit_status = 3


class CellError(DataError):
    """A cell of a table is no number; a schema may say what to do with it."""


class DownloadError(DataError):
    """A data set is missing and cannot be downloaded now; a later attempt may succeed."""

    code = "DL4J-DOWNLOAD"
    exit_status = 4


class TrainingError(Dl4jError):
    """Training ended without a model."""

    code = "DL4J-TRAINING"
    exit_status = 1


class JobError(TrainingError):
    """A worker could not perform a job; carries the worker's traceback as text in ``worker_traceback``."""

    code = "DL4J-JOB"

    def __init__(self, message: str, worker_traceback: str = "") -> None:
        super().__init__(message)
        self.worker_traceback = worker_traceback


class CaptureError(TrainingError):
    """A step cannot become a CUDA graph; the network then runs it launch by launch."""

    code = "DL4J-CAPTURE"


class ContractError(TrainingError):
    """A part of the user's program (a router, an aggregator, a performer) failed, or returned an unusable value.

    The message names class and method, the value or the line in the program, and what the method must return
    (``dl4jlegacy.testing``). If the part raised an error that ended the run, ``part_traceback`` has its traceback as
    text.
    """

    code = "DL4J-CONTRACT"

    def __init__(self, message: str, part_traceback: str = "") -> None:
        super().__init__(message)
        self.part_traceback = part_traceback


class NotFiniteError(TrainingError):
    """The score or the parameters became NaN or infinite."""

    code = "DL4J-NOTFINITE"
    exit_status = 13


class CollapsedError(TrainingError):
    """A run ended with a model that gives one answer for everything, or whose score has risen; the model is saved."""

    code = "DL4J-COLLAPSED"
    exit_status = 13


class DeviceMemoryError(TrainingError):
    """A GPU's memory is full; the message names layer and buffer, and the batch size that would fit."""

    code = "DL4J-MEMORY"


class PoisonJobError(TrainingError):
    """A job kills the processes that compute it, one after the other; the message names it and its workers."""

    code = "DL4J-POISON"
    exit_status = 12


class WireError(Dl4jError):
    """A frame is truncated, corrupt, of an unknown version, or not a frame at all."""

    code = "DL4J-WIRE"
    exit_status = 1


class TrackerError(Dl4jError):
    """The state tracker cannot be reached or refused an operation."""

    code = "DL4J-TRACKER"
    exit_status = 4


class TrackerLostError(TrackerError):
    """The state tracker did not answer within the time limit of this process."""


class TrackerClosedError(TrackerError):
    """The state tracker was shut down while it was still in use."""

    code = "DL4J-CLOSED"


class CloudError(Dl4jError):
    """A cloud provider cannot be reached, or failed to do what was requested."""

    code = "DL4J-CLOUD"
    exit_status = 4


class DeadlineError(Dl4jError):
    """A wait reached its deadline."""

    code = "DL4J-DEADLINE"
    exit_status = 5


class NotAuthorisedError(Dl4jError):
    """A frame or a caller does not carry the run's secret, or a run that needs one has none."""

    code = "DL4J-AUTH"
    exit_status = 6


class NotEnoughWorkersError(Dl4jError):
    """Fewer workers than the run needs."""

    code = "DL4J-WORKERS"
    exit_status = 7


class ModelError(Dl4jError):
    """A model file is missing, foreign, corrupt, or cannot be written."""

    code = "DL4J-MODEL"
    exit_status = 8


class CheckpointError(ModelError):
    """No usable checkpoint, or one that does not belong to this run."""

    code = "DL4J-CHECKPOINT"


class StorageError(CheckpointError):
    """A run's folder cannot be read or written now; the run continues without it, or waits for it."""


class VersionError(Dl4jError):
    """Two parties of one run differ in a version that must agree (package, wire, kernels)."""

    code = "DL4J-VERSION"
    exit_status = 9


class MissingPartError(Dl4jError):
    """A run's jobs need a named part of the user's program that this process does not have."""

    code = "DL4J-PART"
    exit_status = 10


class PreflightError(Dl4jError):
    """``dl4j doctor`` found a failure of something that the run needs."""

    code = "DL4J-DOCTOR"
    exit_status = 11
    is_printed = True


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 worker", "1,200 workers", or "2 classes" with ``plural`` given."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def how_to_install(*extras: str) -> str:
    """Return the command that installs an extra of ``setup.cfg``; for several extras, the alternatives.

    The package is on no package index: ``pip install`` with its name would find nothing, or another package.
    """
    commands = " or ".join(f"'./install {extra}'" for extra in extras)
    return f"type {commands} in the clone of dl4jlegacy"


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name closest to ``name``, or the list of known names."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else f"; known: {', '.join(sorted(known))}"


def closest(name: str, known: Iterable[str], *others: Iterable[str]) -> str:
    """Return the known name with the fewest typing errors compared to ``name``, or a name that begins or ends with it.

    Returns "" if there is none. At most three letters, and a third of all letters, may be wrong. Case, ``_``, ``-`` and
    spaces are ignored. A name from ``others`` is returned only if it is closer than every known name.
    """
    wanted, names = _letters(name), [each for group in (known, *others) for each in sorted(group)]
    errors = [_typing_errors(wanted, _letters(each)) for each in names]
    if errors and min(errors) <= min(3, len(wanted) // 3):
        return names[errors.index(min(errors))]
    parts = [
        each for each in dict.fromkeys(names) if _letters(each).startswith(wanted) or _letters(each).endswith(wanted)
    ]
    return parts[0] if len(parts) == 1 and len(wanted) > 3 else ""


def _letters(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "").replace(" ", "")


def _typing_errors(one: str, other: str) -> int:
    """Return the number of letters to insert, delete, replace or swap with the next one (optimal alignment)."""
    before, last = list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, its in enumerate(other, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != its)))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]
