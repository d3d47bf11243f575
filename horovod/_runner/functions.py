"""The function of `horovod.run`, its arguments and its results, on their way to the ranks and back.

They are pickled, and passed in unnamed memory files that only processes of the job hold: the launcher makes them, and
so does the agent of each other host. The ranks inherit the descriptors; two variables hold their numbers. Ranks that
mpirun starts inherit no descriptors; their function and results are in the job's store. A process that reads or writes
there has proved that it knows the job's secret, so unpickling trusts only processes of this job. Any thread.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_core._bootstrap.store import StoreClient

FUNC_FD = "HOROVOD_RUN_FUNC_FD"
RESULT_FD = "HOROVOD_RUN_RESULT_FD"


def read_all(descriptor: int) -> bytes:
    """The content of the memory file. Opened anew, as other processes share the descriptor's position."""
    with open(f"/proc/self/fd/{descriptor}", "rb") as file:
        return file.read()


def write_all(descriptor: int, data: bytes, mode: str = "wb") -> None:
    """Makes `data` the content of the memory file; in mode "ab", appends it."""
    with open(f"/proc/self/fd/{descriptor}", mode) as file:
        file.write(data)


class FunctionMemory:
    """`function`: a descriptor; `results`: rank -> descriptor. Raises OSError if the process has no descriptors left."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.function = -1
        self.results: dict[int, int] = {}
        try:
            self.function = os.memfd_create("horovod-run-function")
            for rank in ranks:
                self.add(rank)
        except BaseException:
            self.close()
            raise

    def add(self, rank: int) -> None:
        """Makes the memory for the result of one more rank. Raises OSError."""
        self.results[rank] = os.memfd_create(f"horovod-run-result-{rank}")

    def drop_if_empty(self, rank: int) -> None:
        """Forgets a rank that has left no result."""
        if rank in self.results and not os.fstat(self.results[rank]).st_size:
            os.close(self.results.pop(rank))

    def variables(self, rank: int) -> dict[str, str]:
        """The variables that hold the numbers of a rank's descriptors."""
        return {FUNC_FD: str(self.function), RESULT_FD: str(self.results[rank])}

    def descriptors(self, rank: int) -> tuple[int, int]:
        """The descriptors that a rank inherits."""
        return self.function, self.results[rank]

    def close(self) -> None:
        """Releases the memory, unless processes hold it."""
        for descriptor in [self.function, *self.results.values()]:
            if descriptor >= 0:
                os.close(descriptor)
        self.function, self.results = -1, {}


# ------------------------------------------------------------------------------------------- in the job's store

FROM_STORE = "HOROVOD_RUN_FROM_STORE"
FUNCTION = "run/function"
# The store's own limit for one request is 16 MiB.
_PART = 8 << 20


def put(client: StoreClient, key: str, data: bytes) -> None:
    """Stores `data` under `key`; readers see all of it or none."""
    parts = range(0, len(data), _PART)
    for number, start in enumerate(parts):
        client.set(f"{key}/{number}", data[start : start + _PART])
    client.set(f"{key}/parts", str(len(parts)).encode())


def get(client: StoreClient, key: str, timeout_s: float) -> bytes:
    """The data that put() has stored. Raises BootstrapTimeout if it is not there in time."""
    count = int(client.get(f"{key}/parts", timeout_s))
    return b"".join(client.get(f"{key}/{number}", timeout_s) for number in range(count))


def result_key(rank: int) -> str:
    """The key of a rank's result in the store."""
    return f"run/result/{rank}"


def note_failure(client: StoreClient, rank: int) -> None:
    """Records the failure of a rank; the store keeps the order of the failures."""
    client.set(f"run/failure/{client.add('run/failures', 1)}", str(rank).encode())


def first_failure(client: StoreClient) -> int | None:
    """The rank that note_failure() was called for first."""
    return int(client.get("run/failure/1", 5.0)) if client.add("run/failures", 0) else None


def from_environment() -> tuple[StoreClient, int]:
    """A connection to the store of the job that this process belongs to, and this process's rank."""
    from hvd_core._bootstrap.launchers.identity import identify
    from hvd_core._bootstrap.store import StoreClient

    identity = identify(os.environ)
    store, secret = os.environ["HOROVOD_STORE"], bytes.fromhex(os.environ["HOROVOD_SECRET_KEY"])
    return StoreClient(store, secret, identity.rank), identity.rank


# ------------------------------------------------------------------------------------------- checks and pickles


def checked(
    caller: str, func: Any, args: Any, kwargs: Any
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function and its arguments. `caller`: what the user has called. Raises TypeError."""
    if not callable(func):
        raise TypeError(f"{caller}: the function to run must be callable, found {func!r}.")
    described = _name(func)
    try:
        args, kwargs = tuple(args), {} if kwargs is None else dict(kwargs)
        try:
            # Of the function itself: a decorator may supply arguments of the function that it wraps.
            signature = inspect.signature(func, follow_wrapped=False)
        except ValueError:  # some builtins have none
            return func, args, kwargs
        described += str(signature)
        signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{caller}: {described} cannot be called with these args and kwargs: {error}."
        ) from None
    return func, args, kwargs


def pickled(
    caller: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], sent: Any = None
) -> bytes:
    """(func, args, kwargs), or `sent` in the place of func, for the ranks. Raises TypeError that names the value which
    cannot be pickled."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps((func if sent is None else sent, args, kwargs))
        return data
    except Exception as error:
        where, kind = _culprit(func, args, kwargs)
        raise TypeError(
            f"{caller}: {where}, of type {kind}, cannot be sent to the ranks: {error}. Make it within the function, or "
            "pass what is needed to make it."
        ) from error


def _culprit(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
    """(place, type) of the value that cannot be pickled: an argument, a variable of the function, or the function."""
    import cloudpickle

    parts = {f"args[{i}]": value for i, value in enumerate(args)}
    parts |= {f"kwargs[{name!r}]": value for name, value in kwargs.items()}
    name = f"the function {_name(func)}"
    try:
        used = inspect.getclosurevars(func)
        parts |= {f"variable {key!r} of {name}": v for key, v in {**used.globals, **used.nonlocals}.items()}
    except (TypeError, ValueError):
        pass  # no plain function, or a variable without a value
    of_self = getattr(getattr(func, "__self__", None), "__dict__", {})  # of a method
    parts |= {f"attribute {key!r} of self of {name}": v for key, v in of_self.items()}
    for where, value in parts.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return where, type(value).__qualname__
    return name, type(func).__qualname__


def _name(func: Any) -> str:
    return getattr(func, "__qualname__", None) or repr(func)
