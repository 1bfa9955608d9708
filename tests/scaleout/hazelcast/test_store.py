"""The Hazelcast store beyond the contract of all stores: faults, foreign values, bad addresses, many processes."""

import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from hazelcast.serialization.data import Data

from dl4jlegacy.errors import ConfError, NotAuthorisedError, TrackerClosedError, TrackerError, UsageError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.hazelcast import link as hazelcast_link
from dl4jlegacy.scaleout.hazelcast import store as hazelcast_store
from dl4jlegacy.scaleout.hazelcast.retry_deadline import RetryDeadline
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
from dl4jlegacy.scaleout.state.envelope import Envelope
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.services import Services
from tests.support.cluster_commands import freeze
from tests.support.waiting import AskedSeconds

SECRET = b"only for tests"
RUNS = itertools.count()


# -- envelopes ---------------------------------------------------------------------------------------------------------


def sealed(envelope, key, value):
    return memoryview(envelope.head(key, value) + value)


@pytest.mark.parametrize("secret", [SECRET, None])
def test_an_envelope_gives_back_what_was_sealed_and_equal_values_have_equal_envelopes(secret):
    envelope = Envelope("run", secret)
    for value in (b"", b"x", bytes(range(256)) * 9):
        raw = sealed(envelope, "key", value)
        assert len(raw) == envelope.nbytes + len(value)
        assert envelope.open("key", raw) == value
        assert raw == sealed(Envelope("run", secret), "key", value)


@pytest.mark.parametrize("secret", [SECRET, None])
def test_a_damaged_envelope_is_refused_whichever_byte_it_is(secret):
    envelope = Envelope("run", secret)
    raw = bytearray(sealed(envelope, "head", b"a value"))
    for index in range(len(raw)):
        damaged = bytearray(raw)
        damaged[index] ^= 1
        with pytest.raises(NotAuthorisedError, match="'head'"):
            envelope.open("head", memoryview(damaged))
        with pytest.raises(NotAuthorisedError, match="'head'"):
            envelope.open("head", memoryview(raw)[:index])


def test_a_value_of_another_key_run_or_secret_is_refused():
    envelope = Envelope("run", SECRET)
    raw = sealed(envelope, "job/0/1", b"value")
    cases = [
        ("job/0/10", envelope, "signature does not match"),
        ("job/0/1", Envelope("ru", SECRET), "signature does not match"),
        ("job/0/1", Envelope("run", b"another"), "signature does not match"),
        ("job/0/1", Envelope("run", None), "it is signed"),
    ]
    for key, reader, message in cases:
        with pytest.raises(NotAuthorisedError, match=message):
            reader.open(key, raw)
    with pytest.raises(NotAuthorisedError, match="not signed"):
        envelope.open("a", sealed(Envelope("run", None), "a", b"value"))
    with pytest.raises(ConfError, match="empty"):
        Envelope("run", b"")


# -- requests whose replies are lost -----------------------------------------------------------------------------------


class Answer:
    def __init__(self, value):
        self.value = value

    def wait(self, seconds):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def nbytes(self):
        return 0


class LossyLink:
    """A link on a dict; ``faults`` says for each request in turn whether it is lost before or after it took effect."""

    def __init__(self, addresses, cluster_name, name):
        self.where, self.values, self.faults, self.requests = ",".join(addresses), {}, [], []

    def connected(self):
        return True

    def keys(self):
        return Answer(list(self.values))

    def close(self):
        pass

    def _answer(self, name, effect):
        self.requests.append(name)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            return Answer(hazelcast_link.DisturbedError("lost"))
        value = effect()
        return Answer(hazelcast_link.DisturbedError("lost") if fault == "after" else value)

    def get(self, key):
        raw = self.values.get(key)
        return self._answer("get", lambda: None if raw is None else memoryview(raw))

    def set(self, key, head, value):
        return self._answer("set", lambda: self.values.update({key: head + value}))

    def delete(self, key):
        return self._answer("delete", lambda: self.values.pop(key, None) and None)

    def put_if_absent(self, key, head, value):
        return self._answer("put_if_absent", lambda: self.values.setdefault(key, new := head + value) is new)

    def replace_if_same(self, key, expected, head, value):
        def effect():
            if self.values.get(key) != expected:
                return False
            self.values[key] = head + value
            return True

        return self._answer("replace", effect)


@pytest.fixture
def lossy(monkeypatch):
    monkeypatch.setattr(hazelcast_store, "HazelcastLink", LossyLink)
    monkeypatch.setattr(hazelcast_store, "_PAUSES", (0.0, 0.0))
    return HazelcastStore("127.0.0.1:1", cluster_name="c", run="r", secret=SECRET)


