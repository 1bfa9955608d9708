"""``load_model``: loads a trained network with its normalizer and label names from a file or a checkpoint."""

from __future__ import annotations

import os
import re

from dl4jlegacy.errors import ModelError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.models.model import TrainedModel, read_model
from dl4jlegacy.nn.foreign import foreign_file
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files
from dl4jlegacy.training.prepare import Checkpoint, read_checkpoint

__all__ = ["checkpoint_model", "load_model"]

_CHECKPOINT = re.compile(r"(?:(.*)/)?(?:checkpoint-(\d{8})\.json|model-(\d{8})\.safetensors)")


def load_model(path: str | os.PathLike[str], *, kernels: Kernels | None = None) -> TrainedModel:
    """Return a trained network with its normalizer and its label names.

    ::

        model = load_model("flowers.zip")
        print([model.label_names[number] for number in model.predict([[5.1, 3.5, 1.4, 0.2]])])

    Args:
        path: a model file of this package or of Deeplearning4j; a run's checkpoint folder, from which the newest good
            checkpoint is read; or one checkpoint in it (``checkpoint-<version>.json``). Here or in S3.
        kernels: the network's kernels, which decide about its device; None: CPU kernels.

    Raises:
        ModelError: the file is missing, damaged, or no model.
        CheckpointError: the folder has no usable checkpoint, or not this one.
        DataError: the data of a run with checkpoints are missing; they are needed for the normalizer and class names.
    """
    place = os.fspath(path)
    named = _CHECKPOINT.fullmatch(place)
    if named is not None:
        folder, version = named[1] or ("/" if place.startswith("/") else "."), int(named[2] or named[3])
    else:
        folder, version = storage.local(place), None
        with files.errors_as(ModelError, f"model file {place} cannot be read"):
            if not files.is_folder(files.expand(folder)):
                return read_model(place, kernels)
        if foreign := foreign_file(folder):
            raise ModelError(f"{place} is no run's folder: {foreign}")
    return checkpoint_model(read_checkpoint(folder, version, kernels), place)


def checkpoint_model(kept: Checkpoint, name: str) -> TrainedModel:
    """Return the trained network of a checkpoint; ``name`` is its name in messages."""
    return TrainedModel(kept.network, kept.data.reading, name)
