"""What an idle task of an elastic job and the driver tell each other, before the agents' protocol (runner/frames.py).

A task connects, proves the job's secret, and describes itself. When the driver needs its slot it sends the job of one
worker; when it closes the connection the task is over. The secrets of worlds are veiled: the stage's function, which
holds the key, may travel over an encrypted connection of Spark, and this connection is not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket

from horovod._runner.environment import SECRET
from horovod._runner.protocol import Kind, ProtocolError, frame
from horovod.spark.placement import TaskFacts

PURPOSE = b"spark-slot"
LONGEST_FACTS = 1 << 16
# A connection that is silent for longer is dead.
_SILENCE_S = 45
_PROBE_S = 10


def notice_silence(peer: socket.socket) -> None:
    """Lets the kernel find out that the other machine is gone."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)


def facts_frame(facts: TaskFacts) -> bytes:
    return frame(Kind.EVENT, json.dumps([facts.host, facts.space]).encode())


def facts_of(kind: int, payload: bytes) -> TaskFacts:
    """The inverse of facts_frame(). Raises ProtocolError."""
    try:
        if kind != Kind.EVENT or len(payload) > LONGEST_FACTS:
            raise ValueError(f"a frame of kind {kind} with {len(payload)} bytes")
        host, space = json.loads(payload)
        return TaskFacts(str(host), str(space))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"a task described itself wrongly: {error}") from None


def veiled(message: bytes, key: bytes) -> bytes:
    """A message for a worker with the secret of its world made unreadable. Applied again, it is readable again."""
    said = json.loads(message)
    variables = said.get("env")
    if variables is None:
        return message
    secret = bytes.fromhex(variables[SECRET])
    # Each world has a key of its own, so that no two secrets are hidden by the same one.
    pad = hmac.new(key, b"secret of world %d" % int(variables["HOROVOD_EPOCH"]), hashlib.sha256).digest()
    said["env"] = {**variables, SECRET: bytes(a ^ b for a, b in zip(secret, pad, strict=True)).hex()}
    return json.dumps(said).encode() + b"\n"