@pytest.mark.parametrize("faults", list(itertools.product(["", "before", "after"], repeat=3)))
def test_operations_have_one_outcome_whichever_replies_are_lost(lossy, faults):
    def under_faults(call, *arguments):
        lossy._link.faults = list(faults)
        return call(*arguments)

    assert under_faults(lossy.put_if_absent, "a", b"1")
    assert not under_faults(lossy.put_if_absent, "a", b"2")
    assert under_faults(lossy.replace_if_same, "a", b"1", b"3")
    assert not under_faults(lossy.replace_if_same, "a", b"1", b"4")
    assert bytes(under_faults(lossy.get, "a")) == b"3"
    under_faults(lossy.put, "b", b"5")
    under_faults(lossy.put_many, [("c", b"6"), ("d", b"7")])
    assert [bytes(v) for v in under_faults(lossy.get_many, ["b", "c", "d"])] == [b"5", b"6", b"7"]
    assert under_faults(lossy.put_many_if_absent, [("d", b"8"), ("e", b"8"), ("f", b"9")]) == [False, True, True]
    assert [bytes(v) for v in lossy.get_many(["d", "e", "f"])] == [b"7", b"8", b"9"]
    changes = [("d", b"7", b"10"), ("e", b"9", b"10"), ("f", b"9", b"11"), ("g", b"1", b"2")]
    assert under_faults(lossy.replace_many_if_same, changes) == [True, False, True, False]
    assert [bytes(v) for v in lossy.get_many(["d", "e", "f"])] == [b"10", b"8", b"11"]
    under_faults(lossy.delete_many, ["b", "c", "e", "f"])
    under_faults(lossy.delete, "d")
    lossy._link.faults = []
    assert lossy.keys("") == ["a"]


def test_a_change_whose_reply_is_lost_and_that_another_overtakes_is_not_made_again(lossy):
    link = lossy._link
    lossy.put("a", b"1")
    link.faults = ["after"]
    replace = link.replace_if_same

    def replace_and_lose(key, expected, head, value):
        answer = replace(key, expected, head, value)
        link.values[key] = lossy._envelope.head(key, b"overtaken") + b"overtaken"
        return answer

    link.replace_if_same = replace_and_lose
    assert not lossy.replace_if_same("a", b"1", b"2")
    assert bytes(lossy.get("a")) == b"overtaken"


def test_an_operation_that_never_succeeds_ends_at_its_deadline(lossy, monkeypatch):
    monkeypatch.setattr(hazelcast_store, "_PAUSES", (0.01, 0.02))
    now = [0.0]
    lossy.patience = RetryDeadline(lossy._link.where, 0.1, SimpleNamespace(now=lambda: now[0]))
    lossy._link.faults = ["before"] * 1000
    monkeypatch.setattr(lossy._closed, "wait", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(TrackerError, match=r"127\.0\.0\.1:1 did not read 'a' within 0.1 s: lost"):
        lossy.get("a")
    assert 0.07 < now[0] < 0.1  # but for a last pause, which would have been too long
    assert 3 < len(lossy._link.requests) < 15


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":5701", "host:0", "host:70000", "a:1,", "a b:1", "http://a:1"]
)
def test_an_address_that_cannot_be_read_is_a_usage_error(address):
    with pytest.raises(UsageError, match="is not host:port"):
        HazelcastStore(address, cluster_name="c", run="r", secret=None)


@pytest.mark.parametrize("run", ["", "a/b", "a b", "x" * 101])
def test_a_run_whose_name_cannot_be_part_of_a_maps_name_is_a_usage_error(run):
    with pytest.raises(UsageError, match="cannot be named"):
        HazelcastStore("127.0.0.1:5701", cluster_name="c", run=run, secret=None)


def refuse(monkeypatch, address, message, cluster_name="c"):
    asked = AskedSeconds(monkeypatch)
    with pytest.raises(TrackerError, match=message) as caught:
        HazelcastStore(address, cluster_name=cluster_name, run="r", secret=None, deadline_seconds=0.7)
    assert asked.sum < 4
    assert address.removeprefix("hazelcast://") in str(caught.value)
    assert caught.value.exit_status == 4


