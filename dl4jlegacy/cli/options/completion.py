"""Shell completion of option values at TAB; the values are listed here, so that no slow import is needed.

Commands and options are completed by typer; without values from here, shells offer file names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

__all__ = [
    "DATASETS",
    "METRICS",
    "MODELS",
    "ROUTERS",
    "SCHEDULES",
    "UPDATERS",
    "completed",
    "listed",
    "starting",
    "values_of",
]

MODELS = (
    *("mlp", "dbn", "sda", "lenet", "alexnet-small", "cnn", "char-lstm", "word-lstm", "lstm"),
    *("deep-autoencoder", "vae"),
)
UPDATERS = (
    *("sgd", "nesterovs", "adagrad", "rmsprop", "adam", "adamw", "adamax", "nadam", "amsgrad", "adadelta"),
    *("adabelief", "none"),
)
SCHEDULES = ("constant", "linear", "cosine")
METRICS = (
    *("loss", "accuracy", "precision", "recall", "f1", "matthews_correlation"),
    *("mse", "rmse", "mae", "r2", "pc"),
)
ROUTERS = ("iterative-reduce", "hogwild", "softsync", "ssp", "bmuf", "easgd", "gradient-sharing")
DATASETS = ("digits", "iris", "mnist", "sonnets")

_NAMES = {
    "--model": MODELS,
    "--updater": UPDATERS,
    "--schedule": SCHEDULES,
    "--metric": METRICS,
    "--router": ROUTERS,
    "--dataset": DATASETS,
}
_LITERAL = re.compile(r"[a-z0-9][a-z0-9:_-]*")


def listed(names: Sequence[str]) -> str:
    """Return names as text for the help: ``a, b or c``."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def values_of(flag: str, metavar: str) -> tuple[str, ...]:
    """Return the known values of an option: its listed names, or the alternatives in its metavar."""
    alternatives = metavar.split("|")
    literal = tuple(each for each in alternatives if _LITERAL.fullmatch(each)) if len(alternatives) > 1 else ()
    return _NAMES.get(flag, literal)


def starting(values: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a completion function that gives those ``values`` that begin with the typed text."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def completed(flag: str, metavar: str) -> Callable[[str], list[str]] | None:
    """Return the completion function of an option; None: its values are unknown."""
    values = values_of(flag, metavar)
    return starting(values) if values else None
