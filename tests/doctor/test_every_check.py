"""Every check notices when what it looks at is broken: each condition is broken here on purpose, at least once."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.devices import Device
from dl4jlegacy.doctor import Settings, all_checks
from dl4jlegacy.doctor.examination import _finding
from dl4jlegacy.doctor.kernels import compiled_kernels
from dl4jlegacy.errors import DeviceError, NotAuthorisedError
from dl4jlegacy.kernels import load
from dl4jlegacy.scaleout.state import state_cache as copies
from tests.doctor.broken_things import Broken, Case

OLD_JAVA = "#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n"
ZOOKEEPER = b"Zookeeper version: 3.9.5-abc, built on 2026-01-01\nLatency min/avg/max: 0/0.0/0\nMode: standalone\n"
WAITING = b"This ZooKeeper instance is not currently serving requests\n"
DAMAGED_IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2]) + b"1234"
EXPIRED = NotAuthorisedError("AWS does not accept these credentials: ExpiredToken; renew them, or check the clock")
HANGS = DeviceError("gpu:0 has not answered for 60 s, is it somebody else's; does nvidia-smi work here")
NO_LIBRARY = OSError("libcuda.so.1: cannot open shared object file")
NODES, AWS = "dl4jlegacy.doctor.gpus._NODES", "dl4jlegacy.doctor.cloud.Aws"
HOST_GPU, CACHE = "dl4jlegacy.doctor.gpus.load", "dl4jlegacy.kernels.numba.compile.cache_folder"


def own_command(broken: Broken) -> None:
    broken.write("scripts/dl4j", mode=0o755)
    broken.returns("sysconfig.get_path", str(broken.folder / "scripts"))
    broken.environ(PATH="@/bin")


def library(broken: Broken, name: str, text: str = "") -> None:
    broken.write(f"{name}.py", text)
    broken.environ(PYTHONPATH="@")


def cached(broken: Broken, name: str, content: bytes) -> None:
    broken.write("whole.nbi", b"\x80\x04K\x01.\x80\x04K\x02.")
    broken.write(name, content)
    broken.returns(CACHE, broken.folder)


def wrong_softmax(broken: Broken) -> None:
    right = load("numba").softmax
    broken.patch.setattr(load("numba"), "softmax", lambda z: (right(z), z.__setitem__((3, 5), z[3, 5] + 0.01)))


def host_named(broken: Broken, *addresses: str) -> None:
    broken.returns("socket.gethostname", "here")
    broken.returns("socket.getaddrinfo", [(socket.AF_INET, 1, 6, "", (each, 0)) for each in addresses])


def tracker(exc: Exception) -> Any:
    def break_it(broken: Broken) -> dict[str, Any]:
        broken.returns("socket.create_connection", exc)
        return {"tracker": "hazelcast://127.0.0.1:5701"}

    return break_it


def grid(broken: Broken, version: str) -> dict[str, Any]:
    store = SimpleNamespace(member_version=lambda: version, close=lambda: None)
    broken.returns("dl4jlegacy.doctor.servers.HazelcastStore", store)
    return {"tracker": f"hazelcast://{broken.server(b'')}", "cluster_name": "dev"}


def impatient(broken: Broken, **fields: Any) -> dict[str, Any]:
    broken.patch.setattr("dl4jlegacy.doctor.servers._ANSWER_SECONDS", 0.5)
    return fields


def session(broken: Broken, ahead: float | Exception) -> dict[str, Any]:
    def seconds_ahead() -> float:
        if isinstance(ahead, Exception):
            raise ahead
        return ahead

    broken.attributes("dl4jlegacy.doctor.servers.ZooKeeperSession", seconds_ahead=seconds_ahead)
    return {"zookeeper": "127.0.0.1:2181"}


def gpu(broken: Broken, **kernels: Any) -> None:
    """A GPU with NumPy's kernels, but for some."""
    numpy = load("numpy")
    known = {name: getattr(numpy, name) for name in dir(numpy) if not name.startswith("_")}
    broken.returns("dl4jlegacy.arrays.devices.choose", (Device(kind="gpu", name="H100"),))
    other = SimpleNamespace(**known | kernels)
    broken.patch.setattr(HOST_GPU, lambda name, *rest: other if name == "cupy" else numpy)


