"""Workers that round differently: on GPUs (stand-ins), on CPUs that sum in another order. They follow their run, say
where they compute, and may be mixed."""

from __future__ import annotations

import json
import sys

import pytest

from tests.kernels.test_arithmetic import ANOTHER_PROCESSOR, OTHER_CORE
from tests.support import REPOSITORY
from tests.support.cluster_commands import Cluster, Command, error
from tests.support.standin_commands import STANDIN

pytestmark = [pytest.mark.cluster, pytest.mark.long]

PROGRAM = [sys.executable, "-m", "tests.support.standin.command"]
FEW = ["--model", "mlp", "--dataset", "digits", "--jobs-per-round", "4", "--seed", "7", "--epochs", "3"]
PATH = str(REPOSITORY)


def gpu_worker(cluster: Cluster, gpus: int, *flags: str, name: str = "Stand-in GPU") -> Command:
    """Start a worker on a machine with so many GPUs of that name."""
    env = {"PYTHONPATH": PATH, "STANDIN_GPU": name}
    return cluster.start("worker", "--zookeeper", cluster.zookeeper, *flags, program=[*PROGRAM, str(gpus)], env=env)


def devices(worker: Command) -> list[dict]:
    events = [json.loads(line) for line in worker.err().splitlines() if line.startswith("{")]
    return [event for event in events if event["event"] == "device"]


def test_a_master_without_a_gpu_leads_workers_that_have_them(cluster: Cluster) -> None:
    master = cluster.master("--device", "gpu", run=FEW)
    worker = gpu_worker(cluster, 2, "--log-format", "json")
    assert master.wait() == 0 == worker.wait(), master.err() + worker.err()
    report = json.loads(master.out())
    alone = STANDIN.dl4j("train", *FEW, "--device", "gpu")
    assert report["params_sha256"] == alone["params_sha256"] and report["kernels"] == "cupy"
    found = [(event["worker"][-2:], event["device"], event["name"], event["uuid"]) for event in devices(worker)]
    assert found == [
        ("-0", "gpu:0", "Stand-in GPU", "GPU-00000000-0000-0000-0000-000000000000"),
        ("-1", "gpu:1", "Stand-in GPU", "GPU-01010101-0101-0101-0101-010101010101"),
    ]


def test_a_worker_without_a_gpu_is_refused_and_one_that_wants_a_gpu_on_a_cpus_run_too(cluster: Cluster) -> None:
    master = cluster.master("--device", "gpu", "--run", "on-gpus", run=[*FEW, "--epochs", "30"])
    # The master waits for workers: neither of these may become one.
    without = cluster.worker(env={"CUDA_VISIBLE_DEVICES": ""})
    error(without, 3, "DL4J-DEVICE", "run on-gpus computes on GPUs, and this worker cannot join it: ")
    error(cluster.worker("--device", "cpu"), 3, "run on-gpus computes on GPUs", "on cpu", "--mixed-devices")
    cluster.ask("stop")
    master.wait()
    master = cluster.master("--run", "on-cpus", run=[*FEW, "--epochs", "30"])
    error(gpu_worker(cluster, 1, "--device", "gpu"), 3, "run on-cpus computes on CPUs", "on gpu", "--mixed-devices")
    cluster.ask("stop")
    master.wait()


def test_a_mixed_run_takes_workers_of_both_kinds_and_says_so(cluster: Cluster) -> None:
    master = cluster.master("--mixed-devices", "--min-workers", "2", run=FEW)
    workers = [cluster.worker(), gpu_worker(cluster, 1, "--device", "gpu", "--device-memory-limit", "512MiB")]
    assert master.wait() == 0, master.err()
    assert [worker.wait() for worker in workers] == [0, 0]
    report = json.loads(master.out())
    assert report["mixed_devices"] is True and report["batches_lost"] == 0 and report["accuracy"] > 0.8
    assert "need not give the same bits" in master.err()
    assert "gpu:0 Stand-in GPU" in workers[1].err() and "limited to 512.0 MiB" in workers[1].err()


def test_gpus_of_another_kind_are_refused_and_the_status_says_what_a_worker_holds_of_its_own(cluster: Cluster) -> None:
    master = cluster.master("--device", "gpu", "--run", "shown", run=[*FEW, "--epochs", "200"])
    worker = gpu_worker(cluster, 1, "--device-memory-limit", "256MiB")
    cluster.wait_for_round(3)
    other = gpu_worker(cluster, 1, name="Another GPU")
    error(other, 9, "run shown cannot", "GPU is Stand-in GPU in the run and Another GPU here", "--mixed-devices")
    [shown] = cluster.status()["workers"]
    assert shown["kernels"] == "cupy" and shown["device"].startswith("gpu:0 ")
    assert shown["device"].endswith(" of 256.0 MiB")
    assert ", gpu:0 " in cluster.ask("status").out()
    cluster.ask("stop")
    master.wait()
    worker.wait()


def test_workers_on_processors_of_all_kinds_end_in_the_bits_of_one(cluster: Cluster) -> None:
    master = cluster.master("--min-workers", "2", run=FEW)
    workers = [cluster.worker(), cluster.worker(env=ANOTHER_PROCESSOR)]
    assert master.wait() == 0, master.err()
    assert [worker.wait() for worker in workers] == [0, 0]
    report = json.loads(master.out())
    assert report["batches_lost"] == 0 and not report["mixed_devices"]
    alone = cluster.start("train", *FEW, "--format", "json")
    assert alone.wait() == 0
    assert report["params_sha256"] == json.loads(alone.out())["params_sha256"]


def test_a_worker_whose_blas_sums_in_another_order_is_refused_and_the_answer_is_that_of_the_others(
    cluster: Cluster,
) -> None:
    cluster.hold(1)
    numpy = {"DL4J_KERNELS": "numpy"}
    master = cluster.master("--run", "alike", run=[*FEW, "--epochs", "10"], env=numpy)
    worker = cluster.worker()
    cluster.wait_for_round(1)
    refused = cluster.worker(env={"OPENBLAS_CORETYPE": OTHER_CORE})
    error(refused, 9, "DL4J-VERSION", "run alike cannot be computed on here: BLAS is ", f"{OTHER_CORE} here")
    assert "--mixed-devices" in refused.err() and "docs/mixed-cpus.md" in refused.err()
    cluster.let_go()
    assert master.wait() == 0 == worker.wait(), master.err() + worker.err()
    alone = cluster.start("train", *FEW, "--epochs", "10", "--format", "json", env=numpy)
    assert alone.wait() == 0
    assert json.loads(master.out())["params_sha256"] == json.loads(alone.out())["params_sha256"]


def test_a_mixed_run_takes_a_worker_with_another_blas_and_everybody_says_so(cluster: Cluster) -> None:
    numpy = {"DL4J_KERNELS": "numpy"}
    master = cluster.master("--mixed-devices", "--min-workers", "2", "--run", "mixed", run=FEW, env=numpy)
    workers = [cluster.worker(), cluster.worker(env={"OPENBLAS_CORETYPE": OTHER_CORE})]
    assert master.wait() == 0, master.err()
    assert [worker.wait() for worker in workers] == [0, 0]
    assert "need not give the same bits" in master.err() and ", differs BLAS is " in master.err()
    said = [worker.err() for worker in workers if "run mixed is computed on devices of several kinds" in worker.err()]
    assert len(said) == 1 and "BLAS is " in said[0] and "products is " in said[0]
