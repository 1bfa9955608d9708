"""MNIST and data sets with its four files: finds and checks the files, and downloads missing ones of MNIST.

Follows ``org.deeplearning4j.base.MnistFetcher``, ``MnistDataFetcher`` and ``MnistDataSetIterator``. Unlike the
original, which returned silently with half a file after a failed download, every file is checked by the published MD5
of its unpacked content, and a download becomes visible only when complete.

Source of the data: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, 1998, "Gradient-based learning applied to document
recognition"; 60,000 training and 10,000 test images of 28 x 28 pixels.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import urllib.request
import zlib
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Literal

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet, one_hot
from dl4jlegacy.datasets.idx import parse_idx, read_bytes
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.errors import DataError, DownloadError, counted
from dl4jlegacy.system import files

__all__ = [
    "MnistDataSetIterator",
    "data_directory",
    "find_idx_files",
    "missing_mnist_files",
    "read_idx_dataset",
    "read_mnist",
]

logger = logging.getLogger(__name__)

Part = Literal["train", "t10k"]

_MD5 = {  # of the decompressed files
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_TIMEOUT_SECONDS = 10.0
_LARGEST_DOWNLOAD = _LARGEST_UNPACKED = 64 << 20
_BINARY_THRESHOLD = 30  # as in DL4J: larger pixels become 1


class MnistDataSetIterator(ListDataSetIterator):
    """Batches of MNIST: ``MnistDataSetIterator(20, 60000)``, or ``MnistDataSetIterator(32, True, 12345)``, as in DL4J.

    Args:
        batch: examples per batch.
        num_examples: use the first ``num_examples``; all by default. True and False are taken as ``train``.
        train: the 60,000 training images, or the 10,000 test images.
        data_dir: the folder of the files; default ``DL4J_DATA_DIR``, then ``~/.deeplearning4j``.
        binarize: pixels above 30 of 255 become 1, the others 0.
        seed: of the shuffling.
        shuffle: a new order every epoch.
    """

    def __init__(
        self,
        batch: int,
        num_examples: int | bool | None = None,
        seed: int = 123,
        *,
        train: bool = True,
        data_dir: str | Path | None = None,
        binarize: bool = False,
        shuffle: bool = True,
    ) -> None:
        if isinstance(seed, bool):
            raise DataError(f"MnistDataSetIterator's third argument is {seed}, and not a seed; is binarize meant?")
        if isinstance(num_examples, bool):
            train, num_examples = num_examples, None
        part: Part = "train" if train else "t10k"
        dataset = read_mnist(part, data_dir=data_dir, num_examples=num_examples, binarize=binarize)
        names = tuple(str(digit) for digit in range(10))
        super().__init__(dataset, batch, seed=seed, shuffle=shuffle, label_names=names)


def data_directory(data_dir: str | Path | None = None) -> Path:
    """Return the data directory: ``data_dir``, else the variable ``DL4J_DATA_DIR``, else ``~/.deeplearning4j``."""
    given = data_dir or os.environ.get("DL4J_DATA_DIR")
    with files.errors_as(DataError, f"data directory {given}"):
        return files.expand(given) if given else Path.home() / ".deeplearning4j"


def read_mnist(
    part: Part, *, data_dir: str | Path | None = None, num_examples: int | None = None, binarize: bool = False
) -> DataSet:
    """Return a part of MNIST with pixels divided by 255 and one-hot labels; download it if it is missing.

    Raises:
        DownloadError: files are missing and cannot be downloaded.
        DataError: the files are corrupt, or hold fewer examples than requested.
    """
    directory = data_directory(data_dir)
    names = [name for name in _MD5 if name.startswith(part)]
    found = find_idx_files(directory)
    if missing := [name for name in names if name not in found]:
        _download(missing, directory)
        found = find_idx_files(directory)
    images, labels = (_checked(found[name], name) for name in names)
    return _dataset(images, labels, found[names[0]], num_examples, n_classes=10, binarize=binarize)


def missing_mnist_files(data_dir: str | Path | None = None) -> list[str]:
    """Return the names of MNIST's files that are missing in the data directory, after checking the existing ones.

    Raises:
        DataError: a file is damaged, or is not MNIST's.
    """
    found = find_idx_files(data_directory(data_dir))
    for name, path in found.items():
        _checked(path, name)
    return [name for name in _MD5 if name not in found]


def read_idx_dataset(
    directory: Path, part: Part, n_classes: int | None = None
) -> tuple[DataSet, tuple[int, int, int] | None]:
    """Return a part of a data set in four IDX files under MNIST's names; any image size, no MD5.

    Also returns the channels, height and width of an image; None if the examples do not have two dimensions.
    """
    found = find_idx_files(directory)
    names = [name for name in _MD5 if name.startswith(part)]
    if missing := [name for name in names if name not in found]:
        raise DataError(f"{directory} lacks {', '.join(missing)} (plain or .gz); it has {', '.join(found) or 'none'}")
    images, labels = (parse_idx(read_bytes(found[name]), found[name]) for name in names)
    shape = (1, *images.shape[1:]) if images.ndim == 3 else None
    return _dataset(images, labels, found[names[0]], n_classes=n_classes), shape


def find_idx_files(directory: Path) -> dict[str, Path]:
    """Return the files with MNIST's names in ``directory`` and its subfolder ``mnist``: ``{name: path}``.

    Both spellings, ``train-images-idx3-ubyte`` and ``train-images.idx3-ubyte``, are known, each with or without .gz.
    """
    with files.errors_as(DataError, f"cannot look into folder {directory}"):
        return _idx_files(directory)


def _idx_files(directory: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name in _MD5:
        for spelling in (name, name.replace("-idx", ".idx")):
            for path in (directory / folder / (spelling + end) for folder in ("", "mnist") for end in ("", ".gz")):
                if files.is_file(path):
                    found.setdefault(name, path)
    return found


def _checked(path: Path, name: str) -> Array:
    """Return the array in ``path`` after comparing its MD5 with the published one."""
    content = read_bytes(path)
    array = parse_idx(content, path)  # parsed first: a wrong length says more than a wrong checksum
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != _MD5[name]:
        raise DataError(
            f"{path} is not MNIST's {name}: MD5 of its content is {md5}, expected {_MD5[name]}; delete it to have it "
            "downloaded again, or give its folder as the data set to train on other data in this format"
        )
    return array


def _dataset(
    images: Array,
    labels: Array,
    path: Path,
    num_examples: int | None = None,
    *,
    n_classes: int | None,
    binarize: bool = False,
) -> DataSet:
    """Return the first ``num_examples`` images and labels of IDX files as a DataSet."""
    if labels.ndim != 1 or images.ndim < 2 or len(images) != len(labels):
        raise DataError(f"{path} holds {images.shape} images and its label file {labels.shape} labels; they must agree")
    wanted = len(images) if num_examples is None else num_examples
    if not 1 <= wanted <= len(images):
        raise DataError(f"{counted(wanted, 'example')} were asked for; {path} holds {len(images)}")
    try:
        return DataSet(_scaled(images[:wanted], binarize), one_hot(labels[:wanted], n_classes))
    except DataError as error:
        raise DataError(f"{path} and its labels: {error}") from error


def _scaled(images: Array, binarize: bool) -> Array:
    """Return images as float32 rows; bytes are divided by 255."""
    pixels = images.reshape(len(images), -1)
    if binarize:
        return (pixels > _BINARY_THRESHOLD).astype(np.float32)
    x = pixels.astype(np.float32)
    if images.dtype == np.uint8:
        x /= 255
    return x


def _download(names: list[str], directory: Path) -> None:
    """Download ``names`` into ``directory/mnist``; the error of a failed download says how to supply the files."""
    target = directory / "mnist"
    for name in names:
        problems = []
        for mirror in _MIRRORS:
            try:
                _store(_fetch(mirror + name + ".gz", name), target / (name + ".gz"))
                break
            except (OSError, http.client.HTTPException, DataError) as error:
                problems.append(f"{mirror}: {error}")
        else:
            raise DownloadError(
                f"MNIST is incomplete: {', '.join(names)} not found in {directory} or {target} (plain or .gz), and "
                f"downloading failed ({'; '.join(problems)}). Put the four IDX files into {target}, or point "
                "--data-dir or DL4J_DATA_DIR to the folder that holds them"
            )


class _StaysEncrypted(urllib.request.HTTPRedirectHandler):
    """Follows redirections to https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """See the parent class; raises ``DataError`` if the new address is not https."""
        if not newurl.lower().startswith("https://"):
            raise DataError(f"it leads to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(url: str, name: str) -> bytes:
    """Return the gzipped file at ``url`` after checking the MD5 of its decompressed content."""
    logger.info("downloading %s", url)
    with urllib.request.build_opener(_StaysEncrypted).open(url, timeout=_TIMEOUT_SECONDS) as response:
        packed: bytes = response.read(_LARGEST_DOWNLOAD)
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # wbits for gzip
    try:
        content = unpacker.decompress(packed, _LARGEST_UNPACKED + 1)
    except zlib.error as error:
        raise DataError(f"{len(packed)} bytes arrived that are not a whole gzip file ({error})") from error
    if len(content) > _LARGEST_UNPACKED:
        raise DataError(f"{len(packed)} bytes arrived that unpack to more than {_LARGEST_UNPACKED}")
    if not unpacker.eof:
        raise DataError(f"{len(packed)} bytes arrived that are not a whole gzip file (its end is missing)")
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != _MD5[name]:
        raise DataError(f"content has MD5 {md5}, expected {_MD5[name]}")
    return packed


def _store(content: bytes, path: Path) -> None:
    """Write ``path`` atomically, under a temporary name first, so that no reader finds half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, content)
