"""What each process of `horovod.run` executes: fetches the function, calls it, leaves the result.

Function and result are unnamed memory files inherited from run_api.py; only this job's processes hold them,
so unpickling trusts nobody else. Started as `python -m horovod.runner.run_task`; not to be imported.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback

FUNC_FD = "HOROVOD_RUN_FUNC_FD"
RESULT_FD = "HOROVOD_RUN_RESULT_FD"


def read_all(descriptor: int) -> bytes:
    """The whole memory file, without moving the position its other holders share."""
    size, parts, done = os.fstat(descriptor).st_size, [], 0
    while done < size:
        parts.append(os.pread(descriptor, min(size - done, 1 << 30), done))
        if not parts[-1]:
            break
        done += len(parts[-1])
    return b"".join(parts)


def write_all(descriptor: int, data: bytes) -> None:
    """Puts `data` at the beginning of the memory file."""
    view, done = memoryview(data), 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done : done + (1 << 30)], done)


def main() -> int:
    import cloudpickle

    source, target = int(os.environ.pop(FUNC_FD)), int(os.environ.pop(RESULT_FD))
    for descriptor in (source, target):
        os.set_inheritable(descriptor, False)
    try:
        func, args, kwargs = pickle.loads(read_all(source))
        result = cloudpickle.dumps((True, func(*args, **kwargs)))
    except Exception as error:
        text = traceback.format_exc()
        try:
            result = cloudpickle.dumps((False, text, error))
            pickle.loads(result)  # an exception with a special constructor may be impossible to make again
        except Exception:
            result = cloudpickle.dumps((False, text, None))
        write_all(target, result)
        print(text, file=sys.stderr, end="", flush=True)
        return 1
    write_all(target, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
