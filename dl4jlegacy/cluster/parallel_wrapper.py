"""``ParallelWrapper``: a network trained by several workers of this process, in place.

::

    with ParallelWrapper(network, workers=4) as wrapper:
        wrapper.fit(iterator, epochs=10)
    print(network.evaluate(test).stats())

Each ``fit`` is a run of ``ActorNetworkRunner`` in this process. The network at the start is version 0 of the run's
model, and the last version is copied back into the network.

Legacy: ``org.deeplearning4j.parallelism.ParallelWrapper``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets.iterator import BatchCursor
from dl4jlegacy.errors import TrackerError, TrainingError, UsageError, counted
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.listeners import ScoreIterationListener, TrainingListener
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol import rewound
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, StateTracker

__all__ = ["ParallelWrapper"]

logger = logging.getLogger(__name__)

_ROUTERS: Mapping[str, str] = {"averaging": "iterative-reduce", "shared-gradients": "gradient-sharing"}
"""The strategy behind each training mode."""


class ParallelWrapper:
    """Trains a network on batches that are distributed to workers; a context manager, used by one thread.

    A round takes ``averaging_frequency`` batches for each worker; then the parameters and updater states of all workers
    are averaged, weighted by examples. The result depends on the number of jobs of a round, but not on timing or on the
    number of threads: it is, bit for bit, that of ``ActorNetworkRunner`` with the same ``Conf``.

    ``fit`` trains as ``network.finetune`` does: it pretrains no layer. Drop-out is seeded by the position in the run,
    unlike in ``network.fit``. Without drop-out, one worker that averages after each batch gives the result of
    ``network.fit``, to the bit.

    Args:
        network: a ``MultiLayerNetwork`` or a ``ComputationGraph``, which ``fit`` changes. If it is on a GPU, the
            workers use all GPUs there are, in float32 precision.
        workers: threads that train, each with its own copy of the network.
        prefetch_buffer: number of batches, within 256 MB, that threads read before the workers need them; 0: none. It
            changes no result. Data that are quick to read, such as rows in memory, are not read ahead.
        averaging_frequency: batches that each job trains on between two averagings.
        average_updaters: whether updater states are averaged too; if not, each job starts with a new updater state, and
            the network's updater state stays unchanged.
        training_mode: ``"averaging"``, or ``"shared-gradients"``, the strategy ``gradient-sharing``. The residuals and
            updater states in that strategy's slots begin anew with each ``fit``; the network's updater state stays
            unchanged.
        report_score_after_averaging: whether the score of every average is logged (``INFO``).
        jobs_per_round: jobs whose results are averaged; None: as many as workers.
        router_args: options of the strategy, as in ``Conf.router_args``: ``{"threshold": "fixed", "tau": 1e-3}``.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        network: Network,
        workers: int = 2,
        prefetch_buffer: int = 16,
        averaging_frequency: int = 1,
        average_updaters: bool = True,
        training_mode: str = "averaging",
        report_score_after_averaging: bool = False,
        *,
        jobs_per_round: int | None = None,
        router_args: Mapping[str, Any] | None = None,
    ) -> None:
        _check_network(network)
        jobs = workers if jobs_per_round is None else jobs_per_round
        _check_count("workers", workers, 1)
        _check_count("prefetch_buffer", prefetch_buffer, 0)
        _check_count("averaging_frequency", averaging_frequency, 1)
        _check_count("jobs_per_round", jobs, 1)
        self._router, self._router_args = _router_of(training_mode), dict(router_args or {})
        self._network, self._workers, self._jobs = network, workers, jobs
        self._prefetch_buffer = prefetch_buffer
        self._frequency, self._average_updaters = averaging_frequency, average_updaters
        self._reports = report_score_after_averaging
        self._listeners: tuple[TrainingListener, ...] = ()
        self._epochs = 0
        """Epochs that this object has trained on, for data that do not count their epochs themselves."""
        self._fitting = threading.Lock()
        self._stop = threading.Event()
        self._tracker: StateTracker | None = None
        self._plan: Plan | None = None
        """The plan of the newest ``fit``."""
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def set_listeners(self, *listeners: TrainingListener | Iterable[TrainingListener]) -> None:
        """Replace the listeners called after every averaging, in addition to the network's own (``network.listeners``).

        The call is ``iteration_done(copy, iteration, score, examples=...)`` with a copy of the network on the CPU that
        has the averaged parameters, the number of the last iteration before the averaging as ``network.fit`` counts,
        the mean score of the round, and the number of its examples. The call is made on a thread of the run, which
        waits for it. An exception in a listener is logged once, and the training goes on.
        """
        given: list[TrainingListener] = []
        for each in listeners:
            given += [*each] if isinstance(each, Iterable) else [each]
        self._listeners = tuple(given)

    def fit(self, iterator: Any, epochs: int = 1) -> None:
        """Train the network from its present state for ``epochs`` passes over the data. Blocks.

        Parameters, updater state and ``iteration`` of the network are those of the last averaging, also when ``fit``
        ends by an error, by Ctrl-C or by ``stop_fit``. A round counts as many iterations as it has batches for each
        job: ``averaging_frequency``, or fewer in the last round of an epoch. A shuffling iterator continues with its
        next epoch, as with ``network.fit``.

        Args:
            iterator: the data, as ``ActorNetworkRunner`` takes them: a ``DataSetIterator`` or a
                ``MultiDataSetIterator``, or any iterable of batches of either kind.
            epochs: passes over the data.

        Raises:
            UsageError: ``epochs`` is less than 1, ``fit`` is at work on another thread, or ``shutdown`` was called; or
                the network has layers to pretrain and was not trained before.
            DataError: the data have no batch, or are not data.
            ConfError: network and data do not fit, or the strategy has no such option.
            NotFiniteError: a score or a parameter became NaN or infinite; the network has the last average before that.
            JobError: a worker's job failed on every attempt; carries its traceback.
        """
        _check_count("epochs", epochs, 1)
        with self._alone():
            _check_pretrained(self._network)
            self._train(iterator, epochs)

    def stop_fit(self) -> None:
        """End a ``fit`` that runs on another thread or whose listener calls this; do nothing if no ``fit`` is running.

        Returns at once. The ended ``fit`` returns with the network of the last averaging; later work of the workers
        does not count. May be called on any thread.
        """
        tracker = self._tracker
        if tracker is not None:
            self._stop.set()
            with contextlib.suppress(TrackerError):  # it has just ended by itself
                tracker.finish()

    def shutdown(self) -> None:
        """End a running ``fit``, as ``stop_fit`` does, and refuse any further one. May be called more than once."""
        self._closed = True
        self.stop_fit()

    close = shutdown

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second ``fit`` at the same time, and any ``fit`` after ``shutdown``."""
        if self._closed:
            raise UsageError("this ParallelWrapper was shut down; make a new one for the network, which goes on")
        if not self._fitting.acquire(blocking=False):
            raise UsageError("this ParallelWrapper is at work in another thread; wait for its fit, or call stop_fit()")
        try:
            yield
        finally:
            self._fitting.release()

    def _is_stopped(self) -> bool:
        return self._stop.is_set() or self._closed

    def _train(self, data: Any, epochs: int) -> None:
        """Train the network in one run."""
        first_epoch = self._next_epoch(data)
        conf, self._plan = self._conf(epochs, first_epoch), None
        self._stop.clear()
        self._tracker = tracker = InMemoryStateTracker()  # ours, so that it has the model whatever ends the run

        def tick(status: RunStatus) -> None:
            if self._is_stopped():  # before there was a head to be stopped
                tracker.finish()

        runner = ActorNetworkRunner("master", data, tracker=tracker, first_model=self._network, listeners=self._told())
        try:
            with runner:
                runner.setup(conf)
                self._plan = runner.status().plan
                runner.train(tick, progress=False)
        except TrainingError:
            head = tracker.head()
            if not self._is_stopped() or head is None or head.status != "stopped":
                raise
        except KeyboardInterrupt as interrupt:
            interrupt.__notes__ = ["the network is as the last average left it, and fit goes on from there"]
            raise
        finally:
            self._tracker = None
            if self._plan is not None:
                self._adopt(tracker, self._plan, data)
            tracker.shutdown()

    def _adopt(self, tracker: StateTracker, plan: Plan, data: Any) -> None:
        """Copy the newest model of an ended run into the network, if the run has produced one."""
        head, model = tracker.head(), tracker.get_current()
        if head is None or model is None or head.version == head.logged:
            return
        head = rewound(head, plan) if head.logged else head
        self._network.set_params(model.arrays[PARAMS])
        self._network.set_updater_state(model.arrays[STATE])
        self._network.iteration = plan.iteration_at(head.round)
        epochs = -(-head.round // plan.rounds_per_epoch)
        self._epochs += epochs
        if epochs and isinstance(data, BatchCursor):
            data.seek(plan.first_epoch + epochs - 1, data.total_batches)

    def _conf(self, epochs: int, first_epoch: int) -> Conf:
        """Return the Conf of the run."""
        network = self._network
        trained: dict[str, Any] = (
            {"computation_graph_conf": network.conf}
            if isinstance(network, ComputationGraph)
            else {"multi_layer_conf": network.conf.replace(pretrain=False, backprop=True)}
        )
        return Conf(
            **trained,
            epochs=epochs,
            first_epoch=first_epoch,
            first_iteration=network.iteration,
            seed=network.conf.conf.seed,
            router=self._router,
            router_args=self._router_args,
            workers=self._workers,
            jobs_per_round=self._jobs,
            averaging_frequency=self._frequency,
            average_updater_state=self._average_updaters,
            prefetch_buffer=self._prefetch_buffer,
            kernels=network.kernels.name,
        )

    def _next_epoch(self, data: Any) -> int:
        """Return the epoch of the data for the next pass."""
        if not isinstance(data, BatchCursor):
            return self._epochs
        epoch, index = data.position
        return epoch + (1 if index else 0)

    def _told(self) -> list[TrainingListener]:
        """Return the listeners that the run calls for each version."""
        own = [listener for listener in self._network.listeners if listener not in self._listeners]
        reports = [ScoreIterationListener(1, logger.info)] if self._reports else []
        everybody = [*own, *self._listeners, *reports]
        return [_Counted(listener, lambda: self._plan) for listener in everybody]


class _Counted:
    """Forwards a run's calls to a listener, with the iterations counted as the network does."""

    def __init__(self, listener: TrainingListener, plan: Callable[[], Plan | None]) -> None:
        self.name = type(listener).__name__
        self._listener, self._plan = listener, plan

    def iteration_done(self, network: Any, iteration: int, score: float, *, examples: int = 0) -> None:
        """Call the listener for version ``iteration`` of the run (from 0)."""
        plan = self._plan()
        assert plan is not None
        network.iteration = plan.iteration_at(iteration + 1)
        self._listener.iteration_done(network, network.iteration - 1, score, examples=examples)


