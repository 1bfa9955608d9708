"""``Conf``: everything about the system or cluster of one run, and inside it the network's own configuration.

What is trained is in ``multi_layer_conf``; what shares it out is here. A ``Conf`` is a frozen value that travels as
canonical JSON, unknown fields refused.

Legacy: ``org.deeplearning4j.nn.conf.Conf`` (Java-serialized into Zookeeper) and the keys of R15's ``Configuration``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from dl4jlegacy.arrays.devices import PRECISIONS, check_choice, memory_limit
from dl4jlegacy.datasets.images.image_files import ImageRecordReader
from dl4jlegacy.datasets.images.image_transforms import ImageTransform
from dl4jlegacy.datasets.reading import Reading
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.errors import ConfError, NotFiniteError, UsageError, nearest
from dl4jlegacy.nn.arguments import Described, replaced
from dl4jlegacy.nn.class_weights import check_class_weights
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.conf.text import decode_json, decode_yaml, encode_json, load_yaml
from dl4jlegacy.nn.network.dbn import DBN, StackedDenoisingAutoEncoder
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.scaleout.links.mesh.configuration import VoidConfiguration
from dl4jlegacy.scaleout.plan import Phase
from dl4jlegacy.scaleout.protocol import MOST_SECONDS, Limits
from dl4jlegacy.scaleout.scoring import METRICS, EarlyStopping, Scoring, ValidationConf
from dl4jlegacy.scaleout.state.records import keyspace
from dl4jlegacy.scaleout.strategies import BUILT_IN
from dl4jlegacy.system import files
from dl4jlegacy.system.strict_json import to_json

__all__ = ["NETWORK_CLASSES", "Conf"]

_YAML = (".yaml", ".yml")
FREE_FIELDS = frozenset(
    {
        *(
            "run",
            "incarnation",
            "model",
            "dataset",
            "data_dir",
            "data_fingerprint",
            "validation_fingerprint",
            "scale_features",
            "workers",
            "data_by_reference",
            "export_directory",
        ),
        *("checkpoint_dir", "checkpoint_every", "checkpoints_kept", "state_tracker_connection_string", "cluster_name"),
        *("limits", "heartbeat_seconds", "stuck_seconds", "min_workers", "worker_wait_seconds"),
        *("tracker_wait_seconds", "session_seconds", "void_configuration", "poison_jobs"),
        *("kernels", "device", "device_memory_limit", "collect_training_stats", "prefetch_buffer"),
        "epochs",  # a run may be given more of them at its end
    }
)
"""Fields of a ``Conf`` that say where and how a run is computed, and may change while it is under way."""
FREE_ROUTER_ARGS = frozenset({"parameter_servers"})
"""Likewise, in ``router_args``: the package's own strategies end in the same bits with any."""
POISON_JOBS = ("fail", "set-aside")
"""What ``Conf.poison_jobs`` may be."""
NETWORK_CLASSES: Mapping[str, type[MultiLayerNetwork]] = {
    clazz.__name__: clazz for clazz in (MultiLayerNetwork, DBN, StackedDenoisingAutoEncoder)
}
"""What ``Conf.multi_layer_clazz`` may be."""


