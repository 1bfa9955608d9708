"""Evaluation and prediction by a cluster's workers: the starting process leads the run and always clears it up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.cluster.ending import forget
from dl4jlegacy.cluster.leadership import MasterOptions, MasterRun, elect_new
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.errors import TrackerError
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.models.prediction import PredictedRows
from dl4jlegacy.nn.batch_evaluation import NetworkEvaluation
from dl4jlegacy.nn.evaluation.packed import AnyEvaluation
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.evaluation_run import EvaluationRun
from dl4jlegacy.training.passes import Examples
from dl4jlegacy.training.prediction_run import PredictionRun, ScoringRun, Spool
from dl4jlegacy.training.run import Run

__all__ = ["evaluate_on_cluster", "predict_on_cluster", "score_on_cluster"]


def evaluate_on_cluster(
    network: Network,
    examples: Examples,
    label_names: tuple[str, ...],
    *,
    conf: Conf,
    address: ClusterAddress,
    options: MasterOptions | None = None,
    workers: int = 0,
    evaluations: Sequence[AnyEvaluation] = (),
    normalize: Callable[[DataSet], DataSet] = lambda batch: batch,
    label_scale: LabelScale | None = None,
) -> NetworkEvaluation:
    """Return the result of ``evaluate_network``, computed by a cluster's workers; the examples travel with the jobs.

    Args:
        network, examples, label_names, evaluations, normalize, label_scale: as for ``EvaluationRun``.
        conf: with the grid's members and name.
        address: where the run is registered for its workers.
        options: of this process as the master.
        workers: additional worker threads in this process.

    Raises:
        TrackerError: Hazelcast or Zookeeper cannot be reached, or the id has a master.
        NotEnoughWorkersError: no worker came.
        NotFiniteError, JobError: a job failed.
    """
    evaluation = EvaluationRun(
        network, examples, label_names, evaluations=evaluations, normalize=normalize, label_scale=label_scale
    )
    run = evaluation.resolve(conf, workers=workers, on_cluster=True)
    with _leading(run, address, options) as led:
        return evaluation.perform(led.run, tracker=led.tracker, monitor=led.monitor, tick=led.tick)


def predict_on_cluster(
    model: TrainedModel,
    blocks: Iterable[Array],
    *,
    conf: Conf,
    address: ClusterAddress,
    options: MasterOptions | None = None,
    workers: int = 0,
) -> Generator[PredictedRows, None, None]:
    """Yield the predictions for all rows, in row order, computed by a cluster's workers.

    All blocks are first read into a file in the temporary folder, because a run needs a plan.
    Args:
        model: as ``load_model`` returns it.
        blocks: as ``rows_in`` returns them.
        conf, address, options, workers: as for ``evaluate_on_cluster``.

    Errors as for ``evaluate_on_cluster``, and what ``blocks`` raise.
    """
    with contextlib.closing(Spool(blocks)) as spool:
        prediction = PredictionRun(model, spool)
        run = prediction.resolve(conf, workers=workers, on_cluster=True)
        yield from prediction.predicted(lambda: _lead(prediction, run, address, options))


def score_on_cluster(
    model: TrainedModel,
    examples: Examples,
    *,
    conf: Conf,
    address: ClusterAddress,
    options: MasterOptions | None = None,
    workers: int = 0,
) -> Generator[Array, None, None]:
    """Yield the loss of each (unscaled) example in order; args and errors as for ``predict_on_cluster``."""
    scoring = ScoringRun(model, examples)
    run = scoring.resolve(conf, workers=workers, on_cluster=True)
    yield from scoring.found(lambda: _lead(scoring, run, address, options))


def _lead(work: PredictionRun | ScoringRun, run: Run, address: ClusterAddress, options: MasterOptions | None) -> None:
    with _leading(run, address, options) as led:
        work.perform(led.run, tracker=led.tracker, monitor=led.monitor, tick=led.tick)


@contextlib.contextmanager
def _leading(run: Run, address: ClusterAddress, options: MasterOptions | None) -> Iterator[MasterRun]:
    """Lead a new run; clear it up when the body ends or fails."""
    with elect_new(run, address, options or MasterOptions()) as led:
        try:
            yield led
        except BaseException:
            with contextlib.suppress(TrackerError):  # no process continues the run; if unreachable, it stays
                head = led.tracker.finish("stopped")
                if head is not None and head.status == "failed":
                    forget(led.run.conf, address, led.tracker)
            raise
        led.is_finished = True
