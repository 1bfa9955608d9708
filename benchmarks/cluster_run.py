"""An observed run of a master and workers in processes of their own, as ``dl4j master`` and ``dl4j worker`` make one.

The children call ``run_master`` and ``run_worker``; in addition they record the time whenever the master issues jobs or
moves the head, and whenever a worker performs a job or commits it (on the clock of the one machine).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import command_line
import measured

NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Task:
    """The training: ``rounds`` rounds of ``slots`` jobs of ``batches`` batches each, on generated data."""

    rounds: int
    slots: int
    hidden: tuple[int, ...] = (8,)
    n_in: int = 8
    n_out: int = 2
    batch: int = 8
    batches: int = 1
    min_workers: int = 4
    deadline: float = 300.0
    updater: str = "sgd"
    router: str = "iterative-reduce"
    router_args: dict[str, Any] = field(default_factory=dict)
    notes: bool = True  # times of each job; they take memory
    dataset: str = ""  # read by the workers themselves, instead of generated data that travel with the jobs


@dataclass
class Head:
    """A move of the head by the master: time in seconds since 1970, version, round; the master's memory in bytes."""

    time: float
    version: int
    round: int
    rss: int
    peak: int


@dataclass
class ClusterRun:
    """A run on the servers of ``measured.services``; a context manager that leaves no process behind."""

    servers: Any
    task: Task
    workers: int = 4
    host: str = "127.0.0.1"  # the master's address
    worker_prefix: Sequence[str] = ()  # command prefix to start a worker elsewhere
    heads: list[Head] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    master: subprocess.Popen[str] | None = None
    answer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        number = next(NUMBERS)
        self.run = f"bench-{os.getpid()}-{number}"
        self._changed = threading.Condition()
        self._errors: Any = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed at the run's end
        self._notes: dict[int, Any] = {}

    def __enter__(self) -> ClusterRun:
        self.started = time.time()
        self.master = self._spawn("master", subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, args=(self.master,), daemon=True)
        self._reader.start()
        for _ in range(self.workers):
            self.add_worker()
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.processes, *([self.master] if self.master else [])):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self._reader.join(10)
        for file in (self._errors, *self._notes.values()):
            file.close()

    def add_worker(self) -> subprocess.Popen[str]:
        """Start another worker process."""
        notes = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed at the run's end
        process = self._spawn("worker", notes)
        self._notes[process.pid] = notes
        self.processes.append(process)
        return process

    def wait_for_round(self, number: int, timeout: float = 120.0) -> None:
        """Wait until the head is in round ``number``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._over() or self._round() >= number, timeout):
                raise RuntimeError(f"the run did not come to round {number} in {timeout:.0f} s{self._said()}")
        if self._round() < number:
            raise RuntimeError(f"the run ended in round {self._round()}{self._said()}")

    def finish(self) -> dict[str, Any]:
        """Wait for the end; return the report, with the workers' records: ``jobs`` by (round, slot)."""
        with self._changed:
            self._changed.wait_for(self._over, self.task.deadline)
        if "report" not in self.answer:
            raise RuntimeError(f"the run did not end well within {self.task.deadline:.0f} s{self._said()}")
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        return self.answer["report"]

    def jobs(self) -> dict[str, dict[str, float]]:
        """Return, per job key, when the job was issued and committed, and its computing time; call after the end."""
        found: dict[str, dict[str, float]] = {key: {"issued": at} for key, at in self.answer["issued"].items()}
        for process in self.processes:
            self._notes[process.pid].seek(0)
            for key, notes in json.loads(self._notes[process.pid].read() or "{}").items():
                found.setdefault(key, {}).update(notes)
        return found

    def seconds(self, first: int, last: int | None = None) -> float:
        """Return the seconds from the beginning of round ``first`` to that of round ``last``, or to the end."""
        begin = next(head.time for head in self.heads if head.round >= first)
        return next((head.time for head in self.heads if last and head.round >= last), self.heads[-1].time) - begin

    def _round(self) -> int:
        return self.heads[-1].round if self.heads else -1

    def _over(self) -> bool:
        return bool(self.answer) or self.master is None or self.master.poll() is not None

    def _said(self) -> str:
        self._errors.seek(0)
        return f"; its processes said:\n{self._errors.read()[-4000:]}"

    def _spawn(self, role: str, output: Any) -> subprocess.Popen[str]:
        where = {
            "zookeeper": self.servers.zookeeper,
            "hazelcast": self.servers.hazelcast,
            "cluster_name": self.servers.cluster_name,
            "run": self.run,
            "host": self.host,
            "task": dataclasses.asdict(self.task),
        }
        return subprocess.Popen(
            [*(self.worker_prefix if role == "worker" else ()), sys.executable, __file__, role, json.dumps(where)],
            stdout=output,
            stderr=self._errors,
            text=True,
            env=measured.ENVIRONMENT,
        )

    def _read(self, master: subprocess.Popen[str]) -> None:
        assert master.stdout is not None
        for line in master.stdout:
            message = json.loads(line)
            with self._changed:
                if "head" in message:
                    self.heads.append(Head(*message["head"]))
                else:
                    self.answer = message
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


# -- in the children ---------------------------------------------------------------------------------------------------


