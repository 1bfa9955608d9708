"""``tune``: a hyperparameter search, with one or several trials at a time, each as a run of its own with workers.

Optuna's TPE sampler draws the settings, its pruner ends unpromising runs, and its study stores the trials.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from dl4jlegacy.datasets import DataSource
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.errors import (
    ConfError,
    DeviceError,
    DeviceMemoryError,
    NotFiniteError,
    OutputError,
    TrainingError,
    nearest,
)
from dl4jlegacy.models.model import evaluate_network, source_for_model
from dl4jlegacy.nn.conf.text import encode_json, encode_yaml
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.outcome import TrainingResult
from dl4jlegacy.scaleout.scoring import METRICS, ValidationConf
from dl4jlegacy.scaleout.workers.device_choice import Compute, resolve_compute
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files
from dl4jlegacy.training import prepare as training
from dl4jlegacy.training.run_data import load_new, standardized
from dl4jlegacy.tuning.plots import check_plotly
from dl4jlegacy.tuning.pruning import BatchPruner, PruningCallback
from dl4jlegacy.tuning.side_by_side import Tick, side_by_side
from dl4jlegacy.tuning.space import SearchSpace
from dl4jlegacy.tuning.storage_address import said_without, spoken_storage
from dl4jlegacy.tuning.trial_runs import SearchCluster, TrialRuns, opened_runs
from dl4jlegacy.tuning.trials import AT_ONCE, FinishedTrial, Trials, digest

__all__ = ["PRUNERS", "VALIDATION_FRACTION", "SearchOptions", "SearchResult", "tune"]

logger = logging.getLogger(__name__)

PRUNERS: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "none": optuna.pruners.NopPruner,
}
"""Methods to end runs early: "median" prunes a run whose best score so far is worse than the others' median; "none"."""
VALIDATION_FRACTION = 0.2
"""The share of the training data for validation, if the Conf has none."""
_ENGINE = {"connect_args": {"timeout": 60.0}}  # seconds that SQLite waits for a locked file
_FAILS = (NotFiniteError, DeviceMemoryError, ConfError)
"""Errors of a trial that its drawn settings may cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        trials: total number of trials in the study, including those of earlier calls.
        workers: threads of all runs together, at least one for each; None: the Conf's. The jobs of a round are the
            Conf's, so that the trials are the same for any number of workers.
        at_once: trials that run at the same time, as a batch. A batch is drawn together, and drawn and pruned only from
            the results of earlier batches: the trials depend on this number, but not on the speed of the runs.
        seed: of the drawn settings; the runs have the Conf's.
        storage: an SQLite file, or a storage URL of Optuna's; "": in memory, and lost with the process.
        study: the search's name in the storage.
        pruner: one of ``PRUNERS``.
        out, out_conf: files for the best model and its Conf, written at each improvement; "": none.
        plot: a file for an HTML page of the study's plots, written at the end; "": none.
        label, regression, multi_label, missing: as for ``training.prepare``.
        cluster: the cluster of the trials' runs, with workers of other processes besides those of this process, which
            may then have none; None: only this process.
    """

    trials: int = 20
    workers: int | None = None
    at_once: int = 1
    seed: int = 123
    storage: str = ""
    study: str = "search"
    pruner: str = "median"
    out: str = ""
    out_conf: str = ""
    plot: str = ""
    label: str = ""
    regression: bool = False
    multi_label: bool = False
    missing: tuple[str, ...] | None = None
    cluster: SearchCluster | None = None

    def __post_init__(self) -> None:
        least = 1 if self.cluster is None else 0
        if self.trials < 1 or (self.workers is not None and self.workers < least):
            raise ConfError(f"a search needs at least 1 trial and 1 worker; it has {self.trials} and {self.workers}")
        if self.at_once < 1:
            raise ConfError(f"at_once is {self.at_once}; a search runs at least 1 trial at a time")
        if self.pruner not in PRUNERS:
            raise ConfError(f"pruner is {self.pruner!r}{nearest(self.pruner, list(PRUNERS))}")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        trials: all finished trials, by number.
        best: the trial with the best score; ``conf`` is its Conf, whose training gives the same model.
        network: the best model.
        metric: the metric of the trials' scores.
        evaluation: of the best model on the held-out data, which no trial has used: a report's fields.
    """

    trials: list[FinishedTrial]
    best: FinishedTrial
    conf: Conf
    network: Network
    metric: str
    evaluation: dict[str, Any]

    @property
    def start(self) -> FinishedTrial | None:
        """The trial of the original Conf; None if its values are not in the space."""
        return next((trial for trial in self.trials if trial.is_start), None)


def tune(
    conf: Conf,
    space: SearchSpace,
    options: SearchOptions | None = None,
    *,
    given: frozenset[str] | None = None,
    tick: Tick | None = None,
    on_trial: Callable[[FinishedTrial], None] | None = None,
) -> SearchResult:
    """Search ``space`` for the settings with the best validation score. Blocks.

    The first trial is ``conf`` unchanged, if its values are in the space. After any early end of the search, the same
    call with the same storage continues it, with the same final result; interrupted trials are repeated. Only one
    process at a time may use a study.

    Args:
        given: the names of the Conf's fields set by the user, as for ``training.prepare``; None: those that
            differ from their defaults.
        tick: as for ``ActorNetworkRunner.train``; on_trial: called with each trial at its end, on this thread.

    Raises:
        ConfError: the space does not fit the Conf, the study belongs to another search, or the storage is invalid.
        DataError, DeviceError, ModelError: as for a run.
        TrainingError: every trial has failed.
        TrackerError, NotEnoughWorkersError, NotAuthorisedError: as for a run on a cluster; the same call continues.
        OutputError: the storage, ``out_conf`` or ``plot`` cannot be written.
    """
    options = options or SearchOptions()
    if options.plot:
        check_plotly()
    for what, path in (("Conf", options.out_conf), ("plots", options.plot)):
        if path:
            with files.errors_as(OutputError, f"the {what} cannot be written to {path}", "choose another"):
                files.check_replaceable(files.expand(path))
    search = _Search.prepared(conf, space, options, _set_fields(conf) if given is None else given)
    with (
        _quiet(),
        _opened(options, maximizes=METRICS[search.metric]) as study,
        opened_runs(options.cluster, options.study, search.compute, search.workers_of_each) as runs,
    ):
        search.begin(study, runs)
        while len(search.trials.finished()) < options.trials:
            search.try_batch(tick, on_trial or (lambda trial: None))
        return search.result(tick)


def _set_fields(conf: Conf) -> frozenset[str]:
    default = Conf()
    return frozenset(name for name in Conf.__struct_fields__ if getattr(conf, name) != getattr(default, name))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Make Optuna log only warnings: ``on_trial`` reports the trials."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextlib.contextmanager
def _opened(options: SearchOptions, *, maximizes: bool) -> Iterator[optuna.Study]:
    """Open or create the study; storage errors, now and later, become this package's errors."""
    place = spoken_storage(options.storage) or "memory"
    stack, opened = contextlib.ExitStack(), None
    try:
        opened, file = _open_storage(options.storage)
        if file is not None:
            stack.enter_context(_alone_with(file))
        yield optuna.create_study(
            storage=opened,
            study_name=options.study,
            load_if_exists=True,
            pruner=BatchPruner(PRUNERS[options.pruner](), options.at_once),
            direction="maximize" if maximizes else "minimize",
        )
    except (StorageInternalError, SQLAlchemyError) as exc:
        cause = exc.__cause__ or exc
        raise OutputError(
            f"the storage {place} cannot be used: {said_without(cause, options.storage)}; the same command goes on "
            "once that is mended"
        ) from exc
    finally:
        if isinstance(opened, RDBStorage):
            opened.remove_session()
            opened.engine.dispose()
        stack.close()  # after the database: closing any descriptor of the file releases the database's own locks


