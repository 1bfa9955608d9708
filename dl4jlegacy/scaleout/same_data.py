"""Whether a run goes on with the data that it began with: their fingerprint stands in its ``Conf``."""

from __future__ import annotations

import logging
from typing import Any

from dl4jlegacy.datasets import DataSet, DataSetIterator, ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.errors import CheckpointError
from dl4jlegacy.scaleout.checkpoint import CheckpointSaver
from dl4jlegacy.scaleout.conf import Conf

__all__ = ["with_fingerprint"]

logger = logging.getLogger(__name__)


def with_fingerprint(conf: Conf, data: Any, saver: CheckpointSaver | None = None, *, resume: bool = False) -> Conf:
    """Return the Conf with the fingerprint of the run's data; as it is if they are no data sets.

    Args:
        conf: the run's; if it has a fingerprint already, the data must have the same.
        data: the training data, or what deals them out.
        saver: the run's checkpoints: with ``resume`` and a Conf without a fingerprint, the Conf kept there has it.
        resume: whether the run goes on; one that has no fingerprint at all does so with a warning.

    Raises:
        CheckpointError: the run began with other data.
    """
    if not isinstance(data, DataSet | MultiDataSet | DataSetIterator | ListMultiDataSetIterator):
        return conf
    found = fingerprint(data)
    began = conf.data_fingerprint or (saver.kept_fingerprint() if resume and saver is not None else "")
    if resume and not began:
        logger.warning(
            "run %s has kept no fingerprint of its data: whether they are still the same cannot be told", conf.run
        )
    if began and began != found:
        raise CheckpointError(
            f"run {conf.run} began with {f'data set {conf.dataset}' if conf.dataset else 'data'} of fingerprint "
            f"{began[:16]}; what is there now has {found[:16]}, so something in it has changed: give it the data that "
            "it began with, or begin a new run with another --checkpoint-dir (and a Conf without data_fingerprint)"
        )
    return conf.replace(data_fingerprint=found)
