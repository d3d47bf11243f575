"""A process that has imported something heavy, and forks a child for each program that is to begin with it.

    python fork_server.py SOCKET MODULE ...

An import of TensorFlow costs 5 s of processor time, a fork of a process that has it 0.03 s. fork_client.c asks for a
child and stands for it in the eyes of a launcher; fork_servers.py starts the servers of a test session; fork_child.py
makes a child like a new interpreter. Neither imports of the modules nor this program start a thread, so a child can use
them.

Children have the seed of their server's hashes, so a set of texts has the same order on all ranks that one server
forks. A test for which another order matters needs interpreters of its own: with PYTHONHASHSEED, as a program for which
an interpreter would start in another way is refused, and its client becomes an interpreter.

A connection carries one of two requests: "lease" keeps the server alive; "run" is a program's arguments, environment,
folder and open files. The client of a program sends the numbers of signals, a byte each; the server's last word is the
exit code. The server ends when all leases have ended. A module that is not installed is left out.
"""

import gc
import importlib.util
import inspect
import os
import selectors
import signal
import socket
import sys

import fork_child
import fork_messages

# Open files of these namespaces come behind those of a child: a host of a test is a namespace of networks, with an /etc
# and perhaps a name of its own.
NAMESPACES = ("net", "uts", "mnt")


class Server:
    """Serves requests until the last lease has ended, or, in a child, until there is a program to run."""

    def __init__(self, listener: socket.socket):
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._leases = 0
        self._children: dict[socket.socket, int] = {}
        self._ended = False
        self._program: fork_child.Program | None = None

    def serve(self) -> fork_child.Program | None:
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
            received = fork_messages.receive(connection)
        except OSError:
            received = None
        if received is None:
            connection.close()
            return
        (kind, *words), files = received
        if kind == "lease":
            self._leases += 1
            self._selector.register(connection, selectors.EVENT_READ, self._end_lease)
            fork_messages.answer(connection, 0)
        else:
            self._run(connection, fork_child.Program.of(words), files)

    def _end_lease(self, connection) -> None:
        self._selector.unregister(connection)
        connection.close()
        self._leases -= 1
        if self._leases == 0:
            self._ended = True
            for pid in self._children.values():
                _kill(pid)

    def _run(self, connection, program, files) -> None:
        if program.needs_an_interpreter():
            for number in files:
                os.close(number)
            self._answer(connection, fork_messages.REFUSED)
            return
        pid = os.fork()
        if pid == 0:
            program.take_processors_of(connection)
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
        for kind, number in zip(NAMESPACES, files[len(program.files) :], strict=True):
            fork_child.enter_namespace(kind, number)
        program.take_files(files[: len(program.files)])

    def _signal(self, connection) -> None:
        """The client passes signals on, or has ended: then the child ends too."""
        pid = self._children.get(connection)
        if pid is None:
            return  # it has been reaped since both were seen
        try:
            numbers = connection.recv(64)
        except OSError:
            numbers = b""
        for number in numbers:
            os.kill(pid, number)
        if not numbers:
            self._selector.unregister(connection)
            _kill(pid)

    def _reap(self, descriptor, connection) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(self._children.pop(connection), 0)
        try:
            self._selector.unregister(connection)
        except KeyError:
            pass  # the client has ended
        self._answer(connection, os.waitstatus_to_exitcode(status))

    def _answer(self, connection, code) -> None:
        try:
            fork_messages.answer(connection, code)
        except OSError:
            pass  # the client has ended
        connection.close()


def _kill(pid: int) -> None:
    """Kills a child and its process group."""
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except OSError:
            pass


def main() -> None:
    address, *modules = sys.argv[1:]
    gc.disable()  # the objects of the imports stay; the collector would spend a sixth of the imports' time on them
    for name in modules:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    # Fills a table of inspect's, which PyTorch and AutoGraph use: for 2,400 modules that costs 0.2 s in each child.
    inspect.getmodule(sys._getframe())
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        sys.exit(f"{len(threads)} threads after the import of {modules}: a child would lack them")
    gc.collect()
    gc.freeze()  # children share the memory of the modules
    gc.enable()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{address}.new")
    listener.listen(64)
    os.rename(f"{address}.new", address)  # from now on clients find it
    program = Server(listener).serve()
    if program is not None:
        program.environment[fork_messages.ADDRESS] = address
        fork_child.run_and_end(program)


if __name__ == "__main__":
    main()
