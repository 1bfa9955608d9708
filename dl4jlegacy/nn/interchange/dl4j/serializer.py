"""Model files: a network in the zip format of Deeplearning4j's ``ModelSerializer``.

Entries: ``configuration.json`` (DL4J 0.9.1's format, which all later versions read too), ``coefficients.bin`` and
``updaterState.bin`` (ND4J arrays), ``normalizer.bin``; additionally ``dl4jlegacy.json``, which DL4J ignores, with
our exact configuration and normalizer. A file without that entry comes from another program and is restored from
``configuration.json`` alone.

A file whose name ends in ``.safetensors`` has the same content in one safetensors file, see ``safetensors_file``.
Writing is atomic: a reader sees the complete old or the complete new file. The same network gives the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.datasets.normalizers import ImagePreProcessingScaler, Normalizer, normalizer_from_json
from dl4jlegacy.datasets.reading import UNREAD, Reading
from dl4jlegacy.errors import ConfError, DataError, ModelError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.foreign import foreign_file
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.interchange.dl4j import layout, nd4j
from dl4jlegacy.nn.interchange.dl4j.graph import graph_from_dl4j, graph_to_dl4j
from dl4jlegacy.nn.interchange.dl4j.json import to_dl4j
from dl4jlegacy.nn.interchange.dl4j.normalizer_file import read_normalizer, write_normalizer
from dl4jlegacy.nn.interchange.dl4j.reader import biases_of_their_own, from_dl4j
from dl4jlegacy.nn.interchange.dl4j.safetensors_file import OWN as _OWN
from dl4jlegacy.nn.interchange.dl4j.safetensors_file import SUFFIX, SafetensorsFile, is_safetensors, write_safetensors
from dl4jlegacy.nn.interchange.dl4j.versions import VERSIONS, Version, answers_otherwise, differences, suiting, why_not
from dl4jlegacy.nn.interchange.entries import MAX_JSON_BYTES, json_object, read_entry
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network, build_network
from dl4jlegacy.nn.parameters import ParamLayout
from dl4jlegacy.system import files
from dl4jlegacy.system.strict_json import to_json

__all__ = [
    "restore_computation_graph",
    "restore_label_names",
    "restore_model",
    "restore_multi_layer_network",
    "restore_normalizer",
    "restore_with_reading",
    "write_model",
]

logger = logging.getLogger(__name__)

_CONFIGURATION: Final = "configuration.json"
_COEFFICIENTS: Final = "coefficients.bin"
_UPDATER_STATE: Final = "updaterState.bin"
_NORMALIZER: Final = "normalizer.bin"
_PLAIN_FORMAT: Final = 1
_OWN_FORMAT: Final = 2
_BEGUN_FORMAT: Final = 3
"""The newest format. 1: vectors in our layout. From 2 on, vectors may have Deeplearning4j's layout. 3: the state
of AdaGrad or RmsProp starts as in ND4J; before, it started with zeros, and epsilon was added within the root.
"""

_KERAS: Final = {"config.json", "metadata.json"}
_OF_KERAS: Final = "; `dl4j export FILE --out model.zip` or KerasModelImport makes a model of it"
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_MAX_ENTRIES: Final = 256
_BOMB_BYTES: Final = 256 << 20
_BOMB_RATIO: Final = 100
_READING_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
    LookupError,
    TypeError,
    AttributeError,
    OSError,
)

_Archive = zipfile.ZipFile | SafetensorsFile


def write_model(
    network: Network,
    path: str | os.PathLike[str],
    *,
    save_updater: bool = True,
    normalizer: Normalizer | None = None,
    label_names: Sequence[str] = (),
    reading: Reading = UNREAD,
    dl4j_version: Version | None = None,
) -> None:
    """Save ``network`` to ``path``; an existing file is replaced atomically.

    Args:
        network: its configuration, parameters and (if ``save_updater``) updater state are saved.
        path: the zip to write, or the safetensors file if it ends in ``.safetensors``; its folder must exist.
        save_updater: without the state, training can continue only with a fresh updater.
        normalizer, label_names: the normalizer of the training data, and the names of the outputs; default: those of
            ``reading``.
        reading: how the data are read; ``restore_with_reading`` returns it.
        dl4j_version: the version of Deeplearning4j that shall read the file, "0.9.1" or "1.0.0" (1.0.0-M2.1); it is an
            error if that version cannot hold the network. None: mainly for this package, in the format of 0.9.1 if both
            versions read that alike, otherwise of 1.0.0.

    Raises:
        ModelError: the file cannot be written, or ``dl4j_version`` cannot hold the network, or predicts differently.
    """
    is_zip, normalizer = Path(path).suffix != SUFFIX, normalizer or reading.normalizer
    if dl4j_version is not None and not is_zip:
        raise ModelError(f"Deeplearning4j {dl4j_version} reads no safetensors files; give {path} the ending .zip")
    version = _addressed(network.conf, dl4j_version)
    if dl4j_version == "0.9.1" and isinstance(normalizer, ImagePreProcessingScaler):
        raise ModelError("Deeplearning4j 0.9.1 cannot read an ImagePreProcessingScaler with a model; 1.0.0 can")
    reading = reading.replace(label_names=tuple(label_names) or reading.label_names)
    own = _own_entry(network, normalizer, has_updater=save_updater, **reading.fields())
    if not is_zip:
        write_safetensors(network, Path(path), own, save_updater=save_updater)
        return
    if isinstance(network, ComputationGraph):
        tree = graph_to_dl4j(network.conf, iteration=network.iteration, version=version)
    else:
        tree = to_dl4j(network.conf, iteration=network.iteration, version=version)
    layouts = layout.written_layouts(network.layers, version)
    if any(each != layout.LayerLayout() for each in layouts):
        own |= {"format": max(own["format"], _OWN_FORMAT), "dl4j_version": version}
    params = layout.params_from_ours(to_host(network.params), network.layout, layouts)
    state = layout.state_from_ours(to_host(network.updater_state), network.layers, network.layout, layouts)
    entries = {
        _CONFIGURATION: to_json(tree, indent=2).encode(),
        _COEFFICIENTS: _vector_bytes(params),
        _OWN: to_json(own, sort_keys=True, indent=2).encode(),
    }
    if save_updater and state.size:
        entries[_UPDATER_STATE] = _vector_bytes(state)
    if normalizer is not None:
        entries[_NORMALIZER] = write_normalizer(normalizer)
    _write_entries(Path(path), entries)


def restore_model(
    path: str | os.PathLike[str],
    *,
    load_updater: bool = True,
    kernels: Kernels | None = None,
    input_types: Sequence[AnyInputType] = (),
) -> Network:
    """Return the network of either kind saved at ``path`` by this package or by Deeplearning4j (0.9 to 1.0.0).

    The network expects features that are scaled as in training; ``dl4jlegacy.load_model`` returns the network with its
    normalizer and label names, and scales features itself.

    Args:
        path: the zip, or the safetensors file.
        load_updater: also restore the updater's state, if the file has it; otherwise the state is a new one.
        kernels: the network's kernels, which decide its device.
        input_types: one for each input of a Deeplearning4j network, if its file does not have this information.

    Raises:
        ModelError: missing, truncated, corrupt, of another program, or a network that this package does not have.
    """
    with _opened(path) as archive:
        return _network(archive, load_updater=load_updater, kernels=kernels, input_types=input_types)


def _network(
    archive: _Archive, *, load_updater: bool, kernels: Kernels | None, input_types: Sequence[AnyInputType]
) -> Network:
    conf, layouts = _configuration(archive, input_types)
    if isinstance(archive, SafetensorsFile):
        network = build_network(conf, kernels)
        params: Array = archive.params(network.param_table, network.layout.spans, network.layout.size)
    else:
        params = _read_vector(archive, _COEFFICIENTS, layout.count(ParamLayout.of(conf.resolved()), layouts))
        if _OWN not in archive.namelist() and params.dtype == np.float64:  # 0.x stores its type nowhere else
            conf = conf.replace(conf=conf.conf.replace(dtype="float64"))
        network = build_network(conf, kernels)
    network.iteration = _iteration(archive)
    params = _cast(params, network.params.dtype, _COEFFICIENTS)
    network.set_params(layout.params_to_ours(params, network.layout, layouts))
    if load_updater:
        _read_updater(archive, network, layouts)
    return network


def _read_updater(archive: _Archive, network: Network, layouts: tuple[layout.LayerLayout, ...]) -> None:
    """Restore the updater's state if the file has it."""
    size = layout.state_count(network.layers, network.layout, layouts)
    if isinstance(archive, SafetensorsFile):
        state = archive.updater_state(size) if archive.has_updater else None
    else:
        is_there = _UPDATER_STATE in archive.namelist()
        if is_there and size and _OWN not in archive.namelist():
            _check_biases(_json(archive, _CONFIGURATION))
        state = _read_vector(archive, _UPDATER_STATE, size) if is_there else None
    if state is not None:
        state = _cast(state, network.params.dtype, _UPDATER_STATE)
        network.set_updater_state(layout.state_to_ours(state, network.layers, network.layout, layouts))
        if network.updater.beginnings and _OWN in archive.namelist() and _own(archive)["format"] < _BEGUN_FORMAT:
            network.updater.begin_within(network.updater_state)
            logger.warning(
                "the file is of a version whose AdaGrad and RmsProp began their state with zeros, and added epsilon "
                "within the root: its state is raised to Deeplearning4j's; with a large epsilon further steps are long"
            )


