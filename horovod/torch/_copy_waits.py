"""The helper thread that waits for copies from devices to host memory, and then lets their operations begin.

One thread per process, in the order of the calls. It is started by the first call that needs it, and ended at the exit of
the interpreter, before the engine. Any thread may call the functions.
"""

import atexit
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from horovod.common.exceptions import HorovodInternalError

_EXIT_SECONDS = 30.0

_waiting: SimpleQueue = SimpleQueue()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_ended = False


def leave_to_helper(core: Any, handle: int, copied: Any, kept: Any) -> None:
    """Let the operation `handle` begin when the event `copied` has come. Returns at once.

    Args:
        core: the engine.
        handle: of an operation on host memory that is being filled.
        copied: an event of a device.
        kept: keeps that memory alive.
    """
    with _lock:
        if not _ended:
            _waiting.put((core, handle, copied, kept))
            _start()
            return
    _begin(core, handle, copied)


def wait_here(core: Any, handle: int, copied: Any, kept: Any) -> None:
    """The same by the calling thread, which waits for the event."""
    try:
        copied.synchronize()
        core.begin(handle)
    except BaseException:
        # An interrupt by the user, for instance. The other ranks wait for the operation.
        leave_to_helper(core, handle, copied, kept)
        raise


def _begin(core: Any, handle: int, copied: Any) -> None:
    try:
        copied.synchronize()
        core.begin(handle)
    except (ValueError, HorovodInternalError):
        pass  # the operation has ended with the job
    except Exception as error:
        text = f"a tensor could not be copied to host memory: {type(error).__name__}: {error}"
        with suppress(ValueError, HorovodInternalError):
            core.give_up(handle, text.encode("utf-8", "backslashreplace").decode())


def _start() -> None:
    global _thread
    if _thread is None:
        _thread = threading.Thread(target=_serve, name="hvd-copies", daemon=True)
        _thread.start()
        atexit.register(_end)


def _serve() -> None:
    while True:
        entry = _waiting.get()
        if entry is None:
            return
        _begin(*entry[:3])
        del entry  # holds the engine and the tensors


def _end() -> None:
    global _ended
    with _lock:
        _ended = True
        _waiting.put(None)
    _thread.join(_EXIT_SECONDS)
