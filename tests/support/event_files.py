"""TensorBoard's own reader, without its server."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

__all__ = ["Curves", "read_events"]

Curves = dict[str, list[tuple[int, float]]]
"""By name: (step, value) of each point."""


def read_events(folder: Path) -> tuple[Curves, EventAccumulator]:
    """Return the curves of the only run in a folder, as TensorBoard sees them, and the reader."""
    [run] = folder.iterdir()
    reader = EventAccumulator(str(run), size_guidance={"scalars": 0, "histograms": 0})
    reader.Reload()
    curves = {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
    return curves, reader