@contextlib.contextmanager
def _alone_with(file: Path) -> Iterator[None]:
    """Hold the lock of a storage's file; raises ``ConfError`` if another search holds it."""
    with file.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise ConfError(f"another search is at work in {file}; wait for it, or choose another --storage") from exc
        yield


def _open_storage(place: str) -> tuple[BaseStorage, Path | None]:
    """Return the storage for a path or URL, and its file if it is a path; raises ``ConfError``."""
    if not place:
        return InMemoryStorage(), None
    file = None
    if "://" in place and not storage.is_remote(place.lower()):
        url = place
    else:
        with files.errors_as(ConfError, f"storage {spoken_storage(place)}"):
            file = files.expand(Path(place)).absolute()
        url = f"sqlite:///{file}"
    try:
        # Trials that run at the same time write one after the other; on a busy disk this may take a while.
        return RDBStorage(url, engine_kwargs=_ENGINE if file is not None else None), file
    except (ImportError, ValueError, ArgumentError) as exc:
        said = said_without(exc, place)
        raise ConfError(f"storage {spoken_storage(place)}: {said}") from None  # exc may show a password


@dataclass(frozen=True, slots=True, eq=False)
class _Trained:
    """The result of a trial's run: its best model, and the model's score."""

    conf: Conf
    network: Network
    score: float
    seconds: float
    is_pruned: bool


