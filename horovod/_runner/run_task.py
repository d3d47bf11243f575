"""The program of each process of `horovod.run`: reads the function, calls it, and writes the result.

Function and result are unnamed memory files that the process inherits, or are in the job's store if mpirun starts it
(functions.py). Only processes of this job can write to either, so unpickling them is safe.
Started as `python -m horovod._runner.run_task`; not to be imported.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable

from horovod._runner import functions
from horovod._runner.functions import FUNC_FD, RESULT_FD, read_all, write_all

_FETCH_S = 60.0


def _place() -> tuple[bytes, Callable[[bytes, bool], None]]:
    """(the pickled function, a function that leaves the result and whether it is a failure)"""
    if os.environ.pop(functions.FROM_STORE, None):
        client, rank = functions.from_environment()

        def leave(result: bytes, failed: bool) -> None:
            functions.put(client, functions.result_key(rank), result)
            if failed:
                functions.note_failure(client, rank)

        return functions.get(client, functions.FUNCTION, _FETCH_S), leave
    source, target = int(os.environ.pop(FUNC_FD)), int(os.environ.pop(RESULT_FD))
    for descriptor in (source, target):
        os.set_inheritable(descriptor, False)
    return read_all(source), lambda result, failed: write_all(target, result)


def main() -> int:
    """The program; returns its exit status."""
    import cloudpickle

    data, leave = _place()
    try:
        func, args, kwargs = pickle.loads(data)
        result = cloudpickle.dumps((True, func(*args, **kwargs)))
    except Exception as error:
        if (uncaught := sys.modules.get("hvd_core._runtime.crash_reports")) is not None:
            uncaught.note_exception(error)  # the other ranks fail with this as the cause
        text = traceback.format_exc()
        if "hvd_core.errors" in sys.modules:
            # The home of these exceptions: unless it is imported, they would be pickled by value, as other classes.
            import horovod.common.exceptions  # noqa: F401
        try:
            result = cloudpickle.dumps((False, text, error))
            pickle.loads(result)  # an exception with a special constructor may fail to unpickle
        except Exception:
            result = cloudpickle.dumps((False, text, None))
        leave(result, True)
        print(text, file=sys.stderr, end="", flush=True)
        return 1
    leave(result, False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
