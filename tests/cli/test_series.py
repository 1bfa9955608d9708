"""``dl4j train`` on tables of the last values of a series."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import CommandLine

LAGS = 6


def write_series(rows: int, *, noise: float) -> float:
    """Write a rising series with a season of six steps; return the last value's mean error on its held-out end."""
    steps, rng = np.arange(rows + LAGS), np.random.default_rng(1)
    series = 50 + 0.2 * steps + 8 * np.sin(2 * np.pi * steps / 6) + rng.normal(0, noise, len(steps))
    table = np.stack([series[lag : rows + lag] for lag in range(LAGS + 1)], axis=1)
    lines = [",".join(["pq"[step % 2], *(f"{value:.6f}" for value in row)]) for step, row in enumerate(table)]
    header, held = ",".join(["shop", *(f"before{lag}" for lag in range(LAGS, 0, -1)), "sales"]), rows // 5
    for name, part in (("train", lines[:-held]), ("test", lines[-held:])):
        Path(f"series/{name}.csv").write_text("\n".join([header, *part]) + "\n")
    return float(np.abs(table[-held:, -1] - table[-held:, -2]).mean())


@pytest.mark.parametrize(("rows", "noise", "hidden"), [(150, 1.0, "3,1"), (600, 4.0, "15,7")])
def test_the_defaults_beat_the_last_value(dl4j: CommandLine, here: Path, rows: int, noise: float, hidden: str) -> None:
    Path("series").mkdir()
    last = write_series(rows, noise=noise)
    found = dl4j.json("train", "series", "--label", "sales", "--regression", "--seed", "1", "--out", "m.zip")
    assert found["mae"] < 0.7 * last and found["learned"]
    assert found["baseline"]["answer"] == "the last value, in column 'before1'"
    assert found["baseline"]["mae"] == pytest.approx(last, rel=1e-4)
    assert found["choices"]["hidden"].startswith(f"{hidden}: lags of a series")
    held = np.loadtxt("series/test.csv", delimiter=",", skiprows=1, usecols=LAGS + 1)
    predicted = np.array(dl4j("predict", "m.zip", "series/test.csv").split(), np.float64)
    assert np.abs(predicted - held).mean() == pytest.approx(found["mae"], rel=1e-4)
