"""What a fork server and those that ask it say to each other; the third side is fork_client.c, which has the same
numbers.

A request is its length and its words, each with a zero byte behind it; open files may come with the length. An answer
is a number.
"""

import array
import os
import socket
import struct

# The variable that tells a child the address of its server.
ADDRESS = "HVD_TEST_FORK_SERVER"
# Of one request: standard input, output and error, what a launcher lets its program inherit, and two namespaces.
MOST_FILES = 64
# In place of a program's exit code: the client is to become an interpreter.
REFUSED = 1 << 16
_LENGTH = struct.Struct("<I")
_ANSWER = struct.Struct("<i")


def ask(connection: socket.socket, *words: str) -> int | None:
    """Sends a request without files; returns the answer, None if the server has ended."""
    body = b"".join(os.fsencode(word) + b"\0" for word in words)
    connection.sendall(_LENGTH.pack(len(body)) + body)
    number = connection.recv(_ANSWER.size, socket.MSG_WAITALL)
    return _ANSWER.unpack(number)[0] if number else None


def answer(connection: socket.socket, number: int) -> None:
    connection.sendall(_ANSWER.pack(number))


def receive(connection: socket.socket) -> tuple[list[str], list[int]] | None:
    """The words and the files of a request; None at the end of the connection."""
    size = array.array("i").itemsize
    head, ancillary, _, _ = connection.recvmsg(_LENGTH.size, socket.CMSG_SPACE(MOST_FILES * size))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data[: len(data) - len(data) % size])
    body = b""
    left = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
    while len(body) < left:
        part = connection.recv(left - len(body))
        if not part:
            break
        body += part
    if not left or len(body) < left:
        for number in files:
            os.close(number)
        return None
    return [os.fsdecode(word) for word in body[:-1].split(b"\0")], list(files)
