"""Makes a child of a fork server like the new interpreter that it stands for, and runs its program."""

import atexit
import ctypes
import fcntl
import io
import os
import runpy
import signal
import socket
import struct
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path

# Variables that an interpreter or the loader of libraries reads when it starts. A child obeys the first three of the
# others; horovodrun sets PYTHONUNBUFFERED for its ranks, PYTHONSAFEPATH for its agents. Open MPI's mpirun sets
# LD_LIBRARY_PATH, which a child does not obey: a program that needs it needs an interpreter.
_READ_AT_THE_START = ("PYTHON", "LD_")
_NOT_DECISIVE = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH")
# Numbers of files above which the child keeps those that it has received until each has its own number.
_ASIDE = 512
_CREDENTIALS = struct.Struct("3i")


@dataclass
class Program:
    """What a client wants to be run: the words behind the interpreter's name, and what its process has."""

    folder: str
    umask: int
    arguments: list[str]
    files: list[int]
    environment: dict[str, str]

    @staticmethod
    def of(words: list[str]) -> "Program":
        """From the words of a request, in the order of fork_client.c."""
        left = iter(words)

        def several() -> list[str]:
            return [next(left) for _ in range(int(next(left)))]

        folder, umask = next(left), int(next(left))
        arguments, files = several(), [int(number) for number in several()]
        variables = (word.partition("=") for word in left)
        return Program(folder, umask, arguments, files, {name: value for name, _, value in variables})

    def needs_an_interpreter(self) -> bool:
        """Whether an interpreter would start in another way than the server did: options, variables."""
        option = self.arguments[:1] in ([], ["-"]) or (
            self.arguments[0].startswith("-") and self.arguments[0] not in ("-c", "-m")
        )
        return option or _read_at_the_start(self.environment) != _read_at_the_start(os.environ)

    def take_processors_of(self, connection: socket.socket) -> None:
        """The child may use the processors that its client may use: a launcher has chosen them."""
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        try:
            os.sched_setaffinity(0, os.sched_getaffinity(_CREDENTIALS.unpack(peer)[0]))
        except OSError:
            pass  # the client has ended, and its child is about to

    def take_files(self, received: list[int]) -> None:
        """Gives the received files the numbers that they have in the client."""
        aside = [_moved(number) for number in received]
        for number, wanted in zip(aside, self.files, strict=True):
            os.dup2(number, wanted)
            os.close(number)

    def run(self) -> None:
        """Runs the program as `__main__`."""
        os.setsid()
        os.chdir(self.folder)
        os.umask(self.umask)
        for number, handler in (
            (signal.SIGINT, signal.default_int_handler),
            (signal.SIGTERM, signal.SIG_DFL),
        ):
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(self.environment)
        random = sys.modules.get("numpy.random")
        if random is not None:
            random.seed()  # each process begins with other numbers; Python's own generator sees to that itself
        self._open_streams()
        sys.orig_argv[:] = [sys.executable, *self.arguments]
        kind, *words = self.arguments
        folder = "" if kind == "-c" else os.getcwd() if kind == "-m" else str(Path(kind).resolve().parent)
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        own = [] if os.environ.get("PYTHONSAFEPATH") else [folder]
        found = sys.path[1:]
        sys.path[:] = [*own, *(path for path in paths if path not in ("", *found)), *found]
        if kind == "-m":
            sys.argv[:] = words
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
            return
        sys.argv[:] = ["-c", *words[1:]] if kind == "-c" else self.arguments
        _execute(words[0] if kind == "-c" else Path(kind).read_bytes(), "<string>" if kind == "-c" else kind)

    def _open_streams(self) -> None:
        """Standard output and error as an interpreter would have opened them; the server's are files."""
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            stream = getattr(sys, name)
            if number not in self.files:
                os.close(number)
                stream = None
            elif number and os.environ.get("PYTHONUNBUFFERED"):
                raw = io.FileIO(number, "wb", closefd=False)
                raw.name = f"<{name}>"
                stream = io.TextIOWrapper(
                    raw, stream.encoding, stream.errors, newline="\n", write_through=True
                )
                stream.mode = "w"
            elif number == 1:
                stream.reconfigure(line_buffering=os.isatty(number))
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def run_and_end(program: Program) -> None:
    """Runs the program, and ends the process without the teardown of modules.

    An interpreter first runs what the program has registered and writes its output; so does this function, and the
    destructors of libraries run too. Between them, an interpreter would take its modules apart object by object: in a
    child this copies the memory of the server page by page, 0.02 s with NumPy, 0.3 s with PyTorch or TensorFlow.
    """
    code = 0
    try:
        program.run()
    except SystemExit as end:
        if not (end.code is None or isinstance(end.code, int)):
            raise
        code = end.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:  # an interpreter does not let it pass either
            print(f"Exception ignored in: {stream}\n{type(error).__name__}: {error}", file=sys.__stderr__)
            code = code or 120
    _end_mpi()
    # Holds Python's lock, as an interpreter does at its end: no thread of the program runs any more.
    ctypes.PyDLL(None).exit(code)


def _end_mpi() -> None:
    """Ends MPI as mpi4py does at the end of an interpreter, to which a child does not come.

    mpi4py leaves an MPI alone that another library has initialized. This function cannot know that: a program of
    which another library initializes MPI needs an interpreter.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or sys.modules["mpi4py"].rc.finalize is False:
        return
    if mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def _execute(source: str | bytes, name: str) -> None:
    main = types.ModuleType("__main__")
    if name != "<string>":
        main.__file__ = name
    sys.modules["__main__"] = main
    try:
        exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)
    except Exception as error:
        # As an interpreter does it, which has no frame of ours.
        error.__traceback__ = error.__traceback__.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _read_at_the_start(variables) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(_READ_AT_THE_START) and name not in _NOT_DECISIVE
    }


def enter_namespace(kind: str, number: int) -> None:
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
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
    os.close(number)
    return moved
