"""Programs of another user on the same host: one function each, named on the command line, with its arguments behind.

The other user may not be able to read this file, nor the project: a test hands the text to the interpreter, so that the
programs use the standard library alone.
"""

import socket
import sys


def ask(address):
    """Asks as rank 1 of 3 would; prints the number of bytes of the answer."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect("\0" + address)
    try:
        sock.sendall(b"[0.0, 1, 1, 3, null]\n")
        print(len(sock.recv(1000)))
    except OSError:
        print(0)


def listen_and_receive(address):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("\0" + address)
    sock.listen()
    print("ready", flush=True)
    print(len(sock.accept()[0].recv(1000)))


def read_random_bytes_of(pid):
    """Those that the kernel gave to the process at its start."""
    with open(f"/proc/{pid}/auxv", "rb") as file:
        file.read()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
