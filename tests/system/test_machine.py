"""Sizes beyond the machine are answered before anything is allocated or started."""

from __future__ import annotations

import mmap
import resource
import threading
from pathlib import Path

import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn import DenseLayer, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer
from dl4jlegacy.system import resources as machine


def network(n_out: int) -> MultiLayerNetwork:
    conf = (
        NeuralNetConfiguration.builder().list().layer(0, DenseLayer(n_in=3, n_out=n_out))
        .layer(1, OutputLayer(n_out=2)).build()
    )  # fmt: skip
    return MultiLayerNetwork(conf)


@pytest.mark.parametrize("n_out", [10**11, 10**12, 10**18, 10**30])
def test_a_network_beyond_the_memory_is_a_conf_error_that_says_how_much(n_out):
    with pytest.raises(ConfError, match=r"needs .* GiB of memory, this machine gives at most"):
        network(n_out)


@pytest.mark.parametrize("workers", [10**6, 10**9, 2**62])
def test_workers_that_cannot_be_started_are_refused_before_one_is(workers, tmp_path, monkeypatch, capsys):
    before = threading.active_count()
    with pytest.raises(SystemExit) as leave:
        main.main(["train", "--dataset", "iris", "--workers", str(workers)])
    assert leave.value.code == 3
    assert "more than this machine can start" in capsys.readouterr().err
    assert threading.active_count() == before


def test_the_address_space_and_what_each_worker_needs_count(monkeypatch):
    monkeypatch.setattr(machine, "_rlimit", lambda kind: 4 << 30 if kind == resource.RLIMIT_AS else None)
    machine.check_threads(400, 0)
    with pytest.raises(ConfError, match="2000 workers"):
        machine.check_threads(2000, 0)
    with pytest.raises(ConfError, match="400 workers"):
        machine.check_threads(400, 1 << 24)
    with pytest.raises(ConfError, match=r"the thing needs 5\.0 GiB of memory, this machine gives at most 4\.0"):
        machine.check_memory(5 << 30, "the thing")


@pytest.mark.parametrize(("most", "free"), [("max", 5000 << 10), ("9000000", 9000000 - 6000000 + 1500000)])
def test_memory_is_free_that_nobody_has_or_only_files_that_were_read(most, free, tmp_path, monkeypatch):
    """In a container, too, whose memory soon looks full of the data that its processes have read."""
    (tmp_path / "meminfo").write_text("MemTotal:    9000 kB\nMemAvailable:    5000 kB\n")
    (tmp_path / "memory.max").write_text(f"{most}\n")
    (tmp_path / "memory.current").write_text("6000000\n")
    (tmp_path / "memory.stat").write_text("anon 4000000\ninactive_anon 1\ninactive_file 1500000\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    assert machine.free_memory() == free


def test_what_is_unknown_bounds_nothing(monkeypatch):
    for name in ("_named", "_number", "_rlimit"):
        monkeypatch.setattr(machine, name, lambda *what: None)
    assert machine.free_memory() is None
    machine.check_threads(10**9, 10**9)
    machine.check_memory(10**30, "it")


@pytest.mark.parametrize(
    ("text", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("nonsense", None), ("1 0", None)]
)
def test_a_control_group_s_share_of_the_cores_is_read(text, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.most_cores() is None
    (tmp_path / "cpu.max").write_text(text)
    assert machine.most_cores() == cores


def test_memory_that_was_freed_between_what_is_kept_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    blocks = [bytearray(b"x" * 60_000) for _ in range(2000)]
    kept = blocks[::50]  # so that the C library cannot shrink its heap by itself
    del blocks
    before = resident()
    machine.give_back_memory()
    assert before - resident() > 60_000_000
    assert len(kept) == 40
