"""The fork servers of a test session: all its lanes share one for each interpreter and set of modules."""

import atexit
import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compiled import cc, compiled

from . import fork_messages

_HERE = Path(__file__).parent
# The folder of the session's servers: made by the first process of the tests, inherited by those that it starts.
_FOLDER = "HVD_TEST_FORK_SERVERS"
# Seconds for the imports, on a machine with much other work.
_START_SECONDS = 240.0
# Where it is set, interpreters are started instead: qemu-user has threads of its own, and that root has no compiler.
NO_FORKS = "HVD_TEST_NO_FORKS"
# The leases of this process: the connections to its servers, by address.
_leases: dict[str, socket.socket] = {}
_own_folder: str | None = None


def begin_session() -> str:
    """Makes the folder of the session unless this process has inherited one; returns it."""
    global _own_folder
    if _FOLDER not in os.environ:
        _own_folder = os.environ[_FOLDER] = tempfile.mkdtemp(prefix="hvd-fork-")
    return os.environ[_FOLDER]


def end_session() -> None:
    """Ends this process's leases and removes the folder that begin_session() made. A server ends with its last lease."""
    global _own_folder
    while _leases:
        _leases.popitem()[1].close()
    if _own_folder is not None:
        os.environ.pop(_FOLDER, None)
        shutil.rmtree(_own_folder, ignore_errors=True)
        _own_folder = None


def interpreter(
    modules: tuple[str, ...], environment: dict[str, str], python: str = sys.executable
) -> list[str]:
    """The words that stand for `python` in a command, where the program is to begin with these modules imported.

    environment: what the imports see, whole. A program has its own, but what a module reads once is from here.
    Raises RuntimeError if the server does not start.
    """
    if NO_FORKS in os.environ:
        return [python]
    folder = begin_session()
    # Variables of pytest differ from lane to lane.
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    key = repr((python, modules, sorted(environment.items())))
    address = str(Path(folder) / hashlib.sha256(key.encode()).hexdigest()[:16])
    if address not in _leases or not _is_alive(_leases[address]):
        command = [python, str(_HERE / "fork_server.py"), address, *modules]
        _leases[address] = _lease(address, command, environment)
    return _client(python, address)


def is_forked() -> bool:
    """Whether this process is a child of a fork server."""
    return fork_messages.ADDRESS in os.environ


def same_interpreter() -> list[str]:
    """In a program that interpreter() has run: the words for another child of its server. Elsewhere the interpreter."""
    address = os.environ.get(fork_messages.ADDRESS)
    return _client(sys.executable, address) if address else [sys.executable]


def _client(python: str, address: str) -> list[str]:
    return [str(client_program()), address, python]


def script(words: list[str]) -> str:
    """The path of a program that stands for the words of interpreter(), for options that take the path of a Python."""
    path = Path(begin_session()) / f"python-{hashlib.sha256(repr(words).encode()).hexdigest()[:16]}"
    if not path.exists():
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        new.chmod(0o755)
        new.rename(path)  # another lane may be writing the same
    return str(path)


@functools.cache
def client_program() -> Path:
    """The program that stands for a child."""
    return compiled("fork_client", [cc(), "-O2", "-Wall", "-Werror"], [_HERE / "fork_client.c"])


def _is_alive(lease: socket.socket) -> bool:
    try:
        return lease.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _lease(address: str, command: list[str], environment: dict[str, str]) -> socket.socket:
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another lane may be starting it
        try:
            return _connected(address)
        except OSError:
            pass  # there is no server, or it has ended
        for left in (address, f"{address}.new"):
            Path(left).unlink(missing_ok=True)
        log = Path(f"{address}.log")
        with log.open("wb") as output:
            server = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
            )
        end = time.monotonic() + _START_SECONDS
        while not os.path.exists(address):
            if server.poll() is not None or time.monotonic() > end:
                server.kill()
                said = log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{command} ended with {server.wait()}; it printed:\n{said}")
            time.sleep(0.02)
        return _connected(address)


def _connected(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
        if fork_messages.ask(connection, "lease") is None:
            raise ConnectionError(f"the server at {address} is ending")
    except OSError:
        connection.close()
        raise
    return connection


atexit.register(end_session)