class Conf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=Described):
    """The configuration of a run.

    Attributes:
        multi_layer_conf: the network; None only for jobs that are no network.
        computation_graph_conf: the network in its place, if it is a graph.
        performer, performer_args: the name under which the workers have registered what performs the jobs
            (``scaleout.parts``), and JSON values for it; "": they train the network.
        multi_layer_clazz: the network's class, or its name. A ``DBN`` and a ``StackedDenoisingAutoEncoder`` pretrain,
            and then finetune, whatever the network's configuration says; else that decides.
        run: the run's name; chosen at ``setup`` if empty.
        incarnation: which run of this name it is: a random number, new at every beginning, kept when a run goes on.
        model, dataset, data_dir: where the network and the data came from, so that ``resume`` finds them again.
        data_fingerprint: of the training data (``datasets.fingerprint``), written down at ``setup``; a run goes on only
            with data that have it.
        scale_features: whether ``dl4j`` scales features that go beyond 0 to 1 to it.
        transform: what ``dl4j`` makes of the columns of the data set's CSV files, in the place of that; fitted at
            ``setup`` to the training part, unless it is already.
        images: how ``dl4j`` reads the images of a data set that are in folders; their size is set at ``setup``.
        augment: how ``dl4j`` changes the images of a data set while they are learned from; None: not at all.
        text: how ``dl4j`` reads a text: by characters (also None), or by words.
        sequences: how ``dl4j`` reads a folder of CSV files as sequences, one each; None: as parts of one table.
        keep_index: whether ``dl4j`` learns from pandas' index in a table, too, which it leaves out otherwise.
        stratify: whether the parts of the data that are held out, for the evaluation at the end (by ``dl4j``) and as
            ``validation.fraction``, get their share of every class.
        class_weights: what an example of each class counts for in the loss, by the classes' names (those that are not
            named: 1); ``"balanced"``: n / (k * count) of n training examples in k classes. ``setup`` makes them the
            ``loss_weights`` of the output layer.
        batch_size: examples of a batch (legacy ``split``).
        epochs, pretrain_epochs: passes over the data in the finetune phase, and for every pretrained layer.
        first_epoch, first_iteration: passes over the data, and updates, that the network has behind it where the run
            begins with one that was trained before (``ActorNetworkRunner(first_model=...)``): shuffling, drop-out,
            schedules and bias corrections go on from there.
        seed: of everything random in the run.
        router: how updates are combined, one of ``ROUTERS`` or one that is registered (``register_router``), and what
            that needs besides, as JSON; ``window`` bounds an asynchronous one (0: its default).
        workers, jobs_per_round: threads that train here; slots of a round (0: the workers at start).
        averaging_frequency: batches that a job trains on between two averagings.
        warm_start, warm_start_jobs: how much of the first epoch of each phase, from 0 to 1, has rounds of so many slots
            instead of ``jobs_per_round``: fewer workers have something to do there, and the network learns as with few.
        average_updater_state, weighted_average: whether updater states are averaged too; by examples or plainly.
        data_by_reference: whether jobs name their batches instead of carrying them; workers then read them themselves,
            from ``export_directory``, or from the ``dataset`` that ``dl4j`` was given. None: in one process, and on a
            cluster if there is an ``export_directory``.
        export_directory: the folder in which a program's batches are kept, by its master once; one of this machine, or
            below a prefix in S3. On a cluster all processes reach it by this path. "": a temporary one.
        prefetch_buffer: batches that each process of the run reads before a job needs them, on threads and within
            256 MB; 0: none. It changes no result.
        checkpoint_dir, checkpoint_every, checkpoints_kept: where, every how many model versions, and how many.
        state_tracker_connection_string, cluster_name: the Hazelcast members ``host:port[,host:port]`` that keep the
            run's state, and their cluster's name; empty: in the process.
        limits, heartbeat_seconds, stuck_seconds: the deadlines; a job of which no batch is done for ``stuck_seconds``
            is reported, and its lease is left to expire.
        min_workers, worker_wait_seconds: live workers below which a cluster's master issues no new jobs, and for how
            long it waits for more; for as long its workers wait for a master that is gone.
        tracker_wait_seconds: for how long the processes of a run wait for a tracker that does not answer any more.
        session_seconds: how long Zookeeper waits for a process that it does not hear of before it counts as gone, and a
            standby takes over from a master; Zookeeper has bounds of its own (4 to 40 s, unless it is told others).
        poison_jobs: what becomes of a job that kills the processes of its workers: ``"fail"``, the run ends (exit code
            12), or ``"set-aside"``, it goes on without that job's batches.
        kernels: the implementation that all workers of the run use, ``cupy`` on GPUs; resolved at ``setup``.
        device: what the workers of the master's process compute on, one of ``devices.CHOICES``; "": what ``kernels``
            says. Workers elsewhere choose for themselves, of the kind that ``kernels`` says.
        precision: of matrix products and convolutions on GPUs, one of ``devices.PRECISIONS``.
        mixed_devices: whether workers that round differently (of the other kind of device, on another GPU, with other
            kernels) may join, which costs the run its bit-equality with others.
        validation: what the model is scored by while it is trained; None: nothing, unless the runner is given data.
        validation_fingerprint: like ``data_fingerprint``, of validation data that came apart from the training data.
        early_stopping: when the run ends before its last epoch; None: it does not.
        device_memory_limit: how much of each GPU's memory a process of the run may take (``8GiB``, ``80%``); "": all.
        void_configuration: how workers push each other the messages of gradient sharing; None: each gets all of them
            from the tracker. It changes no result.
        collect_training_stats: whether it is recorded how long each phase of each round takes, on all its machines:
            ``ActorNetworkRunner.stats``, and ``stats.jsonl`` in ``checkpoint_dir``. It changes no result.
    """

    positional: ClassVar[tuple[str, ...]] = ()

    multi_layer_conf: MultiLayerConfiguration | None = None
    computation_graph_conf: ComputationGraphConfiguration | None = None
    performer: str = ""
    performer_args: dict[str, Any] = {}
    multi_layer_clazz: str = "MultiLayerNetwork"
    run: str = ""
    incarnation: str = ""
    model: str = ""
    dataset: str = ""
    data_dir: str = ""
    data_fingerprint: str = ""
    scale_features: bool = True
    transform: TransformProcess | None = None
    images: ImageRecordReader | None = None
    augment: ImageTransform | None = None
    text: TextReader | None = None
    sequences: SequenceRecordReader | None = None
    keep_index: bool = False
    stratify: bool = False
    class_weights: dict[str, float] | str | None = None
    batch_size: int = 32
    epochs: int = 1
    pretrain_epochs: int = 1
    first_epoch: int = 0
    first_iteration: int = 0
    seed: int = 123
    router: str = "iterative-reduce"
    router_args: dict[str, Any] = {}
    window: int = 0
    workers: int = 4
    jobs_per_round: int = 0
    averaging_frequency: int = 1
    warm_start: float = 0.0
    warm_start_jobs: int = 1
    average_updater_state: bool = True
    weighted_average: bool = True
    data_by_reference: bool | None = None
    export_directory: str = ""
    prefetch_buffer: int = 16
    checkpoint_dir: str = ""
    checkpoint_every: int = 10
    checkpoints_kept: int = 3
    state_tracker_connection_string: str = ""
    cluster_name: str = ""
    limits: Limits = Limits()
    heartbeat_seconds: float = 1.0
    stuck_seconds: float = 300.0
    min_workers: int = 1
    worker_wait_seconds: float = 300.0
    tracker_wait_seconds: float = 300.0
    session_seconds: float = 3.0
    poison_jobs: str = "fail"
    kernels: str = ""
    device: str = ""
    precision: str = "float32"
    mixed_devices: bool = False
    device_memory_limit: str = ""
    validation: ValidationConf | None = None
    validation_fingerprint: str = ""
    early_stopping: EarlyStopping | None = None
    void_configuration: VoidConfiguration | None = None
    collect_training_stats: bool = False

    def __post_init__(self) -> None:
        clazz: Any = self.multi_layer_clazz
        if isinstance(clazz, type):
            msgspec.structs.force_setattr(self, "multi_layer_clazz", clazz.__name__)
        least_one = ("batch_size", "workers", "averaging_frequency", "warm_start_jobs")
        for name in (*least_one, "checkpoint_every", "checkpoints_kept"):
            if getattr(self, name) < 1:
                raise ConfError(f"Conf.{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.warm_start <= 1:
            raise ConfError(f"Conf.warm_start is {self.warm_start}; it must be a fraction of an epoch, from 0 to 1")
        first = ("first_epoch", "first_iteration")
        for name in ("epochs", "pretrain_epochs", *first, "jobs_per_round", "window", "min_workers", "prefetch_buffer"):
            if getattr(self, name) < 0:
                raise ConfError(f"Conf.{name} is {getattr(self, name)}; it must not be negative")
        seconds = ("worker_wait_seconds", "tracker_wait_seconds", "session_seconds")
        for name in ("heartbeat_seconds", "stuck_seconds", *seconds):
            if not 0 < getattr(self, name) <= MOST_SECONDS:
                raise ConfError(f"Conf.{name} is {getattr(self, name)}; it must be positive, and at most 1e9")
        if self.poison_jobs not in POISON_JOBS:
            raise ConfError(f"Conf.poison_jobs is {self.poison_jobs!r}{nearest(self.poison_jobs, POISON_JOBS)}")
        if self.multi_layer_conf is not None and self.computation_graph_conf is not None:
            raise ConfError("Conf has multi_layer_conf and computation_graph_conf; a run trains one network")
        places = ("dataset", "data_dir", "checkpoint_dir", "export_directory")
        for name in ("run", "model", *places, "cluster_name", "performer", "router"):
            if not getattr(self, name).isprintable():
                raise ConfError(f"Conf.{name} is {getattr(self, name)!r}; it must be printable text in UTF-8")
        for name in ("performer_args", "router_args"):
            try:
                to_json(getattr(self, name))
            except (TypeError, ValueError, NotFiniteError) as exc:
                raise ConfError(f"Conf.{name} cannot travel as JSON: {exc}") from exc
        if self.multi_layer_clazz not in NETWORK_CLASSES:
            known = nearest(self.multi_layer_clazz, list(NETWORK_CLASSES))
            raise ConfError(f"Conf.multi_layer_clazz is {self.multi_layer_clazz!r}{known}")
        if self.class_weights is not None:
            check_class_weights(self.class_weights, "Conf.class_weights")
        self._check_devices()
        self._check_scoring()

    def _check_scoring(self) -> None:
        if self.validation is not None and (self.performer or (self.performer_args and self.network_conf is None)):
            raise ConfError(
                f"Conf.validation is given with Conf.performer {self.performer!r}: only the workers of a network know "
                "how to evaluate; leave validation out"
            )
        metric, best = self.scoring.metric, None if self.early_stopping is None else self.early_stopping.best_score
        if best is not None and METRICS[metric] and best >= 1:
            raise ConfError(
                f"early_stopping.best_score is {best}, and no {metric} is above 1: the run stops when its score is "
                "better than that; give less, such as 0.95"
            )

    def _check_devices(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfError(f"Conf.precision is {self.precision!r}{nearest(self.precision, PRECISIONS)}")
        try:
            if self.device:
                check_choice(self.device, "Conf.device")
            if self.device_memory_limit:
                memory_limit(self.device_memory_limit, "Conf.device_memory_limit")
        except UsageError as exc:
            raise ConfError(str(exc)) from exc

    if not TYPE_CHECKING:  # a type checker would take it for leave to read anything

        def __getattr__(self, name: str) -> Any:
            """Say what there is instead of the setters and getters of 2014, in Java's spelling or in Python's."""
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
            field = words.removeprefix("set_").removeprefix("get_")
            if field == "master_url":
                raise AttributeError("a Conf has no master_url: workers need its state_tracker_connection_string")
            if words.startswith("set_") and field in self.__struct_fields__:
                raise AttributeError(f"a Conf has no {name}, it does not change: make it with Conf({field}=...)")
            raise AttributeError(f"a Conf has no {name!r}")

    def replace(self, **changes: Any) -> Conf:
        """Return a copy with some fields changed, checked like a new one."""
        return replaced(self, changes)

    @property
    def keyspace(self) -> str:
        """The name under which this run, and no other of the same name, keeps and signs its records."""
        return keyspace(self.run, self.incarnation)

    @property
    def reading(self) -> Reading:
        """How the data set is read, as far as the Conf says it."""
        return Reading(
            transform=self.transform,
            images=self.images,
            text=self.text,
            sequences=self.sequences,
            stratified=self.stratify,
        )

    @property
    def network_conf(self) -> NetworkConfiguration | None:
        """The network's configuration, of whichever kind it is; None for jobs that are no network."""
        return self.multi_layer_conf or self.computation_graph_conf

    @property
    def scoring(self) -> Scoring:
        """How the run decides what its best model is, and whether to stop."""
        metric = Scoring().metric if self.validation is None else self.validation.metric
        return Scoring(metric=metric, stopping=self.early_stopping)

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases of the run: one for every pretrained layer, then finetune (with ``backprop``)."""
        network = self.network_conf
        if network is None:
            return (Phase(kind="job", epochs=self.epochs),)
        phases = []
        does_both = NETWORK_CLASSES[self.multi_layer_clazz].pretrains_and_finetunes
        if network.pretrain or does_both:
            layers = [i for i, layer in enumerate(network.resolved()) if layer.pretrains]
            phases = [Phase(kind="pretrain", layer=layer, epochs=self.pretrain_epochs) for layer in layers]
        if network.backprop or does_both:
            phases.append(Phase(kind="finetune", epochs=self.epochs))
        return tuple(phases)

    def digest(self) -> str:
        """Return a SHA-256 of what decides the result of the run: the same for whoever goes on with it, anywhere."""
        unmixed = self.replace(mixed_devices=False)  # a run may become mixed when it resumes
        free = FREE_FIELDS
        if self.validation is not None and self.validation.every_rounds:
            free -= {"epochs"}  # with more of them there would not be a validation where the last one was
        body = {name: value for name, value in msgspec.to_builtins(unmixed).items() if name not in free}
        if self.router in BUILT_IN:
            body["router_args"] = {k: v for k, v in self.router_args.items() if k not in FREE_ROUTER_ARGS}
        later = ("transform", "images", "validation", "early_stopping", "router_args", "first_epoch", "first_iteration")
        if not self.warm_start:
            del body["warm_start_jobs"]
        others = ("keep_index", "stratify", "class_weights", "augment", "text", "sequences", "warm_start")
        for name in (*later, *others):  # as before there were any
            if not body[name]:
                del body[name]
        return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, so that equal Confs give equal text."""
        return encode_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the Conf in ``text``; raises ``ConfError`` naming an unknown field and the nearest known one."""
        return decode_json(text, cls)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the Conf in a JSON or YAML file; raises ``ConfError`` naming the file."""
        try:
            text = files.read(files.expand(path))
            return decode_yaml(text, cls) if path.suffix in _YAML else decode_json(text, cls)
        except OSError as exc:
            raise ConfError(f"{path} cannot be read: {exc.strerror}") from exc
        except ConfError as exc:
            raise ConfError(f"{path}: {exc}") from exc

    @staticmethod
    def named_in(path: Path) -> frozenset[str]:
        """Return the names of the fields that a readable Conf file sets."""
        raw = files.read(files.expand(path))
        return frozenset(load_yaml(raw) if path.suffix in _YAML else msgspec.json.decode(raw))
