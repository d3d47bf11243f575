"""The helper thread that waits for copies from devices to host memory, and then lets their operations begin.

One thread per process, in the order of the calls. It is started by the first call that needs it, and ended at the exit of
the interpreter, before the engine. Any thread may call the functions.
"""

import atexit
import os
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from horovod.common.exceptions import HorovodInternalError

_EXIT_SECONDS = 30.0

_waiting: SimpleQueue = SimpleQueue()
_lock = threading.RLock()  # a signal handler may call while its thread holds it
_thread: threading.Thread | None = None
_ended = False
_parents: SimpleQueue | None = None  # in a forked child: kept, because what it holds is the parent's


def leave_to_helper(core: Any, handle: int, copied: Any, kept: Any) -> None:
    """Let the operation `handle` begin when the event `copied` has come. Returns at once.

    Args:
        core: the engine.
        handle: of an operation on host memory that is being filled.
        copied: an event of a device.
        kept: keeps that memory alive.
    """
    try:
        with _lock:
            served = not _ended and _is_started()
            if served:
                _waiting.put((core, handle, copied, kept))
        if not served:
            begin_now(core, handle, copied)
    except BaseException:
        # Of a signal handler. The other ranks wait for the operation; to begin twice does no harm.
        begin_now(core, handle, copied)
        raise


def wait_here(core: Any, handle: int, copied: Any, kept: Any) -> None:
    """The same by the calling thread, which waits for the event."""
    try:
        copied.synchronize()
        core.begin(handle)
    except BaseException:
        # An interrupt by the user, for instance. The other ranks wait for the operation.
        leave_to_helper(core, handle, copied, kept)
        raise


def begin_now(core: Any, handle: int, copied: Any) -> None:
    """Wait for the event `copied`, if there is one, and let the operation begin; a copy that failed fails all ranks."""
    try:
        if copied is not None:
            copied.synchronize()
        core.begin(handle)
    except (ValueError, HorovodInternalError):
        pass  # the operation has ended with the job
    except Exception as error:
        text = f"a tensor could not be copied to host memory: {type(error).__name__}: {error}"
        with suppress(ValueError, HorovodInternalError):
            core.give_up(handle, text.encode("utf-8", "backslashreplace").decode())


def _is_started() -> bool:
    """Whether there is a thread; starts it. False: the process may not have one more thread, so that the callers wait."""
    global _thread
    if _thread is None:
        atexit.unregister(_end)
        atexit.register(_end)
        _thread = threading.Thread(target=_serve, name="hvd-copies", daemon=True)
        try:
            _thread.start()
        except RuntimeError:
            _thread = None
            return False
    return True


def _serve() -> None:
    while True:
        entry = _waiting.get()
        if entry is None:
            return
        begin_now(*entry[:3])
        del entry  # holds the engine and the tensors


def _end() -> None:
    global _ended
    with _lock:
        _ended = True
        _waiting.put(None)
    if _thread is not None:
        _thread.join(_EXIT_SECONDS)


def _in_forked_child() -> None:
    """The child has no helper thread. Another thread of the parent may have held the lock."""
    global _lock, _thread, _waiting, _parents
    _lock, _thread = threading.RLock(), None
    _parents, _waiting = _waiting, SimpleQueue()


os.register_at_fork(after_in_child=_in_forked_child)