def test_an_address_where_nothing_listens_is_named_within_the_deadline(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    refuse(monkeypatch, f"hazelcast://127.0.0.1:{port}", "refused.*dl4j services up")


def test_an_address_that_takes_connections_and_never_answers_is_named_within_the_deadline(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        refuse(monkeypatch, f"127.0.0.1:{server.getsockname()[1]}", "is no Hazelcast member")


@pytest.mark.cluster
@pytest.mark.long
def test_a_wrong_cluster_name_is_named_within_the_deadline(monkeypatch, hazelcast_address):
    refuse(monkeypatch, hazelcast_address, "cluster 'wrong'", cluster_name="wrong")


# -- a real member -----------------------------------------------------------------------------------------------------


@pytest.fixture
def open_store(session_services):
    """Open stores of one run in the session's member; they are closed, and the run removed, at the end."""
    run, stores = f"store-{next(RUNS)}", []

    def start(**changes):
        settings = {"cluster_name": session_services.cluster_name, "run": run, "secret": SECRET, **changes}
        stores.append(HazelcastStore(session_services.hazelcast, **settings))
        return stores[-1]

    yield start
    for store in stores:
        with contextlib.suppress(TrackerClosedError):
            store.destroy()
        store.close()


@pytest.mark.parametrize("large", range(0, 200, 9))
def test_requests_are_answered_in_order_wherever_a_large_one_is_among_small_ones(large: int) -> None:
    """So many small ones are sent ahead that a large one finds more of them on their way than of its kind may be."""

    @dataclass(frozen=True)
    class Answered:
        number: int

        def nbytes(self) -> int:
            return 1 << 20 if self.number % 200 in range(large, large + 9) else 8

    answers = HazelcastStore._windowed(object.__new__(HazelcastStore), range(400), Answered)
    assert [(item, reply.number) for item, reply in answers] == [(number, number) for number in range(400)]


@pytest.mark.cluster
def test_values_that_were_altered_moved_or_made_by_others_are_refused(open_store):
    store, stranger, plain = open_store(), open_store(secret=b"guessed"), open_store(secret=None)
    store.put("head", b"value")
    raw = bytes(store._link.get("head").wait(60))
    moves = {"moved": raw, "altered": raw[:-1] + b"X", "foreign": b"something", "empty": b"", "short": raw[:10]}
    for key, value in moves.items():
        store._link.set(key, b"", value).wait(60)
    stranger.put("stranger", b"value")
    plain.put("unsigned", b"value")
    for key in (*moves, "stranger", "unsigned"):
        with pytest.raises(NotAuthorisedError, match=f"'{key}'") as caught:
            store.get(key)
        assert caught.value.exit_status == 6
    for reader in (stranger, plain):
        with pytest.raises(NotAuthorisedError, match="secret"):
            StateTracker(reader, reader).head()
    assert not stranger.replace_if_same("head", b"value", b"taken over")
    assert bytes(store.get("head")) == b"value"


PLANT = """
import sys
from pathlib import Path
from hazelcast import HazelcastClient
class Evil:
    def __init__(self, path): self.path = path
    def __reduce__(self): return Path.touch, (self.path,)
    def __hash__(self): return 1
client = HazelcastClient(cluster_name=sys.argv[2], cluster_members=[sys.argv[1]])
map_ = client.get_map(sys.argv[3]).blocking()
map_.set("head", Evil(Path(sys.argv[4])))
map_.set(Evil(Path(sys.argv[4])), bytearray(b"x"))
map_.set("number", 1)
client.shutdown()
"""


@pytest.mark.cluster
def test_a_planted_pickle_is_refused_and_runs_nothing(open_store, session_services, tmp_path):
    store, marker = open_store(), tmp_path / "was here"
    command = [session_services.hazelcast, session_services.cluster_name, store.map_name, str(marker)]
    subprocess.run([sys.executable, "-c", PLANT, *command], check=True, timeout=60)
    for key in ("head", "number"):
        with pytest.raises(NotAuthorisedError, match=f"'{key}'.*in no envelope"):
            store.get(key)
        assert not store.put_if_absent(key, b"mine")
        assert not store.replace_if_same(key, b"x", b"mine")
    store.put("mine", b"genuine")
    refused, genuine = store.get_many(["head", "mine"])  # one does not hide the other
    assert isinstance(refused, NotAuthorisedError) and bytes(genuine) == b"genuine"
    store.delete("mine")
    assert store.keys("") == ["head", "number"]
    assert not marker.exists()


@pytest.mark.cluster
def test_the_clients_own_pickle_refuses_in_both_directions(open_store):
    client = open_store()._link._client
    service = client._serialization_service
    with pytest.raises(Exception, match="pickle"):
        service.to_data({"a": 1})
    planted = Data(b"\0\0\0\0" + (-120).to_bytes(4, "big", signed=True) + b"\0\0\0\2N.")
    with pytest.raises(Exception, match="foreign code"):
        service.to_object(planted)


@pytest.mark.cluster
def test_a_refused_chunk_is_reported_and_its_frame_counts_as_missing(open_store, caplog):
    store = open_store()
    store.chunk_nbytes = 1000
    frame = bytes(range(256)) * 20
    manifest = drive(protocol.write_frame(store, "model/1/m", frame))
    assert bytes(drive(protocol.read_frame(store, manifest))) == frame
    store._link.set("model/1/m/3", b"", b"altered").wait(60)
    with caplog.at_level(logging.WARNING, "dl4jlegacy"):
        assert drive(protocol.read_frame(store, manifest)) is None
    assert "'model/1/m/3'" in caplog.text


@pytest.mark.cluster
def test_a_listener_that_fails_harms_neither_the_others_nor_the_connection(open_store, caplog):
    store, heard = open_store(), threading.Semaphore(0)

    def fail():
        raise ValueError("made to fail")

    stops = [store.listen("topic", fail), store.listen("topic", heard.release)]
    for _ in range(3):
        store.publish("topic")
        assert heard.acquire(timeout=60)
    assert store.get("a") is None
    assert "made to fail" in caplog.text
    for stop in stops:
        stop()


@pytest.mark.cluster
def test_hints_go_from_process_to_process_and_not_to_other_runs(open_store):
    mine, theirs = threading.Semaphore(0), threading.Semaphore(0)
    stores = open_store(), open_store(), open_store(run=f"other-{next(RUNS)}")
    stores[0].listen("topic", mine.release)
    stores[2].listen("topic", theirs.release)
    stores[1].publish("topic")
    assert mine.acquire(timeout=60)
    stores[2].publish("topic")
    assert theirs.acquire(timeout=60)
    assert not theirs.acquire(blocking=False)


@pytest.mark.cluster
def test_removing_a_run_leaves_the_other_runs_alone(open_store):
    mine, other = open_store(), open_store(run=f"other-{next(RUNS)}")
    for store in (mine, other):
        store.put_many((f"key/{i}", b"x" * 1000) for i in range(50))
    mine.destroy()
    assert mine.keys("") == []
    assert len(other.keys("key/")) == 50


@pytest.mark.cluster
def test_shutting_down_ends_the_waiting_of_other_threads(open_store):
    store = open_store()

    def read_for_ever():
        while True:
            store.get("a")

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read_for_ever) for _ in range(4)]
        store.close()
        for reader in readers:
            with pytest.raises(TrackerClosedError, match="shut down"):
                reader.result(timeout=60)


