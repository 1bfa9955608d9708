"""Checkpoints: model versions in a folder, from which a killed run continues with the same result.

A checkpoint is two files. ``model-<version>.safetensors`` holds the arrays. ``checkpoint-<version>.json`` is written
after it and holds its name and SHA-256, the head (version, round, folded slots, counters) and the seed; together with
the plan these determine the state of every random generator. Each file exists completely or not at all
(``dl4jlegacy.storage.folders``), so a checkpoint does, too. A damaged checkpoint is skipped in favour of the newest
good one.
For strategies with slot memory, the states of the slots are in ``states-<version>.safetensors``. If the run is scored,
its best model is in a separate file, ``best-<version>-<digest>.safetensors``, which the checkpoints refer to; a
checkpoint is good only together with it.
``conf.json`` in the same folder is the run's ``Conf``. A folder belongs to one run: its process locks it, and the
manifests contain the run's incarnation and a digest of its Conf, so that a run never uses another run's checkpoints.
Before each checkpoint the run checks whether the folder still belongs to it. If the folder was deleted, it is created
again, complete; if another run owns it by now, nothing is written. The run deletes only files that are marked as its
own.

Legacy: ``ModelSaver``, ``DefaultModelSaver`` (kept every version forever, saved ``null`` after the first round) and
``S3ModelSaver`` (gave every model a random name and could not load).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
import safetensors
import safetensors.numpy

from dl4jlegacy.datasets.batches import Batch, BatchIterator
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.errors import CheckpointError, Dl4jError, StorageError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.own_folder import CONF, Whose, whose
from dl4jlegacy.scaleout.protocol import SavedState
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Best, Head, Manifest
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.storage.folders import Folder, LocalFolder
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.strict_json import to_json

__all__ = ["CheckpointStore", "RunIdentity", "with_fingerprint"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d{8,})\.json")
_TENSORS = re.compile(r"(?:model|states|best)-(\d{8,})(?:-[0-9a-f]{16})?\.safetensors")
_RUN = "run"
_FORMAT, _BEFORE = "dl4jlegacy-checkpoint-2", "dl4jlegacy-checkpoint-1"
"""Format 2: AdaGrad and RmsProp follow Deeplearning4j, and a short round counts as its actual number of updates."""


class RunIdentity(msgspec.Struct, frozen=True):
    """The identity of a run in its checkpoints; "" is unknown, as in older checkpoints."""

    seed: int = 0
    incarnation: str = ""
    conf_digest: str = ""

    @classmethod
    def of(cls, conf: Conf) -> Self:
        """Return the identity of the run with this Conf, whose defaults are resolved."""
        return cls(conf.seed, conf.incarnation, conf.digest())

    def mark(self) -> str:
        """Return the identity as stored in a file of arrays; "" for a run without an incarnation."""
        return f"{self.incarnation} {self.seed} {self.conf_digest}" if self.incarnation else ""


class _AnotherRunsError(StorageError):
    """A checkpoint belongs to another run; the folder may become this run's again."""


