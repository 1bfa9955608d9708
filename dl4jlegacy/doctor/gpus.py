"""Checks of GPUs: the driver, CuPy, a trial computation on each, and cuDNN."""

from __future__ import annotations

import ctypes
from importlib import metadata
from pathlib import Path

from dl4jlegacy.arrays import devices
from dl4jlegacy.arrays.backend import import_cupy
from dl4jlegacy.arrays.devices import PACKAGES
from dl4jlegacy.doctor.check import Check, Finding, Settings, failed, of_error, ok, one_line, skipped, warning
from dl4jlegacy.doctor.kernels import largest_difference
from dl4jlegacy.errors import DeviceError, how_to_install
from dl4jlegacy.kernels import load

__all__ = ["CHECKS"]

_NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")
"""A machine with an NVIDIA GPU has one of these; /dev/dxg: under Windows."""
_INSTALL = f"{how_to_install('gpu', 'gpu13')} (CUDA 12 or 13)"
_TOLERANCE = 1e-4


def _is_asked_for(settings: Settings) -> bool:
    return settings.device.startswith("gpu")


def _is_expected(settings: Settings) -> bool:
    return _is_asked_for(settings) or any(Path(node).exists() for node in _NODES)


def driver(settings: Settings) -> Finding:
    """Look for NVIDIA's driver, and its version of CUDA."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as exc:
        if not _is_expected(settings):
            return skipped("this machine shows no NVIDIA GPU")
        remedy = "install NVIDIA's driver; start a container with --gpus all"
        return failed(f"there is no driver that programs can use: {one_line(exc)}", remedy)
    version = ctypes.c_int()
    status = int(library.cuDriverGetVersion(ctypes.byref(version)))
    if status or not version.value:
        return failed(f"the driver does not say its version: it answers {status}", "see whether nvidia-smi works")
    return ok(f"for CUDA up to {version.value // 1000}.{version.value % 1000 // 10}")


def cupy(settings: Settings) -> Finding:
    """Look for CuPy: installed once, and importable."""
    installed = [name for name in PACKAGES if any(metadata.distributions(name=name))]
    if not installed:
        if _is_expected(settings):
            return failed("CuPy is not installed, without which no GPU is used", _INSTALL)
        return skipped("not installed, and no GPU would use it")
    if len(installed) > 1:
        found = f"{' and '.join(installed)} are both installed, and each overwrites files of the other"
        return failed(found, f"pip uninstall {' '.join(installed)}, then {_INSTALL}")
    try:
        return ok(f"{installed[0]} {import_cupy().__version__}")
    except Exception as exc:  # noqa: BLE001  # a broken installation may raise anything
        return failed(f"{installed[0]} cannot be imported: {one_line(exc)}", f"install it again: {_INSTALL}")


def gpus(settings: Settings) -> Finding:
    """Compute on the requested GPUs, or on all, and compare the first one's kernels with NumPy's formulas."""
    try:
        found = _chosen(settings)
    except DeviceError as exc:
        return of_error(exc) if _is_expected(settings) else skipped(str(exc))
    name, difference = largest_difference(load("cupy", found[0].index), load("numpy"))
    if not difference <= _TOLERANCE:
        wrong = f"on {found[0].label} {name} differs from its formula by {difference:.1g}"
        return failed(wrong, "do not use this GPU; see whether nvidia-smi reports errors, and report it with this line")
    return ok("; ".join(device.text for device in found))


def cudnn(settings: Settings) -> Finding:
    """Check whether convolutions use cuDNN or the slower own kernels, and why."""
    kernels = load("cupy", _chosen(settings)[0].index)
    path, reason = str(getattr(kernels, "convolution_path", "")), str(getattr(kernels, "convolution_reason", ""))
    if path.startswith("cudnn"):
        return ok(path)
    return warning(f"convolutions do not use cuDNN: {one_line(reason.removesuffix(f'; {_INSTALL}'))}", _INSTALL)


def _chosen(settings: Settings) -> tuple[devices.Device, ...]:
    return devices.choose(settings.device if _is_asked_for(settings) else "gpu")


CHECKS = (
    Check("GPU driver", "GPU", driver, is_needed=_is_asked_for),
    Check("CuPy", "GPU", cupy, is_needed=_is_asked_for, seconds=60.0, need="GPU driver"),
    Check("GPUs", "GPU", gpus, is_needed=_is_asked_for, seconds=300.0, need="CuPy"),
    Check("cuDNN", "GPU", cudnn, seconds=60.0, need="GPUs"),
)
