"""The proofs on both ends of a liveness connection."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dl4jlegacy.errors import ConfError, NotAuthorisedError, WireError
from dl4jlegacy.scaleout.links.liveness.handshake import (
    CHALLENGE_NBYTES,
    HELLO_NBYTES,
    WELCOME_NBYTES,
    ClientHandshake,
    Credentials,
    RefusedError,
    ServerHandshake,
)

OURS = Credentials("run", b"secret")


def refused(client: Credentials, server: Credentials) -> RefusedError:
    there = ServerHandshake(server)
    with pytest.raises(RefusedError) as caught:
        there.receive_hello(ClientHandshake(client, "p").hello(there.challenge))
    return caught.value


@pytest.mark.parametrize("secret", [b"secret", None])
@pytest.mark.parametrize("process", ["p", "host-1-0a1b2c3d", "ü" * 127])
def test_two_ends_of_one_run_prove_themselves(secret, process):
    here, there = ClientHandshake(Credentials("run", secret), process), ServerHandshake(Credentials("run", secret))
    assert len(there.challenge) == CHALLENGE_NBYTES
    hello = here.hello(there.challenge)
    assert len(hello) <= HELLO_NBYTES
    assert all(there.receive_hello(hello[:length]) is None for length in range(len(hello)))
    name, welcome = there.receive_hello(hello)
    assert name == process
    assert len(welcome) == WELCOME_NBYTES
    here.check_welcome(welcome)


@pytest.mark.parametrize(
    ("client", "server", "words"),
    [
        (Credentials("run", b"other"), OURS, "secrets differ"),
        (Credentials("other", b"secret"), OURS, "different runs"),
        (Credentials("other", None), Credentials("run", None), "different runs"),
        (Credentials("run", None), OURS, "the worker has none"),
        (OURS, Credentials("run", None), "the master has none"),
    ],
)
def test_ends_that_do_not_fit_are_refused_and_told_why(client, server, words):
    error = refused(client, server)
    assert words in str(error)
    assert len(error.answer) == WELCOME_NBYTES
    with pytest.raises(NotAuthorisedError, match=words):
        ClientHandshake(client, "p").check_welcome(error.answer)


def test_a_proof_cannot_be_replayed_reflected_or_moved():
    first, second = ServerHandshake(OURS), ServerHandshake(OURS)
    here = ClientHandshake(OURS, "p")
    hello = here.hello(first.challenge)
    _, welcome = first.receive_hello(hello)
    with pytest.raises(RefusedError):  # replayed: another connection has another challenge
        second.receive_hello(hello)
    with pytest.raises(RefusedError):  # moved to another process
        first.receive_hello(hello[:-1] + b"q")
    with pytest.raises(RefusedError):  # reflected: the client's proof as the server's
        here.check_welcome(b"W" + hello[-34:-2])
    with pytest.raises(RefusedError):  # the welcome of another connection
        ClientHandshake(OURS, "p").check_welcome(welcome)
    with pytest.raises(RefusedError):  # one bit
        here.check_welcome(welcome[:-1] + bytes([welcome[-1] ^ 1]))
    here.check_welcome(welcome)


def test_every_altered_bit_of_a_hello_is_refused():
    there = ServerHandshake(OURS)
    hello = ClientHandshake(OURS, "p").hello(there.challenge)
    for index in range(len(hello) * 8):
        altered = bytearray(hello)
        altered[index // 8] ^= 1 << index % 8
        try:
            assert there.receive_hello(bytes(altered)) is None, "only a longer name may be waited for"
        except (WireError, RefusedError):
            continue


@given(st.binary(max_size=600), st.booleans())
def test_no_bytes_crash_either_end(said, begins_well):
    there, here = ServerHandshake(OURS), ClientHandshake(OURS, "p")
    for end in (there.receive_hello, here.hello, here.check_welcome):
        with contextlib.suppress(WireError, RefusedError):
            assert end(there.challenge[:16] + said if begins_well else said) in (None, b"")


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "x" * 256])
def test_names_that_are_none(name):
    with pytest.raises(ConfError, match="cannot be named"):
        ClientHandshake(OURS, name)


@pytest.mark.parametrize("name", [b"", b"a\nb", b"\xff\xfe"])
def test_names_that_would_spoil_a_log_are_no_names(name):
    there = ServerHandshake(OURS)
    hello = ClientHandshake(OURS, "p").hello(there.challenge)
    with pytest.raises(WireError):
        there.receive_hello(hello[:-2] + bytes([len(name)]) + name)


def test_an_empty_secret_is_none_and_a_secret_is_not_shown():
    with pytest.raises(ConfError, match="empty"):
        Credentials("run", b"")
    assert "secret" not in repr(vars(OURS))
