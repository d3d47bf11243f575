"""The Work of an operation: waiting for it with a timeout, its future, its failure. Any thread."""

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.futures import Future

from horovod.common.exceptions import HorovodInternalError
from horovod.torch import _devices
from horovod.torch._devices import streams_of

# The base class of works. Any thread.
#
# A Work that is written in Python has two halves. Old versions of PyTorch (2.4; not 2.7) hold on to the half in C++
# alone: DDP, functional collectives and everything else that calls a group from C++. Without the half in Python, wait()
# of such a Work never returns. So with these versions a list holds the works to which C++ refers: the count of references
# is read from the memory of the half in C++, as PyTorch shows it nowhere.

_Work = torch._C._distributed_c10d.Work

_lock = threading.Lock()
_kept: list[Any] = []
_most = 8  # works in the list, before it is looked through


def _references(work: Any) -> int:
    """How many references C++ counts; one of them is that of the half in Python."""
    # An object of pybind11 begins as each object of Python does, and continues with the address of its half in C++. That
    # begins with the address of its methods; the count follows, of 4 or 8 bytes.
    half = ctypes.c_void_p.from_address(id(work) + object.__basicsize__).value or 0
    return ctypes.c_uint32.from_address(half + ctypes.sizeof(ctypes.c_void_p)).value


class _Kept(_Work):
    """A Work that is in the list from its beginning. It leaves the list when nothing but the list refers to it."""

    def __init__(self) -> None:
        global _kept, _most
        super().__init__()
        with _lock:
            _kept.append(self)
            if len(_kept) > _most:
                # Two references in Python: that of the list, and that of the call.
                _kept = [
                    _kept[i]
                    for i in range(len(_kept))
                    if sys.getrefcount(_kept[i]) > 2 or _references(_kept[i]) > 1
                ]
                _most = len(_kept) + 8


_is_old = tuple(int(number) for number in torch.__version__.split(".")[:2]) < (2, 7)
_Base: Any = _Kept if _is_old else _Work
Failure = getattr(dist, "DistBackendError", RuntimeError)


class _Future(Future[Any]):
    """A future of a Work. A callback of one future may wait for another one (PowerSGD's hook does), on the only thread
    that completes futures: wait() takes the result itself."""

    def __init__(self, work: "Work"):
        super().__init__(devices=work.devices)
        self.work: Work | None = work

    def wait(self) -> Any:
        work = self.work
        if work is not None:
            work.complete_future()
        return super().wait()


