"""``ActorNetworkRunner``: the master of a program's run, in one process or on a cluster; its standby; its workers.

::

    runner = ActorNetworkRunner("master", MnistDataSetIterator(128))
    runner.setup(Conf(multi_layer_conf=zoo.mlp(784, 10), epochs=10))
    result = runner.train()
    runner.shutdown()

With ``tracker="hazelcast://host:port"`` and ``zookeeper="host:port"`` the same program is the master of a run on a
cluster, like ``dl4j master``, and ``ActorNetworkRunner("worker", zookeeper="host:port")`` works for it.

Legacy: ``ActorNetworkRunner`` / ``DeepLearning4jDistributed``.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from dl4jlegacy.datasets.batches import Batch, BatchIterator, batches_of
from dl4jlegacy.datasets.exported import Exported, export, one_epoch, open_batches
from dl4jlegacy.datasets.map_style import MapDataSetIterator, gives_examples
from dl4jlegacy.datasets.validation import ValidatedData
from dl4jlegacy.errors import ConfError, DataError, UsageError, nearest
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.contract import check_aggregator
from dl4jlegacy.scaleout.monitoring.observers import ModelSaver, RunObserver
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus, TrainingResult
from dl4jlegacy.scaleout.monitoring.stats import NOT_COLLECTED, TrainingStats
from dl4jlegacy.scaleout.state.aggregate import JobAggregator
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.workers.plugins import PerformerFactory
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.training.execution import RunExecution
from dl4jlegacy.training.progress import reading, shown
from dl4jlegacy.training.run import Run, TrainingData, resolve

if TYPE_CHECKING:
    from dl4jlegacy.cluster.leadership import MasterRun
    from dl4jlegacy.cluster.program import ClusterProgram

__all__ = ["ActorNetworkRunner"]

_TYPES = ("master", "standby", "worker")
Tick = Callable[[RunStatus], None]


class ActorNetworkRunner:
    """Runs a master, a standby, or workers; a context manager.

    A ``"master"`` without ``zookeeper`` trains in this process. With ``zookeeper``, the master leads a run whose
    workers are other processes: it registers the Conf, keeps all state in the tracker, tolerates failing workers, and
    clears up in ``shutdown`` once ``train`` has returned. If anything happens before that, the run stays, and a
    ``"standby"`` or the same program with ``setup(conf, resume=True)`` takes it over. A ``"standby"`` is constructed
    like its master. A ``"worker"`` needs nothing but ``zookeeper``. The run's secret is read from the environment
    (``DL4J_SECRET_FILE``), as ``dl4j`` reads it.

    Args:
        type: ``"master"``, ``"standby"`` or ``"worker"``.
        iterator: the data, for a master and a standby: a ``DataSetIterator`` or ``MultiDataSetIterator``; any iterable
            of batches, such as a list of ``DataSet``s or ``MultiDataSet``s, or a generator of pairs of features and
            labels; DL4J's classic iterator (``has_next``, ``next``, ``reset``); a data set of PyTorch's or Hugging
            Face's kind, whose examples ``MapDataSetIterator`` groups into batches of the Conf's size, shuffled by its
            seed; or a ``JobIterator`` for jobs that train no network. Batches without random access are read once, in
            ``setup``, and kept in files of the temporary folder until ``shutdown``; every epoch has them in that order.
            With ``Conf.export_directory`` the batches of any iterator are written there once, and stay; the path of
            such a folder, here or in S3, can be given instead of the iterator.
        tracker: ``"hazelcast://host:port[,host:port]"``, or a state tracker in this process, which stays open; None:
            the members that the Conf names, else one in this process, which ``shutdown`` closes.
        zookeeper: ``"host:port"``, where the run is registered; "": the run is in this process.
        id: the id of the run in Zookeeper.
        cluster_name: name of the Hazelcast cluster; "": that of ``dl4j services`` on this machine, else ``dev``.
        bind: the host on which a cluster's master listens for its workers' heartbeats.
        stay: whether a worker waits for the next run under the id after each run, until it is interrupted: a worker
            pool for a program that trains several times, one run after the other.
        workers: worker threads in this process; None: none for a master or standby on a cluster, one for a worker (or
            one for each GPU), else as many as the Conf says.
        performer: creates each worker's performer in this process; None: the performer that the Conf names, else one
            that trains ``conf.multi_layer_conf``.
        aggregator: for jobs that train no network.
        first_model: version 0 of the model, for jobs that train no network; or a network of either kind and of the
            Conf's sizes: the run begins with its parameters and updater state at ``setup`` (``Conf.first_iteration`` is
            for its ``iteration``). None: the parameters are drawn by the configuration.
        listeners: called for every new version of the model, in the master's process: ``iteration_done(network,
            iteration, score, examples=...)`` with the iterations counted from 0 (with the model, for jobs that train no
            network). They run on the master's thread, which waits for them; the workers already have their next jobs.
        worker_listeners: called likewise for every batch on which a worker in this process trains its network, with
            that network, and the iterations counted in each phase, from 0 or from ``Conf.first_iteration``. They run on
            the worker's thread, which waits for them.
        saver: gets every ``checkpoint_every``-th version and the last: ``save(head, model)``.
        observers: follow the run without influencing it, such as a ``TensorBoardObserver``; those of a worker follow
            only its own jobs.
        stop_if: called on the master's thread after every score, if the run has scores, with the round and the score;
            returns the reason to end the run (``TrainingResult.stopped_by``), or "" to go on.
        validation: data on which the model is scored during training, as ``Conf.validation`` says, else after every
            epoch: a data set, or batches like those of the training data, in a fixed order.

    Raises:
        UsageError: an argument is missing, malformed, or makes no sense for this type.
        NotAuthorisedError: Zookeeper is beyond this machine's loopback, and there is no secret.
    """

    def __init__(
        self,
        type: str,  # the legacy constructor's first argument
        iterator: TrainingData | Iterable[Any] | None = None,
        *,
        tracker: StateTracker | str | None = None,
        zookeeper: str = "",
        id: str = "master",
        cluster_name: str = "",
        bind: str = "127.0.0.1",
        workers: int | None = None,
        stay: bool = False,
        performer: PerformerFactory | None = None,
        aggregator: JobAggregator | None = None,
        first_model: Result | Network | None = None,
        listeners: Sequence[TrainingListener] = (),
        worker_listeners: Sequence[TrainingListener] = (),
        saver: ModelSaver | None = None,
        observers: Sequence[RunObserver] = (),
        validation: Batch | BatchIterator | Iterable[Any] | None = None,
        stop_if: Callable[[int, float], str] | None = None,
    ) -> None:
        if type not in _TYPES:
            raise UsageError(f"ActorNetworkRunner type {type!r}{nearest(type, _TYPES)}")
        if (iterator is None) != (type == "worker"):
            needs = (
                "takes no iterator: it needs zookeeper='host:port'"
                if type == "worker"
                else "needs an iterator: its data"
            )
            raise UsageError(f"ActorNetworkRunner of type {type!r} {needs}")
        if not zookeeper and (type != "master" or isinstance(tracker, str)):
            raise UsageError(f"ActorNetworkRunner of type {type!r} on a cluster needs zookeeper='host:port'")
        if zookeeper and isinstance(tracker, StateTracker):
            raise UsageError("with zookeeper, give the tracker as 'hazelcast://host:port'; it is opened here")
        masters: dict[str, Any] = {"tracker": tracker, "aggregator": aggregator, "first_model": first_model}
        masters |= {"saver": saver, "validation": validation, "stop_if": stop_if}
        given = [name for name, value in {**masters, "listeners": listeners or None}.items() if value is not None]
        if stay and type != "worker":
            raise UsageError(
                f"ActorNetworkRunner of type {type!r} takes no stay: it is a worker's, who waits for more runs"
            )
        if type == "worker" and given:
            raise UsageError(f"ActorNetworkRunner of type 'worker' takes no {', '.join(given)}: they are the master's")
        self._type, self._iterator, self._workers = type, iterator, workers
        self._validation, self._stay = validation, stay
        self._read: TrainingData | None = None
        self._tracker = tracker if isinstance(tracker, StateTracker) else None
        self._own_parts: dict[str, Any] = {
            "performer": performer,
            "aggregator": aggregator,
            "first_model": first_model,
            "listeners": listeners,
            "worker_listeners": worker_listeners,
            "saver": saver,
            "observers": observers,
            "stop_if": stop_if,
        }
        self._cluster: ClusterProgram | None = None
        if zookeeper:
            from dl4jlegacy.cluster.program import ClusterProgram

            named = "" if tracker is None else str(tracker)
            self._cluster = ClusterProgram.at(zookeeper, id, named, cluster_name, bind=bind, workers=workers)
        self._conf: Conf | None = None
        self._execution: RunExecution | None = None
        self._executed: RunExecution | None = None
        self._stack = contextlib.ExitStack()
        self._led: MasterRun | None = None
        self._show: Tick = _show_nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    def setup(
        self,
        conf: Conf | Run | None = None,
        *,
        resume: bool = False,
        changed_code: bool = False,
        wait_seconds: float = 60.0,
    ) -> Conf:
        """Check everything that can be checked before training; return the Conf with all defaults resolved.

        On a cluster this registers a new run, so that workers can join.

        Args:
            conf: a Conf, which is resolved here, or a ``Run`` returned by ``run.resolve``, which is used unchanged. A
                standby and a worker use the registered Conf; a worker with ``stay`` waits for it in ``train``.
            resume: continue the registered run, or else continue from the newest valid checkpoint in
                ``conf.checkpoint_dir``; a ``Run`` says this itself.
            changed_code: with ``resume``, continue although the program's own code (router, aggregator, performer,
                ``stop_if``) differs from the code that the run began with; the history says from which version on.
            wait_seconds: how long a standby and a worker wait for a master to register.

        Raises:
            ConfError: the Conf is invalid, or does not fit the data.
            ContractError: a user-defined part lacks methods that a run calls, or its jobs are invalid.
            DeviceError: the devices are not available.
            CheckpointError: the folder holds another run's checkpoints, ``resume`` finds nothing to continue from, or
                the run began with other data or another first model.
            VersionError: the workers here would round differently from the run's workers so far; or the run began with
                other code of the program.
            TrackerError: Hazelcast or Zookeeper cannot be reached, no run is registered, or it has a master already.
        """
        if self._conf is not None:
            raise UsageError("setup was called twice; make a new ActorNetworkRunner for another run")
        if self._cluster is not None and self._type != "master":
            self._conf = Conf() if self._stay else self._cluster.find_conf(wait_seconds)
            return self._conf
        if conf is None:
            raise UsageError("setup needs a Conf: only a standby and a worker find one in Zookeeper")
        if self._own_parts["aggregator"] is not None:
            check_aggregator(self._own_parts["aggregator"])
        with self._undone_if_it_fails():
            conf = conf if isinstance(conf, Run) else self._with_place_of_data(conf)
            data = self._read_data(conf.conf if isinstance(conf, Run) else conf, again=resume)
            if self._cluster is not None:
                leading = self._cluster.leading(conf, data, self._tick, resume=resume, changed_code=changed_code)
                self._enter(leading)
            elif isinstance(conf, Run):
                self._execute(conf)
            else:
                here = self._workers
                self._execute(resolve(conf, data, local_workers=here, resume=resume, changed_code=changed_code))
        return self._conf_of_run()

    def train(
        self, tick: Tick | None = None, *, deadline: float | None = None, progress: bool = True
    ) -> TrainingResult | None:
        """Train to the end of the plan; return the result. Blocks.

        A standby waits behind its master first, and returns None if the run ended without it. Workers work to the end
        of the run, and return None. Ctrl-C stops the workers here after their current job and saves a checkpoint, if
        the run has a checkpoint folder; the ``KeyboardInterrupt`` then has a note that says where the run stopped and
        what was saved.

        Args:
            tick: called with the run's status a few times a second, on this thread.
            deadline: seconds after which the run is given up; None: none.
            progress: show the status in a line on stderr while training, if that is a terminal and there is no
                ``tick``.

        Raises:
            NotFiniteError: the score or the parameters became NaN; names round, slot and layer.
            JobError: a job failed on every attempt; carries the worker's traceback.
            DeadlineError: the run took longer than ``deadline`` seconds, or no batch was finished for too long.
            TrackerLostError: the tracker did not answer for ``conf.tracker_wait_seconds``; the run was saved as a
                checkpoint, if it has a checkpoint folder, and ``unfinished`` returns its model.
            NotEnoughWorkersError: there were too few workers for too long; the run can be resumed.
            TrainingError: somebody stopped the run.
            MissingPartError: a worker's run needs a performer or router that is not registered here.
        """
        if self._conf is None:
            raise UsageError("call setup(conf) first")
        if self._cluster is not None and self._type == "worker":
            own = self._own_parts
            self._cluster.work(own["performer"], own["worker_listeners"], own["observers"], stay=self._stay)
            return None
        if self._cluster is not None and self._type == "standby":
            with self._undone_if_it_fails():
                data = self._read_data(self._conf, again=True)
                self._enter(self._cluster.take_over(self._conf, data, self._tick))
            if self._led is None:
                return None
        execution = self._ready()
        try:
            if self._led is None:
                return execution.train(tick, deadline=deadline, progress=progress)
            with shown(tick, progress) as show:
                self._show = show or _show_nothing
                result = execution.train(self._led.tick, deadline=deadline)
        except KeyboardInterrupt as interrupt:
            self._leave(interrupt)
            raise
        self._led.is_finished = True  # the program uses the model before ``shutdown``
        return result

    def network(self, result: TrainingResult | None, *, best: bool = False) -> Any:
        """Return the trained network: a ``MultiLayerNetwork``, or a ``ComputationGraph`` if the Conf has one.

        With ``best`` it is the network with the best score (``Conf.validation``, ``Conf.early_stopping``), else the
        newest.
        """
        if result is None:
            raise UsageError("there is no result here: a worker has none, nor a standby whose master ended the run")
        return self._ready().network(result, best=best)

    def unfinished(self) -> Any:
        """Return the network of an unfinished run as this process has it; None if it has none."""
        return self._ready().unfinished()

    def status(self) -> RunStatus:
        """Return a snapshot of the run's status. May be called from any thread while the run is active."""
        return self._ready().status()

    @property
    def stats(self) -> TrainingStats:
        """Duration of each phase of the rounds, for the master and all workers, with ``Conf.collect_training_stats``.

        Contains what has arrived so far; complete after ``shutdown``, or at the end of the ``with``. Only the newest
        200,000 events; ``stats.jsonl`` in ``Conf.checkpoint_dir`` has all (``read_stats``). May be read from any
        thread.

        Raises:
            UsageError: nothing was collected here: the Conf does not ask for it, or this is a worker, whose master has
                it.
        """
        if self._executed is None:
            raise UsageError(f"no statistics were collected here; {NOT_COLLECTED}")
        return self._executed.stats

    def shutdown(self, timeout: float = 30.0) -> None:
        """Stop everything and wait for it; workers finish and commit their job first. May be called more than once.

        An unfinished run is saved as a checkpoint, if it has a checkpoint folder. On a cluster it stays in the tracker,
        so that another process can take it over; a finished run is cleared up.

        Raises:
            DeadlineError: an actor did not stop within ``timeout`` seconds.
        """
        execution = self._forget()
        with self._stack:
            if execution is not None:
                execution.shutdown(timeout)

    def _leave(self, error: BaseException | None) -> None:
        """Shut down; if the program failed, a cluster run stays, since its model may not have been saved."""
        if error is not None:
            self._show = _show_nothing  # it may be what failed
            if self._led is not None:
                self._led.is_finished = False
        execution = self._forget()
        with self._stack:
            if execution is not None:
                execution.__exit__(None if error is None else type(error), error, None)

    def _forget(self) -> RunExecution | None:
        execution, self._execution, self._conf, self._led, self._read = self._execution, None, None, None, None
        return execution

    def _ready(self) -> RunExecution:
        if self._execution is None:
            raise UsageError("call setup(conf) first; a standby has nothing to tell before it has taken over")
        return self._execution

    def _with_place_of_data(self, conf: Conf) -> Conf:
        """Return the Conf with the folder of previously exported data, if workers are to read the data there."""
        given = self._iterator
        exported = given.place if isinstance(given, Exported) else given
        if conf.data_by_reference and not conf.export_directory and isinstance(exported, str | Path):
            return conf.replace(export_directory=str(exported))
        return conf

    def _read_data(self, conf: Conf, *, again: bool) -> TrainingData:
        """Return the training data, read into files first if their batches cannot be read by number.

        Args:
            conf: says where to keep the files.
            again: the run was begun by another process, which has kept its data.
        """
        if gives_examples(self._iterator):
            self._iterator = MapDataSetIterator(self._iterator, conf.batch_size, seed=conf.seed)
        training = self._exported(conf, again=again) or cast(TrainingData, self._iterator)
        self._read = training
        if self._validation is not None:
            if not isinstance(training, BatchIterator):
                raise ConfError("validation data are given, and the jobs are no network's, which cannot be evaluated")
            self._read = ValidatedData(training, self._read_validation())
        return self._read

    def _read_validation(self) -> Batch | BatchIterator:
        """Return the validation data, read into files first if their batches cannot be read by number."""
        given: Any = self._validation
        if isinstance(given, Batch | BatchIterator):
            return given
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dl4j-validation-"))
        try:
            batches = batches_of(given)
            if batches is None:
                raise DataError(f"{type(given).__name__} has jobs and no batches")
            return export(batches, folder, remedy="set TMPDIR to a larger disk")
        except DataError as exc:
            raise DataError(f"the validation data: {exc}") from exc

    def _exported(self, conf: Conf, *, again: bool) -> Exported | None:
        """Return the data as files, written earlier or now; None for data that need no files."""
        given, place = self._iterator, conf.export_directory
        if isinstance(given, str | Path):
            return open_batches(str(given))
        if isinstance(given, Exported):
            return given
        batches = batches_of(given)
        if place and again:
            with contextlib.suppress(DataError):  # the process died before it had kept the data
                return open_batches(place)
        if batches is None and place:
            if not isinstance(given, BatchIterator):
                raise ConfError(f"Conf.export_directory is {place}, and {type(given).__name__} cannot be kept in files")
            batches = one_epoch(given)
        if batches is None:
            return None
        with reading() as on_batch:
            if place:
                return export(batches, storage.open_folder(storage.absolute(place)), on_batch=on_batch)
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dl4j-batches-"))
            return export(batches, folder, on_batch=on_batch, remedy="set TMPDIR to a larger disk")

    def _data_of_run(self) -> TrainingData:
        assert self._read is not None
        return self._read

    def _conf_of_run(self) -> Conf:
        assert self._conf is not None
        return self._conf

    def _tick(self, status: RunStatus) -> None:
        self._show(status)

    @contextlib.contextmanager
    def _undone_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            self._leave(exc)
            raise

    def _enter(self, leading: contextlib.AbstractContextManager[MasterRun | None]) -> None:
        """Become the master of a run, if there is one to lead, and set the run up."""
        self._led = self._stack.enter_context(leading)
        if self._led is not None:
            self._execute(self._led.run)

    def _execute(self, run: Run) -> None:
        """Set up the run's actors in this process."""
        led = self._led
        tracker, monitor = (self._tracker, None) if led is None else (led.tracker, led.monitor)
        execution = RunExecution(self._data_of_run(), tracker=tracker, monitor=monitor, **self._own_parts)
        self._conf = execution.setup(run)
        self._execution = self._executed = execution


def _show_nothing(status: RunStatus) -> None:
    """Show nothing."""
