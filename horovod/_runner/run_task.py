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

from horovod._runner import functions
from horovod._runner.functions import FUNC_FD, RESULT_FD, read_all, write_all

_FETCH_S = 60.0


class _Memory:
    def __init__(self) -> None:
        self._source, self._target = int(os.environ.pop(FUNC_FD)), int(os.environ.pop(RESULT_FD))
        for descriptor in (self._source, self._target):
            os.set_inheritable(descriptor, False)

    def function(self) -> bytes:
        return read_all(self._source)

    def leave(self, result: bytes, failed: bool) -> None:
        write_all(self._target, result)


class _Store:
    def __init__(self) -> None:
        del os.environ[functions.FROM_STORE]
        self._client, self._rank = functions.from_environment()

    def function(self) -> bytes:
        return functions.get(self._client, functions.FUNCTION, _FETCH_S)

    def leave(self, result: bytes, failed: bool) -> None:
        functions.put(self._client, functions.result_key(self._rank), result)
        if failed:
            functions.note_failure(self._client, self._rank)


def main() -> int:
    """The program; returns its exit status."""
    import cloudpickle

    place = _Store() if functions.FROM_STORE in os.environ else _Memory()
    try:
        func, args, kwargs = pickle.loads(place.function())
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
        place.leave(result, failed=True)
        print(text, file=sys.stderr, end="", flush=True)
        return 1
    place.leave(result, failed=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
