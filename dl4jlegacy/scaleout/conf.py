"""``Conf``: the complete configuration of a run, of its cluster and, inside it, of the network.

The network is configured in ``multi_layer_conf``; the distribution of its training is configured here. A ``Conf`` is an
immutable value that is transferred as canonical JSON; unknown fields are refused.

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
from dl4jlegacy.datasets.images.image_transforms import ImageTransform
from dl4jlegacy.datasets.reading import Readers, Reading
from dl4jlegacy.errors import ConfError, NotFiniteError, UsageError, nearest
from dl4jlegacy.nn.arguments import Described, replaced
from dl4jlegacy.nn.class_weights import check_class_weights
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.conf.text import decode_json, decode_yaml, encode_json, load_yaml
from dl4jlegacy.nn.network.dbn import DBN, StackedDenoisingAutoEncoder
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.nn.optimization.schedules import over_run
from dl4jlegacy.scaleout.links.mesh.configuration import VoidConfiguration
from dl4jlegacy.scaleout.plan import Phase
from dl4jlegacy.scaleout.protocol import MOST_SECONDS, Limits
from dl4jlegacy.scaleout.scoring import METRICS, EarlyStopping, Scoring, ValidationConf
from dl4jlegacy.scaleout.state.records import keyspace
from dl4jlegacy.scaleout.strategies import BUILT_IN
from dl4jlegacy.system import files
from dl4jlegacy.system.strict_json import to_json

__all__ = ["NETWORK_CLASSES", "USUAL_JOBS", "Conf"]

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
        "choices",
        "epochs",  # more may be added at the end of a run
    }
)
"""Fields of a ``Conf`` that say where and how a run is computed, and may change while the run is under way."""
FREE_ROUTER_ARGS = frozenset({"parameter_servers"})
"""Keys of ``router_args`` that may change as well: the package's own strategies give the same bits with any value."""
USUAL_JOBS = 4
"""Jobs per round of a run whose Conf gives no number."""
POISON_JOBS = ("fail", "set-aside")
"""Possible values of ``Conf.poison_jobs``."""
NETWORK_CLASSES: Mapping[str, type[MultiLayerNetwork]] = {
    clazz.__name__: clazz for clazz in (MultiLayerNetwork, DBN, StackedDenoisingAutoEncoder)
}
"""Possible values of ``Conf.multi_layer_clazz``."""


