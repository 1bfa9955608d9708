"""Masters of ``dl4j``: they lead a run over the data set named in its ``Conf``, and report on the trained network.

Legacy: ``ActorNetworkRunnerApp``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.cluster.leadership import (
    MasterOptions,
    MasterRun,
    check_may_take_over,
    elect_new,
    resume_registered,
    resume_saved,
)
from dl4jlegacy.cluster.standby import take_over
from dl4jlegacy.datasets import DataSource
from dl4jlegacy.errors import ConfError, ModelError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import Report, train, training_data
from dl4jlegacy.training.run import Run
from dl4jlegacy.training.run_data import reload

__all__ = ["resume_from_checkpoints", "resume_run", "run_master", "stand_by"]


def run_master(run: Run, data: DataSource, address: ClusterAddress, options: MasterOptions | None = None) -> Report:
    """Lead a new run to its end as its master; return the report.

    Args:
        run, address, options: as for ``elect_new``; None: the defaults.
        data: the data that the run was resolved with; they travel with the jobs.

    Raises:
        NotEnoughWorkersError: there were too few workers for too long; the run can be resumed. Also what ``elect_new``
            raises.
    """
    options = options or MasterOptions()
    with elect_new(run, address, options) as led:
        return _train(led, data, options)


def stand_by(
    conf: Conf, address: ClusterAddress, options: MasterOptions, *, on_stand_by: Callable[[], None] = lambda: None
) -> Report | None:
    """Wait as a standby, and finish the run if its master dies; return None if the run ended without that.

    Args and errors as for ``take_over``.
    """
    check_may_take_over(conf, address)  # before any file that the Conf names is touched
    data = _load(conf)
    with take_over(conf, training_data(conf, data), address, options, on_stand_by=on_stand_by) as led:
        return None if led is None else _train(led, data, options)


def resume_run(conf: Conf, address: ClusterAddress, options: MasterOptions, *, workers: int | None = None) -> Report:
    """Take over a registered run that has failed or lost its master, and finish it.

    Returns the report, as the run's first master would. Args and errors as for ``resume_registered``.
    """
    check_may_take_over(conf, address)  # before any file that the Conf names is touched
    data = _load(conf)
    with resume_registered(conf, training_data(conf, data), address, options, workers=workers) as led:
        return _train(led, data, options)


def resume_from_checkpoints(
    conf: Conf, address: ClusterAddress, options: MasterOptions, *, workers: int | None = None
) -> Report:
    """Continue a run from its checkpoint folder and finish it; the grid and Zookeeper may have lost it.

    Args and errors as for ``resume_saved``.
    """
    check_may_take_over(conf, address)
    data = _load(conf)
    with resume_saved(conf, training_data(conf, data), address, options, workers=workers) as led:
        return _train(led, data, options)


def _load(conf: Conf) -> DataSource:
    """Return the data named in a run's Conf; raises ``ConfError`` if only the run's own program has them."""
    if not conf.dataset:
        raise ConfError(
            f"run {conf.run} is led by a program of its own, and its Conf names no data: start that program again, "
            'with ActorNetworkRunner("standby", ...) or setup(conf, resume=True)'
        )
    return reload(conf)


def _train(led: MasterRun, data: DataSource, options: MasterOptions) -> Report:
    """Train the run that this process leads; the run stays in the grid if the model could not be saved in place."""
    report = train(
        led.run,
        data,
        out=led.out,
        tick=led.tick,
        tracker=led.tracker,
        monitor=led.monitor,
        observers=options.observers,
    )
    led.is_finished = report.misplaced is None
    if led.is_finished:
        return report
    run = led.run.conf.run
    remedy = f"but the run is kept: `dl4j resume {run} --out FILE` writes its model, `dl4j stop` removes it"
    return replace(report, misplaced=ModelError(f"{report.misplaced}; {remedy}"))
