"""Why a rank of a job failed, and the exception that the caller of horovod.run or horovod.spark.run gets. Any thread."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from horovod._runner.exit_codes import describe_code


@dataclass(frozen=True)
class RankFailure:
    """Why a rank failed. `code`: its exit code; `text`: with its traceback; `error`: its exception, if it can be pickled;
    `bereaved`: it failed because another rank had failed."""

    rank: int
    code: int
    text: str
    error: BaseException | None = None
    bereaved: bool = False

    def exception(self, host: str | None, python: str, what: str = "rank", more: str = "") -> RuntimeError:
        """What the caller of the job gets. `host`, `python`: of the rank, a host of None is not shown; `what` its number
        counts; `more`: further lines."""
        where = "" if host is None else f" on host {host}"
        text = f"{what} {self.rank}{where} failed:\n{self.text.rstrip()}"
        if isinstance(self.error, ModuleNotFoundError):
            text += (
                f"\nThe Python there, {python}, has no module {self.error.name!r}. Install it on the executors, or send "
                f"it: SparkContext.addPyFile(), or cloudpickle.register_pickle_by_value({self.error.name}) before."
                if what == "rank" and host is not None
                else f"\nThe Python there, {python}, has no module {self.error.name!r}."
            )
        shown = RuntimeError(text + (f"\n{more}" if more else ""))
        shown.__cause__ = self.error
        return shown


def failure_of(rank: int, code: int, data: bytes | None, bereaved: bool = False) -> RankFailure:
    """The failure of a rank that ended with `code`. `data`: what it has left, pickled."""
    trace, error = "", None
    if data:
        # A result is there, too, when the process failed after the function had returned.
        ok, *rest = pickle.loads(data)
        if not ok:
            trace, error = rest
    text = trace or f"The process ended without a Python exception: {describe_code(code)}.\n"
    return RankFailure(rank, code, text, error, bereaved)
