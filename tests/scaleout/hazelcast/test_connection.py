"""The client that ``open_client`` makes: what it replaces, and on which object, all without a member."""

import configparser
import contextlib
import os
import random
import select
import struct
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from hazelcast import reactor
from hazelcast.config import Config
from hazelcast.connection import _Reader
from hazelcast.serialization.data import Data
from hazelcast.serialization.service import SerializationServiceV1

from dl4jlegacy.errors import VersionError, WireError
from dl4jlegacy.scaleout.hazelcast import connection
from dl4jlegacy.scaleout.hazelcast.connection import FrameReader, _bound_frames
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore

NOBODY = "127.0.0.1:1"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def client():
    """A client of an address where nobody listens."""
    opened = connection.open_client([NOBODY], "c", lambda connected: None)
    yield opened
    opened.shutdown()


# -- the package is left alone -----------------------------------------------------------------------------------------


UNTOUCHED = """
import importlib, logging, pkgutil, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)

def import_all(package):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

def state():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("hazelcast", "asyncore"):
            for attribute, value in list(vars(module).items()):
                found[name, attribute] = value
                if isinstance(value, type) and value.__module__.partition(".")[0] in ("hazelcast", "asyncore"):
                    found.update(((name, attribute, member), what) for member, what in vars(value).items())
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "hazelcast" and isinstance(logger, logging.Logger):
            settings = logger.level, logger.propagate, logger.disabled, *logger.handlers, *logger.filters
            found.update(((name, "logger", i), what) for i, what in enumerate(settings))
    return {key: what for key, what in found.items() if not key[-1] in ("__annotations__", "__abstractmethods__")}

def compare(before, what):
    after = state()
    assert before.keys() == after.keys(), (what, before.keys() ^ after.keys())
    changed = [key for key in before if before[key] is not after[key]]
    assert not changed, (what, changed)

import hazelcast, hazelcast.reactor
import_all(hazelcast)
before = state()
assert ("hazelcast.reactor", "AsyncoreConnection", "handle_read") in before
import dl4jlegacy
import_all(dl4jlegacy)
compare(before, "import")
from dl4jlegacy.scaleout.hazelcast.link import HazelcastLink
link = HazelcastLink(["127.0.0.1:1"], "c", "dl4j.run")
assert "handle_read" in vars(link._client._reactor._loop.waker)
compare(before, "open")
other = hazelcast.reactor.AsyncoreReactor()
assert "handle_read" not in vars(other._loop.waker)
link.close()
compare(before, "close")
print("untouched")
"""


def test_importing_the_package_and_opening_a_client_leave_hazelcast_and_its_reactor_untouched():
    done = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["untouched"], done.stderr


# -- releases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["5.4.0", "5.6.1", "5.7.0b1", "5.8.0", "6.0.0", ""])
def test_a_release_that_was_not_tested_is_refused_by_name_when_a_connection_is_opened(found, monkeypatch):
    monkeypatch.setattr(connection.hazelcast, "__version__", found)
    before = threading.active_count()
    with pytest.raises(VersionError) as caught:
        HazelcastStore(NOBODY, cluster_name="c", run="r", secret=None)
    message = str(caught.value)
    assert f"hazelcast-python-client {found} is installed" in message
    assert "5.5.0, 5.6.0, 5.7.0" in message
    assert "pip install 'hazelcast-python-client==5.7.0'" in message
    assert caught.value.exit_status == 9
    assert threading.active_count() <= before


