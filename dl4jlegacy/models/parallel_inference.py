"""``ParallelInference``: a trained network that answers many threads at the same time.

::

    with ParallelInference(load_model("flowers.zip"), batch_limit=32, workers=2) as inference:
        print(inference.output([[5.1, 3.5, 1.4, 0.2]]))

Legacy: ``org.deeplearning4j.parallelism.ParallelInference``.
"""

from __future__ import annotations

import contextlib
import queue
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import DeadlineError, UsageError
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.models.prediction import Predict
from dl4jlegacy.models.queue import (
    BATCH_LIMIT,
    QUEUE_LIMIT,
    Batching,
    ClosedError,
    InferenceMode,
    InferenceQueue,
    InferenceRequest,
    QueueFullError,
    ReplicatedModel,
)
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.system.clock import Deadline

__all__ = ["ParallelInference"]

_CLOSE_SECONDS = 30.0


class ParallelInference:
    """Answers requests to a network from many threads, and batches waiting requests. A context manager.

    Args:
        model: a network, or a model as ``load_model`` returns it. Do not use or train it elsewhere meanwhile.
        inference_mode: ``"batched"``: waiting requests are computed as one batch; ``"sequential"``: one by one;
            ``"inplace"``: each on the thread of the caller, with a free copy of the network.
        batch_limit: maximum rows of a batch; a request with more rows is computed by itself.
        queue_limit: maximum waiting requests; later callers wait for room.
        workers: copies of the network, including the original, and threads that compute with them.
        batch_delay: seconds that the oldest request waits for others while they have fewer rows than half of
            ``batch_limit``.

    Raises:
        UsageError: an argument is out of range. ConfError: the machine cannot have so many threads.
    """

    def __init__(
        self,
        model: TrainedModel | Network,
        *,
        inference_mode: InferenceMode = "batched",
        batch_limit: int = BATCH_LIMIT,
        queue_limit: int = QUEUE_LIMIT,
        workers: int = 1,
        batch_delay: float = 0.0,
    ) -> None:
        self._batching = Batching(
            mode=inference_mode,
            batch_limit=batch_limit,
            batch_delay=batch_delay,
            queue_limit=queue_limit,
            workers=workers,
        )
        self._ends = contextlib.ExitStack()
        # Held for the whole lifetime: more BLAS threads may round differently, and concurrent calls would change the
        # number.
        self._ends.enter_context(one_thread())
        self._free: queue.SimpleQueue[tuple[ReplicatedModel, Predict]] = queue.SimpleQueue()
        self._queue: InferenceQueue | None = None
        self._is_closed = False
        self.update_model(model)
        if inference_mode != "inplace":
            self._queue = InferenceQueue(self._model.model.name, self._batching)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def model(self) -> TrainedModel:
        """The model that answers new requests."""
        return self._model.model

    def update_model(self, model: TrainedModel | Network) -> None:
        """Answer new requests with another model; requests that wait already get answers of the old one.

        Raises:
            ConfError: the machine cannot have so many copies of the model.
        """
        trained = model if isinstance(model, TrainedModel) else TrainedModel(model)
        self._model = ReplicatedModel.of(trained, self._batching.workers)
        for predict in self._model.predicts if self._batching.mode == "inplace" else ():
            self._free.put((self._model, predict))

    def output(self, features: Any, *, seconds: float = 60.0) -> Array:
        """Return the outputs, ``(examples, n_out)``, for features as ``TrainedModel.answer`` takes them. Thread-safe.

        Args:
            features: ``(examples, n_in)``, before any scaling, or as the network takes them.
            seconds: maximum time to wait for the outputs.

        Raises:
            ShapeError: the model takes other features. NotFiniteError: an output is NaN or infinite; names its row.
            DeadlineError: it took too long. UsageError: this object was closed.
        """
        deadline = Deadline(seconds)
        rows = self._model.model.examples_of(features).features
        if self._is_closed:
            raise self._closed()
        if self._queue is None:
            return self._computed_here(rows, deadline)
        found: Future[Array] = Future()
        request = InferenceRequest(
            self._model, iter([rows]), lambda outputs, n_in: found.set_result(outputs[0]), found.set_exception
        )
        try:
            self._queue.put_in_time(request, deadline)
            if not deadline.wait(lambda slice_: _is_there(found, slice_)):
                raise self._late(deadline)
            return found.result(0)
        except ClosedError as exc:
            raise self._closed() from exc
        except QueueFullError as exc:
            raise self._late(deadline) from exc

    def _computed_here(self, rows: Array, deadline: Deadline) -> Array:
        taken: list[tuple[ReplicatedModel, Predict]] = []
        if not deadline.wait(lambda slice_: self._takes(taken, slice_)):
            raise self._late(deadline)
        try:
            return taken[0][1](rows)
        finally:
            self._free.put(taken[0])

    def _takes(self, taken: list[tuple[ReplicatedModel, Predict]], seconds: float) -> bool:
        """Take a free copy of the newest model, and drop copies of older models."""
        with contextlib.suppress(queue.Empty):
            found = self._free.get(timeout=seconds)
            if found[0] is self._model:
                taken.append(found)
        return bool(taken)

    def _late(self, deadline: Deadline) -> DeadlineError:
        return DeadlineError(
            f"model {self._model.model.name} has not answered within {deadline.seconds:g} s; ask less at a "
            "time, or give ParallelInference more workers"
        )

    def _closed(self) -> UsageError:
        return UsageError(f"this ParallelInference of model {self._model.model.name} was closed; make a new one")

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Stop answering: waiting requests get a ``UsageError``, running ones have ``seconds`` to finish.

        May be called more than once.
        """
        self._is_closed = True
        if self._queue is not None:
            self._queue.close(seconds)
        self._ends.close()

    shutdown = close


def _is_there(found: Future[Array], seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        found.exception(seconds)
    return found.done()