def _check_biases(tree: object) -> None:
    """Raise ``ModelError`` if a Deeplearning4j file has another layout of the updater's state than ours."""
    if found := biases_of_their_own(tree):
        raise ModelError(
            f"{found}, so that the updater's state lies otherwise in the file than here: load_updater=False reads the "
            "network without it (restore_model), as dl4j evaluate, dl4j predict and load_model do"
        )


def restore_multi_layer_network(
    path: str | os.PathLike[str],
    *,
    load_updater: bool = True,
    kernels: Kernels | None = None,
    input_types: Sequence[AnyInputType] = (),
) -> MultiLayerNetwork:
    """Return the ``MultiLayerNetwork`` saved at ``path``; arguments and errors as ``restore_model``."""
    network = restore_model(path, load_updater=load_updater, kernels=kernels, input_types=input_types)
    if not isinstance(network, MultiLayerNetwork):
        raise ModelError(f"model file {path} holds a ComputationGraph; read it with restore_computation_graph")
    return network


def restore_computation_graph(
    path: str | os.PathLike[str],
    *,
    load_updater: bool = True,
    kernels: Kernels | None = None,
    input_types: Sequence[AnyInputType] = (),
) -> ComputationGraph:
    """Return the ``ComputationGraph`` saved at ``path``; arguments and errors as ``restore_model``."""
    network = restore_model(path, load_updater=load_updater, kernels=kernels, input_types=input_types)
    if not isinstance(network, ComputationGraph):
        raise ModelError(f"model file {path} holds a MultiLayerNetwork; read it with restore_multi_layer_network")
    return network


