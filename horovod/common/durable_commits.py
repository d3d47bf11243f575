"""Commits of a state that are also written to a file, from which a whole new job goes on.

One thread of a rank uses it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pickle
import re
from typing import Any

from horovod.common import elastic_values
from horovod.common.exports import rank

__all__ = ["DurableCommits"]

_log = logging.getLogger("horovod")


class DurableCommits:
    """Writes every n-th commit of a state to a file, on rank 0.

    Args:
        state: has the methods durable_parts(), set_durable_parts() and _references().
        path: of the file. A commit replaces it as a whole.
        every: commits from one that is written to the next.
    """

    def __init__(self, state: Any, path: str | os.PathLike, every: int) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"keep_commits() needs an int of at least 1 for `every`, but found {every!r}.")
        self._state, self._path, self._every = state, os.fspath(path), every
        self._checked = self._tidied = False
        self.commits = 0  # of the job: new ranks get the number of rank 0

    def load(self) -> bool:
        """Gives the state the commit in the file. Returns False if there is no file.

        Raises:
            ValueError: the file holds no commit of a state like this one.
        """
        try:
            with open(self._path, "rb") as file:
                parts = elastic_values.load(file, self._state._references)
        except FileNotFoundError:
            return False
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise ValueError(f"{self._path} holds no commit that can be read: {error}. Delete it.") from None
        try:
            self._state.set_durable_parts(parts)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{self._path} holds a commit of another state than this one ({error}). Delete it, or give the state the "
                "values that it had."
            ) from None
        return True

    def committed(self) -> None:
        """The state has just been committed. A file that cannot be written is told in the log; training goes on. Raises
        ValueError at the first commit of a rank, whichever it is, if the state cannot be pickled."""
        if not self._checked:
            self._check()
            self._checked = True
        self.commits += 1
        if rank() != 0 or self.commits % self._every:
            return
        new = f"{self._path}.{os.getpid()}.new"
        try:
            if not self._tidied:
                self._remove_leftovers()
                self._tidied = True
            with open(new, "wb") as file:
                elastic_values.save(self._state.durable_parts(), file, self._state._references)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
            self._sync_folder()
        except OSError as error:
            _log.error("horovod: commit %d could not be written: %s", self.commits, error)
            with contextlib.suppress(OSError):
                os.unlink(new)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise

    def _remove_leftovers(self) -> None:
        """Removes what processes left that were killed while they wrote. No other process may write: this is rank 0."""
        folder, name = os.path.split(self._path)
        for entry in os.listdir(folder or os.curdir):
            if entry.startswith(f"{name}.") and re.fullmatch(r"[0-9]+\.new", entry[len(name) + 1 :]):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, entry))

    def _sync_folder(self) -> None:
        """Until the folder is on the disk too, a machine that fails has the file of the commit before."""
        folder = os.open(os.path.dirname(self._path) or os.curdir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some file systems of networks do it by themselves
                raise
        finally:
            os.close(folder)

    def _check(self) -> None:
        for group, values in self._state.durable_parts().items():
            named = values.items() if isinstance(values, dict) else [(group, values)]
            for name, value in named:
                try:
                    elastic_values.save(value, _Nowhere(), self._state._references)
                except Exception as error:  # of the value's own methods, too
                    raise ValueError(
                        f"keep_commits(): the value {name!r} of the state cannot be written to {self._path}, as it "
                        f"cannot be pickled ({type(error).__name__}: {error}). Keep something in its place that can."
                    ) from None


class _Nowhere:
    """A file that forgets what is written to it."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes
