"""Checkpoints: model versions on disk, from which a killed run continues with the same result.

A checkpoint is two files. ``model-<version>.safetensors`` holds the arrays. ``checkpoint-<version>.json`` is written
after it and holds its name and SHA-256, the head (version, round, folded slots, counters) and the seed; together with
the plan these determine the state of every random generator. Each file is written to a temporary file, synced and
renamed, so a checkpoint exists completely or not at all. A damaged checkpoint is skipped in favour of the newest good
one. ``conf.json`` in the same folder is the run's ``Conf``. A folder belongs to one run: its process locks it, and the
manifests name the run's incarnation and a digest of its Conf, so that another run's checkpoints are never taken for its
own.

Legacy: ``ModelSaver``, ``DefaultModelSaver`` (kept every version forever, saved ``null`` after the first round).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import safetensors
import safetensors.numpy

from dl4jlegacy import files
from dl4jlegacy.datasets import DataSet, DataSetIterator, ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.decoding import described
from dl4jlegacy.errors import CheckpointError, Dl4jError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.records import Head, Manifest
from dl4jlegacy.scaleout.store import Buffer
from dl4jlegacy.strict_json import to_json

__all__ = ["CheckpointStore", "RunIdentity", "check_same_data", "with_fingerprint"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d{8,})\.json")
LOCK = ".lock"
_FORMAT = "dl4jlegacy-checkpoint-1"


def check_same_data(head: Head, plan: Plan) -> None:
    """Raise ``CheckpointError`` if the counts in ``head`` differ from what ``plan`` has for the same slots."""
    numbers = [number for first, last in head.folded for number in range(first, min(last, plan.total_slots))]
    expected = sum(map(plan.batches_of, numbers)), sum(map(plan.examples_of, numbers))
    if (head.batches, head.examples) != expected:
        raise CheckpointError(
            f"run {head.run} has trained on {head.examples} examples in {head.batches} batches; with the data as they "
            f"are now that would have been {expected[1]} in {expected[0]}: give it the data that it began with"
        )


class RunIdentity(msgspec.Struct, frozen=True):
    """What tells the checkpoints of a run from those of all others; "" is unknown, as in older checkpoints."""

    seed: int = 0
    incarnation: str = ""
    conf_digest: str = ""

    @classmethod
    def of(cls, conf: Conf) -> Self:
        """Return the identity of the run with this Conf, whose defaults are resolved."""
        return cls(conf.seed, conf.incarnation, conf.digest())


class CheckpointStore:
    """The checkpoints of one run in a folder; keeps the newest ``keep``. Used by one thread at a time.

    Only ``_lock``, ``_write``, ``_read``, ``_names`` and ``_delete`` access the folder, and they raise ``OSError``;
    ``S3ModelSaver`` overrides them.

    Args:
        folder: where; made when first written to.
        keep: how many.
        owner: whose checkpoints they are; None: whoever's there are, for looking only.

    Attributes:
        arithmetic: returns what the run is computed with, to be written down with each checkpoint.
    """

    def __init__(self, folder: Path | str, *, keep: int = 3, owner: RunIdentity | None = None) -> None:
        self.folder = Path(folder)
        self.arithmetic: Callable[[], dict[str, str]] = dict
        self._keep, self._owner = keep, owner
        self._lock_file: int | None = None
        self._must_lock = False
        self._cannot_delete = False

    @property
    def place(self) -> str:
        """Where the checkpoints are, in the form that ``dl4j resume`` accepts."""
        return str(self.folder)

    def versions(self) -> list[int]:
        """Return the versions that have a manifest, newest first."""
        found = (_NAME.fullmatch(name) for name in self._names())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def keep_conf(self, conf: Conf, *, takes_over: bool = False) -> None:
        """Take the folder for a run, and write its Conf beside the checkpoints.

        It is not written again if it is there already: the disk may be full by now.

        Args:
            conf: the run's.
            takes_over: whether another process, which may be frozen and not dead, had the run before this one.

        Raises:
            CheckpointError: it cannot be written, or the folder is another run's.
        """
        content = conf.to_json().encode() + b"\n"
        try:
            is_locked, kept = self._lock(), self.kept("incarnation")
            if not is_locked and not (takes_over and kept == conf.incarnation):
                raise self._in_use()
            if kept not in ("", conf.incarnation) and self.versions():
                raise CheckpointError(
                    f"{self.place} holds checkpoints of another run, {self.kept('run')} ({kept}), and not of "
                    f"{conf.run} ({conf.incarnation}); choose another --checkpoint-dir"
                )
            self._must_lock = not is_locked
            if "conf.json" not in self._names() or self._read("conf.json") != content:
                self._write("conf.json", content)
        except OSError as exc:
            reason = exc.strerror or exc
            raise CheckpointError(f"{self.place} cannot be written: {reason}; choose another folder") from exc

    def check_unused(self) -> None:
        """Raise ``CheckpointError`` if another process uses the folder, or it cannot be locked."""
        try:
            if not self._lock():
                raise self._in_use()
        except OSError as exc:
            raise CheckpointError(f"{self.place} cannot be written: {exc.strerror or exc}") from exc
        self.release()

    def kept(self, field: str) -> str:
        """Return a field of the Conf in this folder, as text; "" if it does not say, or there is no Conf."""
        try:
            kept = msgspec.json.decode(self._read("conf.json"), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError):
            return ""  # an unreadable Conf is reported by whoever reads all of it
        return str(kept.get(field, ""))

    def release(self) -> None:
        """Let others use the folder."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def save(self, head: Head, frame: Buffer) -> None:
        """Save a model version. If this fails, the older checkpoints are unchanged.

        Raises:
            CheckpointError: it cannot be written.
        """
        owner, result = self._owner or RunIdentity(), Result.decode(frame)
        tensors = safetensors.numpy.save(dict(result.arrays))
        model, manifest = self._files(head.version)
        body = {
            "format": _FORMAT,
            "head": msgspec.to_builtins(head),
            "position": {"round": head.round, "batches": head.batches, "examples": head.examples},
            **msgspec.to_builtins(owner),
            "arithmetic": self.arithmetic(),
            "values": dict(result.values),
            "arrays": list(result.arrays),
            "model": {"file": model, "nbytes": len(tensors), "sha256": hashlib.sha256(tensors).hexdigest()},
        }
        try:
            if self._must_lock:  # a frozen process had it when this one took over
                self._must_lock = not self._lock()
            self._write(model, tensors)
            self._write(manifest, _signed(body))
        except OSError as exc:
            raise CheckpointError(
                f"checkpoint {head.version} could not be written to {self.place}: {exc.strerror or exc}; free some "
                "space or choose another --checkpoint-dir. The older checkpoints are untouched"
            ) from exc
        failure = self._prune()
        if failure is not None and not self._cannot_delete:  # old ones too many are no reason to end a run
            logger.warning("old checkpoints in %s cannot be deleted: %s", self.place, failure)
        self._cannot_delete = failure is not None

    def newest(self) -> tuple[Head, Buffer] | None:
        """Return the newest good checkpoint, or None if there is none at all.

        Raises:
            CheckpointError: there are checkpoints, and every one is damaged.
        """
        versions = self.versions()
        reasons = []
        for version in versions:
            try:
                return self._load(version)
            except CheckpointError as exc:
                logger.warning("checkpoint %s in %s is passed over: %s", version, self.place, exc)
                reasons.append(str(exc))
        if not versions:
            return None
        raise CheckpointError(f"none of the {len(versions)} checkpoints in {self.place} is usable: {reasons[0]}")

    def made_with(self) -> dict[str, str]:
        """Return what the newest good manifest says that its model was computed with; empty if there is none."""
        for version in self.versions():
            with contextlib.suppress(CheckpointError, OSError):
                found = _verified(self._read(self._files(version)[1])).get("arithmetic")
                return found if isinstance(found, dict) else {}
        return {}

    def _lock(self) -> bool:
        """Lock the folder for this object's lifetime; return whether it is locked, or cannot be on its file system."""
        if self._lock_file is not None:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(file)
            return exc.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        os.ftruncate(file, 0)
        os.write(file, f"{socket.gethostname()}, pid {os.getpid()}\n".encode())
        self._lock_file = file
        return True

    def _in_use(self) -> CheckpointError:
        return CheckpointError(
            f"{self.place} is in use by another run or process{self._user()}; wait for its end, or choose another "
            "--checkpoint-dir"
        )

    def _user(self) -> str:
        """Return who has locked the folder, in words."""
        try:
            return f" on {self._read(LOCK).decode(errors='replace').strip()[:300]}"
        except OSError:
            return ""

    def _write(self, name: str, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        files.write(self.folder / name, content)

    def _read(self, name: str) -> bytes:
        return files.read(self.folder / name)

    def _names(self) -> list[str]:
        return files.names_in(self.folder) if files.is_folder(self.folder) else []

    def _delete(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    @staticmethod
    def _files(version: int) -> tuple[str, str]:
        return f"model-{version:08d}.safetensors", f"checkpoint-{version:08d}.json"

    def _load(self, version: int) -> tuple[Head, Buffer]:
        model, manifest = self._files(version)
        try:
            body = _verified(self._read(manifest))
            self._check_owner(body)
            head = msgspec.convert(body["head"], described(Head))
            tensors = self._read(model)
            if hashlib.sha256(tensors).hexdigest() != body["model"]["sha256"]:
                raise CheckpointError(
                    f"{model} has {len(tensors)} bytes that do not match the SHA-256 of the "
                    f"{body['model']['nbytes']} bytes written"
                )
            arrays = safetensors.numpy.load(tensors)  # the order of the arrays is not kept
            frame = Result(body["values"], {name: arrays[name] for name in body["arrays"]}).encode()
        except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError, safetensors.SafetensorError) as exc:
            raise CheckpointError(f"{manifest} cannot be read: {exc}") from exc
        return msgspec.structs.replace(head, model=Manifest("", 0, 0), status="running", failure=None), frame

    def _check_owner(self, body: dict[str, Any]) -> None:
        """Raise ``CheckpointError`` if a manifest is another run's."""
        for name, ours in msgspec.to_builtins(self._owner or RunIdentity()).items():
            theirs = body.get(name)
            if self._owner is not None and theirs and ours and theirs != ours:
                raise CheckpointError(
                    f"it is another run's: its {name} is {theirs} and that of this run {ours}; give the run the Conf "
                    "that it began with"
                )

    def _prune(self) -> Exception | None:
        """Delete all but the newest checkpoints, and unfinished files of killed processes; return the first error."""
        failure: Exception | None = None
        try:
            useless = self._useless()
        except (OSError, Dl4jError) as exc:
            return exc
        for name in useless:
            try:
                self._delete(name)
            except (OSError, Dl4jError) as exc:
                failure = failure or exc
        return failure

    def _useless(self) -> list[str]:
        """Return the names of the files that are no longer needed."""
        kept = {name for version in self.versions()[: self._keep] for name in self._files(version)}
        useless = []
        for name in self._names():
            ours = _NAME.fullmatch(name) or re.fullmatch(r"model-\d{8,}\.safetensors", name)
            stale = re.fullmatch(r"\.(model|checkpoint)-.*\.tmp", name)
            if (ours and name not in kept) or (stale and f".{os.getpid()}." not in name):
                useless.append(name)
        return useless


def with_fingerprint(
    conf: Conf, data: Any, checkpoints: CheckpointStore | None = None, *, resume: bool = False
) -> Conf:
    """Return the Conf with the fingerprint of the run's data; unchanged if ``data`` is not a data set.

    Args:
        conf: the run's; if it has a fingerprint, the data must have the same one.
        data: the training data, or an iterator over it.
        checkpoints: with ``resume`` and a Conf without a fingerprint, the Conf in this store has it.
        resume: whether the run continues; a run without any fingerprint continues with a warning.

    Raises:
        CheckpointError: the run began with other data.
    """
    if not isinstance(data, DataSet | MultiDataSet | DataSetIterator | ListMultiDataSetIterator):
        return conf
    found = fingerprint(data)
    began = conf.data_fingerprint or (
        checkpoints.kept("data_fingerprint") if resume and checkpoints is not None else ""
    )
    if resume and not began:
        logger.warning(
            "run %s has kept no fingerprint of its data: whether the data is still the same is unknown", conf.run
        )
    if began and began != found:
        raise CheckpointError(
            f"run {conf.run} began with {f'data set {conf.dataset}' if conf.dataset else 'data'} of fingerprint "
            f"{began[:16]}; what is there now has {found[:16]}, so something in it has changed: give it the data that "
            "it began with, or begin a new run with another --checkpoint-dir (and a Conf without data_fingerprint)"
        )
    return conf.replace(data_fingerprint=found)


def _signed(body: dict[str, Any]) -> bytes:
    """Return the manifest's bytes: canonical JSON that contains its own digest."""
    digest = hashlib.sha256(to_json(body, sort_keys=True).encode()).hexdigest()
    return (to_json({**body, "digest": digest}, sort_keys=True, indent=1) + "\n").encode()


def _verified(content: bytes) -> dict[str, Any]:
    """Return the manifest in ``content``; raises ``CheckpointError`` if any byte has changed."""
    try:
        body = json.loads(content)
        digest = body.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError) as exc:
        raise CheckpointError(f"the manifest of {len(content)} bytes is cut short or no manifest") from exc
    if digest != hashlib.sha256(to_json(body, sort_keys=True).encode()).hexdigest() or body.get("format") != _FORMAT:
        raise CheckpointError("the manifest does not match its own digest, or is of another format")
    return dict(body)