class Conf(Readers, msgspec.Struct, frozen=True, kw_only=False, forbid_unknown_fields=True, metaclass=Described):
    """The configuration of a run.

    Attributes:
        multi_layer_conf: the network; None only for jobs without a network.
        computation_graph_conf: the network instead of ``multi_layer_conf``, if it is a graph.
        performer, performer_args: the name under which the workers have registered the performer of the jobs
            (``scaleout.workers.plugins``), and JSON values for it; "": the jobs train the network.
        multi_layer_clazz: the network's class, or its name. A ``DBN`` and a ``StackedDenoisingAutoEncoder`` pretrain
            and then finetune, whatever the network's configuration says; otherwise the configuration decides.
        run: the run's name; chosen at ``setup`` if empty.
        incarnation: identifies one of the runs with this name: a random number, new at every start, unchanged when a
            run is resumed.
        model, dataset, data_dir: sources of the network and the data, so that ``resume`` finds them again.
        data_fingerprint: of the training data (``datasets.fingerprint``), stored at ``setup``; a run can only be
            resumed with data that have the same one.
        scale_features: whether ``dl4j`` scales features that exceed the range 0 to 1 to that range.
        augment: how ``dl4j`` changes the images of a data set during training; None: not at all.
        keep_index: whether ``dl4j`` also uses a pandas index in a table as a feature; by default it is left out.
        stratify: whether the held-out parts of the data, for the evaluation at the end (by ``dl4j``) and for
            ``validation.fraction``, contain the same share of every class, and an example of each that has two.
        class_weights: weight of an example of each class in the loss, by the classes' names (default: 1);
            ``"balanced"``: n / (k * count) for n training examples in k classes. ``setup`` turns them into the
            ``loss_weights`` of the output layer.
        batch_size: examples per batch (legacy ``split``).
        epochs, pretrain_epochs: passes over the data in the finetune phase, and for every pretrained layer.
        first_epoch, first_iteration: number of passes over the data, and of updates, that the network has already had
            if the run starts from a trained one (``ActorNetworkRunner(first_model=...)``): shuffling, drop-out,
            schedules and bias corrections continue from there.
        seed: of everything random in the run.
        router, router_args, window: how updates are combined: one of ``ROUTERS`` or a registered router
            (``register_router``), and its arguments as JSON; ``window`` bounds an asynchronous one (0: its default).
        workers: number of training threads here.
        jobs_per_round: slots of a round; 0: ``USUAL_JOBS``. Never follows from the workers, so that their number does
            not change the result.
        averaging_frequency: batches that a job trains on between two averagings.
        warm_start, warm_start_jobs: fraction of the first epoch of each phase, from 0 to 1, in which rounds have this
            many slots instead of ``jobs_per_round``: fewer workers are busy there, and the network learns as with few
            workers.
        average_updater_state, weighted_average: whether updater states are averaged too; whether averages are weighted
            by examples.
        data_by_reference: whether jobs name their batches instead of carrying them; workers then read them themselves,
            from ``export_directory``, or from the ``dataset`` that ``dl4j`` was given. None: in one process, and on a
            cluster if there is an ``export_directory``.
        export_directory: the folder to which the master writes a program's batches once; on this machine, or below a
            prefix in S3. On a cluster all processes access it by this path. "": a temporary one.
        prefetch_buffer: number of batches that each process of the run reads before a job needs them, on threads and
            within 256 MB; 0: none. It does not change results.
        checkpoint_dir, checkpoint_every, checkpoints_kept: the folder, the number of model versions between
            checkpoints, and the number of checkpoints to keep.
        state_tracker_connection_string, cluster_name: the Hazelcast members ``host:port[,host:port]`` that store the
            run's state, and their cluster's name; empty: the state is in the process.
        limits, heartbeat_seconds, stuck_seconds: the deadlines; a job without a finished batch for ``stuck_seconds`` is
            reported, and its lease is left to expire.
        min_workers, worker_wait_seconds: number of live workers below which a cluster's master issues no new jobs, and
            how long it waits for more; its workers wait as long for a master that is gone.
        tracker_wait_seconds: how long the processes of a run wait for a tracker that has stopped answering.
        session_seconds: how long Zookeeper waits for a silent process before the process counts as gone, and a standby
            takes over from a master; Zookeeper has limits of its own (4 to 40 s by default).
        poison_jobs: treatment of a job that kills the processes of its workers: ``"fail"``, the run ends (exit code
            12), or ``"set-aside"``, the run continues without that job's batches.
        kernels: the implementation that all workers of the run use, ``cupy`` on GPUs; resolved at ``setup``.
        device: device of the workers in the master's process, one of ``devices.CHOICES``; "": determined by
            ``kernels``. Workers elsewhere choose their own device, of the kind that ``kernels`` requires.
        precision: of matrix products and convolutions on GPUs, one of ``devices.PRECISIONS``.
        mixed_devices: whether workers that round differently (another kind of device, another GPU, other kernels) may
            join; the run is then no longer bit-equal with others.
        validation: how the model is scored during training; None: not at all, unless the runner is given data.
        validation_fingerprint: like ``data_fingerprint``, for validation data given separately from the training data.
        early_stopping: when the run ends before its last epoch; None: it does not.
        device_memory_limit: how much of each GPU's memory a process of the run may use (``8GiB``, ``80%``); "": all.
        void_configuration: how workers push the messages of gradient sharing to each other; None: each worker gets all
            of them from the tracker. It does not change results.
        choices: fields that ``dl4j`` chose because the user gave no value, and why; for reading only.
        collect_training_stats: whether the duration of each phase of each round is recorded, on all machines:
            ``ActorNetworkRunner.stats``, and ``stats.jsonl`` in ``checkpoint_dir``. It does not change results.
    """

    positional: ClassVar[tuple[str, ...]] = ()  # ``kw_only`` is False only so that these fields precede the inherited

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
    augment: ImageTransform | None = None
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
    choices: dict[str, str] = {}

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

    if not TYPE_CHECKING:  # with it, a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the replacement of a setter or getter of 2014, in Java or Python spelling."""
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
        """The unique name under which this run stores and signs its records."""
        return keyspace(self.run, self.incarnation)

    @property
    def reading(self) -> Reading:
        """How the data set is read, as far as the Conf specifies it."""
        readers = {name: getattr(self, name) for name in Readers.__struct_fields__}
        return Reading(stratified=self.stratify, **readers)

    @property
    def network_conf(self) -> NetworkConfiguration | None:
        """The network's configuration, of either kind; None for jobs without a network."""
        return self.multi_layer_conf or self.computation_graph_conf

    @property
    def scoring(self) -> Scoring:
        """The rules by which the run finds its best model and decides whether to stop."""
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

    def over_run(self, first_iteration: int, iterations: int) -> Conf:
        """Return a copy in which the network's schedules over a run (``RunSchedule``) have that run's updates."""
        networks = ("multi_layer_conf", "computation_graph_conf")
        return self.replace(**{name: over_run(getattr(self, name), first_iteration, iterations) for name in networks})

    def digest(self) -> str:
        """Return a SHA-256 of all fields that determine the result of the run.

        Every process that resumes the run gets the same one.
        """
        unmixed = self.replace(mixed_devices=False)  # a run may become mixed when it resumes
        unmixed = unmixed.over_run(0, 0)  # or longer
        free = FREE_FIELDS
        if self.validation is not None and self.validation.every_rounds:
            free -= {"epochs"}  # with more epochs there would be no validation at the old end
        body = {name: value for name, value in msgspec.to_builtins(unmixed).items() if name not in free}
        if self.router in BUILT_IN:
            body["router_args"] = {k: v for k, v in self.router_args.items() if k not in FREE_ROUTER_ARGS}
        later = ("validation", "early_stopping", "router_args", "first_epoch", "first_iteration")
        if not self.warm_start:
            del body["warm_start_jobs"]
        others = ("keep_index", "stratify", "class_weights", "augment", "warm_start")
        # So that digests from before these fields existed stay the same:
        for name in (*Readers.__struct_fields__, *later, *others):
            if not body[name]:
                del body[name]
        if self.validation is not None and not self.validation.stratify:
            del body["validation"]["stratify"]
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