class CheckpointStore:
    """The checkpoints of one run in a folder; keeps the newest ``keep``. Used by one thread at a time.

    Args:
        folder: the folder; a path is on this machine (``saved_run.open_checkpoints`` also takes ``s3://``).
        keep: number of checkpoints to keep.
        owner: the run that owns the checkpoints; None: any run, for reading only.

    Attributes:
        arithmetic, made_of: return the arithmetic of the run, and its components (``scaleout.identity``), which are
            stored with each checkpoint.
    """

    def __init__(self, folder: Folder | Path | str, *, keep: int = 3, owner: RunIdentity | None = None) -> None:
        self.folder: Folder = LocalFolder(folder) if isinstance(folder, (str, Path)) else folder
        self.arithmetic: Callable[[], dict[str, str]] = dict
        self.made_of: Callable[[], dict[str, str]] = dict
        self._keep, self._owner = keep, owner
        self._takes_over = self._is_taken = self._cannot_delete = False
        self._conf: Conf | None = None  # of the run that has taken the folder
        self._ours: dict[int, frozenset[str]] = {}  # the files of each version, none of another run's
        self._foreign: set[str] = set()

    @property
    def place(self) -> str:
        """The location of the checkpoints, in the form that ``dl4j resume`` accepts."""
        return self.folder.place

    def versions(self) -> list[int]:
        """Return the versions that have a manifest, newest first; raises ``StorageError`` if unknown at the moment."""
        with self._reading():
            return _versions(self.folder.names())

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise StorageError(f"{self.place} cannot be read: {exc.strerror or exc}") from exc

    def keep_conf(self, conf: Conf, *, takes_over: bool = False) -> None:
        """Take the folder for a run, and write its Conf beside the checkpoints.

        An equal Conf is not written again, since the disk may be full by now. If this fails, ``save`` tries again.

        Args:
            conf: of the run.
            takes_over: whether another process led the run before; it may be frozen and not dead.

        Raises:
            StorageError: the folder cannot be written. CheckpointError: it belongs to another run.
        """
        self._conf, self._takes_over, self._is_taken = conf, takes_over, False
        try:
            self._take(conf)
        except OSError as exc:
            reason = exc.strerror or exc
            raise StorageError(f"{self.place} cannot be written: {reason}; choose another folder") from exc
        finally:
            if not self._is_taken:
                self.release()

    def _take(self, conf: Conf) -> None:
        content, kept = conf.to_json().encode() + b"\n", whose(self.folder)
        self._lock(conf, kept)
        if kept is not None and kept.incarnation not in ("", conf.incarnation) and self.versions():
            raise CheckpointError(
                f"{self.place} holds checkpoints of another run, {kept.run} ({kept.incarnation}), and not of "
                f"{conf.run} ({conf.incarnation}); choose another --checkpoint-dir"
            )
        if CONF not in self.folder.names() or self.folder.read(CONF) != content:
            self.folder.write(CONF, content)
        self._is_taken = True

    def _lock(self, conf: Conf, kept: Whose | None) -> None:
        """Lock the folder. A process that takes over from a frozen one may continue without the lock for a while."""
        is_ours = kept is not None and kept.incarnation == conf.incarnation
        is_locked = self.folder.lock(conf.incarnation, takes_over=self._takes_over)
        if not is_locked and not (self._takes_over and is_ours):
            raise self._in_use()
        self._takes_over = self._takes_over and not is_locked

    def _make_sure(self) -> None:
        """Ensure that the folder is complete and still this run's; raises ``OSError`` and ``CheckpointError``."""
        conf = self._conf
        if conf is None:
            return
        if not self._is_taken:
            self._take(conf)
            return
        kept = whose(self.folder)
        if kept is not None and kept.incarnation not in ("", conf.incarnation):
            raise CheckpointError(f"it is the folder of another run by now, {kept.run} ({kept.incarnation})")
        self._lock(conf, kept)
        if kept is None or kept.incarnation != conf.incarnation:
            self._ours.clear()
            self.folder.write(CONF, conf.to_json().encode() + b"\n")
            logger.warning("%s of run %s was gone from %s: it is there again", CONF, conf.run, self.place)

    def has_conf(self) -> bool:
        """Return whether a run has taken the folder; raises ``StorageError`` if that is unknown at the moment."""
        with self._reading():
            return CONF in self.folder.names()

    def check_unused(self) -> None:
        """Raise ``CheckpointError`` if another process uses the folder, or it cannot be locked."""
        try:
            if not self.folder.lock(self.kept("incarnation")):
                raise self._in_use()
        except OSError as exc:
            raise StorageError(f"{self.place} cannot be written: {exc.strerror or exc}") from exc
        self.release()

    def kept(self, field: str) -> str:
        """Return a field of the folder's Conf as text; "" if the field or the Conf is missing."""
        try:
            kept = msgspec.json.decode(self.folder.read(CONF), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ""  # an unreadable Conf is reported where all of it is read
        return str(kept.get(field, ""))

    def release(self) -> None:
        """Release the lock on the folder."""
        self.folder.release()

    def save(
        self,
        head: Head,
        frame: Buffer,
        best: Buffer | None = None,
        states: Mapping[int, SavedState] | None = None,
    ) -> None:
        """Save a model version, the head's best model, and the slot states, which must be all states of its snapshot.

        If this fails, older checkpoints are unchanged.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """
        owner, result = self._owner or RunIdentity(), Result.decode(frame)
        tensors = self._tensors(result.arrays)
        model, manifest = self._files(head.version)
        kept, of_slots, files = None, None, dict[str, bytes]()
        if head.best is not None and best is not None:
            kept, content = self._best_of(head.best, Result.decode(best))
            files[kept["file"]] = content
        if states:
            of_slots, arrays = _encode_states(states)
            of_slots |= _described(_states_file(head.version), content := self._tensors(arrays))
            files[of_slots["file"]] = content
        body = {
            "format": _FORMAT,
            "head": msgspec.to_builtins(head),
            "position": {"round": head.round, "batches": head.batches, "examples": head.examples},
            **msgspec.to_builtins(owner),
            "arithmetic": self.arithmetic(),
            "made_of": self.made_of(),
            "values": dict(result.values),
            "arrays": list(result.arrays),
            "model": _described(model, tensors),
            **({} if kept is None else {"best": kept}),
            **({} if of_slots is None else {"states": of_slots}),
        }
        try:
            self._make_sure()
            there = self.folder.names() if kept else []
            for name, content in files.items():
                if not (kept and name == kept["file"] in there):  # the best model may be there already
                    self.folder.write(name, content)
            self.folder.write(model, tensors)
            self.folder.write(manifest, _signed(body))
        except (OSError, Dl4jError) as exc:
            reason = exc.strerror or exc if isinstance(exc, OSError) else exc
            raise StorageError(
                f"checkpoint {head.version} could not be written to {self.place}: {reason}; free some "
                "space or choose another --checkpoint-dir. The older checkpoints are untouched"
            ) from exc
        self._ours[head.version] = frozenset({manifest, model, *files})
        failure = self._prune(head.version)
        if failure is not None and not self._cannot_delete:  # too many old checkpoints do not end a run
            logger.warning("old checkpoints in %s cannot be deleted: %s", self.place, failure)
        self._cannot_delete = failure is not None

    def _tensors(self, arrays: Mapping[str, Any]) -> bytes:
        """Return the bytes of a file of arrays, with the run's identity in its metadata."""
        mark = (self._owner or RunIdentity()).mark()
        return safetensors.numpy.save(dict(arrays), {_RUN: mark} if mark else None)

    def _best_of(self, best: Best, model: Result) -> tuple[dict[str, Any], bytes]:
        """Return the manifest's entry for the best model, and the contents of its file."""
        tensors = self._tensors(model.arrays)
        name = f"best-{best.version:08d}-{hashlib.sha256(tensors).hexdigest()[:16]}.safetensors"
        return {**_described(name, tensors), "values": dict(model.values), "arrays": list(model.arrays)}, tensors

    def best_model(self, best: Best) -> Buffer | None:
        """Return a best model from the checkpoints; None if they do not have it, or it is damaged.

        Raises:
            StorageError: the checkpoints cannot be read now.
        """
        unread: OSError | None = None
        for version in self.versions():
            try:
                with contextlib.suppress(
                    CheckpointError, FileNotFoundError, KeyError, TypeError, msgspec.ValidationError
                ):
                    body = self._manifest(version)
                    if best.is_same(msgspec.convert(body["head"], decodable(Head)).best):
                        return self._frame(body["best"], body["best"])
            except OSError as exc:
                unread = exc
        with self._reading():
            if unread is not None:
                raise unread
        return None

    def _manifest(self, version: int) -> dict[str, Any]:
        """Return the content of a manifest; raises ``OSError``, or ``CheckpointError`` if damaged or another run's."""
        body = _verified(self.folder.read(self._files(version)[1]))
        self._check_owner(body)
        return body

    def states(self, head: Head) -> dict[int, SavedState] | None:
        """Return the slot states that belong to a checkpoint's head, by slot; None if they are damaged.

        Raises:
            StorageError: they cannot be read now.
        """
        damaged = (CheckpointError, FileNotFoundError, KeyError, TypeError, ValueError)
        with self._reading(), contextlib.suppress(*damaged):
            body = self._manifest(head.version)
            return _decode_states(body["states"]["slots"], self._arrays(body["states"]))
        return None

    def newest(self) -> tuple[Head, Buffer] | None:
        """Return the newest good checkpoint, or None if there are no checkpoints.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged. StorageError: they cannot be read now, or the
                folder belongs to another run.
        """
        versions = self.versions()
        reasons = list[CheckpointError]()
        for version in versions:
            try:
                return self.load(version)
            except CheckpointError as exc:
                logger.warning("checkpoint %s in %s is passed over: %s", version, self.place, exc)
                reasons.append(exc)
        if all(isinstance(reason, _AnotherRunsError) for reason in reasons):
            self._check_folder()
            return None
        kind = StorageError if any(isinstance(reason, StorageError) for reason in reasons) else CheckpointError
        raise kind(f"none of the {len(versions)} checkpoints in {self.place} is usable: {reasons[0]}")

    def newest_head(self) -> Head | None:
        """Return the head of the newest good manifest as written, without reading its model; None if there is none."""
        for version in self.versions():
            with contextlib.suppress(CheckpointError, OSError, KeyError, msgspec.ValidationError):
                return msgspec.convert(_verified(self.folder.read(self._files(version)[1]))["head"], decodable(Head))
        return None

    def made_with(self, field: str = "arithmetic") -> dict[str, str]:
        """Return the arithmetic of the model in the newest good manifest; empty if there is none.

        With ``field`` "made_of", return the components of the run; empty also if an older version wrote the manifest.
        """
        for version in self.versions():
            with contextlib.suppress(CheckpointError, OSError):
                found = _verified(self.folder.read(self._files(version)[1])).get(field)
                return found if isinstance(found, dict) else {}
        return {}

    def is_of_before(self, version: int) -> bool:
        """Return whether a checkpoint was written by an older package version that trained differently.

        Raises the errors of ``load``.
        """
        manifest = self._files(version)[1]
        with _as_checkpoint_error(manifest):
            return bool(self._manifest(version)["format"] == _BEFORE)

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
        """Return the checkpoint of one version; raises ``CheckpointError`` if it is missing, damaged or foreign."""
        manifest = self._files(version)[1]
        with _as_checkpoint_error(manifest):
            body = self._manifest(version)
            head = msgspec.convert(body["head"], decodable(Head))
            frame = self._frame(body["model"], body)
            if head.best is not None:
                self._frame(body["best"], body["best"])
            if head.snapshot is not None:
                self._arrays(body["states"])
        return msgspec.structs.replace(head, model=Manifest("", 0, 0), status="running", failure=None), frame

    def model(self, version: int) -> Result:
        """Return the model of one version, even if its other files are damaged; raises as ``load``."""
        manifest = self._files(version)[1]
        with _as_checkpoint_error(manifest):
            body = self._manifest(version)
            arrays = self._arrays(body["model"])
            return Result(body["values"], {key: arrays[key] for key in body["arrays"]})

    def _frame(self, file: dict[str, Any], contents: dict[str, Any]) -> Buffer:
        """Return the model in a file; raises ``CheckpointError``, ``OSError`` and others if it is damaged."""
        arrays = self._arrays(file)  # safetensors does not keep their order
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
        """Raise ``CheckpointError`` if a manifest belongs to another run."""
        for name, ours in msgspec.to_builtins(self._owner or RunIdentity()).items():
            theirs = body.get(name)
            if self._owner is not None and theirs and ours and theirs != ours:
                raise (_AnotherRunsError if name == "incarnation" else CheckpointError)(
                    f"it is another run's: its {name} is {theirs} and that of this run {ours}; give the run the Conf "
                    "that it began with"
                )

    def _check_folder(self) -> None:
        """Raise ``StorageError`` if the folder belongs to another run, or that is unknown at the moment."""
        with self._reading():
            kept, ours = whose(self.folder), self._owner
        if (
            kept is not None
            and ours is not None
            and ours.incarnation
            and kept.incarnation not in ("", ours.incarnation)
        ):
            raise StorageError(f"{self.place} is the folder of another run by now, {kept.run} ({kept.incarnation})")

    def _prune(self, newest: int) -> Exception | None:
        """Delete old checkpoints and unfinished files of killed processes; return the first error.

        ``newest`` was just saved by this process. Higher versions belong to another process or are damaged: they are
        not deleted, and do not count as kept.
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

    def _useless(self, newest: int) -> list[str]:
        """Return the names of the files of this run that are no longer needed, those of old checkpoints first."""
        names = self.folder.names()
        versions = _versions(names)
        ours = [version for version in versions if version <= newest and self._files_of(version)]
        dropped, useless = ours[self._keep :], list[str]()
        needed = {name for version in versions if version not in dropped for name in self._files_of(version)}
        for version in dropped:
            self._ours.pop(version, None)  # another process may have written it again
            useless += sorted(self._files_of(version) - needed)
        named = needed.union(useless, self._foreign)
        for name in names:
            match = _TENSORS.fullmatch(name)
            if match and int(match[1]) <= newest and name not in named:  # left by a killed process
                useless += [name] if self._is_orphan(name) else []
        return [*useless, *self.folder.unfinished()]

    def _files_of(self, version: int) -> frozenset[str]:
        """Return the names of a version's files; none if they are another run's, or the manifest is damaged."""
        if version not in self._ours:
            manifest = self._files(version)[1]
            with contextlib.suppress(CheckpointError, FileNotFoundError, KeyError, TypeError):
                body = self._manifest(version)
                files = [body[part]["file"] for part in ("model", "best", "states") if part in body]
                self._ours[version] = frozenset({manifest, *filter(_TENSORS.fullmatch, files)})
        return self._ours.get(version, frozenset())

    def _is_orphan(self, name: str) -> bool:
        """Return whether an unreferenced file of arrays is marked as written by this run."""
        try:
            said = _metadata(self.folder.read(name)).get(_RUN, "")
        except (FileNotFoundError, ValueError, msgspec.MsgspecError, RecursionError):
            said = None
        if said != (self._owner or RunIdentity()).mark():
            self._foreign.add(name)
            return False
        return True


@contextlib.contextmanager
def _as_checkpoint_error(manifest: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, msgspec.ValidationError, safetensors.SafetensorError) as exc:
        raise CheckpointError(f"{manifest} cannot be read: {exc}") from exc
    except FileNotFoundError as exc:
        raise CheckpointError(f"{manifest} cannot be read: {exc}") from exc
    except OSError as exc:
        raise StorageError(f"{manifest} cannot be read: {exc.strerror or exc}") from exc


def _versions(names: Iterable[str]) -> list[int]:
    """Return the versions that have a manifest among names, newest first."""
    return sorted((int(match[1]) for match in map(_NAME.fullmatch, names) if match), reverse=True)


def _described(name: str, tensors: bytes) -> dict[str, Any]:
    """Return a manifest's description of a file."""
    return {"file": name, "nbytes": len(tensors), "sha256": hashlib.sha256(tensors).hexdigest()}


def _metadata(tensors: bytes) -> dict[str, Any]:
    """Return the metadata of a file of arrays; raises ``ValueError`` if it is not such a file."""
    header = tensors[8 : 8 + int.from_bytes(tensors[:8], "little")]
    said = msgspec.json.decode(header, type=dict[str, Any]).get("__metadata__", {})
    return said if isinstance(said, dict) else {}


def _states_file(version: int) -> str:
    return f"states-{version:08d}.safetensors"


def _encode_states(states: Mapping[int, SavedState]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest's description of slot states, and their arrays."""
    decoded = {slot: Result.decode(saved.frame) for slot, saved in states.items()}
    arrays = {f"{slot}.{name}": array for slot, result in decoded.items() for name, array in result.arrays.items()}
    slots = {
        str(slot): {
            "number": states[slot].number,
            "values": dict(result.values),
            "arrays": list(result.arrays),
        }
        for slot, result in decoded.items()
    }
    return {"slots": slots}, arrays


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
        conf: of the run; if it has a fingerprint, the data must have the same one.
        data: the training data, or an iterator over it.
        checkpoints: with ``resume`` and a Conf without a fingerprint, the fingerprint is read from the Conf in this
            store.
        resume: whether the run continues; a run without any fingerprint continues with a warning.

    Raises:
        CheckpointError: the run began with other data.
    """
    if not isinstance(data, Batch | BatchIterator):
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
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as exc:
        raise CheckpointError(f"the manifest of {len(content)} bytes is cut short or no manifest") from exc
    if digest != hashlib.sha256(to_json(body, sort_keys=True).encode()).hexdigest() or body.get("format") not in (
        _FORMAT,
        _BEFORE,
    ):
        raise CheckpointError("the manifest does not match its own digest, or is of another format")
    return dict(body)
