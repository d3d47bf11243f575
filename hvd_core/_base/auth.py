"""Mutual proof of the job's secret, before any other data of a peer is parsed.

Messages have fixed sizes; m1 and m2 are HMAC-SHA256 over the role, the purpose of the connection, both
nonces and the client's identity, so that no message can be reflected or used on another kind of connection:

    server -> client   'hvdauth1' | nonce_s (32)
    client -> server   'hvdauth1' | nonce_c (32) | u64 epoch | u32 rank | u32 flags | m1 (32)
    server -> client   m2 (32)

The only flag is 1: the client wants the connection encrypted, which the store's server does; if it cannot, it answers
with another m2. ServerHandshake does no I/O (event loops feed it); client_handshake blocks. Both sides know a key of
their connection then, with which messages are signed or encrypted (engine/rendezvous/seal.h).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct

from hvd_core._base.sockets import (
    AuthenticationError,
    BootstrapError,
    BootstrapTimeout,
    Deadline,
    recv_exact,
    send_exact,
)

MAGIC = b"hvdauth1"
NO_RANK = 0xFFFFFFFF
ENCRYPT = 1
CHALLENGE_BYTES = 8 + 32
ANSWER_BYTES = 8 + 32 + 16 + 32
CONFIRM_BYTES = 32
HANDSHAKE_SECONDS = 10.0
MIN_SECRET_BYTES = 16

_IDENTITY = struct.Struct("<QII")


def new_secret() -> bytes:
    """32 random bytes."""
    return secrets.token_bytes(32)


def check_secret(secret: object) -> bytes:
    """Returns ``secret`` as bytes. Raises ValueError if it has fewer than 16 bytes."""
    if not isinstance(secret, (bytes, bytearray)) or len(secret) < MIN_SECRET_BYTES:
        raise ValueError(f"the job's secret must be at least {MIN_SECRET_BYTES} bytes")
    return bytes(secret)


def _mac(secret: bytes, role: bytes, purpose: bytes, nonces: bytes, identity: bytes) -> bytes:
    text = b"\0".join((role, purpose, nonces, identity))
    return hmac.new(secret, text, hashlib.sha256).digest()


class ServerHandshake:
    """The accepting side: send ``challenge``, feed() the received bytes, send ``confirm`` when ``done`` is true.

    Then ``rank`` and ``epoch`` are those that the client claims, ``key`` is that of the connection (as client_handshake()
    returns it), and ``rest`` holds the bytes that came after the proof.
    """

    def __init__(self, secret: bytes, purpose: bytes) -> None:
        self._secret = secret
        self._purpose = purpose
        self._nonce = secrets.token_bytes(32)
        self._data = bytearray()
        self.challenge = MAGIC + self._nonce
        self.confirm = self.key = b""
        self.done = False
        self.epoch = 0
        self.rank = NO_RANK
        self.rest = b""

    def feed(self, data: bytes) -> None:
        """Takes received bytes. Raises AuthenticationError as soon as they are wrong."""
        self._data += data
        head = bytes(self._data[: len(MAGIC)])
        if head != MAGIC[: len(head)]:
            raise AuthenticationError("the peer does not speak this protocol")
        if len(self._data) < ANSWER_BYTES:
            return
        answer = bytes(self._data[:ANSWER_BYTES])
        nonces, identity = self._nonce + answer[8:40], answer[40:56]
        if not hmac.compare_digest(
            answer[56:], _mac(self._secret, b"client", self._purpose, nonces, identity)
        ):
            raise AuthenticationError("the peer does not know this job's secret")
        self.epoch, self.rank, _ = _IDENTITY.unpack(identity)
        self.confirm = _mac(self._secret, b"server", self._purpose, nonces, identity)
        self.key = _mac(self._secret, b"key", self._purpose, nonces, identity)
        self.rest = bytes(self._data[ANSWER_BYTES:])
        self.done = True


def client_handshake(
    sock: socket.socket,
    secret: bytes,
    purpose: bytes,
    rank: int,
    epoch: int,
    deadline: Deadline,
    encrypt: bool = False,
) -> bytes:
    """Proves the secret to the server behind ``sock``, which is left with a timeout, and checks that the server knows it
    too. The server sees ``rank`` (NO_RANK for a program that is no rank) and ``epoch``.

    Returns the connection's key, 32 bytes that both sides know and that no other connection has. Raises
    AuthenticationError, BootstrapTimeout, OSError; BootstrapError if the two sides cannot agree about encryption.
    """
    challenge = recv_exact(sock, CHALLENGE_BYTES, deadline)
    if not challenge.startswith(MAGIC):
        raise AuthenticationError("the server does not speak this protocol")
    nonce = secrets.token_bytes(32)
    nonces, identity = challenge[8:] + nonce, _IDENTITY.pack(epoch, rank, ENCRYPT if encrypt else 0)
    send_exact(sock, MAGIC + nonce + identity + _mac(secret, b"client", purpose, nonces, identity), deadline)
    try:
        confirm = recv_exact(sock, CONFIRM_BYTES, deadline)
    except BootstrapTimeout:
        raise
    except OSError as error:
        raise AuthenticationError(
            "the server closed the connection during the handshake: it does not accept this job's secret "
            "(is HOROVOD_SECRET_KEY the same on all processes?)"
        ) from error
    if hmac.compare_digest(confirm, _mac(secret, b"no encryption", purpose, nonces, identity)):
        if not encrypt:
            raise BootstrapError(
                f"the process that serves the job's store on host {sock.getpeername()[0]} has HOROVOD_TLS=1, and this "
                "process, which is no rank, has not asked for encryption: set HOROVOD_TLS=1 here too"
            )
        raise BootstrapError(
            f"the process that serves the job's store on host {sock.getpeername()[0]} cannot encrypt, because its host "
            "has no libcrypto: install OpenSSL 3 or 1.1 there, or name the library's file in HOROVOD_TLS_LIBRARY"
        )
    if not hmac.compare_digest(confirm, _mac(secret, b"server", purpose, nonces, identity)):
        raise AuthenticationError("the server does not know this job's secret")
    return _mac(secret, b"key", purpose, nonces, identity)
