"""The lines of a report about a model: its figures, those of the baseline below them, and the findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["figure_lines", "finding_lines"]


def figure_lines(fields: Mapping[str, Any]) -> list[str]:
    """Return the figures of a report's JSON object, and those of its baseline."""
    if "r2" in fields:
        lines = [f"r2        {fields['r2']:.4f}, mse {fields['mse']:.6g}, mae {fields['mae']:.6g}"]
    elif fields["accuracy"] is not None:
        lines = [f"accuracy  {fields['accuracy']:.4f}, f1 {fields['f1']:.4f}, macro f1 {fields['macro_f1']:.4f}"]
    else:
        return []
    usual = fields["baseline"]
    if usual is not None and "r2" in usual:
        lines.append(f"baseline  {usual['r2']:.4f}, {usual['mse']:.6g}, {usual['mae']:.6g} by {usual['answer']}")
    elif usual is not None:
        lines.append(f"baseline  {usual['accuracy']:.4f} by {usual['answer']}")
    return lines


def finding_lines(fields: Mapping[str, Any]) -> list[str]:
    """Return a line for each finding of a report's JSON object."""
    return [f"finding   {finding}" for finding in fields["findings"]]
