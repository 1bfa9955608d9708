"""One job of a run, performed alone in this process, to find out why it kills its workers; nothing is changed.

    python -m dl4jlegacy.cli.one_job RUN|DIR ROUND/SLOT [--zookeeper HOST:PORT] [--id ID] [--use MODULE,...]

It begins with the newest model of the run: in the grid, or of the checkpoints in ``DIR``; without one, with the first.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import sys
from typing import Any

from dl4jlegacy.cli.options.read import cluster_address, import_used
from dl4jlegacy.errors import CheckpointError, ConfError, UsageError, counted
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.scaleout.actors.worker_pool import performer_of
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.state.job import Job, JobIterator, Result
from dl4jlegacy.scaleout.strategies import router_of
from dl4jlegacy.scaleout.workers.device_choice import host_kernels
from dl4jlegacy.scaleout.workers.perform import perform_in_slot
from dl4jlegacy.scaleout.workers.plugins import PerformerFactory, find_router
from dl4jlegacy.system.console import emit, run_guarded

__all__ = ["main", "perform_one_job"]


def perform_one_job(
    conf: Conf,
    jobs: JobIterator,
    place: tuple[int, int],
    model: Result | None = None,
    performer: PerformerFactory | None = None,
) -> Result:
    """Return the update computed by the job of a round and slot, performed on this thread.

    Args:
        conf: the run's, with all defaults resolved.
        jobs: the run's jobs.
        place: the round and the slot.
        model: the model to begin with; None: the network's initial model.
        performer: creates the performer; None: the performer that the Conf names, else one that trains its network.

    Raises:
        UsageError: the run has no such job. ConfError: there is no model.
    """
    plan, kernels = jobs.plan, host_kernels(conf.kernels)
    round_, slot = place
    if not (0 <= round_ < plan.total_rounds and 0 <= slot < plan.slots(round_)):
        raise UsageError(f"the run has no round {round_}, slot {slot}; it has {counted(plan.total_rounds, 'round')}")
    if model is None:
        if conf.network_conf is None:
            raise ConfError("jobs that are no network's need a model to begin with")
        network = build_network(conf.network_conf, kernels)
        network.init()
        model = first_model(network)
    at = plan.slot(round_, slot)
    job = Job(at, plan.work_of(round_), jobs.work(at), worker_id="alone")
    router = router_of(find_router(conf), plan, round_)
    make = performer or performer_of(conf)
    done = perform_in_slot(make(conf, kernels), router, job, model, None, kernels)
    assert done is not None
    return done[0]


def _of_folder(folder: str, content: bytes) -> tuple[Conf, Result | None]:
    """Return the Conf and the newest model of the run in a folder."""
    from dl4jlegacy.scaleout import saved_run
    from dl4jlegacy.training import prepare as training

    newest = saved_run.open_checkpoints(folder).newest()
    return training.read_run(folder, content), None if newest is None else Result.decode(newest[1])


def _of_grid(run: str, zookeeper: str | None, id: str | None) -> tuple[Conf, Result | None]:
    """Return the Conf and the newest model of a run that is registered in Zookeeper."""
    from dl4jlegacy.cluster.address import closing, open_tracker
    from dl4jlegacy.cluster.leadership import find_run

    address, conf = find_run(cluster_address(zookeeper, id), run, id_given=id is not None)
    with closing(open_tracker(conf, address, registered=True)) as tracker:
        return conf, tracker.get_current()


def _perform(given: argparse.Namespace) -> None:
    from dl4jlegacy.scaleout import saved_run
    from dl4jlegacy.training import prepare as training
    from dl4jlegacy.training import run_data
    from dl4jlegacy.training.run import job_iterator

    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", given.job)
    if found is None:
        raise UsageError(f"the job is {given.job!r}; it must be ROUND/SLOT, such as 30/2")
    import_used(given.use)
    content = saved_run.find_conf(given.run)
    conf, model = _of_grid(given.run, given.zookeeper, given.id) if content is None else _of_folder(given.run, content)
    if not conf.dataset:
        raise CheckpointError(
            f"run {conf.run} names no data set that could be read here; call dl4jlegacy.cli.one_job.perform_one_job "
            "with the jobs of the program that began it"
        )
    jobs = job_iterator(conf, training.training_data(conf, run_data.reload(conf)))
    round_, slot = int(found[1]), int(found[2])
    emit(f"process {os.getpid()} performs round {round_}, slot {slot} of run {conf.run}")
    sys.stdout.flush()
    result = perform_one_job(conf, jobs, (round_, slot), model)
    examples = counted(int(result.values.get("examples", 0)), "example")
    emit(f"it is done: {examples}, score {result.values.get('score')}")


def main(arguments: list[str] | None = None) -> None:
    """Entry point; a crash prints where it happened (``faulthandler``)."""
    parser = argparse.ArgumentParser(prog="python -m dl4jlegacy.cli.one_job", description=__doc__.partition("\n")[0])
    parser.add_argument("run", metavar="RUN|DIR", help="a run's name or id in Zookeeper, or its checkpoint folder")
    parser.add_argument("job", metavar="ROUND/SLOT")
    for flag in ("--zookeeper", "--id", "--use"):
        parser.add_argument(flag, default=os.environ.get(f"DL4J_{flag[2:].upper()}"))
    given: Any = parser.parse_args(arguments)
    faulthandler.enable()
    sys.exit(run_guarded(lambda: _perform(given)))


if __name__ == "__main__":
    main()
