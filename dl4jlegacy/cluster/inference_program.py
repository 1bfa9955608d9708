"""``ClusterInference``: evaluation and prediction of a program's trained network by the workers of a cluster."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.batches import Batch, BatchIterator, batches_of
from dl4jlegacy.datasets.exported import export
from dl4jlegacy.errors import DataError
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.models.prediction import rows_in
from dl4jlegacy.nn.arrays import is_data_set
from dl4jlegacy.nn.batch_evaluation import ROWS, NetworkEvaluation
from dl4jlegacy.nn.evaluation.packed import AnyEvaluation
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.system.secret import allows_unsigned, read_secret
from dl4jlegacy.training.passes import Examples
from dl4jlegacy.training.progress import shown

__all__ = ["ClusterInference"]


class ClusterInference:
    """Evaluates a trained network on a cluster, and predicts with it; results equal those of one process to the bit.

    ::

        cluster = ClusterInference(model, tracker="hazelcast://host:5701", zookeeper="host:2181")
        evaluation = cluster.evaluate(test, roc := ROCMultiClass(), calibration := EvaluationCalibration())

    Each method leads its own run, waits for workers (``dl4j worker --stay``, which then go on to the next run), and
    always clears the run up. The secret is read from the environment (``DL4J_SECRET_FILE``). Examples in arrays are
    computed in blocks of 1024. For one thread at a time.

    Args:
        model: a network of either kind, which takes features as in its training; or the result of ``load_model``, which
            takes unscaled features and answers in the units of its data.
        tracker: ``"hazelcast://host:port[,host:port]"``.
        zookeeper: ``"host:port"``, where the runs are registered.
        id: the id of the runs in Zookeeper; "": ``master``.
        cluster_name: name of the Hazelcast cluster; "": that of ``dl4j services`` on this machine, else ``dev``.
        bind: the host on which this process listens for the workers' heartbeats.
        workers: additional worker threads in this process.
        worker_wait: seconds to wait for workers if there are none.
        progress: whether the progress of a run, and waiting for workers, are shown on stderr.

    Raises:
        UsageError: an address is malformed. NotAuthorisedError: it is beyond loopback, and there is no secret.

    All methods raise ``TrackerError`` if Hazelcast or Zookeeper cannot be reached or the id has a master,
    ``NotEnoughWorkersError`` if no worker came, ``JobError`` if a job failed, and ``NotFiniteError``, which names the
    row, if a loss or an output is not finite.

    Legacy: ``SparkDl4jMultiLayer``'s ``evaluate``, ``doEvaluation``, ``evaluateROC``, ``predict``, ``scoreExamples``.
    """

    def __init__(
        self,
        model: TrainedModel | Network,
        *,
        tracker: str,
        zookeeper: str,
        id: str = "",
        cluster_name: str = "",
        bind: str = "127.0.0.1",
        workers: int = 0,
        worker_wait: float = 300.0,
        progress: bool = True,
    ) -> None:
        from dl4jlegacy.cluster.address import MASTER, ClusterAddress
        from dl4jlegacy.services.grid import grid_of

        self._model = model if isinstance(model, TrainedModel) else TrainedModel(model)
        members, name = grid_of(tracker, cluster_name or None, label="tracker ")
        self._address = ClusterAddress(zookeeper, read_secret(os.environ), id or MASTER, allows_unsigned(os.environ))
        self._conf = Conf(state_tracker_connection_string=members, cluster_name=name, worker_wait_seconds=worker_wait)
        self._bind, self._workers, self._progress = bind, workers, progress

    def evaluate(self, examples: Any, *evaluations: AnyEvaluation) -> NetworkEvaluation:
        """Return the loss on examples with the figures of ``dl4j evaluate``; add the examples to ``evaluations``, too.

        Args:
            examples: a ``DataSet``, a ``MultiDataSet``, an iterator, or any iterable of batches of one size (the last
                may be smaller). If there are several outputs, the first is evaluated.
            evaluations: each an ``Evaluation``, ``EvaluationBinary``, ``EvaluationCalibration``,
                ``RegressionEvaluation``, ``ROC``, ``ROCBinary`` or ``ROCMultiClass``. All are updated in one pass over
                the data, and stay unchanged if it fails.

        Raises:
            ConfError: an evaluation is of another kind, or is given twice. ShapeError: it does not fit the network.
            DataError: there is no example, or a batch is not a batch.
        """
        from dl4jlegacy.cluster.shared_inference import evaluate_on_cluster

        model, names = self._model, self._model.label_names or tuple(getattr(examples, "label_names", None) or ())
        with _batches(examples) as batches, self._where() as where:
            return evaluate_on_cluster(
                model.network,
                batches,
                names,
                evaluations=evaluations,
                normalize=model.normalize,
                label_scale=model.reading.label_scale,
                **where,
            )

    def output(self, features: Any) -> Array:
        """Return the outputs for all examples, in their order, as ``TrainedModel.answer`` does.

        Args:
            features: an array; or several arrays that are computed separately, such as sequences of different lengths;
                or the path of a file or folder that ``dl4j predict`` takes.

        Raises:
            DataError: there are no examples, or a file cannot be read. ShapeError: the features do not fit the model.
        """
        from dl4jlegacy.cluster.shared_inference import predict_on_cluster

        with self._where() as where:
            found = predict_on_cluster(self._model, self._blocks(features), **where)
            return np.concatenate([rows.outputs for rows in found])

    def predict(self, features: Any) -> Array:
        """Return the index of the most probable class of each example, ``(examples,)``; args and errors of ``output``.

        For a model with several independent labels, return 0 or 1 for each label, ``(examples, labels)``.
        """
        return self._model.classes_in(self.output(features))

    def score_examples(self, examples: Any) -> Array:
        """Return the loss of each example, ``(examples,)``, without regularization; args and errors of ``evaluate``."""
        from dl4jlegacy.cluster.shared_inference import score_on_cluster

        with _batches(examples) as batches, self._where() as where:
            return np.concatenate(list(score_on_cluster(self._model, batches, **where)))

    def _blocks(self, features: Any) -> Iterator[Array]:
        if isinstance(features, str | os.PathLike):
            yield from rows_in(self._model, os.fspath(features))[0]
            return
        are_blocks = isinstance(features, list | tuple) and bool(features) and getattr(features[0], "ndim", 0) > 1
        if not are_blocks and not isinstance(features, Iterator):
            rows = self._model.examples_of(features)
            yield from (batch.features for batch in rows.batch_by(ROWS))
            return
        for index, block in enumerate(features):
            yield self._model.examples_of(block, f"block {index}").features

    @contextlib.contextmanager
    def _where(self) -> Iterator[dict[str, Any]]:
        """Yield the cluster arguments of this module's functions."""
        from dl4jlegacy.cluster.leadership import MasterOptions

        with shown(None, self._progress) as show:
            options = MasterOptions(bind=self._bind) if show is None else MasterOptions(bind=self._bind, tick=show)
            yield {"conf": self._conf, "address": self._address, "options": options, "workers": self._workers}


@contextlib.contextmanager
def _batches(given: Any) -> Iterator[Examples]:
    """Yield examples with random access to batches; other examples are read once, into a temporary folder."""
    if not is_data_set(given):
        raise DataError(f"the examples are {type(given).__name__}; give a DataSet of features and labels, or batches")
    if isinstance(given, Batch | BatchIterator):
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="dl4j-examples-") as folder:
        yield export(batches_of(given) or (), folder, remedy="set TMPDIR to a larger disk")