CLAIM = """
import sys
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
address, cluster, run, name = sys.argv[1:]
store = HazelcastStore(address, cluster_name=cluster, run=run, secret=b"only for tests")
sys.stdin.readline()
won = 0
for job in range(200):
    won += store.put_if_absent(f"job/{job}", name.encode())
    while True:
        raw = bytes(store.get("count"))
        if store.replace_if_same("count", raw, str(int(raw) + 1).encode()):
            break
print(won)
store.close()
"""


@pytest.mark.cluster
@pytest.mark.long
def test_of_many_processes_that_claim_a_job_exactly_one_wins(open_store, session_services):
    store = open_store()
    store.put("count", b"0")
    arguments = [session_services.hazelcast, session_services.cluster_name, store.map_name.removeprefix("dl4j.")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    claimers = [subprocess.Popen([sys.executable, "-c", CLAIM, *arguments, f"w{i}"], **pipes) for i in range(4)]
    for claimer in claimers:
        claimer.stdin.write("\n")
        claimer.stdin.flush()
    won = [int(claimer.communicate(timeout=60)[0]) for claimer in claimers]
    assert sum(won) == 200 == len(store.keys("job/"))
    for index, count in enumerate(won):
        mine = [raw for raw in store.get_many(store.keys("job/")) if bytes(raw) == f"w{index}".encode()]
        assert len(mine) == count
    assert bytes(store.get("count")) == b"800"


# -- members that die --------------------------------------------------------------------------------------------------


def store_in(state, **changes):
    settings = {"cluster_name": state.cluster_name, "run": "r", "secret": SECRET, **changes}
    return HazelcastStore(state.hazelcast, **settings)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.cluster
def test_a_dead_or_frozen_member_is_an_error_within_the_deadline_and_a_new_one_is_found_again(
    own_services, monkeypatch
):
    state = own_services(zookeeper=False)
    with contextlib.closing(store_in(state)) as store:
        heard = threading.Semaphore(0)
        store.listen("topic", heard.release)
        store.put("a", b"1")
        store.patience.seconds = 1.5
        for strike, message in ((freeze, "did not answer"), (kill, "no connection")):
            strike(state.pids["hazelcast-1"])
            asked = AskedSeconds(monkeypatch)
            asked.count(hazelcast_link.Reply, "wait")
            with pytest.raises(TrackerError, match=message) as caught:
                store.replace_if_same("a", b"1", b"2")
            assert asked.longest <= 1.5
            assert state.hazelcast in str(caught.value)
            assert caught.value.exit_status == 4
        Services.restart("hazelcast-1", Path(state.folder))
        store.patience.seconds = 60.0
        assert store.get("a") is None
        assert store.put_if_absent("a", b"new")
        deadline = time.monotonic() + 60
        while not heard.acquire(timeout=0.2):
            store.publish("topic")
            assert time.monotonic() < deadline


@pytest.mark.cluster
@pytest.mark.long
def test_the_death_of_one_of_two_members_loses_no_value_and_changes_no_outcome(own_services):
    state = own_services(members=2, zookeeper=False)
    stores = [store_in(state, deadline_seconds=60.0) for _ in range(3)]
    stores[0].put("list", b"")
    killed = threading.Event()

    def append(index):
        """Append marks, each once; return those that are there. A mark tells whether an overtaken change was made."""
        store, mine = stores[index], []
        while not killed.is_set() or len(mine) < 40:
            mark = f"{index}.{len(mine)}"
            while mark not in (raw := bytes(store.get("list"))).decode().split():
                store.replace_if_same("list", raw, raw + f"{mark} ".encode())
            mine.append(mark)
            store.put_many((f"data/{mark}/{i}", mark.encode()) for i in range(10))
        return mine

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(append, index) for index in range(3)]
        while len(stores[0].get("list")) < 200:
            pass
        os.kill(state.pids["hazelcast-2"], signal.SIGKILL)
        killed.set()
        marks = [writer.result(timeout=90) for writer in writers]
    found = bytes(stores[0].get("list")).decode().split()
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(mark for mine in marks for mark in mine)
    keys = [f"data/{mark}/{i}" for mark in found for i in range(10)]
    assert [bytes(value).decode() for value in stores[0].get_many(keys)] == [key.split("/")[1] for key in keys]
    for store in stores:
        store.close()