def restore_normalizer(path: str | os.PathLike[str]) -> Normalizer | None:
    """Return the normalizer saved with the model at ``path``, or None if it has none.

    Raises:
        ModelError: the file or the normalizer in it cannot be read.
    """
    with _opened(path) as archive:
        return _normalizer(archive)


def restore_label_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the label names of the outputs of the model at ``path``; empty if the file has none.

    Raises:
        ModelError: the file cannot be read.
    """
    with _opened(path) as archive:
        return _label_names(archive)


def restore_with_reading(path: str | os.PathLike[str], *, kernels: Kernels | None = None) -> tuple[Network, Reading]:
    """Return the network at ``path`` with a new updater state, and how its data are read; errors as ``restore_model``.

    The file is opened once: if it is replaced meanwhile, the result is entirely from the old or from the new file.
    """
    with _opened(path) as archive:
        network = _network(archive, load_updater=False, kernels=kernels, input_types=())
        return network, _reading(archive)


def _reading(archive: _Archive) -> Reading:
    own = _own(archive) if _OWN in archive.namelist() else {}
    found = Reading.of_fields(own, _label_names(archive), _normalizer(archive))
    if found.transform is not None and not found.transform.is_fitted:
        raise ModelError(f"entry {_OWN} has a transform that was not fitted to any data")
    return found


def _normalizer(archive: _Archive) -> Normalizer | None:
    if _OWN in archive.namelist():
        saved = _own(archive).get("normalizer")
        if saved is not None:
            return normalizer_from_json(to_json(saved))
    if isinstance(archive, zipfile.ZipFile) and _NORMALIZER in archive.namelist():
        return read_normalizer(read_entry(archive, _NORMALIZER, MAX_JSON_BYTES))
    return None


def _label_names(archive: _Archive) -> tuple[str, ...]:
    names = _own(archive).get("label_names", []) if _OWN in archive.namelist() else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"entry {_OWN} has label names that are no list of names")
    return tuple(names)


# -- writing ---------------------------------------------------------------------------------------------------------


def _own_entry(network: Network, normalizer: Normalizer | None, *, has_updater: bool, **more: Any) -> dict[str, Any]:
    """Return the entry for this package alone: our exact configuration, and the data that belong to it."""
    format_ = _BEGUN_FORMAT if has_updater and network.updater.beginnings else _PLAIN_FORMAT
    own: dict[str, Any] = {"format": format_, "configuration": json.loads(network.conf.to_json())}
    own["iteration"] = network.iteration
    if normalizer is not None:
        own["normalizer"] = json.loads(normalizer.to_json())
    return own | {name: value for name, value in more.items() if value is not None}


def _addressed(conf: Any, version: Version | None) -> Version:
    """Return the version whose format is written; raise ``ModelError`` if a given version cannot hold ``conf``."""
    if version is None:
        return suiting(conf)
    if version not in VERSIONS:
        raise ModelError(f"dl4j_version is {version!r}; known are {' and '.join(VERSIONS)}")
    if reasons := why_not(conf, version):
        other = next((each for each in VERSIONS if not why_not(conf, each)), None)
        instead = (
            f"{other} can" if other else "no version can: leave dl4j_version out, for a file of this package alone"
        )
        raise ModelError(f"Deeplearning4j {version} cannot take this network: {'; '.join(reasons[:3])} ({instead})")
    for reason in differences(conf, version):
        logger.warning("Deeplearning4j %s differs: %s", version, reason)
    return version


def _vector_bytes(vector: Array) -> bytes:
    """Return a vector in the binary form of DL4J, which stores flat vectors as rows ``(1, n)``."""
    return nd4j.write(to_host(vector).reshape(1, -1))


def _write_entries(path: Path, entries: dict[str, bytes]) -> None:
    with (
        files.errors_as(ModelError, f"model file {path} cannot be written", "choose a writable place"),
        files.replacing(path) as file,
        zipfile.ZipFile(file, "w") as archive,
    ):
        for name, data in entries.items():
            archive.writestr(_entry(name), data)


def _entry(name: str) -> zipfile.ZipInfo:
    """Return a zip entry without the time of day, so that equal models are equal files.

    Arrays are stored uncompressed: deflating weights takes most of the time of a save and saves 7 % of the bytes.
    """
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_STORED if name.endswith(".bin") else zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info


# -- reading ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[_Archive]:
    """Open a model file; any error in the file becomes a ``ModelError`` that names the file."""
    try:
        with contextlib.ExitStack() as stack:
            place = files.expand(path)
            file = stack.enter_context(files.open_to_read(place))
            begin = file.read(len(_HDF5) + 1)
            if foreign := foreign_file(place):
                raise ModelError(foreign)
            if is_safetensors(begin):
                yield stack.enter_context(SafetensorsFile.opened(place))
                return
            if begin.startswith(_HDF5):
                raise ModelError(f"it is an HDF5 file, such as Keras writes{_OF_KERAS}")
            archive = stack.enter_context(zipfile.ZipFile(file))
            _check_entries(archive, os.fstat(file.fileno()).st_size)
            yield archive
    except FileNotFoundError as exc:
        raise ModelError(f"model file {path} does not exist") from exc
    except zipfile.BadZipFile as exc:
        raise ModelError(
            f"model file {path} is truncated, corrupt or no model at all ({exc}); save it again or use an older copy"
        ) from exc
    except (ModelError, ConfError, DataError) as exc:
        raise ModelError(f"model file {path} is unusable: {exc}") from exc
    except _READING_ERRORS as exc:
        raise ModelError(
            f"model file {path} cannot be read ({type(exc).__name__}: {exc}); save it again or use an older copy"
        ) from exc


def _check_entries(archive: zipfile.ZipFile, file_bytes: int) -> None:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if len(entries) > _MAX_ENTRIES or len(set(names)) != len(names):
        raise ModelError(f"it has {len(entries)} entries, {len(set(names))} different; a model file has a handful")
    for entry in entries:
        if entry.filename.startswith(("/", "\\")) or ".." in Path(entry.filename.replace("\\", "/")).parts:
            raise ModelError(f"entry {entry.filename!r} points outside the file; refusing a file made to attack")
    total = sum(entry.file_size for entry in entries)
    if total > max(_BOMB_BYTES, _BOMB_RATIO * file_bytes):
        raise ModelError(f"{file_bytes} bytes would unpack to {total}; refusing what looks like a zip bomb")
    if set(names) >= _KERAS:
        raise ModelError(f"it is a file of Keras{_OF_KERAS}")
    if _CONFIGURATION not in names and _OWN not in names:
        raise ModelError(f"entry {_CONFIGURATION} is missing, so it is no Deeplearning4j model; entries: {names[:8]}")


def _configuration(
    archive: _Archive, input_types: Sequence[AnyInputType]
) -> tuple[Any, tuple[layout.LayerLayout, ...]]:
    """Return the configuration of the network in the file, of either kind, and the layouts of its parameters."""
    if _OWN in archive.namelist():
        own = _own(archive)
        tree = own["configuration"]
        is_graph = isinstance(tree, dict) and "vertices" in tree
        kind: Any = ComputationGraphConfiguration if is_graph else MultiLayerConfiguration
        conf = kind.from_json(to_json(tree))
        return conf, layout.written_layouts(conf.resolved(), own.get("dl4j_version"))
    tree = _json(archive, _CONFIGURATION)
    conf = graph_from_dl4j(tree, input_types) if "vertices" in tree else from_dl4j(tree, input_types)
    version: Version = "1.0.0" if "dataType" in tree else "0.9.1"
    if reasons := answers_otherwise(conf):
        raise ModelError("; ".join(reasons))
    for reason in differences(conf, version):
        logger.warning("Deeplearning4j %s differs: %s", version, reason)
    return conf, layout.layouts_of(tree, conf)


def _iteration(archive: _Archive) -> int:
    """Return the number of updates before the model was saved; Adam and schedules continue from there."""
    is_own = _OWN in archive.namelist()
    value = _own(archive).get("iteration") if is_own else _json(archive, _CONFIGURATION).get("iterationCount")
    return value if isinstance(value, int) and value >= 0 else 0


def _own(archive: _Archive) -> dict[str, Any]:
    own = _json(archive, _OWN)
    if own.get("format") not in (_PLAIN_FORMAT, _OWN_FORMAT, _BEGUN_FORMAT) or "configuration" not in own:
        raise ModelError(
            f"entry {_OWN} has format {own.get('format')!r}, this version reads {_BEGUN_FORMAT}; upgrade dl4jlegacy"
        )
    return own


def _json(archive: _Archive, name: str) -> dict[str, Any]:
    return json_object(read_entry(archive, name, MAX_JSON_BYTES), f"entry {name}")


def _read_vector(archive: zipfile.ZipFile, name: str, expected: int) -> Array:
    """Read a flat vector of ``expected`` elements; reading on to the end makes zipfile check the entry's checksum."""
    if name not in archive.namelist():
        raise ModelError(f"entry {name} is missing; the file was not written completely")
    with archive.open(name) as entry:
        vector = nd4j.read(entry, max_nbytes=8 * expected)
        if entry.read(1):
            raise ModelError(f"entry {name} goes on after its array")
    if vector.size != expected or vector.dtype.kind != "f":
        raise ModelError(
            f"entry {name} holds {vector.size} {vector.dtype} numbers, the configuration in the file needs {expected}"
        )
    if not np.isfinite(vector).all():
        raise ModelError(f"entry {name} holds NaN or infinity: the model had diverged when it was saved")
    return vector.reshape(-1)


def _cast(vector: Array, dtype: Any, name: str) -> Array:
    """Return the numbers of entry ``name`` in the network's precision."""
    with np.errstate(over="ignore"):
        cast: Array = vector.astype(dtype, copy=False)
    wrong = int(vector.size - np.isfinite(cast).sum())
    if wrong:
        largest = float(np.abs(vector).max())
        raise ModelError(f"entry {name} holds {wrong} numbers that {dtype} cannot hold, up to {largest:g} in size")
    return cast
