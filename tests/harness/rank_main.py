"""What each rank of a living job runs: takes calls from the test process until the connection ends. See job.py.

    python rank_main.py SOCKET

A call names a function by its file. What it prints, by Python or by the engine, goes to a file of the call. A call that
raises ends the process, as the other ranks may wait for this one.
"""

import ast
import contextlib
import ctypes
import faulthandler
import importlib
import importlib.machinery
import importlib.util
import os
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

_PROCESS = os.getpid()
_TESTS = Path(__file__).resolve().parents[1]
# Each launcher has another name for it.
_RANK_VARIABLES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def find_function(path, name):
    path = Path(path)
    # As pytest does it: a test's folder comes first, so that the modules beside it are found.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = sys.modules.get(path.stem) or _loaded(path)
    return getattr(module, name)


def _loaded(path):
    """The module of that file, whose `assert` shows values as pytest's own does."""
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=_Showing(path.stem, str(path)))
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


class _Showing(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        source = self.get_data(self.path)
        tree = ast.parse(source, self.path)
        with contextlib.suppress(ImportError):  # MXNet's interpreter has no pytest
            importlib.import_module("_pytest.assertion.rewrite").rewrite_asserts(tree, source, self.path)
        return compile(tree, self.path, "exec", dont_inherit=True)


@contextlib.contextmanager
def _output_to(path):
    """Standard output and error of this process go to a file."""
    own = [os.dup(1), os.dup(2)]
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        _flush()
        for number, saved in enumerate(own, 1):
            os.dup2(saved, number)
            os.close(saved)


def _flush():
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


@contextlib.contextmanager
def _state_restored():
    """Variables, working folder and the handlers of signals are afterwards what they were."""
    variables, folder = dict(os.environ), os.getcwd()
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        yield
    finally:
        os.chdir(folder)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(variables)


def set_variables(env):
    for name, value in env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _execute(function, arguments, options):
    """(kind, value) of one call, as job.py wants it."""
    import harness.rank

    harness.rank.folder = Path(options["folder"])
    os.chdir(options["folder"])
    set_variables(options["env"])
    try:
        body = find_function(*function)
        if options["init"] is not None:
            importlib.import_module(options["init"]).init(**options["init_options"])
        value = body(*arguments)
        _end_together()
        return "returned", value
    except BaseException as error:
        if os.getpid() != _PROCESS:  # a child that the check has forked ends in its own way
            raise
        # rank.py's, or that of pytest.skip(), which this file does not import.
        if type(error).__name__ == "Skipped":
            _shut_down()
            return "skipped", str(error)
        return "raised", _described(error)


def _is_initialized():
    engine = sys.modules.get("hvd_core")
    return engine is not None and engine.is_initialized()


def _end_together():
    """Waits for the other ranks before the shutdown, which ends the job for a rank that still works. The barrier may
    fail: another rank reports its own failure, and some tests leave an engine that has ended."""
    if _is_initialized():
        with contextlib.suppress(Exception):
            sys.modules["hvd_core"].barrier()
    _shut_down()


def _shut_down():
    if _is_initialized():
        sys.modules["hvd_core"].shutdown()


def _described(error):
    """{"error": class and first line, "is_of_the_job": whether it may be the consequence of another rank's failure,
    "text": the traceback, with the variables of the innermost function of the tests}."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        trace = trace.tb_next  # without the frame of this file
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    ours = [frame for frame in frames if frame.f_code.co_filename.startswith(str(_TESTS))]
    shown = []
    for frame in (ours or frames)[-1:]:
        shown.append(f"variables of {frame.f_code.co_name}():")
        own = [name for name in frame.f_locals if name[:1] not in "_@"]
        shown += [f"    {name} = {_short(frame.f_locals[name])}" for name in own[:30]]
    return {
        "error": "".join(traceback.format_exception_only(type(error), error)).partition("\n")[0],
        "is_of_the_job": any(kind.__name__ == "HorovodInternalError" for kind in type(error).__mro__),
        "text": "".join(traceback.format_exception(type(error), error, trace)) + "\n".join(shown),
    }


def _short(value):
    try:
        text = repr(value)
    except Exception as error:
        text = f"repr() raises {type(error).__name__}"
    return text if len(text) < 500 else text[:500] + "..."


def main():
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own.connect(sys.argv[1])
    connection = Connection(own.detach())
    rank = int(next((os.environ[name] for name in _RANK_VARIABLES if name in os.environ), "0"))
    sys.path[0] = str(_TESTS)
    stacks = open(Path(sys.argv[1]).parent / f"stacks.{rank}", "w")  # noqa: SIM115 (until the end)
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    connection.send((rank, os.getpid()))
    while True:
        try:
            function, arguments, options = connection.recv()
        except (EOFError, OSError):
            return
        with _state_restored(), _output_to(os.path.join(options["folder"], f"output.{rank}")):
            kind, value = _execute(function, arguments, options)
        try:
            connection.send((kind, value))
        except (TypeError, AttributeError, ValueError) as error:
            kind, value = "raised", _described(TypeError(f"the result cannot be sent to the test: {error}"))
            connection.send((kind, value))
        if kind == "raised":
            os._exit(1)


if __name__ == "__main__":
    main()