def memory() -> tuple[int, int]:
    """Return this process's present memory, and its peak since the last call, in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    with contextlib.suppress(OSError):  # begin a new peak
        Path("/proc/self/clear_refs").write_text("5")
    return tuple(int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def be_master(where: dict[str, Any]) -> None:
    from dl4jlegacy.cluster.address import ClusterAddress
    from dl4jlegacy.cluster.leadership import MasterOptions
    from dl4jlegacy.cluster.master import run_master
    from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
    from dl4jlegacy.scaleout.state.records import HEAD, decode_record
    from dl4jlegacy.scaleout.state.records import Head as HeadRecord
    from dl4jlegacy.training import prepare as training
    from dl4jlegacy.training import run_data
    from dl4jlegacy.training.run import resolve

    task = Task(**where["task"])
    ready = run_data.load_data(task.dataset) if task.dataset else invented(task)
    issued: dict[str, float] = {}
    replace, add = HazelcastStore.replace_if_same, HazelcastStore.put_many_if_absent

    def watch_head(self: Any, key: str, expected: Any, value: Any) -> bool:
        changed = replace(self, key, expected, value)
        if changed and key == HEAD:
            head = decode_record(value, HeadRecord)
            print(json.dumps({"head": (time.time(), head.version, head.round, *memory())}), flush=True)
        return changed

    def watch_jobs(self: Any, items: Any) -> list[bool]:
        items = list(items)
        now = time.time()
        for key, _ in items:
            if key.startswith("job/"):
                issued.setdefault(key, now)
        return add(self, items)

    HazelcastStore.replace_if_same = watch_head  # type: ignore[method-assign]
    if task.notes:
        HazelcastStore.put_many_if_absent = watch_jobs  # type: ignore[method-assign]
    conf = conf_of(task).replace(
        run=where["run"],
        state_tracker_connection_string=where["hazelcast"],
        cluster_name=where["cluster_name"],
    )
    address = ClusterAddress(where["zookeeper"], measured.SECRET.encode(), where["run"])
    print(json.dumps({"head": (time.time(), -1, -1, *memory())}), flush=True)
    run = resolve(conf, training.batches(conf, ready), local_workers=0, on_cluster=True)
    report = run_master(run, ready, address, MasterOptions(bind=where["host"]))
    print(json.dumps({"report": report.fields, "issued": issued}), flush=True)


def be_worker(where: dict[str, Any]) -> None:
    from dl4jlegacy.cluster.address import ClusterAddress
    from dl4jlegacy.cluster.worker import run_worker
    from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
    from dl4jlegacy.scaleout.state.records import JobRecord, Keys, decode_record
    from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer

    notes: dict[str, dict[str, float]] = {}
    replace, perform = HazelcastStore.replace_if_same, MultiLayerNetworkPerformer.perform

    def watch_commits(self: Any, key: str, expected: Any, value: Any) -> bool:
        changed = replace(self, key, expected, value)
        if changed and key.startswith("job/"):
            state = decode_record(value, JobRecord).state
            if state in ("leased", "done"):
                notes.setdefault(key, {}).setdefault("leased" if state == "leased" else "committed", time.time())
        return changed

    def watch_jobs(self: Any, job: Any) -> Any:
        start = time.perf_counter()
        result = perform(self, job)
        notes.setdefault(Keys.job(job.slot.round, job.slot.slot), {})["computed"] = time.perf_counter() - start
        return result

    if where["task"]["notes"]:
        HazelcastStore.replace_if_same = watch_commits  # type: ignore[method-assign]
        MultiLayerNetworkPerformer.perform = watch_jobs  # type: ignore[method-assign]
    address = ClusterAddress(where["zookeeper"], measured.SECRET.encode(), where["run"])
    run_worker(address, workers=1)
    print(json.dumps(notes), flush=True)


def conf_of(task: Task) -> Any:
    from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
    from dl4jlegacy.nn.layers.layer import DenseLayer
    from dl4jlegacy.nn.layers.output import OutputLayer
    from dl4jlegacy.nn.optimization.updaters import AdaGrad, Sgd
    from dl4jlegacy.scaleout.conf import Conf

    sizes = (task.n_in, *task.hidden)
    layers = [DenseLayer(n_in=n_in, n_out=n_out) for n_in, n_out in itertools.pairwise(sizes)]
    output = OutputLayer(n_in=sizes[-1], n_out=task.n_out, activation="softmax")
    updater = {"sgd": Sgd, "adagrad": AdaGrad}[task.updater](learning_rate=0.01)
    conf = NeuralNetConfiguration(activation="relu", updater=updater)
    return Conf(
        multi_layer_conf=MultiLayerConfiguration(conf=conf, layers=(*layers, output)),
        batch_size=task.batch,
        epochs=task.rounds,
        workers=4,
        jobs_per_round=task.slots,
        averaging_frequency=task.batches,
        router=task.router,
        router_args=task.router_args,
        min_workers=task.min_workers,
        **({"dataset": task.dataset, "data_by_reference": True} if task.dataset else {}),
    )


def invented(task: Task) -> Any:
    """Generate the data of one round: each epoch is a round."""
    import numpy as np

    from dl4jlegacy.datasets import DataSet, DataSource, Reading

    rng = np.random.default_rng(1)
    x = rng.random((task.batch * task.batches * task.slots, task.n_in), dtype=np.float32)
    parts = np.linspace(0, task.n_in, task.n_out + 1)[1:-1]
    train = DataSet.of_classes(x, np.digitize(x.sum(axis=1), parts, right=True), task.n_out)
    reading = Reading(label_names=tuple(map(str, range(task.n_out))))
    return DataSource("invented", train, train.rows(0, task.batch), reading)


if __name__ == "__main__":
    parser = command_line.parser(__doc__)
    parser.add_argument("role", choices=("master", "worker"), help="what this process is")
    parser.add_argument("where", metavar="JSON", type=json.loads, help="the servers and the task")
    arguments = parser.parse_args()
    {"master": be_master, "worker": be_worker}[arguments.role](arguments.where)
