"""Every CUDA source compiled by NVIDIA's own compiler for real devices; that takes a library, but no GPU."""

from __future__ import annotations

import ctypes
import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import dl4jlegacy.kernels as kernels_package
from dl4jlegacy.kernels.cuda.launch import options, source

FOLDER = Path(kernels_package.__file__).with_name("cuda")
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.cu"))
KINDS = (("f", "70"), ("d", "70"), ("f", "90"))
"""Number types and architectures: the oldest that CUDA 12 has, for both, and a newer one."""


@cache
def nvrtc() -> ctypes.CDLL:
    """The library of the wheel nvidia-cuda-nvrtc-cu12 (extra ``dev``); without it these tests fail."""
    spec = find_spec("nvidia.cuda_nvrtc")
    assert spec is not None, "nvidia-cuda-nvrtc-cu12 is not installed: ./install dev"
    (place,) = spec.submodule_search_locations or ()
    return ctypes.CDLL(str(Path(place) / "lib" / "libnvrtc.so.12"))


def _text(program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    assert getattr(nvrtc(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc(), f"nvrtcGet{what}")(program, buffer) == 0
    return buffer.value.decode()


@cache
def everything() -> dict[tuple[str, str, str], tuple[bool, str, str]]:
    """Compile every family of ``KINDS``, on all cores."""
    wanted = [(family, *kind) for family in FAMILIES for kind in KINDS]

    def result(family: str, char: str, architecture: str) -> tuple[bool, str, str]:
        added = ("-ftz=true", f"-arch=sm_{architecture}")  # by CuPy
        return compiled(source(family), (*options(family, char), *added))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return dict(zip(wanted, threads.map(lambda program: result(*program), wanted), strict=True))


def compiled(code: str, given: tuple[str, ...]) -> tuple[bool, str, str]:
    """Compile; return whether it worked, the log, and the assembly."""
    program = ctypes.c_void_p()
    assert nvrtc().nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None) == 0
    try:
        arguments = [option.encode() for option in given]
        done = nvrtc().nvrtcCompileProgram(program, len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))
        return done == 0, _text(program, "ProgramLog"), _text(program, "PTX") if done == 0 else ""
    finally:
        nvrtc().nvrtcDestroyProgram(ctypes.byref(program))


@pytest.mark.long
@pytest.mark.parametrize(("char", "architecture"), KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_compiles_for_every_architecture_without_a_word(family: str, char: str, architecture: str) -> None:
    worked, log, assembly = everything()[family, char, architecture]
    said = [line for line in log.strip("\0").splitlines() if line and "Architectures prior to" not in line]
    assert worked and not said, log
    entries = re.findall(r"\.entry (\w+)", assembly)
    assert entries, "no kernel in it"
    if family != "random":  # sin and cos of huge angles, which never come up, use a table of their own
        assert ".local" not in assembly, "an array did not fit the registers"
    assert not re.search(r"\b(red|atom)\.", assembly), "atomic operations: the order of sums would vary"
    assert not re.search(r"\b(div\.(approx|full)|sqrt\.approx)", assembly), (
        "a division or root is not rounded correctly"
    )
    if "--fmad=false" in options(family, char):
        assert not re.search(r"\bfma\.", assembly), "product and sum are rounded at once, and not as on the CPU"


def test_the_sources_are_the_families_that_the_package_launches() -> None:
    python = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    for family in FAMILIES:
        assert f'"{family}"' in python, f"cuda/{family}.cu is never launched"
        for kernel in re.findall(r"__launch_bounds__\(BLOCK\)\s+(\w+)\(", source(family)):
            assert f'"{kernel}"' in python, f"kernel {kernel} of cuda/{family}.cu is never launched"


@pytest.mark.long
def test_what_is_no_cuda_is_refused() -> None:
    worked, log, _ = compiled('extern "C" __global__ void k(float* x) { x[0] = nothing; }', ())
    assert not worked and "nothing" in log