@dataclass(slots=True)
class _Search:
    """One call of ``tune``: the common parts of all its trials, and the best model trained so far."""

    conf: Conf
    space: SearchSpace
    options: SearchOptions
    data: DataSource
    compute: Compute
    output: storage.Output | None
    kernels: str
    workers: int
    _runs: TrialRuns | None = None
    _trials: Trials | None = None
    _best: tuple[int, Conf, Network] | None = field(default=None)

    @classmethod
    def prepared(cls, conf: Conf, space: SearchSpace, options: SearchOptions, given: frozenset[str]) -> _Search:
        """Return a search after all checks that are possible before the first trial."""
        if conf.checkpoint_dir:
            raise ConfError(
                f"Conf.checkpoint_dir is {conf.checkpoint_dir}, and a search keeps no checkpoints; leave it out"
            )
        output = storage.open_model_output(options.out) if options.out else None
        kernels = conf.kernels
        conf = training.with_absolute_paths(conf)
        workers = conf.workers if options.workers is None else options.workers
        of_each = max(1, workers // options.at_once)
        conf, compute = resolve_compute(conf.replace(workers=of_each), local=workers > 0)
        if compute.on_gpu and options.at_once > 1:
            raise ConfError(
                f"{options.at_once} trials at once would share a GPU, and its memory; leave --at-once (at_once) out, "
                "or compute on the CPU"
            )
        conf, data = load_new(
            conf,
            label=options.label,
            regression=options.regression,
            multi_label=options.multi_label,
            missing=options.missing,
            encode=training.is_encoded(conf),
        )
        if "validation" not in given:
            conf = conf.replace(validation=ValidationConf(fraction=VALIDATION_FRACTION))
        conf = training.with_network(conf, data, given | {"workers", "validation"})
        data = standardized(conf, data)
        validation = conf.validation or ValidationConf(fraction=VALIDATION_FRACTION)
        if not (validation.fraction or validation.dataset):
            raise ConfError("Conf.validation names no data; give it fraction: 0.2, or a dataset")
        conf = conf.replace(validation=validation, run="", incarnation="")
        space = space.fitted_to(conf, lambda one: training.with_network(one, data, _ALL))
        return cls(conf, space, options, data, compute, output, kernels, workers)

    @property
    def workers_of_each(self) -> int:
        """Number of threads of this process for each run; 0: none."""
        return min(self.workers, self.conf.workers)

    @property
    def trials(self) -> Trials:
        """The trials of the study, once it is open."""
        assert self._trials is not None, "begin has been called"
        return self._trials

    @property
    def metric(self) -> str:
        """The metric of the trials' scores."""
        return self.conf.scoring.metric

    def begin(self, study: optuna.Study, runs: TrialRuns) -> None:
        """Start with a new or existing study, whose trials ``runs`` trains."""
        self._runs, self._trials = runs, Trials(study, self.space, self.options.seed)
        common = {"conf": digest(f"{self.conf.digest()} {self.conf.epochs}"), "search section": self.space.to_json()}
        data = fingerprint(training.batches(self.conf, self.data))
        chosen = {"seed": self.options.seed, "pruner": self.options.pruner, AT_ONCE: self.options.at_once}
        self.trials.check_same({**common, "data set": data, **chosen})
        self.trials.begin(self.space.start(self.conf))

    def try_batch(self, tick: Tick | None, on_trial: Callable[[FinishedTrial], None]) -> None:
        """Run the next batch of trials; keep the model of the best trial so far."""
        under_way = self.trials.ask(self.options.at_once, self.options.trials)
        tasks = {number: functools.partial(self._train, number, trial) for number, trial in under_way.items()}
        try:
            with contextlib.closing(side_by_side(tasks, tick)) as ended:
                for number, outcome in ended:
                    self._note(number, under_way[number], outcome)
                    del under_way[number]
                    on_trial(next(trial for trial in self.trials.finished() if trial.number == number))
        except BaseException:
            for trial in under_way.values():
                self.trials.try_again(trial.number)
            raise

    def _train(self, number: int, trial: optuna.Trial, tick: Tick | None) -> _Trained:
        """Run a trial, on any thread, in parallel to others. Raises the errors of its run."""
        pruning = PruningCallback(trial)
        conf = self._conf_of(trial.params)
        result, network = self._run(conf, number, pruning, tick)
        if result.best is None:
            raise NotFiniteError(f"no model was scored: {result.stopped_by}")
        return _Trained(conf, network, result.best.score, result.seconds, pruning.has_pruned(result.stopped_by))

    def _note(self, number: int, trial: optuna.Trial, outcome: Future[_Trained]) -> None:
        """Record the result of a trial; raises its error, unless the drawn settings caused it."""
        try:
            trained = outcome.result()
        except DeviceError:
            raise
        except _FAILS as exc:
            self.trials.tell_failed(trial, str(exc))
            return
        sha256 = training.params_sha256(trained.network.params)
        self.trials.tell(
            trial, trained.score, is_pruned=trained.is_pruned, seconds=trained.seconds, params_sha256=sha256
        )
        found = self.trials.best()
        if found is not None and found.number == number:
            self._best = number, trained.conf, trained.network
            self._save(trained.conf, trained.network)

    def result(self, tick: Tick | None) -> SearchResult:
        """Return the result of the search; a best model from an earlier process is trained again."""
        best, finished = self.trials.best(), self.trials.finished()
        if best is None:
            failed = next((trial for trial in finished if trial.error), None)
            why = "" if failed is None else f"; trial {failed.number}: {failed.error}"
            raise TrainingError(f"no trial of {len(finished)} came to its end{why}")
        if self._best is None or self._best[0] != best.number:
            conf = self._conf_of(self.trials.drawn(best.number))
            _, network = self._run(conf, best.number, None, tick)
            if training.params_sha256(network.params) != best.params_sha256:
                logger.warning("trial %d, trained again, has come to other parameters than before", best.number)
            self._best = best.number, conf, network
            self._save(conf, network)
        _, conf, network = self._best
        test = source_for_model(self.data, conf.model).test
        scale = self.data.reading.label_scale
        evaluation = evaluate_network(network, test, self.data.label_names, label_scale=scale).fields()
        self._save_plots()
        return SearchResult(finished, best, self._written(conf), network, self.metric, evaluation)

    def _conf_of(self, drawn: dict[str, Any]) -> Conf:
        return training.with_network(self.space.apply(self.conf, drawn), self.data, _ALL)

    def _run(
        self, conf: Conf, number: int, pruning: PruningCallback | None, tick: Tick | None
    ) -> tuple[TrainingResult, Network]:
        """Train a Conf; return the result, and the network with the best score."""
        assert self._runs is not None, "begin has been called"
        return self._runs.train(conf, training.training_data(conf, self.data), number, pruning, tick)

    def _written(self, conf: Conf) -> Conf:
        """Return the Conf in a form for other runs, on any machine."""
        return conf.replace(kernels=self.kernels, data_fingerprint="", workers=max(1, self.workers))

    def _save(self, conf: Conf, network: Network) -> None:
        if self.output is not None:
            self.output.save(training.model_writer(network, self.data))
        if self.options.out_conf:
            path = files.expand(self.options.out_conf)
            encode = encode_yaml if path.suffix in (".yaml", ".yml") else encode_json
            with files.errors_as(OutputError, f"the Conf cannot be written to {path}", "choose another"):
                files.write(path, f"{encode(self._written(conf))}\n".encode())

    def _save_plots(self) -> None:
        if self.options.plot:
            path = files.expand(self.options.plot)
            page = self.trials.page(self.options.study, self.metric)
            with files.errors_as(OutputError, f"the plots cannot be written to {path}", "choose another"):
                files.write(path, page.encode())


_ALL = frozenset(Conf.__struct_fields__)