class Work(_Base):
    """One operation under way.

    Args:
        core: the engine.
        handle: of the operation.
        seconds: the timeout of wait() where the caller gives none.
        what: the operation in words, for error messages.
        results: the tensors that result() and the future return.
        finish: called once when the engine has carried the operation out, before anything is returned; it puts the
            results where they belong. None if they are there.
        device: the operation on a device (of Taken); None in host memory.
    """

    def __init__(
        self,
        core: Any,
        handle: int,
        seconds: float,
        what: str,
        results: Any,
        finish: Callable[[], None] | None = None,
        device: Any = None,
    ):
        super().__init__()
        self._core, self._handle, self._seconds, self._what = core, handle, seconds, what
        self._results, self._finish, self._device = results, finish, device
        self.devices = [] if device is None else [device.device]
        # On a device: the stream on which the results are complete, and the point in it.
        self._stream = self._complete = None
        self._lock = threading.Lock()
        self._over = False
        self._failure: BaseException | None = None
        self._future: _Future | None = None
        self.source = -1

    def __del__(self) -> None:
        if not self._over:
            # The program has released an operation under way: the engine keeps its tensors until its end.
            self._core.release(self._handle)

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the operation. `timeout`: a timedelta; without one, or with 0, the limit of the group.

        Raises HorovodInternalError if it has failed on a rank, DistBackendError when the timeout has passed.
        """
        if not self._over:
            seconds = seconds_of(timeout, self._seconds)
            try:
                in_time = self._core.wait_for(self._handle, seconds)
            except HorovodInternalError:
                in_time = True
            except ValueError:  # another thread has finished it meanwhile
                in_time = True
            if not in_time:
                self.give_up(seconds)
            self._end()
        if self._failure is not None:
            raise self._failure
        if self._complete is not None:
            self._come_after()
        return True

    def give_up(self, seconds: float) -> NoReturn:
        """Raise the error of an operation that has not ended within `seconds`."""
        raise Failure(
            f"hvd: Timed out waiting {round(seconds * 1000)}ms for {self._what} to complete: not all ranks of the group "
            "have called it"
        )

    def _end(self) -> None:
        """The engine is done with the operation: take its results or its failure, once."""
        with self._lock:
            if self._over:
                return
            try:
                self._core.wait(self._handle)
                if self._device is not None:
                    self._device.all(self._core, self._handle)  # this thread's stream comes after it now
                if self._finish is not None:
                    self._finish()
                if self._device is not None:
                    self._mark()
            except BaseException as error:
                self._failure = error
            self._over = True
            self._finish = None
            self._core.release(self._handle)

    def _mark(self) -> None:
        """The results are complete at this point of the thread's current stream."""
        device = self._device.device
        streams = streams_of(device)
        if streams is None:
            synchronize = getattr(getattr(torch, device.type, None), "synchronize", None)
            if synchronize is not None:
                synchronize(device)
            return
        self._stream = streams.current()
        self._complete = streams.mark(self._stream)

    def _come_after(self) -> None:
        """Let the thread's current stream come after the results."""
        device = self._device.device
        streams = streams_of(device)
        now = None if streams is None else streams.current()
        if streams is not None and now != self._stream:
            now.wait_event(self._complete)
            _devices.record([t for t in self._results if isinstance(t, torch.Tensor)], device)

    def is_completed(self) -> bool:
        """Whether wait() would not block."""
        try:
            return self._over or self._core.poll(self._handle)
        except ValueError:  # another thread has finished it meanwhile
            return True

    def is_success(self) -> bool:
        """Whether the operation is complete and has not failed."""
        if not self.is_completed():
            return False
        self._end()
        return self._failure is None

    def exception(self) -> BaseException | None:
        """The failure of a complete operation; None if there is no failure."""
        return None if self.is_success() or not self._over else self._failure

    def result(self) -> Any:
        """The tensors with the results."""
        return self._results

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def block_current_stream(self) -> None:
        """As wait()."""
        self.wait()

    def source_rank(self) -> int:
        """The rank, within the group, that sent the data of a receive."""
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """A future with the results, which the engine's completion thread completes."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = future = _Future(self)
            asked = not self._over and self._core.notify(self._handle, self.complete_future)
        if not asked:
            self.complete_future()
        return future

    def get_future_result(self) -> Future[Any]:
        """As get_future()."""
        return self.get_future()

    def complete_future(self) -> None:
        """Wait for the operation, and complete the future unless another thread has done so."""
        self._end()
        with self._lock:
            future = self._future
            if future is None or future.work is None:
                return
            future.work = None
        if self._failure is None:
            future.set_result(self._results)
        else:
            future.set_exception(self._failure)


class Works(_Base):
    """Several operations as one Work: of coalesced calls, and of calls that need several operations; or none, of a call
    that has nothing left to do."""

    def __init__(self, works: Sequence[Any], results: Any = None):
        super().__init__()
        self._works, self._results = list(works), results
        self.devices = list({device for work in self._works for device in work.devices})
        self._future: Future[Any] | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: Any = None) -> bool:
        """As Work.wait(), for all of them; the first failure is raised when all have ended."""
        failure = None
        for work in self._works:
            try:
                work.wait() if timeout is None else work.wait(timeout)
            except RuntimeError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return True

    synchronize = block_current_stream = wait

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> Any:
        if self._results is not None:
            return self._results
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Future[Any]:
        with self._lock:
            if self._future is not None:
                return self._future
            future: Future[Any] = Future(devices=self.devices)
            self._future = future
        gathered = torch.futures.collect_all([work.get_future() for work in self._works])

        def hand_on(done: Future[Any]) -> None:
            try:
                for each in done.value():
                    each.value()
            except RuntimeError as error:
                future.set_exception(error)
            else:
                future.set_result(self.result())

        gathered.add_done_callback(hand_on)
        return future

    get_future_result = get_future


def seconds_of(timeout: Any, otherwise: float) -> float:
    """The timeout that a timedelta (or seconds, or None) means. torch's values for "none given" are not positive."""
    if timeout is None:
        return otherwise
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds > 0 else otherwise
