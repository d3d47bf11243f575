"""Spoiled bytes for the bootstrap's readers: the handshake of the links, the rendezvous on a host, and the list of
backends that the launcher hands on. Each reader refuses the bytes or answers, and raises no other error."""

import json
import os
import random
import secrets
import socket
import struct
import threading

import pytest

from harness.spoiled import spoil
from hvd_core._base import auth
from hvd_core._base.messages import line_of
from hvd_core._base.sockets import AuthenticationError, BootstrapError, Deadline
from hvd_core._bootstrap.launchers.identity import Identity
from hvd_core._bootstrap.rendezvous import unix_socket
from hvd_core._bootstrap.rendezvous.unix_socket import RendezvousListener
from hvd_core.backends._candidate import WHEEL, Candidate
from hvd_core.backends._discovery import entry_points
from hvd_core.backends.errors import BackendError

SECRET = bytes(range(32))
STORE = "tcp://127.0.0.1:1234"


def right_answer(handshake):
    nonce, identity = secrets.token_bytes(32), struct.pack("<QII", 5, 1, 0)
    nonces = handshake.challenge[8:] + nonce
    return auth.MAGIC + nonce + identity + auth._mac(SECRET, b"client", b"link", nonces, identity)


def test_the_handshake_of_a_link_takes_right_answers_only():
    rng = random.Random(17)
    refused = 0
    for _ in range(3000):
        handshake = auth.ServerHandshake(SECRET, b"link")
        right = right_answer(handshake)
        sent = rest = right if rng.random() < 0.1 else spoil(rng, right)
        try:
            while rest and not handshake.done:
                at = rng.randint(1, 60)
                handshake.feed(rest[:at])
                rest = rest[at:]
        except AuthenticationError:
            refused += 1
        assert handshake.done == (sent[: len(right)] == right)
    assert refused > 1000


def test_the_rendezvous_survives_spoiled_questions():
    rng = random.Random(17)
    address = "\0hvd-test-" + secrets.token_hex(8)
    question = line_of([1.0, 1, 1, 3, None])
    listener = RendezvousListener(address, Identity(0, 3), (STORE, SECRET))
    try:
        for _ in range(300):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(30)
                sock.connect(address)
                sock.sendall(spoil(rng, question))
                sock.shutdown(socket.SHUT_WR)
                try:
                    while sock.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        # As another rank than the spoiled questions may have been: this process may have become rank 1.
        answer = unix_socket.ask(address, Identity(2, 3), Deadline(30))
        assert answer == {"members": None, "store": STORE, "secret": SECRET.hex()}
    finally:
        listener.close()


def answered_with(text):
    """The result of ask() at a listener that answers with these bytes."""
    address = "\0hvd-test-" + secrets.token_hex(8)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()

        def answer():
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                try:
                    peer.sendall(text)
                except OSError:
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            return unix_socket.ask(address, Identity(1, 3), Deadline(10))
        except BootstrapError as error:
            return error
        finally:
            thread.join()


def test_spoiled_answers_of_the_rendezvous_are_none():
    rng = random.Random(17)
    body = json.dumps({"members": [0, 1, 2], "store": STORE, "secret": SECRET.hex()}).encode()
    right = body + b"\n"
    assert answered_with(right) == meaning_of(right)
    for bad in (b"7", b"[]", b"null", b"\xff\xff", b"{"):
        assert answered_with(bad + b"\n") is None
    refused = 0
    for _ in range(150):
        sent = spoil(rng, right)
        found = answered_with(sent)
        assert found == meaning_of(sent), sent
        refused += found is None
    assert 75 < refused < 150


def meaning_of(answer):
    """What a reader should make of an answer: what it says if it is whole and of the right form, else None."""
    line, end, _ = answer.partition(b"\n")
    try:
        said = json.loads(line)
    except ValueError:
        return None
    if not end or not isinstance(said, dict):
        return None
    members = said.get("members")
    return {**said, "members": None if members is None else tuple(members)}


def test_spoiled_lists_of_backends_are_refused():
    rng = random.Random(17)
    found = [Candidate(name, WHEEL, f"hvd-{name}", "1.0", f"{name}:entry", "/site", None) for name in "ab"]
    right = entry_points.encode(found)
    variable = entry_points.VARIABLE
    wanted = entry_points.decode({variable: right})
    assert [candidate.name for candidate in wanted[0]] == ["a", "b"]
    refused = 0
    for _ in range(2000):
        text = os.fsdecode(spoil(rng, right.encode()))
        try:
            said = json.loads(text)
        except ValueError:
            if text:
                refused += 1
                with pytest.raises(ValueError, match=f"{variable} cannot be read"):
                    entry_points.decode({variable: text})
        else:  # other words in the right form
            try:
                read = entry_points.decode({variable: text})
            except ValueError as error:
                assert "cannot be read" in str(error) and said != json.loads(right)
            else:
                assert read == wanted or said != json.loads(right)
    assert refused > 500


@pytest.mark.parametrize("text", ["null", "[]", "7", '{"backends": 7}', '{"backends": [7]}', "[" * 60_000])
def test_a_list_of_backends_of_another_form_is_refused(text):
    with pytest.raises((BackendError, ValueError)):
        entry_points.decode({"HOROVOD_BACKEND_SPEC": text})
