"""A process that has imported something heavy, and forks a child for each program that is to begin with it.

    python fork_server.py SOCKET MODULE ...

An import of TensorFlow costs 5 s of processor time, a fork of a process that has it 0.03 s. fork_client.py asks for a
child and stands for it in the eyes of a launcher; fork_servers.py starts the servers of a test session. Neither imports
of the modules nor this program start a thread, so a child can use them.

Children have the seed of their server's hashes, so a set of texts has the same order on all ranks that one server
forks. A test for which another order matters needs interpreters of its own.

A connection carries one of two requests: "lease" keeps the server alive; "run" is a program's arguments, environment,
folder and open files. The server ends when all leases have ended. A module that is not installed is left out.
"""

import array
import gc
import importlib.util
import os
import pickle
import runpy
import selectors
import signal
import socket
import struct
import sys
from pathlib import Path

# The variable that tells a child the address of its server.
ADDRESS = "HVD_TEST_FORK_SERVER"
# Files of one child: standard input, output and error, and what its launcher lets it inherit.
MOST_FILES = 64
# Those of a child are its client's: a host of a test is a namespace of networks, with an /etc of its own.
NAMESPACES = ("net", "mnt")
# Numbers of files above which the child keeps those that it has received until each has its own number.
_ASIDE = 512
_LENGTH = struct.Struct("<I")


def send(connection: socket.socket, message, files: list[int] = ()) -> None:
    """Sends a message that can be pickled, and open files."""
    body = pickle.dumps(message)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    connection.sendmsg([_LENGTH.pack(len(body))], rights)
    connection.sendall(body)


def receive(connection: socket.socket):
    """(message, files) that send() has sent; None at the end of the connection."""
    size = array.array("i").itemsize
    head, ancillary, _, _ = connection.recvmsg(_LENGTH.size, socket.CMSG_SPACE(MOST_FILES * size))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data[: len(data) - len(data) % size])
    if len(head) < _LENGTH.size:
        return None
    body = b""
    left = _LENGTH.unpack(head)[0]
    while len(body) < left:
        part = connection.recv(left - len(body))
        if not part:
            return None
        body += part
    return pickle.loads(body), list(files)


class Server:
    """Serves requests until the last lease has ended, or, in a child, until there is a program to run."""

    def __init__(self, listener: socket.socket):
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._leases = 0
        self._children: dict[socket.socket, int] = {}
        self._ended = False
        self._program: dict | None = None

    def serve(self) -> dict | None:
        """The program that this process, a child, is to run; None at the end of the server."""
        while not self._ended and self._program is None:
            for key, _ in self._selector.select():
                key.data(key.fileobj)
                if self._program is not None:
                    break
        return self._program

    def _accept(self, listener) -> None:
        connection, _ = listener.accept()
        connection.settimeout(20)
        try:
            request = receive(connection)
        except OSError:
            request = None
        if request is None:
            connection.close()
            return
        (kind, program), files = request
        if kind == "lease":
            self._leases += 1
            self._selector.register(connection, selectors.EVENT_READ, self._end_lease)
            send(connection, "granted")
        else:
            self._fork(connection, program, files)

    def _end_lease(self, connection) -> None:
        self._selector.unregister(connection)
        connection.close()
        self._leases -= 1
        if self._leases == 0:
            self._ended = True
            for pid in self._children.values():
                _kill(pid)

    def _fork(self, connection, program, files) -> None:
        pid = os.fork()
        if pid == 0:
            connection.close()
            self._become(program, files)
            return
        for number in files:
            os.close(number)
        self._children[connection] = pid
        self._selector.register(connection, selectors.EVENT_READ, self._signal)
        self._selector.register(
            os.pidfd_open(pid), selectors.EVENT_READ, lambda fd: self._reap(fd, connection)
        )

    def _become(self, program, files) -> None:
        """Closes all files of the server in the child, and gives the received ones their numbers."""
        self._program = program
        own = [key.fileobj for key in self._selector.get_map().values()]
        self._selector.close()
        for each in [*own, *self._children]:
            os.close(each) if isinstance(each, int) else each.close()
        self._children.clear()
        for kind, number in zip(NAMESPACES, files[len(program["files"]) :], strict=True):
            _enter_namespace(kind, number)
        aside = [_moved(number) for number in files[: len(program["files"])]]
        for number, wanted in zip(aside, program["files"], strict=True):
            os.dup2(number, wanted)
            os.close(number)

    def _signal(self, connection) -> None:
        """The client passes a signal on, or has ended: then the child ends too."""
        try:
            request = receive(connection)
        except OSError:
            request = None
        pid = self._children[connection]
        if request is not None:
            os.kill(pid, request[0])
        else:
            self._selector.unregister(connection)
            _kill(pid)

    def _reap(self, descriptor, connection) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(self._children.pop(connection), 0)
        try:
            self._selector.unregister(connection)
            send(connection, os.waitstatus_to_exitcode(status))
        except (KeyError, OSError):
            pass  # the client has ended
        connection.close()


def _enter_namespace(kind: str, number: int) -> None:
    """Enters the namespace behind an open file, unless this process is in it, and closes the file."""
    if os.fstat(number).st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino:
        import ctypes

        if ctypes.CDLL(None, use_errno=True).setns(number, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(
                error, f"the child cannot enter its client's namespace ({kind}): {os.strerror(error)}"
            )
    os.close(number)


def _moved(number: int) -> int:
    import fcntl

    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
    os.close(number)
    return moved


def _kill(pid: int) -> None:
    """Kills a child and its process group."""
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except OSError:
            pass


def _begin(program: dict) -> None:
    """Makes this child like a new interpreter with the program's environment would be."""
    os.setsid()
    os.chdir(program["folder"])
    os.umask(program["umask"])
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(program["environment"])
    sys.argv[:] = program["arguments"]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    added = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", *sys.path)
    ]
    sys.path[1:1] = added
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # each process begins with other numbers; Python's own generator sees to that itself


def main() -> None:
    address, *modules = sys.argv[1:]
    for name in modules:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        sys.exit(f"{len(threads)} threads after the import of {modules}: a child would lack them")
    gc.collect()
    gc.freeze()  # children share the memory of the modules
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{address}.new")
    listener.listen(64)
    os.rename(f"{address}.new", address)  # from now on clients find it
    program = Server(listener).serve()
    if program is not None:
        _begin(program)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
