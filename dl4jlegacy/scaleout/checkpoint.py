"""Checkpoints: model versions in a folder, from which a killed run continues with the same result.

A checkpoint is two files. ``model-<version>.safetensors`` holds the arrays. ``checkpoint-<version>.json`` is written
after it and holds its name and SHA-256, the head (version, round, folded slots, counters) and the seed; together with
the plan these determine the state of every random generator. Each file exists completely or not at all
(``dl4jlegacy.folders``), so a checkpoint does, too. A damaged checkpoint is skipped in favour of the newest good one.
The states of the slots, of strategies that keep them, are in ``states-<version>.safetensors``.
The best model of a run that is scored is a file of its own, ``best-<version>-<digest>.safetensors``, named by the
checkpoints that it belongs to: one is good only with it.
``conf.json`` in the same folder is the run's ``Conf``. A folder belongs to one run: its process locks it, and the
manifests name the run's incarnation and a digest of its Conf, so that another run's checkpoints are never taken for its
own.

Legacy: ``ModelSaver``, ``DefaultModelSaver`` (kept every version forever, saved ``null`` after the first round) and
``S3ModelSaver`` (gave every model a random name and could not load).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
import safetensors
import safetensors.numpy

from dl4jlegacy.datasets import DataSet, DataSetIterator, ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.decoding import described
from dl4jlegacy.errors import CheckpointError, Dl4jError
from dl4jlegacy.folders import Folder, LocalFolder
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol import SavedState
from dl4jlegacy.scaleout.records import Best, Head, Manifest
from dl4jlegacy.scaleout.store import Buffer
from dl4jlegacy.strict_json import to_json

__all__ = ["CheckpointStore", "RunIdentity", "check_same_data", "with_fingerprint"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d{8,})\.json")
_BEST = re.compile(r"best-(\d{8,})-[0-9a-f]{16}\.safetensors")
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

    Args:
        folder: where; a path is one of this machine (``storage.open_checkpoints`` takes ``s3://`` too).
        keep: how many.
        owner: whose checkpoints they are; None: whoever's there are, for looking only.

    Attributes:
        arithmetic: returns what the run is computed with, to be written down with each checkpoint.
    """

    def __init__(self, folder: Folder | Path | str, *, keep: int = 3, owner: RunIdentity | None = None) -> None:
        self.folder: Folder = LocalFolder(folder) if isinstance(folder, (str, Path)) else folder
        self.arithmetic: Callable[[], dict[str, str]] = dict
        self._keep, self._owner = keep, owner
        self._must_lock = False
        self._cannot_delete = False

    @property
    def place(self) -> str:
        """Where the checkpoints are, in the form that ``dl4j resume`` accepts."""
        return self.folder.place

    def versions(self) -> list[int]:
        """Return the versions that have a manifest, newest first."""
        found = (_NAME.fullmatch(name) for name in self.folder.names())
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
            is_locked = self.folder.lock(conf.incarnation, takes_over=takes_over)
            try:
                self._take(conf, content, is_locked=is_locked, takes_over=takes_over)
            except BaseException:
                self.release()
                raise
        except OSError as exc:
            reason = exc.strerror or exc
            raise CheckpointError(f"{self.place} cannot be written: {reason}; choose another folder") from exc

    def _take(self, conf: Conf, content: bytes, *, is_locked: bool, takes_over: bool) -> None:
        kept = self.kept("incarnation")
        if not is_locked and not (takes_over and kept == conf.incarnation):
            raise self._in_use()
        if kept not in ("", conf.incarnation) and self.versions():
            raise CheckpointError(
                f"{self.place} holds checkpoints of another run, {self.kept('run')} ({kept}), and not of "
                f"{conf.run} ({conf.incarnation}); choose another --checkpoint-dir"
            )
        self._must_lock = not is_locked
        if "conf.json" not in self.folder.names() or self.folder.read("conf.json") != content:
            self.folder.write("conf.json", content)

    def check_unused(self) -> None:
        """Raise ``CheckpointError`` if another process uses the folder, or it cannot be locked."""
        try:
            if not self.folder.lock(self.kept("incarnation")):
                raise self._in_use()
        except OSError as exc:
            raise CheckpointError(f"{self.place} cannot be written: {exc.strerror or exc}") from exc
        self.release()

    def kept(self, field: str) -> str:
        """Return a field of the Conf in this folder, as text; "" if it does not say, or there is no Conf."""
        try:
            kept = msgspec.json.decode(self.folder.read("conf.json"), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return ""  # an unreadable Conf is reported by whoever reads all of it
        return str(kept.get(field, ""))

    def release(self) -> None:
        """Let others use the folder."""
        self.folder.release()

    def save(
        self,
        head: Head,
        frame: Buffer,
        best: Buffer | None = None,
        states: Mapping[int, SavedState] | None = None,
    ) -> None:
        """Save a model version, the head's best model, and the states of its slots, which must be all of its snapshot.

        If this fails, older checkpoints are unchanged.

        Raises:
            CheckpointError: it cannot be written.
        """
        owner, result = self._owner or RunIdentity(), Result.decode(frame)
        tensors = safetensors.numpy.save(dict(result.arrays))
        model, manifest = self._files(head.version)
        kept, files = self._best_of(head, best)
        of_slots = None
        if states:
            of_slots, content = _encode_states(states, _states_file(head.version))
            files[of_slots["file"]] = content
        body = {
            "format": _FORMAT,
            "head": msgspec.to_builtins(head),
            "position": {"round": head.round, "batches": head.batches, "examples": head.examples},
            **msgspec.to_builtins(owner),
            "arithmetic": self.arithmetic(),
            "values": dict(result.values),
            "arrays": list(result.arrays),
            "model": {"file": model, "nbytes": len(tensors), "sha256": hashlib.sha256(tensors).hexdigest()},
            **({} if kept is None else {"best": kept}),
            **({} if of_slots is None else {"states": of_slots}),
        }
        try:
            if self._must_lock:  # a frozen process had it when this one took over
                self._must_lock = not self.folder.lock(owner.incarnation)
            for name, content in files.items():
                self.folder.write(name, content)
            self.folder.write(model, tensors)
            self.folder.write(manifest, _signed(body))
        except (OSError, Dl4jError) as exc:
            reason = exc.strerror or exc if isinstance(exc, OSError) else exc
            raise CheckpointError(
                f"checkpoint {head.version} could not be written to {self.place}: {reason}; free some "
                "space or choose another --checkpoint-dir. The older checkpoints are untouched"
            ) from exc
        failure = self._prune(head.version)
        if failure is not None and not self._cannot_delete:  # old ones too many are no reason to end a run
            logger.warning("old checkpoints in %s cannot be deleted: %s", self.place, failure)
        self._cannot_delete = failure is not None

    def _best_of(self, head: Head, best: Buffer | None) -> tuple[dict[str, Any] | None, dict[str, bytes]]:
        """Return what the manifest says of the best model, and the file to be written for it, if it is not there."""
        if head.best is None or best is None:
            return None, {}
        result = Result.decode(best)
        tensors = safetensors.numpy.save(dict(result.arrays))
        digest = hashlib.sha256(tensors).hexdigest()
        name = f"best-{head.best.version:08d}-{digest[:16]}.safetensors"
        kept = {"file": name, "nbytes": len(tensors), "sha256": digest}
        there = name in self.folder.names()
        return {**kept, "values": dict(result.values), "arrays": list(result.arrays)}, {} if there else {name: tensors}

    def best_model(self, best: Best) -> Buffer | None:
        """Return the best model of a run as the checkpoints have it; None if they have not, or it is damaged."""
        for version in self.versions():
            with contextlib.suppress(CheckpointError, OSError, KeyError, TypeError, msgspec.ValidationError):
                body = _verified(self.folder.read(self._files(version)[1]))
                self._check_owner(body)
                if best.is_same(msgspec.convert(body["head"], described(Head)).best):
                    return self._frame(body["best"], body["best"])
        return None

    def states(self, head: Head) -> dict[int, SavedState] | None:
        """Return the states of the slots that belong to a checkpoint's head, by slot; None if they are damaged."""
        with contextlib.suppress(CheckpointError, OSError, KeyError, TypeError, ValueError):
            body = _verified(self.folder.read(self._files(head.version)[1]))
            self._check_owner(body)
            return _decode_states(body["states"]["slots"], self._arrays(body["states"]))
        return None

    def newest(self) -> tuple[Head, Buffer] | None:
        """Return the newest good checkpoint, or None if there is none at all.

        Raises:
            CheckpointError: there are checkpoints, and every one is damaged.
        """
        versions = self.versions()
        reasons = []
        for version in versions:
            try:
                return self.load(version)
            except CheckpointError as exc:
                logger.warning("checkpoint %s in %s is passed over: %s", version, self.place, exc)
                reasons.append(str(exc))
        if not versions:
            return None
        raise CheckpointError(f"none of the {len(versions)} checkpoints in {self.place} is usable: {reasons[0]}")

    def newest_head(self) -> Head | None:
        """Return the head of the newest good manifest as it was written, its model unread; None if there is none."""
        for version in self.versions():
            with contextlib.suppress(CheckpointError, OSError, KeyError, msgspec.ValidationError):
                return msgspec.convert(_verified(self.folder.read(self._files(version)[1]))["head"], described(Head))
        return None

    def made_with(self) -> dict[str, str]:
        """Return what the newest good manifest says that its model was computed with; empty if there is none."""
        for version in self.versions():
            with contextlib.suppress(CheckpointError, OSError):
                found = _verified(self.folder.read(self._files(version)[1])).get("arithmetic")
                return found if isinstance(found, dict) else {}
        return {}

    def _in_use(self) -> CheckpointError:
        holder = self.folder.holder()
        return CheckpointError(
            f"{self.place} is in use by another run or process{holder and f' on {holder}'}; wait for its end, or "
            "choose another --checkpoint-dir"
        )

    @staticmethod
    def _files(version: int) -> tuple[str, str]:
        return f"model-{version:08d}.safetensors", f"checkpoint-{version:08d}.json"

    def load(self, version: int) -> tuple[Head, Buffer]:
        """Return the checkpoint of one version; raises ``CheckpointError`` if it is damaged, another run's, or none."""
        manifest = self._files(version)[1]
        with _as_checkpoint_error(manifest):
            body = _verified(self.folder.read(manifest))
            self._check_owner(body)
            head = msgspec.convert(body["head"], described(Head))
            frame = self._frame(body["model"], body)
            if head.best is not None:
                self._frame(body["best"], body["best"])
            if head.snapshot is not None:
                self._arrays(body["states"])
        return msgspec.structs.replace(head, model=Manifest("", 0, 0), status="running", failure=None), frame

    def model(self, version: int) -> Result:
        """Return the model of one version, whatever else belongs to it; raises as ``load``."""
        manifest = self._files(version)[1]
        with _as_checkpoint_error(manifest):
            body = _verified(self.folder.read(manifest))
            self._check_owner(body)
            arrays = self._arrays(body["model"])
            return Result(body["values"], {key: arrays[key] for key in body["arrays"]})

    def _frame(self, file: dict[str, Any], contents: dict[str, Any]) -> Buffer:
        """Return the model in a file; raises ``CheckpointError``, ``OSError`` and others if it is damaged."""
        arrays = self._arrays(file)  # their order is not kept
        return Result(contents["values"], {key: arrays[key] for key in contents["arrays"]}).encode()

    def _arrays(self, file: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays in a file; raises as ``_frame``."""
        name, tensors = file["file"], self.folder.read(file["file"])
        if hashlib.sha256(tensors).hexdigest() != file["sha256"]:
            raise CheckpointError(
                f"{name} has {len(tensors)} bytes that do not match the SHA-256 of the {file['nbytes']} bytes written"
            )
        arrays: dict[str, Any] = safetensors.numpy.load(tensors)
        return arrays

    def _check_owner(self, body: dict[str, Any]) -> None:
        """Raise ``CheckpointError`` if a manifest is another run's."""
        for name, ours in msgspec.to_builtins(self._owner or RunIdentity()).items():
            theirs = body.get(name)
            if self._owner is not None and theirs and ours and theirs != ours:
                raise CheckpointError(
                    f"it is another run's: its {name} is {theirs} and that of this run {ours}; give the run the Conf "
                    "that it began with"
                )

    def _prune(self, newest: int) -> Exception | None:
        """Delete checkpoints older than the newest, and unfinished files of killed processes; return the first error.

        Versions above ``newest``, which this process has just saved, are another's or damaged: they are none of its to
        delete, and do not count as kept.
        """
        failure: Exception | None = None
        try:
            useless = self._useless(newest)
        except (OSError, Dl4jError) as exc:
            return exc
        for name in useless:
            try:
                self.folder.delete(name)
            except (OSError, Dl4jError) as exc:
                failure = failure or exc
        return failure

    def _best_files(self, version: int) -> set[str]:
        """Return the names of the files of the best model that a checkpoint belongs to; none if it is damaged."""
        with contextlib.suppress(CheckpointError, OSError, KeyError, TypeError):
            return {_verified(self.folder.read(self._files(version)[1]))["best"]["file"]}
        return set()

    def _useless(self, newest: int) -> list[str]:
        """Return the names of the files that are no longer needed."""
        old = [version for version in self.versions() if version <= newest]
        kept = {name for version in old[: self._keep] for name in self._files(version)}
        kept |= {_states_file(version) for version in old[: self._keep]}
        names, useless = self.folder.names(), []
        dropped, wanted = set(old[self._keep :]), set[str]()
        if any(map(_BEST.fullmatch, names)):
            wanted = set().union(*(self._best_files(version) for version in self.versions() if version not in dropped))
        for name in names:
            ours = _NAME.fullmatch(name) or re.fullmatch(r"(?:model|states)-(\d{8,})\.safetensors", name)
            stale = re.fullmatch(r"\.(model|checkpoint|best|states)-.*\.tmp", name)
            best = _BEST.fullmatch(name)
            if best and name not in wanted and int(best[1]) <= newest:
                useless.append(name)
            if (ours and int(ours[1]) <= newest and name not in kept) or (stale and f".{os.getpid()}." not in name):
                useless.append(name)
        return useless


@contextlib.contextmanager
def _as_checkpoint_error(manifest: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError, safetensors.SafetensorError) as exc:
        raise CheckpointError(f"{manifest} cannot be read: {exc}") from exc


def _states_file(version: int) -> str:
    return f"states-{version:08d}.safetensors"


def _encode_states(states: Mapping[int, SavedState], file: str) -> tuple[dict[str, Any], bytes]:
    """Return what the manifest says of the states of slots, and the bytes of the file of that name."""
    decoded = {slot: Result.decode(saved.frame) for slot, saved in states.items()}
    arrays = {f"{slot}.{name}": array for slot, result in decoded.items() for name, array in result.arrays.items()}
    tensors = safetensors.numpy.save(arrays)
    slots = {
        str(slot): {
            "number": states[slot].number,
            "values": dict(result.values),
            "arrays": list(result.arrays),
        }
        for slot, result in decoded.items()
    }
    digest = hashlib.sha256(tensors).hexdigest()
    return {"file": file, "nbytes": len(tensors), "sha256": digest, "slots": slots}, tensors


def _decode_states(slots: dict[str, Any], tensors: Mapping[str, Any]) -> dict[int, SavedState]:
    """Return the states of slots; the inverse of ``_encode_states``."""
    return {
        int(slot): SavedState(
            int(kept["number"]),
            Result(kept["values"], {name: tensors[f"{slot}.{name}"] for name in kept["arrays"]}).encode(),
        )
        for slot, kept in slots.items()
    }


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
