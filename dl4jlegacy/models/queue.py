"""A queue of requests to a model. Waiting requests are computed as one batch, up to a limit.

A worker is a thread with its own copy of the model. The worker takes the oldest request and the next ones that fit,
reads their rows, computes all rows in one pass, and gives each request the outputs of its rows. If that fails, each
request is computed by itself, so that the rows of one request cause no errors in another.

Legacy: ``org.deeplearning4j.parallelism.inference``.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.errors import UsageError
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.models.prediction import Predict, named_rows
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.system.clock import RUNNING, SLICE_SECONDS, Deadline
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.resources import check_threads
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = [
    "BATCH_LIMIT",
    "QUEUE_LIMIT",
    "Batching",
    "ClosedError",
    "InferenceMode",
    "InferenceQueue",
    "InferenceRequest",
    "QueueFullError",
    "ReplicatedModel",
]

logger = logging.getLogger(__name__)

InferenceMode = Literal["sequential", "batched", "inplace"]
"""How requests are computed: one by one, batched with other waiting requests, or on the callers' threads."""
BATCH_LIMIT, QUEUE_LIMIT = 32, 64
"""The defaults of DL4J: rows of a batch, and waiting requests."""


class QueueFullError(Exception):
    """The queue is full."""


class ClosedError(Exception):
    """The queue was closed before the request was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How requests to a model are batched and computed.

    Attributes:
        mode: ``"batched"``, or ``"sequential"``: each request by itself.
        batch_limit: maximum rows computed together. A request with more rows is computed by itself.
        batch_delay: seconds that the oldest request waits for others while they have fewer rows than half of
            ``batch_limit``. Requests that came while another batch was computed are joined in any case.
        queue_limit: maximum waiting requests.
        workers: threads, each with its own copy of the model.

    Raises:
        UsageError: a value is out of range.
    """

    mode: InferenceMode = "batched"
    batch_limit: int = BATCH_LIMIT
    batch_delay: float = 0.0
    queue_limit: int = QUEUE_LIMIT
    workers: int = 1

    def __post_init__(self) -> None:
        if self.mode not in get_args(InferenceMode):
            known = ", ".join(get_args(InferenceMode))
            raise UsageError(f"inference mode {self.mode!r} is unknown; there are {known}")
        for name in ("batch_limit", "queue_limit", "workers"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name} is {value!r}; it must be a whole number of at least 1")
        if not 0 <= self.batch_delay <= 60:
            raise UsageError(f"batch_delay is {self.batch_delay!r}; it must be from 0 to 60 seconds")


@dataclass(frozen=True, slots=True, eq=False)
class ReplicatedModel:
    """A model with copies of its network, so that several threads can each use one.

    Attributes:
        model: the model itself, which is the first copy.
        predicts: the prediction function of each copy.
    """

    model: TrainedModel
    predicts: Sequence[Predict]

    @classmethod
    def of(cls, model: TrainedModel, count: int) -> ReplicatedModel:
        """Return a model with ``count`` copies, the original included; raises ``ConfError`` if these are too many."""
        if count > 1:
            check_threads(count, int(model.network.params.nbytes))
        return cls(model, [model.answer, *(_copy_of(model).answer for _ in range(count - 1))])


def _copy_of(model: TrainedModel) -> TrainedModel:
    network = build_network(model.network.conf, model.network.kernels)
    network.set_params(to_host(model.network.params))
    return dataclasses.replace(model, network=network)


@dataclass(slots=True, eq=False)
class InferenceRequest:
    """A request to a model.

    Attributes:
        model: the model to ask; requests with the same model can be computed together.
        blocks: the features, ``(rows, ...)`` each; read on a worker's thread, two blocks ahead of the computation.
        succeed: called on a worker's thread with the outputs of each block and the number of features of a row.
        fail: called with an error of the blocks, the model or ``succeed``, on a worker's thread or the closing one.
        since: time of arrival, in seconds of the process's clock.
        ahead: blocks that were read, and are not computed yet.
        is_read: whether all blocks were read.
    """

    model: ReplicatedModel
    blocks: Iterator[Array]
    succeed: Callable[[list[Array], int], None]
    fail: Callable[[Exception], None]
    since: float = 0.0
    ahead: deque[Array] = field(default_factory=deque)
    is_read: bool = False

    @property
    def is_joinable(self) -> bool:
        """Whether the request is a single block, which can be computed together with others."""
        return self.is_read and len(self.ahead) == 1


