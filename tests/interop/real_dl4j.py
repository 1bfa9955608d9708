"""The real Deeplearning4j in a Java of its own: ``RealDl4j.java`` compiled, started once, and asked many times."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.services.jars import Jar, fetch_jars
from dl4jlegacy.services.java import find_java
from dl4jlegacy.system.subprocesses import run_command

HERE = Path(__file__).parent
VERSIONS = ("0.9.1", "1.0.0-M2.1")
ANSWER_SECONDS = 120.0
_COMPILE_SECONDS = 120.0
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Small networks do not win back what Java's optimizing compiler costs."""
_OPENS = ("java.base/java.lang", "java.base/java.nio", "java.base/java.util", "java.base/sun.nio.ch")

Arrays = Mapping[str, Sequence[np.ndarray]]
"""Arrays by what they are: ``x`` inputs, ``l`` labels, ``fm`` and ``lm`` the masks of both."""


class Refused(Exception):
    """Deeplearning4j could not read, build or run it; the message is its exception's."""


@dataclass(frozen=True)
class Answer:
    """What Deeplearning4j made of a network: outputs, flat vectors, its own JSON; ``after`` is one training step on."""

    outputs: list[np.ndarray]
    params: np.ndarray
    state: np.ndarray | None
    after: np.ndarray | None
    score: float
    configuration: dict[str, Any]


@dataclass
class RealDl4j:
    """One running Java with one version of the library; for one thread."""

    version: str
    process: subprocess.Popen[str]
    scratch: Path
    count: int = field(default=0)

    def load(self, model: Path, arrays: Arrays, *, save: Path | None = None, step: bool = False) -> Answer:
        """Read a model file and run it; raise ``Refused`` if Deeplearning4j does not."""
        return self._network({"model": str(model)}, arrays, save, step=step)

    def build(
        self,
        network: Mapping[str, Any],
        arrays: Arrays,
        *,
        save: Path | None = None,
        steps: int = 0,
        step: bool = False,
        normalizer: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Build a network with Deeplearning4j's own builders, train it ``steps`` batches, save it, run it."""
        request: dict[str, Any] = {"network": network, "steps": steps}
        if normalizer is not None:
            request["with_normalizer"] = normalizer
        return self._network(request, arrays, save, step=step)

    def normalized(self, normalizer: Path | Mapping[str, Any], arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Return features and labels as a normalizer leaves them: a model file's, or one that is fitted to them."""
        given = str(normalizer) if isinstance(normalizer, Path) else normalizer
        with self._folder(arrays) as folder:
            self._ask({"folder": str(folder), "normalizer": given})
            return read_array(folder / "nx"), read_array(folder / "nl")

    def _network(self, request: dict[str, Any], arrays: Arrays, save: Path | None, *, step: bool) -> Answer:
        with self._folder(arrays) as folder:
            request |= {"folder": str(folder), "step": step}
            if save is not None:
                request["save"] = str(save)
            answer = self._ask(request)
            return Answer(
                outputs=[read_array(folder / f"y{i}") for i in range(answer["outputs"])],
                params=read_array(folder / "params").ravel(),
                state=read_array(folder / "state").ravel() if (folder / "state").exists() else None,
                after=read_array(folder / "after").ravel() if step else None,
                score=answer.get("score", 0.0),
                configuration=json.loads(answer["configuration"]),
            )

    @contextlib.contextmanager
    def _folder(self, arrays: Arrays) -> Iterator[Path]:
        self.count += 1
        folder = self.scratch / str(self.count)
        folder.mkdir()
        for name, several in arrays.items():
            for i, array in enumerate(several):
                write_array(folder / f"{name}{i}", array)
        yield folder
        shutil.rmtree(folder)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        late = threading.Timer(ANSWER_SECONDS, self.process.kill)
        late.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            late.cancel()
            late.join()
        assert line, f"Deeplearning4j {self.version} ended at {json.dumps(request)[:2000]}"
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer


@contextlib.contextmanager
def running(version: str, scratch: Path) -> Iterator[RealDl4j]:
    """Run one version of the library; its files are kept in ``scratch``."""
    pinned = msgspec.json.decode((HERE / "jars.json").read_bytes(), type=dict[str, tuple[Jar, ...]])
    jars = fetch_jars(pinned[version])
    [compiler] = fetch_jars(pinned["compiler"])
    java = find_java().path
    classes = scratch / "classes"
    command = [str(java), *_QUICK, "-jar", str(compiler), "-source", "11", "-target", "11", "-nowarn", "-proc:none"]
    path = os.pathsep.join(map(str, jars))
    done = run_command([*command, "-cp", path, "-d", str(classes), str(HERE / "RealDl4j.java")], _COMPILE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    options = ["-Xmx2g", "-Djavacpp.platform=linux-x86_64", f"-Dorg.bytedeco.javacpp.cachedir={scratch / 'javacpp'}"]
    options += [f"--add-opens={opened}=ALL-UNNAMED" for opened in _OPENS]
    arguments = [str(java), *_QUICK, *options, "-cp", os.pathsep.join([str(classes), path]), "RealDl4j"]
    log = scratch / "java.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        try:
            yield RealDl4j(version, process, scratch)
        finally:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20.0)
            process.stdout.close()


def write_array(path: Path, array: np.ndarray) -> None:
    """Write rank, sizes and values, all big-endian, as ``RealDl4j.java`` reads them."""
    sizes = np.array([array.ndim, *array.shape], ">i4")
    path.write_bytes(sizes.tobytes() + np.ascontiguousarray(array, ">f8").tobytes())


def read_array(path: Path) -> np.ndarray:
    """Read what ``RealDl4j.java`` wrote."""
    data = path.read_bytes()
    rank = int(np.frombuffer(data, ">i4", 1)[0])
    shape = np.frombuffer(data, ">i4", rank, 4)
    values = np.frombuffer(data, ">f8", offset=4 + 4 * rank).astype(float)
    return values.reshape([int(size) for size in shape])
