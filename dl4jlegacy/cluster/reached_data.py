"""The data of a run whose jobs name their batches, as a worker of another process reaches them itself.

A worker takes nothing else for the run's data than what has the fingerprint in its ``Conf``: of a data set by its
contents, of exported batches by the digest of each file, which is compared whenever one is read.
"""

from __future__ import annotations

import os
import socket

from dl4jlegacy.datasets.batches import BatchIterator
from dl4jlegacy.datasets.exported import open_batches
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.errors import DataError, Dl4jError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.job import JobIterator
from dl4jlegacy.system.resources import give_back_memory
from dl4jlegacy.training.prepare import batches
from dl4jlegacy.training.run import job_iterator
from dl4jlegacy.training.run_data import reload

__all__ = ["jobs_by_reference"]

_GO_WITH_JOBS = "or begin the run without data_by_reference, and its data go with the jobs"


def jobs_by_reference(conf: Conf, plan: Plan, data_dir: str = "") -> JobIterator | None:
    """Return where this process finds the work of a run's jobs; None if the jobs carry it.

    Args:
        conf: the run's, as it is registered.
        plan: the run's.
        data_dir: the folder of MNIST's files here; "": ``DL4J_DATA_DIR``, else what the Conf says.

    Raises:
        DataError: the data are not here, or are others than the run's. CloudError and its like: what AWS says.
    """
    if not conf.data_by_reference:
        return None
    data, where = _open(conf, data_dir or os.environ.get("DL4J_DATA_DIR", ""))
    found = fingerprint(data)
    if found != conf.data_fingerprint:
        raise DataError(
            f"{where} has data of fingerprint {found}, and those of run {conf.run} have "
            f"{conf.data_fingerprint or 'none'}: bring here what the run's master has, {_GO_WITH_JOBS}"
        )
    give_back_memory()
    jobs = job_iterator(conf, data)
    if jobs.plan != plan:
        raise DataError(f"{where} has the data of run {conf.run}, but in other batches: {jobs.plan}, and not {plan}")
    return jobs


def _open(conf: Conf, data_dir: str) -> tuple[BatchIterator, str]:
    """Return the run's data as this process has them, and where that is, in words."""
    place = conf.export_directory or conf.dataset
    try:
        if conf.export_directory:
            data: BatchIterator = open_batches(place)
        else:
            data = batches(conf, reload(conf, data_dir))
    except Dl4jError as exc:
        remedy = "share that folder with this host by the same path, or take one in S3"
        if not conf.export_directory:
            remedy = "bring the data set here, by the same path if it is one (MNIST: DL4J_DATA_DIR or --data-dir)"
        raise type(exc)(
            f"run {conf.run} has its data in {place}, which worker processes read themselves, and "
            f"{socket.gethostname()} cannot: {exc}; {remedy}; {_GO_WITH_JOBS}"
        ) from exc
    return data, f"{place} on {socket.gethostname()}"