class InferenceQueue:
    """Computes requests on its own threads, the oldest first, until it is closed. Thread-safe.

    Args:
        name: the model's name, for the threads and the log.
        batching: how requests are joined; its mode is not ``"inplace"``, which needs no queue.

    Attributes:
        told: called after each pass through the network with the number of requests, the number of answers, and the
            seconds, on a worker's thread. May be replaced.
    """

    def __init__(self, name: str, batching: Batching) -> None:
        self.told: Callable[[int, int, float], None] = lambda requests, rows, seconds: None
        self._name, self._batching = name, batching
        self._waiting: deque[InferenceRequest] = deque()
        lock = threading.Lock()
        self._came, self._left = threading.Condition(lock), threading.Condition(lock)
        self._collecting = threading.Lock()  # one worker at a time: two would get half of the requests each
        self._is_closed = False
        self._threads = [
            ServiceThread(target=self._work, args=(index,), name=f"dl4j-infer-{name}-{index}")
            for index in range(batching.workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a worker."""
        return len(self._waiting)

    def put(self, request: InferenceRequest) -> None:
        """Have a request computed; returns at once. Raises ``QueueFullError`` and ``ClosedError``."""
        request.since = RUNNING.now()
        with self._came:
            self._check_open()
            if len(self._waiting) >= self._batching.queue_limit:
                raise QueueFullError(f"{len(self._waiting)} requests wait for model {self._name}")
            self._waiting.append(request)
            self._came.notify()

    def put_in_time(self, request: InferenceRequest, deadline: Deadline) -> None:
        """Add a request once there is room; raises ``QueueFullError`` if there is none before the deadline."""
        while True:
            try:
                self.put(request)
            except QueueFullError:
                if deadline.passed():
                    raise
                with self._left:
                    if len(self._waiting) >= self._batching.queue_limit and not self._is_closed:
                        self._left.wait(deadline.slice())
            else:
                return

    def close(self, seconds: float) -> bool:
        """Stop: waiting requests fail with ``ClosedError``, and workers finish their current requests.

        Returns whether all workers have ended within ``seconds``. A worker that has not ends with the process. May be
        called more than once.
        """
        with self._came:
            self._is_closed = True
            left = [*self._waiting]
            self._waiting.clear()
            self._came.notify_all()
            self._left.notify_all()
        for request in left:
            request.fail(ClosedError(f"model {self._name} is used no longer"))
        deadline = Deadline(seconds)
        for thread in self._threads:
            deadline.wait(lambda slice_, thread=thread: _has_ended(thread, slice_))  # type: ignore[misc]
        busy = sum(thread.is_alive() for thread in self._threads)
        if busy:
            logger.warning("model %s still computes after %g s, and is left to itself", self._name, seconds)
        return not busy

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"model {self._name} is used no longer")

    # -- workers ------------------------------------------------------------------------------------------------------

    def _work(self, index: int) -> None:
        own = _Rows()
        while not self._is_closed:
            if not self._collecting.acquire(timeout=SLICE_SECONDS):
                continue
            try:
                batch = self._collected()
            finally:
                self._collecting.release()
            try:
                with exits_as_errors():
                    self._compute(batch, index, own)
            except Exception:  # a bug must not end the worker
                logger.exception("a worker of model %s failed", self._name)

    def _compute(self, batch: list[InferenceRequest], index: int, own: _Rows) -> None:
        if len(batch) > 1:
            self._compute_together(batch, index, own)
        elif batch:
            self._compute_alone(batch[0], index, own)

    def _collected(self) -> list[InferenceRequest]:
        """Return the requests to compute together next; [] if none came for a while."""
        first = self._taken(RUNNING.now() + SLICE_SECONDS)
        if first is None:
            return []
        batch, limit = [first], self._batching.batch_limit
        if self._batching.mode == "sequential" or not first.is_joinable:
            return batch
        rows = first.model.model.answers(first.ahead[0])
        until = first.since + self._batching.batch_delay
        # Half a batch does not wait: a full one is hardly faster per row.
        while rows < limit and (other := self._taken(until if 2 * rows < limit else first.since)) is not None:
            more = other.model.model.answers(other.ahead[0]) if other.is_joinable else limit
            if rows + more > limit or not _fit(first, other):
                with self._came:
                    self._waiting.appendleft(other)
                break
            batch.append(other)
            rows += more
        return batch

    def _taken(self, until: float) -> InferenceRequest | None:
        """Return the oldest request whose rows can be read; None if there is none before ``until``."""
        while True:
            with self._came:
                while not self._waiting:
                    left = until - RUNNING.now()
                    if left <= 0 or self._is_closed:
                        return None
                    self._came.wait(min(left, SLICE_SECONDS))
                request = self._waiting.popleft()
                self._left.notify()
            if request.ahead or _has_read(request):
                return request

    def _compute_together(self, batch: list[InferenceRequest], index: int, own: _Rows) -> None:
        first = batch[0]
        rows = [request.ahead[0] for request in batch]
        try:
            with exits_as_errors():
                outputs = self._predicted(first.model, own.joined(rows), index, len(batch))
        except Exception:  # noqa: BLE001  # computing each request by itself shows which one failed
            for request in batch:
                self._compute_alone(request, index, own)
            return
        start = 0
        for request, block in zip(batch, rows, strict=True):
            stop = start + request.model.model.answers(block)
            _succeed(request, [outputs[start:stop]], block.shape[1])
            start = stop

    def _compute_alone(self, request: InferenceRequest, index: int, own: _Rows) -> None:
        try:
            with exits_as_errors():
                outputs, n_in = self._outputs_of(request, index, own)
        except Exception as exc:  # noqa: BLE001  # the error belongs to the request
            request.fail(exc)
            return
        _succeed(request, outputs, n_in)

    def _outputs_of(self, request: InferenceRequest, index: int, own: _Rows) -> tuple[list[Array], int]:
        """Return the outputs for all rows of a request, and the number of features of a row."""
        outputs: list[Array] = []
        first = n_in = 0
        while request.ahead:
            block = request.ahead.popleft()
            n_in = block.shape[1]
            with named_rows(first):
                outputs.append(self._predicted(request.model, own.writable(block), index, 1))
            first += len(outputs[-1])
            if not request.is_read:
                _read_next(request)
        return outputs, n_in

    def _predicted(self, model: ReplicatedModel, rows: Array, index: int, requests: int) -> Array:
        began = RUNNING.now()
        outputs = model.predicts[index](rows)
        if np.may_share_memory(outputs, rows):  # the network passed its input on, and this memory is used again
            outputs = outputs.copy()
        self.told(requests, len(outputs), RUNNING.now() - began)
        return outputs


class _Rows:
    """A reused buffer for the rows that a worker computes; allocating memory for each batch takes longer."""

    def __init__(self) -> None:
        self._array: Array = np.empty((0, 0), np.float32)

    def joined(self, blocks: Sequence[Array]) -> Array:
        """Return all rows of blocks of one shape and type; valid until the next call."""
        count, first = sum(map(len, blocks)), blocks[0]
        if len(self._array) < count or self._array.shape[1:] != first.shape[1:] or self._array.dtype != first.dtype:
            self._array = np.empty((1 << (count - 1).bit_length(), *first.shape[1:]), first.dtype)
        bytes_, start = self._array.data.cast("B"), 0
        for block in blocks:  # NumPy would let other threads run meanwhile, and then wait for them
            stop = start + block.nbytes
            bytes_[start:stop] = np.ascontiguousarray(block).data.cast("B")
            start = stop
        return self._array[:count]

    def writable(self, block: Array) -> Array:
        """Return a writable block, which kernels need, copied if necessary; valid until the next call."""
        return block if block.flags.writeable else self.joined([block])


def _fit(one: InferenceRequest, other: InferenceRequest) -> bool:
    a, b = one.ahead[0], other.ahead[0]
    return one.model is other.model and a.shape[1:] == b.shape[1:] and a.dtype == b.dtype


def _read_next(request: InferenceRequest) -> None:
    block = next(request.blocks, None)
    if block is None:
        request.is_read = True
    else:
        request.ahead.append(block)


def _has_read(request: InferenceRequest) -> bool:
    """Read a request's first block and look for a second one; on an error, fail the request and return False."""
    try:
        with exits_as_errors():
            _read_next(request)
            if not request.is_read:
                _read_next(request)
    except Exception as exc:  # noqa: BLE001  # the error belongs to the request
        request.fail(exc)
        return False
    return True


def _succeed(request: InferenceRequest, outputs: list[Array], n_in: int) -> None:
    try:
        with exits_as_errors():
            request.succeed(outputs, n_in)
    except Exception as exc:  # noqa: BLE001  # the error belongs to the request
        request.fail(exc)


def _has_ended(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()
