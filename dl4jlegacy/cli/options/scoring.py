"""Training options for validation and early stopping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dl4jlegacy.errors import UsageError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.scoring import EarlyStopping, ValidationConf

if TYPE_CHECKING:
    from dl4jlegacy.cli.options.read import TrainOptions

__all__ = ["scoring_changes"]


def scoring_changes(options: TrainOptions, conf: Conf) -> dict[str, Any]:
    """Return the Conf fields that the options change.

    Raises:
        UsageError: an option is malformed, or needs another one. ConfError: the options do not fit the Conf.
    """
    changes: dict[str, Any] = {}
    validation, stopping = _validation(options, conf), _stopping(options, conf.early_stopping)
    if options.no_validation and (options.validation is not None or validation is not None):
        raise UsageError("--no-validation, and a validation is given; leave one of them out")
    if options.no_validation or validation != conf.validation:
        changes["validation"] = validation
    if stopping != conf.early_stopping:
        changes["early_stopping"] = stopping
    return changes


def _validation(options: TrainOptions, conf: Conf) -> ValidationConf | None:
    validation = conf.validation
    if options.validation is not None:
        fraction = _fraction(options.validation)
        data = {"fraction": fraction, "dataset": "" if fraction else options.validation}
        is_chosen = options.model is not None or conf.network_conf is None  # else the file says all of it
        validation = replace(validation or ValidationConf(stratify=fraction > 0 and is_chosen), **data)
    for flag, field, value in (
        ("--validate-every", "every_rounds", options.validate_every),
        ("--metric", "metric", options.metric),
    ):
        if value is None:
            continue
        if validation is None:
            raise UsageError(f"{flag} needs --validation: a part of the training data, such as 0.1, or a data set")
        validation = replace(validation, **{field: value})
    return validation


def _fraction(text: str) -> float:
    """Return the fraction of the data that a text gives; 0.0 if the text names a data set."""
    try:
        fraction = float(text)
    except ValueError:
        return 0.0
    if not 0 < fraction < 1:
        raise UsageError(
            f"--validation is {text!r}; a part of the training data is more than 0 and less than 1, such as 0.1"
        )
    return fraction


def _stopping(options: TrainOptions, stopping: EarlyStopping | None) -> EarlyStopping | None:
    given: dict[str, Any] = {
        "epochs_without_improvement": options.patience,
        "min_improvement": options.min_improvement,
        "best_score": options.stop_at_score,
        "max_seconds": options.max_seconds,
        "invalid_score": options.stop_if_invalid or None,
    }
    found = {name: value for name, value in given.items() if value is not None}
    if not found:
        return stopping
    patience = options.patience or (0 if stopping is None else stopping.epochs_without_improvement)
    if options.min_improvement is not None and not patience:
        raise UsageError("--min-improvement needs --patience: how many scores in a row may be no better")
    return EarlyStopping(**found) if stopping is None else replace(stopping, **found)