def _check_count(name: str, value: Any, least: int) -> None:
    """Raise ``UsageError`` unless an argument is an integer and at least ``least``."""
    if not isinstance(value, int) or value < least:
        raise UsageError(f"ParallelWrapper {name} is {value!r}; it must be a whole number of at least {least}")


def _check_network(network: Any) -> None:
    """Raise ``UsageError`` unless the argument is a network that can be trained by backpropagation."""
    if not isinstance(network, MultiLayerNetwork | ComputationGraph):
        given = network.__name__ if isinstance(network, type) else type(network).__name__
        raise UsageError(
            f"ParallelWrapper got {given} and no network that is initialised; give it a network: "
            "MultiLayerNetwork(conf), ComputationGraph(conf), or one that was read from a file"
        )
    if isinstance(network, MultiLayerNetwork) and not (network.conf.backprop or network.pretrains_and_finetunes):
        raise UsageError(
            "the network has backprop=False: it is only pretrained, which ParallelWrapper does not do; take "
            "network.pretrain(iterator), or ActorNetworkRunner for workers that pretrain"
        )


def _check_pretrained(network: Network) -> None:
    """Reset the updater of a network that was only pretrained; raise ``UsageError`` if it must be pretrained first."""
    if not isinstance(network, MultiLayerNetwork) or network.iteration:
        return
    if any(network.pretrain_iterations.values()):
        network.reset_updater()  # as in ``finetune``
    elif network.pretrain_layers and (network.conf.pretrain or network.pretrains_and_finetunes):
        layers = counted(len(network.pretrain_layers), "layer")
        raise UsageError(
            f"the network is to be pretrained ({layers}), which ParallelWrapper does not do; call "
            "network.pretrain(iterator) first, or take ActorNetworkRunner for workers that pretrain"
        )


def _router_of(training_mode: str) -> str:
    """Return the strategy of a training mode; raises ``UsageError`` for an unknown mode."""
    if training_mode not in _ROUTERS:
        known = ", ".join(map(repr, _ROUTERS))
        raise UsageError(f"ParallelWrapper training_mode is {training_mode!r}; there is {known}")
    return _ROUTERS[training_mode]