def aws(broken: Broken, silent: str = "", caller: Any = None) -> None:
    def answer() -> Any:
        raise caller

    broken.attributes(AWS, why_silent=lambda: silent, caller=answer)


CASES: tuple[Case, ...] = (
    ("package", "failed", "not installed", lambda b: b.missing("dl4jlegacy")),
    ("package", "warning", "0.0.7 ... ./install", lambda b: b.returns("importlib.metadata.version", "0.0.7")),
    ("python", "failed", "3.9.2 ... >=3.11 ... ./install", lambda b: b.returns("platform.python_version", "3.9.2")),
    ("python", "failed", "PyPy", lambda b: b.returns("platform.python_implementation", "PyPy")),
    ("python", "warning", "Linux only", lambda b: b.patch.setattr(sys, "platform", "darwin")),
    ("libraries", "failed", "numpy 1.19.5 is installed, and >=1.26", lambda b: b.installed("numpy", "1.19.5")),
    ("libraries", "failed", "pykka is not installed ... ./install", lambda b: b.missing("pykka")),
    ("imports", "failed", "kazoo: ImportError half", lambda b: library(b, "kazoo", "raise ImportError('half')")),
    (
        "imports",
        "failed",
        "imports pykka ends with status -4 ... processor",
        lambda b: library(b, "pykka", f"import os; os.kill(os.getpid(), {signal.SIGILL})"),
    ),
    (
        "shadows",
        "failed",
        "numpy.py is in the way of numpy ... rename",
        lambda b: (
            library(b, "numpy"),
            b.patch.delitem(sys.modules, "numpy"),
            b.patch.syspath_prepend(b.folder),
        )[3:],
    ),
    ("extras", "warning", "aws: boto3 1.2.3 is installed ... ./install aws", lambda b: b.installed("boto3", "1.2.3")),
    ("extras", "warning", "tune: plotly is not installed ... ./install tune", lambda b: b.missing("plotly")),
    ("extras", "ok", "not installed: ... tune", lambda b: b.missing("optuna", "cupy-cuda12x", "nvidia-cudnn-cu12")),
    ("command", "warning", "finds no dl4j ... activate", own_command),
    ("command", "warning", "bin/dl4j, not", lambda b: (b.write("bin/dl4j", mode=0o755), own_command(b))[2:]),
    (
        "variables",
        "warning",
        "DL4J_WORKRES is not read (is DL4J_WORKERS meant?) ... unset DL4J_WORKRES",
        lambda b: b.environ(DL4J_WORKRES="8"),
    ),
    ("variables", "warning", "DL4J_EPOCHS is empty", lambda b: b.environ(DL4J_EPOCHS=" ")),
    ("cores", "warning", "may use 0.5 at a time", lambda b: b.container(cpu_max="50000 100000")),
    ("memory", "failed", "100.0 MiB", lambda b: b.container(memory_max=str(100 << 20), memory_current="1000")),
    ("memory", "warning", "500.0 MiB", lambda b: b.container(memory_max=str(500 << 20), memory_current="1000")),
    ("memory", "warning", "unknown", lambda b: b.returns("dl4jlegacy.system.resources.free_memory", None)),
    ("threads", "failed", "8 at a time ... ulimit -u", lambda b: b.limit(resource.RLIMIT_NPROC, 8)),
    ("threads", "warning", "100 at a time", lambda b: b.container(pids_max="100")),
    ("open files", "failed", "16 at a time", lambda b: b.limit(resource.RLIMIT_NOFILE, 16)),
    ("open files", "warning", "256 at a time", lambda b: b.limit(resource.RLIMIT_NOFILE, 256)),
    ("shared memory", "warning", "No such file", lambda b: b.patch.setattr(copies, "MEMORY", b.folder / "shm")),
    ("shared memory", "warning", "1.0 MiB free ... --shm-size", lambda b: b.space(1 << 20)),
    ("kernels", "warning", "DL4J_KERNELS ... unset", lambda b: b.environ(DL4J_KERNELS="numpy")),
    ("kernels", "failed", "nunba ... did you mean 'numba'", lambda b: b.environ(DL4J_KERNELS="nunba")),
    (
        "kernels",
        "warning",
        "Numba cannot be imported",
        lambda b: b.returns("dl4jlegacy.doctor.kernels.load_for_host", load("numpy")),
    ),
    ("kernel cache", "warning", "NUMBA_CACHE_DIR", lambda b: b.returns(CACHE, None)),
    ("kernel cache", "ok", "2 files", lambda b: cached(b, "other.nbc", b"\x80\x04K\x01.")),
    ("kernel cache", "warning", "1 file of 2 ... empty.nbi ... --fix", lambda b: cached(b, "empty.nbi", b"")),
    ("kernel cache", "warning", "half.nbc", lambda b: cached(b, "half.nbc", b"\x80\x04\x8c\x99cut short")),
    ("kernel cache", "warning", "garbage.nbi", lambda b: cached(b, "garbage.nbi", b"garbage of a damaged disk")),
    ("kernel cache", "warning", "underflow.nbc", lambda b: cached(b, "underflow.nbc", b"\x80\x04.")),
    ("compiled kernels", "failed", "softmax computes something else", wrong_softmax),
    (
        "compiled kernels",
        "failed",
        "differs by nan",
        lambda b: b.patch.setattr(load("numba"), "column_sums", lambda x, out: out.fill(np.nan)),
    ),
    (
        "current folder",
        "failed",
        "has been removed",
        lambda b: ((b.folder / "gone").mkdir(), b.patch.chdir("gone"), (b.folder / "gone").rmdir())[3:],
    ),
    ("current folder", "failed", "1.0 MiB free ... make room", lambda b: b.space(1 << 20)),
    ("current folder", "warning", "500.0 MiB free", lambda b: b.space(500 << 20)),
    (
        "current folder",
        "failed",
        "Permission denied ... chown",
        lambda b: b.returns("dl4jlegacy.system.files.check_replaceable", PermissionError(13, "Permission denied")),
    ),
    ("cache folder", "warning", "does not exist ... --fix", lambda b: None),
    (
        "cache folder",
        "failed",
        "is a file",
        lambda b: (b.write("dl4jlegacy"), b.environ(XDG_CACHE_HOME="@"))[2:],
    ),
    ("cache folder", "failed", "no folder for caches", lambda b: b.returns("pathlib.Path.home", RuntimeError("none"))),
    ("temporary folder", "failed", "TMPDIR", lambda b: b.returns("tempfile.gettempdir", FileNotFoundError(2, "None"))),
    ("file locks", "warning", "No locks ... local disk", lambda b: b.returns("fcntl.flock", OSError(37, "No locks"))),
    ("data folder", "warning", "data does not exist ... --fix", lambda b: {"data_dir": str(b.folder / "data")}),
    ("data folder", "failed", "data is a file", lambda b: {"data_dir": str(b.write("data"))}),
    ("data folder", "failed", "no folder that can", lambda b: {"data_dir": str(b.write("file") / "data")}),
    ("data folder", "failed", "path of this machine", lambda b: {"data_dir": "s3:/bucket"}),
    ("MNIST", "skipped", "12 MB", lambda b: {"data_dir": str(b.folder)}),
    (
        "MNIST",
        "warning",
        "train-images-idx3-ubyte ... delete",
        lambda b: {"data_dir": str(b.write("train-images-idx3-ubyte", DAMAGED_IMAGES).parent)},
    ),
    ("host name", "warning", "here leads to 127.0.1.1 ... --bind", lambda b: host_named(b, "127.0.1.1")),
    ("host name", "warning", "203.0.113.7, which is no address", lambda b: host_named(b, "203.0.113.7")),
    ("host name", "warning", "no address: no", lambda b: b.returns("socket.getaddrinfo", socket.gaierror("no"))),
    (
        "proxies",
        "warning",
        "//...@proxy:3128 ... export no_proxy",
        lambda b: b.patch.setenv("HTTPS_PROXY", "http://me:hunter2@proxy:3128"),
    ),
    ("clock", "warning", "1:00:00 (h:m:s) behind that of 127.0.0.1", lambda b: b.web(3600.0)),
    ("clock", "warning", "(h:m:s) ahead of", lambda b: b.web(-3600.0, status=404)),
    ("clock", "ok", "differ by", lambda b: b.web(0.0)),
    ("clock", "warning", "says no time", lambda b: b.web(None)),
    ("clock", "warning", "does not answer ... refused", lambda b: {"clock_url": "http://127.0.0.1:1"}),
    (
        "Java",
        "warning",
        "is Java 8 ... Java 17 or newer",
        lambda b: (b.write("jdk/bin/java", OLD_JAVA, 0o755), b.java(JAVA_HOME="@/jdk"))[2:],
    ),
    ("Java", "skipped", "only dl4j services ... ./install services", lambda b: b.java()),
    ("local services", "warning", "zookeeper has ended", lambda b: b.services(is_running=False)),
    ("local services", "warning", "does not answer ... logs", lambda b: b.services(is_running=True)),
    (
        "local services",
        "warning",
        "services.json cannot be read",
        lambda b: b.environ(DL4J_SERVICES=str(b.write("services.json", "{").parent)),
    ),
    ("secret", "failed", "10.0.0.7:2181 ... DL4J_SECRET_FILE", lambda b: {"zookeeper": "10.0.0.7:2181"}),
    (
        "secret",
        "warning",
        "10.0.0.7:5701 ... DL4J_ALLOW_UNSIGNED",
        lambda b: b.environ(DL4J_ALLOW_UNSIGNED="1") or {"tracker": "hazelcast://10.0.0.7:5701"},
    ),
    ("secret", "failed", "No such file", lambda b: b.environ(DL4J_SECRET_FILE="@/none")),
    ("secret", "warning", "3 bytes ... guess", lambda b: b.environ(DL4J_SECRET="abc")),
    ("secret", "warning", "chmod 600", lambda b: b.environ(DL4J_SECRET_FILE=str(b.write("secret", "x" * 40)))),
    ("tracker", "failed", "127.0.0.1:1: the machine answers, but", lambda b: {"tracker": "hazelcast://127.0.0.1:1"}),
    ("tracker", "failed", "leads to no address", lambda b: {"tracker": "hazelcast://no-such-host.invalid:5701"}),
    ("tracker", "failed", "no answer within ... firewall", tracker(TimeoutError())),
    ("tracker", "failed", "unreachable ... on a network from which", tracker(OSError(101, "unreachable"))),
    ("tracker", "failed", "is no address ... host:port", lambda b: {"tracker": "hazelcast://127.0.0.1"}),
    (
        "tracker",
        "warning",
        "1 server of 2 not reached",
        lambda b: {"tracker": f"{grid(b, '5.7.0')['tracker']},127.0.0.1:1", "cluster_name": "dev"},
    ),
    (
        "tracker",
        "failed",
        "no Hazelcast",
        lambda b: impatient(b, tracker=f"hazelcast://{b.server(b'220 ESMTP')}", cluster_name="dev"),
    ),
    ("tracker", "warning", "Hazelcast 4.2.8 ... 5.7", lambda b: grid(b, "4.2.8")),
    ("Zookeeper", "failed", "nobody listens", lambda b: {"zookeeper": "127.0.0.1:1"}),
    ("Zookeeper", "failed", "does not answer as ... srvr", lambda b: {"zookeeper": b.server(b"220 ESMTP")}),
    ("Zookeeper", "failed", "does not see the greater part", lambda b: {"zookeeper": b.server(WAITING)}),
    (
        "Zookeeper",
        "warning",
        "1 of 2 servers serving",
        lambda b: {"zookeeper": f"{b.server(ZOOKEEPER)},{b.server(WAITING)}"},
    ),
    (
        "Zookeeper",
        "warning",
        "Zookeeper 3.4.14 ... 3.9",
        lambda b: {"zookeeper": b.server(ZOOKEEPER.replace(b"3.9.5", b"3.4.14"))},
    ),
    (
        "Zookeeper session",
        "failed",
        "did not answer within 0.5 s",
        lambda b: impatient(b, zookeeper=b.server(ZOOKEEPER)),
    ),
    ("Zookeeper session", "warning", "1 day, 0:00:00 (h:m:s) ahead of", lambda b: session(b, -86400.0)),
    ("Zookeeper session", "skipped", "no node", lambda b: session(b, NotAuthorisedError("no"))),
    (
        "GPU driver",
        "failed",
        "no driver that programs can use ... --gpus all",
        lambda b: b.patch.setattr(NODES, (str(b.folder),)) or b.returns("ctypes.CDLL", NO_LIBRARY),
    ),
    (
        "GPU driver",
        "failed",
        "nvidia-smi",
        lambda b: b.returns("ctypes.CDLL", SimpleNamespace(cuDriverGetVersion=lambda version: 999)),
    ),
    (
        "GPU driver",
        "skipped",
        "no NVIDIA GPU",
        lambda b: b.patch.setattr(NODES, ()) or b.returns("ctypes.CDLL", NO_LIBRARY),
    ),
    (
        "CuPy",
        "failed",
        "not installed ... ./install gpu",
        lambda b: b.returns("importlib.metadata.distributions", []) or {"device": "gpu"},
    ),
    (
        "CuPy",
        "failed",
        "pip uninstall cupy-cuda12x cupy-cuda13x",
        lambda b: b.installed("cupy_cuda12x", "14.0") or b.installed("cupy_cuda13x", "14.0"),
    ),
    (
        "CuPy",
        "failed",
        "cannot be imported: file too short",
        lambda b: (
            b.installed("cupy_cuda12x", "14.0")
            or b.returns("dl4jlegacy.doctor.gpus.import_cupy", ImportError("file too short"))
        ),
    ),
    (
        "GPUs",
        "failed",
        "somebody else's ... nvidia-smi",
        lambda b: b.returns("dl4jlegacy.arrays.devices.choose", HANGS) or {"device": "gpu"},
    ),
    ("GPUs", "failed", "on gpu:0 matrix product", lambda b: gpu(b, matmul=lambda a, b, out: out.fill(7.0))),
    ("cuDNN", "warning", "is missing", lambda b: gpu(b, convolution_path="own", convolution_reason="is missing")),
    ("AWS credentials", "warning", "not reached ... proxy", lambda b: aws(b, "not reached: timeout")),
    ("AWS credentials", "warning", "does not accept ... renew them", lambda b: aws(b, caller=EXPIRED)),
    ("AWS credentials", "skipped", "no AWS credentials", lambda b: None),
)
KNOWN = frozenset({"DL4J_WORKERS", "DL4J_EPOCHS"})


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Broken]:
    for name in list(os.environ):
        if name.startswith(("DL4J_", "AWS_", "CUDA_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as stack:
        yield Broken(monkeypatch, tmp_path, stack)


@pytest.fixture(scope="module", autouse=True)
def kernels_are_ready() -> None:
    """Compile the kernels of the checks, so that no test is the one that waits for it."""
    assert compiled_kernels(Settings()).status == "ok"


@pytest.mark.parametrize(
    ("name", "status", "words", "break_it"), CASES, ids=[f"{case[0]}: {case[2]}" for case in CASES]
)
def test_it_is_noticed(name: str, status: str, words: str, break_it: Any, broken: Broken) -> None:
    fields = break_it(broken) or {}
    settings = Settings(environ=dict(os.environ), variables=KNOWN, **fields)
    [check] = [each for each in all_checks() if each.name == name]
    finding = _finding(check, settings)
    said = f"{finding.found} -> {finding.remedy}"
    assert finding.status == status, said
    assert all(word in said for word in words.split(" ... ")), said
    assert finding.remedy or finding.status in ("ok", "skipped"), said
    assert "the check itself failed" not in said and "hunter2" not in said


def test_every_check_is_broken_at_least_once_and_needs_an_earlier_one() -> None:
    before = {""}
    for check in all_checks():
        assert check.name not in before and check.need in before, check.name
        before.add(check.name)
    assert before == {"", *(name for name, status, _, _ in CASES if status in ("failed", "warning"))}
