"""What each process of `horovod.run` executes: fetches the function, calls it, leaves the result.

Function and result are unnamed memory files that it inherits (function_memory.py); only this job's processes hold
them, so unpickling trusts nobody else. Started as `python -m horovod.runner.run_task`; not to be imported.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback

from horovod.runner.function_memory import FUNC_FD, RESULT_FD, read_all, write_all


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
