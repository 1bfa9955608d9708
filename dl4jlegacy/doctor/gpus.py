"""GPUs, from the outside in: the driver, CuPy, a trial on each, kernels against the formulas, cuDNN."""

from __future__ import annotations

import ctypes
from importlib import metadata
from pathlib import Path

from dl4jlegacy.arrays import devices
from dl4jlegacy.arrays.backend import import_cupy
from dl4jlegacy.arrays.devices import PACKAGES
from dl4jlegacy.doctor.check import Check, Finding, Settings, failed, of_error, ok, one_line, skipped, warning
from dl4jlegacy.doctor.computation import largest_difference
from dl4jlegacy.errors import DeviceError, how_to_install
from dl4jlegacy.kernels import load

__all__ = ["checks"]

_NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")
"""What the system has where there is an NVIDIA GPU; /dev/dxg: under Windows."""
_INSTALL = f"{how_to_install('gpu', 'gpu13')} (CUDA 12 or 13)"
_TOLERANCE = 1e-4
_TRIAL_SECONDS = 150.0


def _is_seen() -> bool:
    """Return whether the system shows an NVIDIA GPU, whatever the libraries say."""
    return any(Path(node).exists() for node in _NODES)


def driver(settings: Settings) -> Finding:
    """Look for NVIDIA's driver, and for which CUDA it is."""
    seen = _is_seen()
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as exc:
        if not seen and not _asked(settings):
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
    installed = [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    if not installed:
        if _is_seen() or _asked(settings):
            return failed("CuPy is not installed, without which no GPU is used", _INSTALL)
        return skipped("not installed, and no GPU would use it")
    if len(installed) > 1:
        names = " ".join(each.split()[0] for each in installed)
        said = f"{' and '.join(installed)} are both installed, and each overwrites files of the other"
        return failed(said, f"pip uninstall {names}, then {_INSTALL}")
    try:
        module = import_cupy()
    except Exception as exc:  # noqa: BLE001  # whatever a broken installation raises
        return failed(f"{installed[0]} cannot be imported: {one_line(exc)}", f"install it again: {_INSTALL}")
    return ok(f"{installed[0]}, module {module.__version__}")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def gpus(settings: Settings) -> Finding:
    """Compute on the GPUs that were asked for, or on all: a kernel that is compiled, and a matrix product."""
    try:
        found = devices.choose(settings.device if _asked(settings) else "gpu")
    except DeviceError as exc:
        return of_error(exc) if _is_seen() or _asked(settings) else skipped(str(exc))
    return ok("; ".join(device.text for device in found))


def gpu_kernels(settings: Settings) -> Finding:
    """Compile the kernels in CUDA C, and compare what they compute with NumPy's formulas."""
    device = devices.choose(settings.device if _asked(settings) else "gpu")[0]
    name, difference = largest_difference(load("cupy", device.index), load("numpy"))
    found = f"on {device.label} they differ from the formulas by {difference:.1g} at most ({name})"
    if not difference <= _TOLERANCE:
        return failed(found, "do not use this GPU; see whether nvidia-smi reports errors, and report it with this line")
    return ok(found)


def cudnn(settings: Settings) -> Finding:
    """Look whether convolutions go through cuDNN, or the slower own way, and why."""
    device = devices.choose(settings.device if _asked(settings) else "gpu")[0]
    kernels = load("cupy", device.index)
    path, reason = str(getattr(kernels, "convolution_path", "")), str(getattr(kernels, "convolution_reason", ""))
    if path.startswith("cudnn"):
        return ok(path)
    why = reason.removesuffix(f"; {_INSTALL}")
    return warning(f"convolutions go their own, slower way: {one_line(why)}", _INSTALL)


def _asked(settings: Settings) -> bool:
    return settings.device.startswith("gpu")


def checks() -> tuple[Check, ...]:
    """Return the checks of GPUs; none of them matters to a run on CPUs."""
    area = "GPU"
    return (
        Check(name="GPU driver", area=area, look=driver, is_needed=_asked),
        Check(name="CuPy", area=area, look=cupy, is_needed=_asked, seconds=60.0, needs=("GPU driver",)),
        Check(name="GPUs", area=area, look=gpus, is_needed=_asked, seconds=_TRIAL_SECONDS, needs=("CuPy",)),
        Check(
            name="GPU kernels", area=area, look=gpu_kernels, is_needed=_asked, seconds=_TRIAL_SECONDS, needs=("GPUs",)
        ),
        Check(name="cuDNN", area=area, look=cudnn, seconds=60.0, needs=("GPU kernels",)),
    )
