"""Which device is chosen, and what is said where there is none: from a missing CuPy to a GPU that computes wrongly."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.arrays import devices
from dl4jlegacy.arrays.devices import Device, choose, memory_limit, memory_text
from dl4jlegacy.errors import ConfError, DeviceError, UsageError, VersionError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.scaleout.workers.device_choice import (
    check_same_arithmetic,
    compute_for_worker,
    host_kernels,
    resolve_compute,
)
from dl4jlegacy.version import __version__
from tests.support import REPOSITORY, SUPPORT, standin
from tests.support.progress_lines import without_progress
from tests.support.standin_commands import STANDIN

BROKEN = SUPPORT / "broken"

CASES = {  # what is wrong: words of the message, and of its remedy
    "import": ("CuPy cannot be imported", "file too short", "'./install gpu'"),
    "no driver": ("no NVIDIA driver", "libcuda.so.1", "--gpus all", "--device cpu"),
    "old driver": ("wrong CUDA version", "CUDA 12.9", "11.4", "newer driver", "cupy-cuda11x"),
    "old minor driver": ("wrong CUDA version", "CUDA 12.9", "12.2", "newer driver"),
    "no device": ("finds no GPU", "nvidia-smi"),
    "no answer": ("does not answer", "initialization error", "nvidia-smi"),
    "no nvrtc": ("the NVIDIA driver is here", "NVRTC", "libnvrtc.so.12", "'./install gpu'"),
    "no cublas": ("the NVIDIA driver is here", "cuBLAS", "libcublasLt.so.12", "'./install gpu'"),
    "ptx": ("wrong CUDA version", "gpu:0", "newer driver"),
    "full": ("gpu:0 has no free memory", "nvidia-smi"),
    "wrong": ("gpu:0 computes wrongly", "do not use it"),
}


Break = Callable[..., Any]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Break]:
    """Return what puts a cupy in place in which something is wrong; "": nothing is."""

    def install(case: str = "", gpus: int = 1) -> Any:
        monkeypatch.setenv("BROKEN_CUPY", case)
        monkeypatch.setenv("BROKEN_CUPY_GPUS", str(gpus))
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
        monkeypatch.syspath_prepend(BROKEN)
        monkeypatch.setattr(devices, "_is_installed", lambda name: name == "cupy-cuda12x")
        if case != "import":
            module = importlib.import_module("cupy")
            monkeypatch.setitem(sys.modules, "cupy", module)
            return module
        return None

    for name in ("CUDA_VISIBLE_DEVICES", "DL4J_DEVICE", "DL4J_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    yield install
    sys.modules.pop("cupy", None)


def train(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``dl4j train`` where cupy is the broken one."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DL4J_", "CUDA_", "BROKEN_"))}
    path = os.pathsep.join([str(BROKEN), os.environ.get("PYTHONPATH", ""), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, "-m", "dl4jlegacy", "train", "--dataset", "digits", "--epochs", "1", *arguments],
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], *words: str, status: int = 3, code: str = "DL4J-DEVICE") -> None:
    """Assert one clear message, as text and as JSON, and no traceback."""
    assert done.returncode == status, done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["exit"]) == (code, status)
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in error["message"], error["message"]


# -- what can be wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told_with_its_remedy(case: str, broken: Break) -> None:
    broken(case)
    with pytest.raises(DeviceError) as caught:
        choose("gpu")
    for word in CASES[case]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_gpu_that_hangs_is_given_up(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_TRIAL_SECONDS", 0.02)
    broken("hangs")
    with pytest.raises(DeviceError, match=r"gpu:0 has not answered for 0\.02 s; .*--device cpu"):
        choose("gpu")


@pytest.mark.parametrize(
    "case",
    [
        "no driver",
        *(pytest.param(case, marks=pytest.mark.long) for case in ("import", "old driver", "no nvrtc", "no cublas")),
    ],
)
def test_the_command_line_says_it_in_one_line_and_exits_with_3(case: str) -> None:
    done = train("--device", "gpu", "--format", "json", BROKEN_CUPY=case)
    refused(done, *CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_auto_takes_the_cpu_and_keeps_the_reason(case: str, broken: Break) -> None:
    broken(case)
    (device,) = choose("auto")
    assert device.kind == "cpu" and CASES[case][0] in device.reason
    assert f"(no GPU: {device.reason})" in device.text and device.fields()["reason"] == device.reason


def test_a_machine_without_cupy_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(devices, "import_cupy", _no_cupy)
    with pytest.raises(
        DeviceError, match=r"CuPy is not installed.*'\./install gpu'.*'\./install gpu13'.*CUDA 12 or 13"
    ):
        choose("gpu")


def _no_cupy() -> None:
    raise ModuleNotFoundError("No module named 'cupy'", name="cupy")


def test_a_cupy_that_lacks_a_module_of_its_own_is_broken_and_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks() -> None:
        raise ModuleNotFoundError("No module named 'fastrlock'", name="fastrlock")

    monkeypatch.setattr(devices, "import_cupy", lacks)
    with pytest.raises(DeviceError, match="CuPy cannot be imported: No module named 'fastrlock'"):
        choose("gpu")


def test_two_cupys_in_one_place_are_refused_before_either_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> object:
        if name in ("cupy-cuda12x", "cupy-cuda13x"):
            return object()
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.setattr(devices, "import_cupy", lambda: pytest.fail("was imported"))
    with pytest.raises(DeviceError, match=r"cupy-cuda12x and cupy-cuda13x are both installed.*pip uninstall"):
        choose("gpu")


@pytest.mark.parametrize("visible", ["", "-1", "7"])
def test_a_variable_that_hides_every_gpu_is_named(visible: str, broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken("no device")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(DeviceError, match=f"CUDA_VISIBLE_DEVICES is '{visible}', which hides every GPU"):
        choose("gpu")


def test_the_eighth_gpu_of_a_machine_with_one_is_refused_with_what_there_is() -> None:
    done = train("--device", "gpu:7", "--format", "json")
    refused(done, "there is no gpu:7", "sees 1 GPU, gpu:0 (NVIDIA Stand-in)", "choose one of these")


def test_the_message_names_the_variable_that_may_hide_the_gpu(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(gpus=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(DeviceError, match=r"sees 2 GPUs, gpu:0 .*, gpu:1 .*CUDA_VISIBLE_DEVICES is '4,5'"):
        choose("gpu:4")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy itself is not installed here")
def test_the_real_cupy_is_diagnosed_without_a_traceback() -> None:
    code = "from dl4jlegacy.arrays.devices import choose; print(choose('auto')[0].text)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("gpu:0 ") or "(no GPU: " in done.stdout
    assert "Traceback" not in done.stderr


# -- what is chosen ----------------------------------------------------------------------------------------------------


def test_all_gpus_are_chosen_or_one(broken: Break) -> None:
    broken(gpus=3)
    assert (
        [device.label for device in choose("gpu")] == ["gpu:0", "gpu:1", "gpu:2"] == [d.label for d in choose("auto")]
    )
    assert [device.label for device in choose("gpu:2")] == ["gpu:2"]


def test_a_gpu_has_a_name_and_a_uuid(broken: Break) -> None:
    broken()
    (device,) = choose("gpu")
    assert device == Device(
        "gpu", 0, "NVIDIA Stand-in", "GPU-5ae7c0de-0000-0000-0000-000000000a00", 80 << 30, "9.0", reason=""
    )
    assert device.text == f"gpu:0 NVIDIA Stand-in, {device.uuid}, 80.0 GiB, compute capability 9.0"


def test_a_uuid_that_cupy_cuts_off_at_a_zero_is_asked_of_the_driver(broken: Break, monkeypatch) -> None:
    module = broken()
    properties = module.cuda.runtime.getDeviceProperties(0)
    monkeypatch.setattr(module.cuda.runtime, "getDeviceProperties", lambda index: {**properties, "uuid": b"\x5a"})
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: _Driver())
    assert choose("gpu")[0].uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


class _Driver:
    """What of libcuda is asked."""

    def cuDeviceGet(self, device: Any, index: int) -> int:  # CUDA's name
        return 0

    def cuDeviceGetUuid(self, buffer: Any, device: Any) -> int:  # CUDA's name
        buffer.raw = bytes(range(16))
        return 0


def test_the_cpu_is_chosen_without_a_look_at_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "import_cupy", lambda: pytest.fail("was imported"))
    (device,) = choose("cpu")
    assert (device.kind, device.label, device.reason) == ("cpu", "cpu", "") and device.name and device.memory > 0


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("gup", ("did you mean 'gpu'",)),
        ("cuda:0", ("auto, cpu, gpu, gpu:N",)),
        ("gpu:0,2", ("gpu takes all GPUs",)),
        ("gpu:-1", ("gpu:N",)),
        ("gpu:", ("gpu:N",)),
        ("GPU", ("did you mean 'gpu'",)),
    ],
)
def test_a_device_that_is_none_is_refused(choice: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        choose(choice)
    assert all(word in str(caught.value) for word in (repr(choice), *words)), caught.value


def test_a_flag_and_a_variable_and_a_file_that_name_no_device_are_named(tmp_path: Path) -> None:
    as_json = ("--format", "json")
    refused(train("--device", "gpux", *as_json), "--device is 'gpux'", status=2, code="DL4J-USAGE")
    refused(train(*as_json, DL4J_DEVICE="gpux"), "DL4J_DEVICE is 'gpux'", status=2, code="DL4J-USAGE")
    file = tmp_path / "conf.json"
    file.write_text('{"device": "gpux"}')
    refused(train(str(file), *as_json), "conf.json", "Conf.device is 'gpux'", status=3, code="DL4J-CONF")


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_flag_wins_over_the_variable_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "conf.json"
    file.write_text('{"device": "gpu:7"}')
    as_json = ("--format", "json")
    refused(train(str(file), *as_json), "there is no gpu:7")
    refused(train(str(file), *as_json, DL4J_DEVICE="gpu:6"), "there is no gpu:6")
    refused(train(str(file), *as_json, "--device", "gpu:5", DL4J_DEVICE="gpu:6"), "there is no gpu:5")


def test_a_run_on_auto_says_why_it_is_the_cpu_and_reports_it() -> None:
    done = train("--device", "auto", "--format", "json", BROKEN_CUPY="no driver")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["device"] == "cpu" and report["precision"] == "float32"
    assert "no NVIDIA driver" in report["devices"][0]["reason"]
    assert done.stderr.count("(no GPU: there is no NVIDIA driver here") == 1


@pytest.mark.long
def test_a_run_on_the_cpu_keeps_quiet_about_it() -> None:
    done = train("--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, without_progress(done.stderr), report["device"]) == (0, "", "cpu")
    assert report["devices"][0]["name"] and report["mixed_devices"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--precision", "tf32"), ("precision tf32 is computed on GPUs only", "--device gpu", "--precision")),
        pytest.param(
            ("--precision", "bf16", "--device", "auto"), ("precision bf16", "no NVIDIA driver"), marks=pytest.mark.long
        ),
        pytest.param(
            ("--device-memory-limit", "8GiB", "--device", "cpu"),
            ("--device-memory-limit", "the device is cpu"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_only_a_gpu_can_do_is_refused_on_the_cpu(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(train(*arguments, "--format", "json", BROKEN_CUPY="no driver"), *words)


@pytest.mark.long
def test_kernels_of_a_cpu_and_a_gpu_contradict_each_other() -> None:
    done = train("--device", "gpu", "--format", "json", DL4J_KERNELS="numba")
    refused(done, "computes on CPUs (its kernels are numba)", "device is gpu", "DL4J_KERNELS")
    done = train("--device", "cpu", "--format", "json", DL4J_KERNELS="cupy")
    refused(done, "computes on GPUs (its kernels are cupy)", "--device gpu")


def test_a_precision_that_is_none_is_refused() -> None:
    refused(train("--precision", "fp16", "--format", "json"), "bf16", status=2, code="DL4J-USAGE")
    with pytest.raises(ConfError, match=r"Conf.precision is 'tf23'; did you mean 'tf32'"):
        Conf(precision="tf23")


def test_a_run_on_gpus_gets_their_kernels(broken: Break) -> None:
    broken(gpus=2)
    conf, compute = resolve_compute(Conf(device="gpu", precision="tf32"))
    assert (conf.kernels, conf.device, compute.name, compute.precision) == ("cupy", "gpu", "cupy", "tf32")
    assert [compute.device(worker).index for worker in range(5)] == [0, 1, 0, 1, 0]
    assert resolve_compute(conf) == (conf, compute), "resolved once is resolved"
    by_kernels, _ = resolve_compute(Conf(kernels="cupy"))
    assert (by_kernels.device, by_kernels.kernels) == ("gpu", "cupy")
    by_auto, _ = resolve_compute(Conf(device="auto"))
    assert (by_auto.device, by_auto.kernels) == ("gpu", "cupy"), "what goes on with the run must not look again"


def test_auto_with_a_cpus_kernels_is_the_cpu(broken: Break) -> None:
    broken()
    conf, compute = resolve_compute(Conf(device="auto", kernels="numpy"))
    assert (conf.device, conf.kernels, compute.on_gpu) == ("auto", "numpy", False)
    assert compute.devices[0].reason == "the kernels numpy are a CPU's"
    assert resolve_compute(conf) == (conf, compute)


def test_the_master_of_workers_elsewhere_needs_no_gpu(broken: Break) -> None:
    broken("no driver")
    conf, compute = resolve_compute(Conf(device="gpu"), local=False)
    assert (conf.kernels, compute.on_gpu) == ("cupy", False)
    assert host_kernels("cupy").name in ("numba", "numpy")


def test_workers_that_share_a_gpu_say_so(broken: Break) -> None:
    broken(gpus=2)
    _, compute = resolve_compute(Conf(device="gpu"))
    lines = [text for _, text, _ in compute.describe(3)]
    assert "gpu:0" in lines[0] and lines[0].endswith("shared with worker 2")
    assert "gpu:1" in lines[1] and "shared" not in lines[1]
    assert lines[2].endswith("shared with worker 0")


def test_a_worker_follows_its_run(broken: Break) -> None:
    broken(gpus=2)
    assert [d.label for d in compute_for_worker(Conf(run="r", kernels="cupy"), None).devices] == ["gpu:0", "gpu:1"]
    assert [d.label for d in compute_for_worker(Conf(run="r", kernels="cupy"), "gpu:1").devices] == ["gpu:1"]
    assert compute_for_worker(Conf(run="r", kernels="numpy"), None).name == "numpy"
    assert not compute_for_worker(Conf(run="r", kernels="numpy"), "auto").on_gpu, "auto is what the run does"


def test_a_worker_without_a_gpu_is_refused_by_a_run_on_gpus(broken: Break) -> None:
    broken("no driver")
    for choice in (None, "gpu", "auto"):
        with pytest.raises(
            DeviceError, match=r"run r computes on GPUs, and this worker cannot join it: .*no NVIDIA driver"
        ):
            compute_for_worker(Conf(run="r", kernels="cupy"), choice)


def test_a_worker_of_the_other_kind_joins_a_mixed_run_only(broken: Break) -> None:
    broken()
    with pytest.raises(DeviceError, match=r"run r computes on CPUs \(kernels numba\).*on gpu.*--mixed-devices"):
        compute_for_worker(Conf(run="r", kernels="numba"), "gpu")
    with pytest.raises(DeviceError, match=r"run r computes on GPUs.*on cpu.*--mixed-devices"):
        compute_for_worker(Conf(run="r", kernels="cupy"), "cpu")
    mixed = Conf(run="r", kernels="numba", mixed_devices=True)
    assert compute_for_worker(mixed, "gpu").name == "cupy"
    assert compute_for_worker(mixed, None).name == "numba"
    assert compute_for_worker(mixed.replace(kernels="cupy"), "cpu").name in ("numba", "numpy")
    assert compute_for_worker(mixed.replace(kernels="cupy"), None).name == "cupy"


@pytest.mark.long
def test_a_mixed_run_says_that_its_bits_are_its_own() -> None:
    done = train("--mixed-devices", "--format", "json")
    report = json.loads(done.stdout)
    assert report["mixed_devices"] is True and "need not give the same bits" in done.stderr


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit"),
    [("8GiB", 8 << 30), ("1.5 GiB", 3 << 29), ("500MB", 500_000_000), ("4096", 4096), ("80%", 0.8), ("100%", 1.0)],
)
def test_a_memory_limit_is_a_size_or_a_part(text: str, limit: float) -> None:
    assert memory_limit(text) == limit and type(memory_limit(text)) is type(limit)


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1GiB", "8 GiBs", "half", "1e9", "nan%"])
def test_a_memory_limit_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--device-memory-limit is .*8GiB.*80%"):
        memory_limit(text)
    if text:
        with pytest.raises(ConfError, match=r"Conf\.device_memory_limit"):
            Conf(device_memory_limit=text)


def test_a_limit_is_set_on_every_gpu_and_shown(broken: Break) -> None:
    broken()
    _, compute = resolve_compute(Conf(device="gpu", device_memory_limit="50%"))
    assert "limited to 40.0 GiB" in compute.describe(1)[0][1]
    assert compute.memory(0) == "gpu:0 3.0 GiB of 40.0 GiB"
    assert compute_for_worker(Conf(kernels="cupy"), None, "8GiB").memory(0) == "gpu:0 3.0 GiB of 8.0 GiB"


@pytest.mark.long
def test_a_run_that_does_not_fit_names_the_layer_and_the_batch_that_would() -> None:
    same = ("train", "--model", "mlp", "--dataset", "digits", "--device", "gpu", "--device-memory-limit", "1MiB")
    network = ("--hidden", "128,64", "--no-validation", "--batch-size", "1400")
    done = STANDIN.run(*same, *network, "--format", "json")
    assert done.returncode == 1 and "Traceback" not in done.stdout
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "DL4J-MEMORY"
    found = re.search(
        r"memory of gpu:0 Stand-in GPU.* is full: layer 0 \(dense\) asked for its buffer 'y' of shape \(1400, 128\), "
        r"700.0 KiB; in use are .* of 1.0 MiB: other arrays of this process .*, updater state .*, parameters .*; "
        r".*take --batch-size (\d+) or less",
        error["message"],
    )
    assert found is not None, error["message"]
    assert 400 < int(found[1]) < 1000


def test_bytes_are_told_for_people() -> None:
    sizes = (0, 1023, 1024, 1536 << 10, 80 << 30, 5 << 40)
    assert [memory_text(size) for size in sizes] == ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "80.0 GiB", "5120.0 GiB"]


def test_gpus_of_different_kinds_share_a_mixed_run_only() -> None:
    with standin.installed(standin.DeviceConf(), standin.DeviceConf(name="Another GPU")):
        with pytest.raises(DeviceError, match=r"gpu:0 is Stand-in GPU, gpu:1 is Another GPU: .*--device gpu:N"):
            resolve_compute(Conf(device="gpu"))
        assert resolve_compute(Conf(device="gpu:1"))[1].devices[0].name == "Another GPU"
        assert len(resolve_compute(Conf(device="gpu", mixed_devices=True))[1].devices) == 2


def test_the_first_worker_decides_what_gpus_a_run_is_for() -> None:
    tracker, conf = InMemoryStateTracker(), Conf(run="r", kernels="cupy")
    for name, matches in (("Stand-in GPU", True), ("Stand-in GPU", True), ("Another GPU", False)):
        with standin.installed(standin.DeviceConf(name=name)):
            compute = compute_for_worker(conf, None)
            libraries = {"CUDA": "12.8", "CuPy": "14.2.0", "convolutions": "own"}
            assert compute.arithmetic() == {"dl4jlegacy": __version__, "GPU": name, **libraries}
            if matches:
                check_same_arithmetic(tracker, conf, compute)
                continue
            with pytest.raises(
                VersionError, match=r"run r .* GPU is Stand-in GPU in the run and Another GPU here; .*DL4J_CUDNN"
            ):
                check_same_arithmetic(tracker, conf, compute)
            assert check_same_arithmetic(tracker, conf.replace(mixed_devices=True), compute).startswith("GPU is ")
    on_cpu = resolve_compute(Conf(device="cpu"))[1]
    assert check_same_arithmetic(tracker, conf.replace(mixed_devices=True), on_cpu) == ""