# -- what a stranger at a member's port can do (docs/security.md) --------------------------------------------------


@pytest.mark.cluster
@pytest.mark.parametrize("secret", [SECRET, None], ids=["signed", "unsigned"])
def test_who_reaches_a_members_port_reads_what_runs_keep_there(open_store, secret):
    store, stranger = open_store(secret=secret), open_store(secret=None)
    store.put("model/1/m/0", b"weights of a model")
    assert bytes(stranger._link.get("model/1/m/0").wait(60)).endswith(b"weights of a model")


@pytest.mark.cluster
@pytest.mark.parametrize("secret", [SECRET, None], ids=["signed", "unsigned"])
def test_an_older_value_that_is_written_back_under_its_own_key_is_believed(open_store, secret):
    store, stranger = open_store(secret=secret), open_store(secret=None)
    store.put("head", b"version 1")
    before = bytes(stranger._link.get("head").wait(60))
    store.put("head", b"version 2")
    stranger._link.set("head", b"", before).wait(60)
    assert bytes(store.get("head")) == b"version 1"


@pytest.mark.cluster
def test_a_value_that_looks_like_the_runs_is_believed_without_a_secret_only(open_store):
    plain, forger, signed = open_store(secret=None), open_store(secret=None), open_store()
    forger.put("head", b"forged")
    assert bytes(plain.get("head")) == b"forged"
    with pytest.raises(NotAuthorisedError, match="not signed"):
        signed.get("head")


@pytest.mark.cluster
@pytest.mark.long
def test_who_floods_a_member_ends_it_and_nothing_else(own_services, open_store):
    small = own_services(zookeeper=False, heap="64m")
    stranger = HazelcastStore(small.hazelcast, cluster_name=small.cluster_name, run="flood", secret=None)
    try:
        with pytest.raises(TrackerError):
            for number in range(200):
                stranger._link.set(f"flood/{number}", b"", bytes(1 << 20)).wait(20)
    finally:
        stranger.close()
    other = open_store()
    other.put("head", b"of a run in another grid")
    assert bytes(other.get("head")) == b"of a run in another grid"
