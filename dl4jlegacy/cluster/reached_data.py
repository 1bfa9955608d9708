"""Data that a worker process reads itself, for a run whose jobs only name their batches.

A worker accepts only data with the fingerprint in the ``Conf``: for a data set a fingerprint of its contents; for
exported batches the digest of each file, which is compared at every read.
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
    """Return the job iterator over the data that this process reads itself; None if the jobs carry their data.

    Args:
        conf: the run's, as it is registered.
        plan: the run's.
        data_dir: the folder with the MNIST files here; "": ``DL4J_DATA_DIR``, else what the Conf says.

    Raises:
        DataError: the data are missing here, or differ from the run's. CloudError and similar errors: what AWS reports.
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
    """Return the run's data as this process reads them, and their location in words."""
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
