"""Crowds of strangers at the ports of a process: what it does goes on, ends in the same bits, and costs no more."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dl4jlegacy.nn import MultiLayerNetwork, write_model, zoo
from dl4jlegacy.scaleout.links.liveness.handshake import LIVENESS
from dl4jlegacy.scaleout.links.mesh.wire import MESSAGES
from dl4jlegacy.services import ServicesState
from tests.support import REPOSITORY
from tests.support.cluster_commands import HOLDS, SECRET, until
from tests.support.strangers import (
    FEW,
    HTTP,
    MANY,
    MODELS,
    PATIENCE,
    Crowd,
    Footprint,
    Speech,
    Strangers,
    Watched,
    of_the_run,
)

DL4J = (sys.executable, "-m", "dl4jlegacy")
RUN = ("--dataset", "digits", "--jobs-per-round", "4", "--batch-size", "16", "--no-validation", "--seed", "7")
TRAIN = (*DL4J, "train", "--model", "mlp", *RUN, "--router", "gradient-sharing", "--workers", "2", "--format", "json")
MORE_NBYTES, MORE_SAID = 64 << 20, 64 << 10
Address = tuple[str, int]


@dataclass(frozen=True)
class Form:
    """How many come, to a process that may open so many files, and for how long: until a round of a run, of so many."""

    crowd: Crowd
    files: int
    rounds: int
    epochs: int


SHORT, FULL = Form(FEW, 256, 30, 2), Form(MANY, 1024, 300, 15)


def answered(url: str, body: bytes | None = None) -> bytes:
    """Return an answer; who is sent away before his request is read, on a machine that is busy, asks again."""
    asked, found = urllib.request.Request(url, body, {"content-type": "application/json"}), list[bytes]()

    def is_answered() -> bool:
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
                found.append(answer.read())
        except OSError as exc:
            if not isinstance(getattr(exc, "reason", exc), ConnectionError):
                raise
        return bool(found)

    until(is_answered, PATIENCE, url)
    return found[0]


def port_of(url: str) -> Address:
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    return host, int(port)


@functools.cache
def alone(epochs: int) -> dict[str, Any]:
    """Return what comes of the run where nobody disturbs it."""
    words = [*TRAIN, "--epochs", str(epochs)]
    done = subprocess.run(words, capture_output=True, check=True, timeout=4 * PATIENCE, cwd=REPOSITORY)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Training:
    """A run that serves metrics and is held at some round, so that strangers can come to it and leave again."""

    def __init__(self, folder: Path, form: Form, *flags: str, **env: str) -> None:
        (folder / "site").mkdir()
        self._held_from, self.form = folder / "held", form
        self.hold(3)
        (folder / "site" / "sitecustomize.py").write_text(HOLDS.format(held_from=str(self._held_from)))
        words = [*TRAIN, "--epochs", str(form.epochs), "--log-format", "json", "--metrics-port", "0", *flags]
        self.env = {**env, "PYTHONPATH": f"{folder / 'site'}:{REPOSITORY}"}
        self.process = Watched(words, folder / "run", form.files, self.env)
        self.ports: dict[str, tuple[Address, Speech]] = {}

    def hold(self, round_: int) -> None:
        """Let it go on up to a round."""
        self._held_from.with_suffix(".new").write_text(str(round_))
        self._held_from.with_suffix(".new").replace(self._held_from)

    def url(self, what: str) -> str:
        """Return the address that it has told of what it serves."""
        found: str = json.loads(self.process.says(f'"event": "{what}"'))["url"]
        self.ports[what] = port_of(found), HTTP
        return found

    def wait_for(self, round_: int) -> None:
        """Wait until it is at a round."""

        def is_there() -> bool:
            rounds = re.search(r"^dl4j_rounds_total (\S+)", answered(self.url("metrics")).decode(), re.MULTILINE)
            return rounds is not None and float(rounds[1]) >= round_

        until(is_there, PATIENCE, f"round {round_}")

    def ends_the_same(self) -> None:
        """Let it go on to its end, which is that of a run that nobody has disturbed."""
        self._held_from.unlink()
        found, expected = json.loads(self.process.ends()), alone(self.form.epochs)
        for name in ("params_sha256", "examples", "batches_lost", "batches_duplicated"):
            assert found[name] == expected[name], name


@contextlib.contextmanager
def crowded(process: Watched, ports: dict[Address, Speech], crowd: Crowd, more_files: int = 0) -> Iterator[Footprint]:
    """Have strangers at some ports in the body; check what they have cost the process, and that it has that back.

    Args:
        process: it is there, and has been asked whatever it is asked in the body.
        ports: where they come, and what they say.
        crowd: how many come to each.
        more_files: what the body itself leaves open.
    """
    before = process.footprint()
    with Strangers(ports, crowd) as strangers:
        assert strangers.all_came.wait(PATIENCE)
        yield before
    until(lambda: process.footprint().files <= before.files + more_files, PATIENCE, "as few open files as before")
    more, said = process.most_nbytes - before.nbytes, process.footprint().said - before.said
    print(f"{sorted(ports)}: {sum(strangers.came.values())} came, {more:,} bytes more, {said:,} bytes said")
    assert more < MORE_NBYTES and said < MORE_SAID


def each(*several: str) -> Any:
    """Few strangers at several ports of a process at once; the release suite has many at each."""
    cases = [pytest.param(SHORT, several, id="few")]
    cases += [pytest.param(FULL, (port,), id=f"many-{port}", marks=pytest.mark.release) for port in several]
    return pytest.mark.parametrize(("form", "ports"), cases)


@pytest.mark.long
@each("dashboard", "metrics")
def test_strangers_at_what_a_training_serves_change_nothing(form: Form, ports: tuple[str, ...], tmp_path: Path) -> None:
    training = Training(
        tmp_path, form, "--ui", "--checkpoint-dir", "kept", "--checkpoint-every", "50", DL4J_UI_PORT="0"
    )
    with training.process:
        asked = f"{training.url('dashboard')}api/v1/run"
        training.wait_for(3)
        assert answered(asked)
        with crowded(training.process, dict(training.ports[port] for port in ports), form.crowd):
            training.hold(form.rounds)
            training.wait_for(form.rounds)
            assert answered(asked)
        training.ends_the_same()


@pytest.mark.cluster
@pytest.mark.long
@each("master", "mesh")
def test_strangers_where_a_runs_processes_speak_to_each_other_change_nothing(
    form: Form, ports: tuple[str, ...], session_services: ServicesState, tmp_path: Path
) -> None:
    """And a worker that comes while they are there takes part; where it is given time, it finds its place at both."""
    servers = ("--tracker", f"hazelcast://{session_services.hazelcast}", "--zookeeper", session_services.zookeeper)
    named = ("--cluster-name", session_services.cluster_name, "--id", "crowded", "--run", "crowded")
    training = Training(tmp_path, form, *servers, *named, "--mesh", "mesh", DL4J_SECRET=SECRET)
    with training.process as process:
        training.url("metrics")
        training.wait_for(3)
        for where in listening(process) - {training.ports["metrics"][0]}:
            magic = first_said(where)
            training.ports |= {name: (where, of_the_run(c)) for name, c in KINDS.items() if c.magic == magic}
        wanted = {training.ports[name][0] for name in KINDS}
        with crowded(process, dict(training.ports[port] for port in ports), form.crowd, more_files=len(wanted)):
            words = [*DL4J, "worker", "--zookeeper", session_services.zookeeper, "--id", "crowded"]
            worker = Watched(words, tmp_path / "worker", form.files, training.env)  # which holds it, too
            training.hold(form.rounds)
            training.wait_for(form.rounds)
            worker.says("joined: run crowded")
            if form is FULL:
                until(lambda: wanted <= reached(worker), PATIENCE, "the worker has found its places")
        with worker:
            training.ends_the_same()
            worker.ends()


KINDS = {"master": LIVENESS, "mesh": MESSAGES}


def lines_of(process: Watched) -> list[Any]:
    return psutil.Process(process.process.pid).net_connections("tcp")


def listening(process: Watched) -> set[Address]:
    return {tuple(line.laddr) for line in lines_of(process) if line.status == "LISTEN"}


def reached(process: Watched) -> set[Address]:
    return {tuple(line.raddr) for line in lines_of(process) if line.status == "ESTABLISHED"}


def first_said(where: Address) -> bytes:
    """Return the first word that is said to whoever comes."""
    with socket.create_connection(where, PATIENCE) as line:
        return line.recv(len(LIVENESS.magic), socket.MSG_WAITALL)


# -- a model server ----------------------------------------------------------------------------------------------------

ASKED = json.dumps({"rows": [[5.1, 3.5, 1.4, 0.2], [6.2, 2.9, 4.3, 1.3]]}).encode()


def model(seed: int) -> MultiLayerNetwork:
    network = MultiLayerNetwork(zoo.mlp(4, 3, hidden=(16,)))
    network.init()
    network.set_params(np.random.default_rng(seed).normal(size=network.num_params).astype(np.float32))
    return network


@pytest.mark.long
@pytest.mark.parametrize(
    "form", [pytest.param(SHORT, id="few"), pytest.param(FULL, id="many", marks=pytest.mark.release)]
)
def test_strangers_at_a_model_server_change_no_answer_and_no_model(form: Form, tmp_path: Path) -> None:
    """Predictions go on in equal bits, on a new connection each, and a model that is replaced then is taken."""
    served = tmp_path / "model.zip"
    write_model(model(1), served)
    with Watched(
        [*DL4J, "serve", str(served), "--port", "0", "--format", "json"], tmp_path / "run", form.files
    ) as server:
        url = json.loads(server.says('"url"'))["url"]
        first = answered(f"{url}/predict", ASKED)
        with crowded(server, {port_of(url): MODELS}, form.crowd):
            for _ in range(20):
                assert answered(f"{url}/predict", ASKED) == first
            write_model(model(2), served)
            until(lambda: answered(f"{url}/predict", ASKED) != first, PATIENCE, "the new model answers")
            write_model(model(1), served)
            until(lambda: answered(f"{url}/predict", ASKED) == first, PATIENCE, "the first one is back")
        assert answered(f"{url}/predict", ASKED) == first
