"""Served models: each has its own compute threads, and is replaced when its file changes.

A new version is loaded and tested first; only then does it replace the old one, for subsequent requests. If a version
cannot be used, the old one stays, and the problem is reported.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import CloudError, Dl4jError, DownloadError, ModelError, NotAuthorisedError, UsageError
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.models.queue import Batching, InferenceQueue, ReplicatedModel
from dl4jlegacy.nn.input_type import InputTypeRecurrent
from dl4jlegacy.nn.networks import input_type_of
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread
from dl4jlegacy.training.saved_model import load_model

__all__ = ["LoadedModel", "ModelWatcher", "ServedModel", "named_paths"]

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 30.0
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
Signature = tuple[tuple[str | int, ...], ...]
_MOMENTARY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EIO)
_REMOTE = 10
"""Models in S3 are checked only every n-th time."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in memory with its copies; ``version`` starts at 1 and grows with each change of the file."""

    replicated: ReplicatedModel
    version: int

    @property
    def model(self) -> TrainedModel:
        """The trained model itself."""
        return self.replicated.model


class ServedModel:
    """A model under a name, with the threads that compute it.

    Args:
        name: used in addresses and answers.
        path: as ``load_model`` takes it.
        batching: how requests are computed together.

    Attributes:
        current: the version that answers. ``reload`` replaces it as a whole, on the watcher's thread.
        pending: number of requests without an answer so far, counted by the server's thread.
        reloads: number of versions that were loaded, and of those that could not be used.
        queue: computes the requests.

    Raises:
        ModelError: the model cannot be used. Also what ``load_model`` raises.
    """

    def __init__(self, name: str, path: str, batching: Batching | None = None) -> None:
        self.name, self.path, self.pending = name, path, 0
        self._unreached = self._refused = ""
        self.reloads = {"done": 0, "failed": 0}
        self._batching = batching or Batching()
        self._remote = storage.remote_versions(path)
        self._signature: Signature | None = self._found()
        self.current = LoadedModel(self._loaded(), 1)
        self.queue = InferenceQueue(name, self._batching)

    @property
    def problem(self) -> str:
        """Why the newest file is not used; "": it is used."""
        return self._unreached or self._refused

    @property
    def is_remote(self) -> bool:
        """Whether the model is in S3, where every check costs a request."""
        return self._remote is not None

    def _found(self) -> Signature:
        """Return a signature that changes whenever the model does."""
        if self._remote is None:
            return _signature(self.path)
        found = self._remote.found()
        of_run = tuple(each for each in found if each[0].startswith("checkpoint-"))
        return of_run or found

    def _loaded(self) -> ReplicatedModel:
        return ReplicatedModel.of(_tried(self.name, self.path), self._batching.workers)

    def reload(self) -> bool:
        """Load the file's newest version if it has changed; return whether it is now served. Bad files do not raise."""
        try:
            found = self._found()
            self._unreached = ""
            if found == self._signature:
                return False
            self._signature = found  # also for a broken file: it is tried again after its next change
            model = self._loaded()
        except (CloudError, DownloadError, NotAuthorisedError) as exc:  # it may be reachable later
            self._signature, self._unreached = None, self._reported(exc)
            return False
        except (Dl4jError, OSError, MemoryError) as exc:
            said = self._reported(exc)
            if _is_of_this_process(exc):  # too many open files, for instance: no fault of the model
                self._signature = None
            if self._signature is not None or said != self._refused:
                self.reloads["failed"] += 1
            self._refused = said
            return False
        self.current, self._refused = LoadedModel(model, self.current.version + 1), ""
        self.reloads["done"] += 1
        logger.info("%s has changed: version %d of %s is served", self.path, self.current.version, self.name)
        return True

    def _reported(self, error: Exception) -> str:
        said = str(error)  # not the error itself, whose traceback keeps connections alive
        if said not in (self._unreached, self._refused):
            logger.warning("%s is not used, version %d goes on: %s", self.path, self.current.version, said)
        return said

    def close(self, seconds: float = _CLOSE_SECONDS) -> bool:
        """Answer no more requests; return whether running computations have ended within ``seconds``."""
        if self._remote is not None:
            self._remote.close()
        return self.queue.close(seconds)


def named_paths(models: Sequence[str]) -> dict[str, str]:
    """Return the paths of models by name, from ``NAME=PATH`` or ``PATH``; the default name is that of the file.

    Raises:
        UsageError: two models have the same name, or a name has characters that are not allowed in an address.
    """
    found: dict[str, str] = {}
    for text in models:
        name, equals, path = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            name, path = Path(text).name.removesuffix(".zip").removesuffix(".safetensors"), text
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise UsageError(f"{text!r} gives no name that an address can have; write NAME={text}")
        if name in found:
            raise UsageError(f"two models are called {name!r}: {found[name]} and {path}; write OTHER={path}")
        found[name] = path
    return found


def _is_of_this_process(error: BaseException | None) -> bool:
    """Return whether an error is due to resources that this process lacks at the moment."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _MOMENTARY):
            return True
        error = error.__cause__ or error.__context__
    return False


def _signature(path: str) -> Signature:
    """Return a signature that changes with a local model; () if the model cannot be read, or is remote."""
    if storage.is_remote(path):
        return ()
    try:
        place = files.expand(path)
        names = [n for n in files.names_in(place) if n.startswith("checkpoint-")] if files.is_folder(place) else [""]
        found = [(name, (place / name if name else place).stat()) for name in names]
    except OSError:
        return ()
    return tuple((name, each.st_mtime_ns, each.st_size, each.st_ino) for name, each in found)


def _tried(name: str, path: str) -> TrainedModel:
    """Return a model after a test answer, which also compiles its kernels; raises ``ModelError``."""
    model = dataclasses.replace(load_model(path), name=name)
    try:
        model.output_names(model.network.n_in)
        with one_thread():
            model.answer(_trial(model))
    except ModelError:
        raise
    except Dl4jError as exc:
        raise ModelError(f"model {path} cannot answer: {exc}") from exc
    return model


def _trial(model: TrainedModel) -> Array:
    """Return features of one example with all zeros."""
    kind = input_type_of(model.network)
    if isinstance(kind, InputTypeRecurrent):
        return np.zeros((1, kind.size, kind.timesteps or 1), np.float32)
    return np.zeros((1, kind.columns), np.float32)


class ModelWatcher:
    """Checks periodically whether models have changed, on a thread of its own while it is entered.

    Models in S3 are checked ten times less often.
    """

    def __init__(self, models: Mapping[str, ServedModel], seconds: float) -> None:
        self._models, self._seconds, self._over = models, seconds, threading.Event()
        self._thread = ServiceThread(target=self._watch, name="dl4j-serve-watch")

    def _watch(self) -> None:
        for turn in itertools.count(1):
            if self._over.wait(self._seconds):
                return
            for model in self._models.values():
                if not model.is_remote or turn % _REMOTE == 0:
                    _guarded(model.reload)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_CLOSE_SECONDS)


def _guarded(reload: Callable[[], bool]) -> None:
    try:
        with exits_as_errors():
            reload()
    except Exception:  # a bug must not end the watch: the old models go on
        logger.exception("a model could not be loaded anew")