@pytest.mark.long
@pytest.mark.parametrize("release", [r for r in connection.TESTED_RELEASES if r != version("hazelcast-python-client")])
def test_the_other_releases_pass_these_tests_too(release, tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*install, f"hazelcast-python-client=={release}"], check=True, timeout=300)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    which = "import importlib.metadata as m; print(m.version('hazelcast-python-client'))"
    found = subprocess.run([sys.executable, "-c", which], env=environment, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == release
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(Path(__file__))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_the_releases_that_may_be_installed_are_those_that_were_tested():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    [wanted] = [line for line in settings["options"]["install_requires"].split() if line.startswith("hazelcast")]
    assert wanted == "hazelcast-python-client>={},<={}".format(
        *connection.TESTED_RELEASES[:: len(connection.TESTED_RELEASES) - 1]
    )
    for release in connection.TESTED_RELEASES:
        connection.check_release(release)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def service():
    """The package's own serialization."""
    return SerializationServiceV1(Config())


@pytest.mark.parametrize("text", ["", "head", "job/0/17", "größe", "x" * 97])
def test_text_and_bytes_are_what_the_packages_own_serialization_makes_of_them(text, service):
    ours = connection.PlainValues()
    assert ours.to_data(text).buffer == service.to_data(text).buffer
    assert ours.to_object(service.to_data(text)) == text
    raw = text.encode() * 1000
    assert ours.to_data((b"HEAD", memoryview(raw))).buffer == service.to_data(bytearray(b"HEAD" + raw)).buffer
    assert ours.to_object(service.to_data(bytearray(raw))) == raw


def test_no_object_is_ever_made_of_a_value(service):
    ours = connection.PlainValues()
    assert ours.to_object(None) is None
    for value in ({"a": 1}, 7, [bytearray(b"x")], 1.5, True):
        assert ours.to_object(service.to_data(value)) == b""
    whole = ours.to_data((b"value",)).buffer
    for raw in (b"", b"short", whole[:-1], whole + b"x"):
        assert ours.to_object(Data(raw)) == b""


def test_objects_are_refused_as_keys_and_values():
    for value in ({"a": 1}, 7, b"bytes that are no pieces"):
        with pytest.raises(TypeError):
            connection.PlainValues().to_data(value)


def test_maps_and_topics_see_plain_values_only(client):
    client._internal_partition_service.partition_count = 271  # a member would say how many
    made = [client.map_named("m"), client.topic_named("t")]
    for proxy in made:
        assert isinstance(proxy._to_object.__self__, connection.PlainValues)
        assert isinstance(proxy._to_data.__self__, connection.PlainValues)


# -- the lost wake-up --------------------------------------------------------------------------------------------------


class WokenWhileRead:
    """A waker's end of its pipe; another thread wakes the reactor just before it is read."""

    def __init__(self, waker, read):
        self._waker, self._read = waker, read

    def recv(self, nbytes):
        self._waker.wake()
        return self._read(nbytes)

    def close(self):
        pass


@pytest.fixture(params=[reactor._PipedWaker, reactor._SocketedWaker])
def interrupted(request, monkeypatch):
    """A reactor's loop that is woken between the two steps in which its waker goes to sleep, and where it reads."""
    monkeypatch.setattr(reactor._WakeableLoop, "_waker_class", request.param)
    loop = reactor._WakeableLoop({})
    waker = loop.waker
    if request.param is reactor._PipedWaker:
        end = waker._read_fd
        own = os.read
        monkeypatch.setattr(os, "read", lambda fd, nbytes: (fd == end and waker.wake(), own(fd, nbytes))[1])
    else:
        end = waker._reader
        waker._reader = WokenWhileRead(waker, end.recv)
    yield loop, end
    monkeypatch.undo()
    waker.close()


def is_readable(end):
    return bool(select.select([end], [], [], 0)[0])


def test_the_packages_own_waker_loses_a_wake_up(interrupted):
    """It stays awake with an empty pipe: every later request is 10 ms late. Once this fails, the mend can go."""
    loop, end = interrupted
    loop.waker.handle_read()
    loop.waker.wake()
    assert loop.waker.awake
    assert not is_readable(end)


def test_a_wake_up_while_the_reactor_empties_its_pipe_is_not_lost(interrupted):
    loop, end = interrupted
    connection._mend_waker(loop)
    loop.waker.handle_read()
    assert not loop.waker.awake
    loop.waker.wake()
    assert is_readable(end)


def test_timers_of_a_client_go_off_although_the_wall_clock_is_set_back(client, monkeypatch):
    due, now = threading.Event(), time.time
    client._reactor.add_timer(0.5, due.set)
    monkeypatch.setattr(time, "time", lambda: now() - 3600.0)
    assert due.wait(30)


def test_the_waker_of_a_client_is_mended(client):
    assert vars(client._reactor._loop.waker)["handle_read"].__qualname__.startswith("_mend_waker")


# -- frames -----------------------------------------------------------------------------------------------------------

FINAL = 1 << 13


class Messages(list):
    on_message = list.append


def frame(data: bytes, flags: int = 0) -> bytes:
    return struct.pack("<iH", len(data) + 6, flags) + data


def contents(messages: Messages) -> list[list[int]]:
    """Return the lengths of the frames of each message."""
    lengths = []
    for message in messages:
        found, lengths_of_one = message.start_frame, []
        while found is not None:
            lengths_of_one.append(len(found.buf))
            found = found.next
        lengths.append(lengths_of_one)
    return lengths


def feed(reader: FrameReader, data: bytes, step: int) -> int:
    """Give bytes to a reader in pieces; return the most that it kept."""
    kept = 0
    for start in range(0, len(data), step):
        reader.read(data[start : start + step])
        reader.process()
        kept = max(kept, len(reader._buf.getbuffer()))
    return kept


@pytest.mark.parametrize("step", [1, 5, 6, 7, 1000, 1 << 20])
def test_frames_are_cut_as_the_package_does_it(step):
    ours, theirs = Messages(), Messages()
    data = (frame(b"a" * 30) + frame(b"") + frame(b"b" * 500, FINAL)) * 3 + frame(b"c", FINAL)
    for reader in (FrameReader(ours), _Reader(theirs)):
        feed(reader, data, step)
    assert contents(ours) == contents(theirs) == [[30, 0, 500]] * 3 + [[1]]


@pytest.mark.parametrize("step", [100_003, 1 << 20])
def test_an_overlong_frame_passes_unread_and_the_connection_goes_on(step):
    messages = Messages()
    huge = frame(bytes(20 << 20))
    kept = feed(FrameReader(messages), frame(b"a") + huge + frame(b"b", FINAL) + frame(b"c" * 9, FINAL), step)
    assert contents(messages) == [[1, 0, 1], [9]]
    assert kept <= 6 << 20


def test_six_bytes_that_announce_two_gigabytes_or_nothing_reserve_nothing():
    reader = FrameReader(Messages())
    assert feed(reader, struct.pack("<iH", 2**31 - 1, 0), 6) < 100
    for length in (-(2**31), -1, 0, 5):
        with pytest.raises(WireError, match="is none"):
            feed(FrameReader(Messages()), struct.pack("<iH", length, 0), 6)


def test_frames_of_a_connection_are_bounded(client):
    connection = SimpleNamespace(_builder=Messages(), _reader=None)
    reactor = SimpleNamespace(connection_factory=lambda *args: connection)
    _bound_frames(reactor)
    assert isinstance(reactor.connection_factory(1, 2)._reader, FrameReader)
    assert client._reactor.connection_factory.__name__ == "connect_bounded"


def test_random_bytes_end_in_frames_or_one_error():
    rng = random.Random(5)
    for _ in range(2000):
        data = b"".join(
            struct.pack("<iH", rng.choice((6, 7, 40, -1, 0, 2**31 - 1, rng.randrange(2**16))), rng.randrange(2**16))
            + rng.randbytes(rng.randrange(60))
            for _ in range(rng.randrange(1, 6))
        )
        with contextlib.suppress(WireError):
            assert feed(FrameReader(Messages()), data, rng.randrange(1, 80)) < 1000
