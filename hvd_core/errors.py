"""Exceptions of the public API. Programs import them from ``horovod.common.exceptions``, the familiar place.

HorovodInternalError
├── OperationFailedError      a rank made a mistake, or the ranks disagree; the job continues
├── ProcessSetRemovedError    the process set was removed; the job continues
├── JobEndedError             shutdown, the death of a rank, an abort; every later call fails too
└── NotInitializedError       a call before init() or after shutdown(); also a ValueError

The first three kinds are raised by the engine: by a blocking call, or by ``synchronize()`` for an asynchronous one. Ranks
whose operations fail for one reason get the same kind. ``except HorovodInternalError`` catches all of them.
"""

from __future__ import annotations

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "JobEndedError",
    "NotInitializedError",
    "OperationFailedError",
    "ProcessSetRemovedError",
    "get_version_mismatch_message",
]


class HorovodInternalError(RuntimeError):
    """An operation failed. The subclass says why."""


class OperationFailedError(HorovodInternalError):
    """This operation cannot be carried out, and the job continues.

    Either another rank refused its matching call (a bad argument, for instance), or the ranks ask for different things
    under one name (shapes, dtypes, reductions, roots), or all of them ask for something that cannot be done at this
    moment. Later operations are not affected.
    """


class ProcessSetRemovedError(HorovodInternalError):
    """The operation's process set was removed before the operation was complete. The job continues."""


class JobEndedError(HorovodInternalError):
    """The job has ended: a rank has shut down, died or aborted. Every later call fails with this error.

    Elastic programs restore their state and start again after this kind alone.
    """


class NotInitializedError(HorovodInternalError, ValueError):
    """Horovod is not initialized in this process: init() has not been called, or shutdown() has.

    In the original rank() and size() raise ValueError, and operations on tensors HorovodInternalError: this is both.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed. ``skip_sync``: whether the state must not be synchronised again."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one that Horovod was built for."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> tuple[type[HorovodVersionMismatchError], tuple[str | None, str, str]]:
        return type(self), (self.name, self.version, self.installed_version)


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The text of a HorovodVersionMismatchError."""
    return (
        f"Framework {name} installed with version {installed_version} but found version {version}.\n"
        "This can result in unexpected behavior including runtime errors. "
        "Reinstall hvd-core next to the framework version that is in use."
    )


# Where users know them, in tracebacks and for pickle.
for _error in (
    HorovodInternalError,
    OperationFailedError,
    ProcessSetRemovedError,
    JobEndedError,
    NotInitializedError,
    HostsUpdatedInterrupt,
    HorovodVersionMismatchError,
):
    _error.__module__ = "horovod.common.exceptions"
