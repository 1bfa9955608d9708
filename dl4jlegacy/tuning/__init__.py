"""Hyperparameter search with Optuna: ``tune``, the search space (``SearchSpace``), and ``PruningCallback``.

::

    space = SearchSpace.of({"updater.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}})
    found = tune(Conf(model="mlp", dataset="digits", epochs=5), space, trials=20)
    print(found.best.score, found.best.params)

Needs Optuna (extra ``tune``), which no other part of the package imports.
"""

from dl4jlegacy.errors import ConfError, how_to_install

try:
    import optuna  # noqa: F401  # imported first, so that another missing module is not reported as Optuna
except ModuleNotFoundError as exc:
    if exc.name != "optuna":
        raise
    raise ConfError(f"the search for settings needs Optuna, which is not installed: {how_to_install('tune')}") from exc

from dl4jlegacy.tuning.pruning import PruningCallback
from dl4jlegacy.tuning.search import SearchOptions, SearchResult, tune
from dl4jlegacy.tuning.space import SearchSpace, read_search
from dl4jlegacy.tuning.trial_runs import SearchCluster
from dl4jlegacy.tuning.trials import FinishedTrial

__all__ = [
    "FinishedTrial",
    "PruningCallback",
    "SearchCluster",
    "SearchOptions",
    "SearchResult",
    "SearchSpace",
    "read_search",
    "tune",
]
