"""A study as one HTML page of Optuna's plots. It contains the script of plotly, so that it works offline."""

from __future__ import annotations

import warnings
from html import escape
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from dl4jlegacy.errors import ConfError, counted, how_to_install

__all__ = ["check_plotly", "study_page"]

_STYLE = """
:root { color-scheme: light; } body { margin: 0 auto; padding: 1rem 1.5rem; max-width: 80rem; background: #fff;
color: #1b2430; font: 15px/1.5 system-ui, sans-serif; } h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin-top: 2rem; } p { color: #5d6b7c; } .plot { overflow-x: auto; }
"""
_FEWEST = 2
"""Number of complete trials needed for the plots of settings."""


def check_plotly() -> None:
    """Raise ``ConfError`` if plotly is not installed."""
    try:
        import plotly.graph_objects  # noqa: F401
    except ModuleNotFoundError as exc:
        raise ConfError(f"plots need plotly, which is not installed: {how_to_install('tune')}") from exc


def study_page(name: str, metric: str, rows: list[FrozenTrial], direction: optuna.study.StudyDirection) -> str:
    """Return a study's plots as HTML.

    Args:
        name: of the search.
        metric: the metric of the trials' scores.
        rows: the finished trials, ordered by the trial numbers in the plots.
        direction: of the study.
    """
    study = optuna.create_study(direction=direction)
    study.add_trials(rows)
    complete = sum(row.state is TrialState.COMPLETE for row in rows)
    parts, script = [], True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's warnings about experimental features
        for title, figure in _figures(study, metric, complete):
            # The first plot includes the script, some megabytes; its input is JSON that plotly has escaped.
            drawn = figure.to_html(full_html=False, include_plotlyjs=script, config={"displaylogo": False})
            parts.append(f'<h2>{escape(title)}</h2>\n<div class="plot">{drawn}</div>')
            script = False
    heading = f"Search {escape(name)}"
    said = f"{counted(len(rows), 'trial')}, {complete} of them complete; {escape(metric)}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{heading}</h1>\n<p>{said}.</p>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _figures(study: optuna.Study, metric: str, complete: int) -> list[tuple[str, Any]]:
    from optuna import visualization

    found = [
        ("Best score so far", visualization.plot_optimization_history(study, target_name=metric)),
        ("Scores while trials were trained", visualization.plot_intermediate_values(study)),
    ]
    if complete >= _FEWEST:
        found += [
            ("Each setting", visualization.plot_slice(study, target_name=metric)),
            ("All settings together", visualization.plot_parallel_coordinate(study, target_name=metric)),
        ]
        if len({trial.value for trial in study.get_trials(states=(TrialState.COMPLETE,))}) >= _FEWEST:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()  # the evaluator that needs no other library
            found.append(
                ("What matters", visualization.plot_param_importances(study, evaluator=evaluator, target_name=metric)),
            )
    return found
