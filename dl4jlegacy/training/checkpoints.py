"""``dl4j export``: writes a run's checkpoint or a model file as a model file of another kind.

The ending of the name selects the kind: ``.onnx``, ``.safetensors``, or for all others the zip of ``write_model``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dl4jlegacy.errors import ModelError
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.nn.interchange.dl4j.serializer import write_model
from dl4jlegacy.nn.interchange.dl4j.versions import Version
from dl4jlegacy.nn.interchange.onnx.exporter import write_onnx
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files
from dl4jlegacy.training.prepare import model_writer, params_sha256, read_checkpoint
from dl4jlegacy.training.saved_model import load_model

__all__ = ["convert_model", "export_model", "is_model_file"]

_ENDINGS = (".zip", ".safetensors", ".h5", ".hdf5", ".keras")


def is_model_file(path: str) -> bool:
    """Return whether ``path`` is a model file and not a checkpoint folder; in S3 its ending decides."""
    if storage.is_remote(path):
        return path.lower().endswith(_ENDINGS)
    with files.errors_as(ModelError, f"{path} cannot be looked into"):
        return files.is_file(files.expand(path))


def convert_model(path: str, out: str, *, dl4j_version: Version | None = None) -> dict[str, Any]:
    """Write the model in a file to another file; return the fields of a report for people and JSON.

    Args:
        path: a model file of this package, of Deeplearning4j or of Keras, here or in S3.
        out: the new file, here or in S3.
        dl4j_version: the version of Deeplearning4j that has to read it, see ``write_model``.

    Raises:
        ModelError: a file cannot be read or written; or the kind of ``out``, or that version, cannot hold the network.
    """
    output = storage.open_model_output(out, takes_onnx=True)
    model = load_model(path)
    output.save(_writer(model, out, dl4j_version))
    return {"model": path, "params_sha256": params_sha256(model.network.params), "model_path": output.place}


def _writer(model: TrainedModel, out: str, dl4j_version: Version | None) -> Callable[[Path], None]:
    network, reading = model.network, model.reading
    if storage.is_onnx(out):
        _refuse_version(out, dl4j_version)
        names = reading.label_names
        return functools.partial(write_onnx, network, normalizer=reading.normalizer, label_names=names)
    return functools.partial(write_model, network, reading=reading, dl4j_version=dl4j_version)


def _refuse_version(out: str, dl4j_version: Version | None) -> None:
    if dl4j_version is not None:
        raise ModelError(f"Deeplearning4j {dl4j_version} reads no ONNX files; give {out} the ending .zip")


def export_model(folder: str, out: str, *, best: bool = False, dl4j_version: Version | None = None) -> dict[str, Any]:
    """Write a run's newest good checkpoint to a model file; return the fields of a report for people and JSON.

    The run may be training meanwhile. The file has the normalizer and label names of the run's own model file.

    Args:
        folder: the checkpoint folder, here or in S3.
        out: the new file, here or in S3.
        best: write the best model so far instead; the run must be scored.
        dl4j_version: the version of Deeplearning4j that has to read it, see ``write_model``.

    Raises:
        CheckpointError: the folder holds no run, or no usable checkpoint, or no best model.
        ModelError: ``out`` cannot be written, or its kind, or that version, cannot hold the network.
        DataError: the data that the run's Conf names are missing.
    """
    output = storage.open_model_output(out, takes_onnx=True)
    kept = read_checkpoint(folder, best=best)
    conf, head, network = kept.conf, kept.head, kept.network
    if storage.is_onnx(out):
        _refuse_version(out, dl4j_version)
        reading = kept.data.reading
        names = reading.label_names
        output.save(functools.partial(write_onnx, network, normalizer=reading.normalizer, label_names=names))
    else:
        output.save(model_writer(network, kept.data, dl4j_version))
    return {
        "run": conf.run,
        "model": conf.model,
        "dataset": conf.dataset,
        **_of_exported(head, best=best),
        "params_sha256": params_sha256(network.params),
        "model_path": output.place,
    }


def _of_exported(head: Head, *, best: bool) -> dict[str, Any]:
    """Return the report's fields of the exported model: the newest, or the best one."""
    if best and head.best is not None:
        found = head.best
        return {"version": found.version, "round": found.round, "examples": None, "score": found.score}
    return {"version": head.version, "round": head.round, "examples": head.examples, "score": head.score}
