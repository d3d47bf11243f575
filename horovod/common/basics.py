"""HorovodBasics: the functions that every framework module of Horovod exports alike (init, rank, size, nccl_built, ...).

A thin layer over ``hvd_core._runtime.runtime``. All frameworks of one process share one engine, so a program
may make each call through any of them. Any thread; init() and shutdown() by one thread at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from horovod.common import _build_info, _init_hooks
from horovod.common._init_hooks import report_original, warn_about_ignored
from horovod.common.process_sets import (
    ProcessSet,
    _temp_process_set_object,
    add_process_set,
    remove_process_set,
)
from hvd_core._base import native
from hvd_core._frontend import operations
from hvd_core._runtime import engine_start
from hvd_core._runtime.current_job import call_after_the_job
from hvd_core.backends._selection.plan import BackendReport

if TYPE_CHECKING:
    from hvd_core._core import Engine

# The module hvd_core._runtime.runtime; None where the engine cannot be loaded.
_runtime: Any = None
UNAVAILABLE: ImportError | None = None
try:
    native.load()  # to learn now whether it can be loaded
    from hvd_core._runtime import runtime as _loaded_runtime
    from hvd_core._runtime.current_job import engine

    _runtime = _loaded_runtime
except ImportError as _error:
    # Importing must work where the engine cannot run (a Spark driver, a documentation build); calls explain.
    UNAVAILABLE = _error

    def engine() -> Engine:
        """Raises ImportError with the reason why the engine cannot be loaded."""
        raise _unavailable()


__all__ = ["UNAVAILABLE", "HorovodBasics", "call_after_the_job", "engine", "runtime"]


def _unavailable() -> ImportError:
    error = ImportError(f"Horovod cannot run here because its engine could not be loaded: {UNAVAILABLE}")
    error.__cause__ = UNAVAILABLE
    return error


def runtime() -> Any:
    """The module ``hvd_core._runtime.runtime``.

    Raises:
        ImportError: the engine cannot be loaded; the message says why.
    """
    if _runtime is None:
        raise _unavailable()
    return _runtime


def _wait_for_all_ranks_to_start_mpi() -> None:
    """Return when every rank is here: an operation whose missing ranks the engine names, where MPI would wait silently.

    Raises BootstrapError if the job ends before.
    """
    import numpy

    from hvd_core import numpy_api
    from hvd_core._base.sockets import BootstrapError
    from hvd_core.errors import HorovodInternalError

    try:
        numpy_api.allreduce(numpy.zeros(1), op=operations.Sum, name="horovod.mpi_threads_supported")
    except HorovodInternalError as error:
        raise BootstrapError(
            f"MPI starts on all ranks together, and not all of them have called mpi_threads_supported(): {error}"
        ) from error


class HorovodBasics:
    """The basics as methods of one object, reachable by programs as ``hvd.mpi_ops._basics``."""

    Average: Final[int] = operations.Average
    Sum: Final[int] = operations.Sum
    Adasum: Final[int] = operations.Adasum
    Min: Final[int] = operations.Min
    Max: Final[int] = operations.Max
    Product: Final[int] = operations.Product

    HOROVOD_PROCESS_SET_ERROR_INIT = -1
    HOROVOD_PROCESS_SET_ERROR_DYNAMIC = -2
    HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -3
    HOROVOD_PROCESS_SET_ERROR_FOREIGN_SET = -4
    HOROVOD_PROCESS_SET_ERROR_SHUTDOWN = -5
    HOROVOD_PROCESS_SET_ERROR_EXISTING_SET = -6

    def init(
        self,
        comm: Any = None,
        process_sets: Sequence[ProcessSet] | str | None = None,
        backend: str | type | Sequence[str | type] | None = None,
    ) -> None:
        """Start Horovod, together with all other ranks of the job. Once per process, before anything else of Horovod. A
        second call while it runs changes nothing; a call after shutdown() starts it anew.

        It touches no device: choose one by local_rank() afterwards. Without a launcher the process is a job of its own.

        Args:
            comm: None for all ranks that the launcher has started; a list of some of these ranks, which make a job of
                their own with ranks in the order of the list (only they call init(), all with the same list); or an
                ``mpi4py.MPI.Comm`` of the job's processes, which is duplicated.
            process_sets: None; a list of hvd.ProcessSet, the same on all ranks; or "dynamic", which allows the program to
                add and remove sets later. Sets that communicators define need a communicator as `comm`.
            backend: the backend that moves the data; it has precedence over HOROVOD_BACKEND. A name, names in order of
                preference, a string such as "cuda=nccl,cpu=mpi", or a subclass of hvd_core.backends.PythonBackend.

        Raises:
            ValueError: arguments or environment variables that make no sense, or that differ between ranks; the message
                says which. After a ValueError about process sets Horovod runs, and the program may call init() again.
            NotImplementedError: a communicator defines a process set, but `comm` is not a communicator.
            hvd_core.backends.BackendError: no backend can be used; the message says why, for each.
            hvd_core._base.sockets.BootstrapError: the ranks do not come together within HOROVOD_START_TIMEOUT seconds.
        """
        engine_runtime = runtime()
        report_original()
        if engine_start.is_elastic():
            _init_hooks.preload_modules()
        engine_runtime.init(comm=comm, process_sets=process_sets, backend=backend)
        _build_info.warn_about_controller(os.environ, engine_runtime.world(), engine_runtime.plan())
        warn_about_ignored(os.environ, engine_runtime.rank())

    def shutdown(self) -> None:
        """Stop Horovod, on all ranks. Operations that the ranks had agreed on are finished, other pending ones fail.

        Happens by itself when the program ends. Does nothing when Horovod does not run. A program may call init() again
        afterwards.
        """
        if _runtime is not None:
            _runtime.shutdown()

    def is_initialized(self) -> bool:
        """True between init() and shutdown()."""
        return _runtime is not None and _runtime.is_initialized()

    def rank(self) -> int:
        """Global rank of this process, 0 .. size() - 1. ValueError before init()."""
        return int(runtime().rank())

    def size(self) -> int:
        """Number of processes of the job. ValueError before init()."""
        return int(runtime().size())

    def local_rank(self) -> int:
        """Index of this process among those of its host. ValueError before init()."""
        return int(runtime().local_rank())

    def local_size(self) -> int:
        """Number of processes on this host. ValueError before init()."""
        return int(runtime().local_size())

    def cross_rank(self) -> int:
        """Index of this host among the hosts that have this local rank. ValueError before init()."""
        return int(runtime().cross_rank())

    def cross_size(self) -> int:
        """Number of hosts that have a process with this local rank. ValueError before init()."""
        return int(runtime().cross_size())

    def is_homogeneous(self) -> bool:
        """True when every host has the same number of processes. ValueError before init()."""
        return bool(runtime().is_homogeneous())

    def backend_report(self) -> BackendReport:
        """Which backend serves each operation on each device type, and which setting chose it.

        A tuple of rows (operation, device, backend, version, origin, support, score, source), whose str() is a table.
        Before init(): the backends that a job of one process would choose now.

        Raises:
            hvd_core.backends.BackendError, ValueError: the errors of init().
        """
        report: BackendReport = runtime().backend_report()
        return report

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Write a timeline from now on, also where HOROVOD_TIMELINE was not set. All ranks call it at the same point of
        the program; the call of rank 0 decides, and the others wait for nothing. A timeline under way ends first.

        Args:
            file_path: the file, which is made anew, in Chrome's trace format. Rank 0 writes it; with ``{rank}`` in it, or
                with HOROVOD_TIMELINE_ALL_RANKS=1, every rank writes one.
            mark_cycles: whether rounds of the engine are marked in it.

        Raises:
            ValueError: Horovod is not initialized, or `file_path` is empty.
            OSError: rank 0 cannot make the file.
            HorovodInternalError: the job has ended.
        """
        from hvd_core._runtime.runtime import start_timeline

        runtime()
        start_timeline(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """End the timeline on all ranks. Returns on rank 0 when its file is complete. Without a timeline it does nothing.

        Raises:
            ValueError: Horovod is not initialized.
        """
        from hvd_core._runtime.runtime import stop_timeline

        runtime()
        stop_timeline()

    def mpi_threads_supported(self) -> bool:
        """Whether the program may call MPI from any thread (MPI_THREAD_MULTIPLE), ``mpi4py`` for instance.

        If another backend than mpi moves the data, and MPI's launcher has started this process, the question itself
        starts MPI through mpi4py, with that level, unless the program has started MPI. As MPI starts on all ranks
        together, all of them have to ask then; a rank that asks alone waits, as in an operation. In a job of some of the
        launcher's processes (``init(comm=...)``) the question starts nothing.

        If the backend mpi is used for device memory only, the answer is False before the first operation on such memory.

        Raises:
            ValueError: no launcher of MPI has started the job, mpi4py cannot be used, the job ended before all ranks had
                asked, has some of the launcher's processes only while MPI does not run, or Horovod is not initialised.
        """
        if self.mpi_enabled():
            return bool(runtime().backend_fact("mpi", "threads") == "multiple")
        reason = "Horovod is not initialised; use hvd.init()."
        if self.is_initialized():
            reason = "No launcher of MPI has started this process: use mpirun, or horovodrun --mpi."
            from hvd_core._base.sockets import BootstrapError
            from hvd_core._bootstrap.rendezvous import mpi4py_support

            try:
                answer = mpi4py_support.has_all_threads(
                    runtime().world().launcher, runtime().size(), _wait_for_all_ranks_to_start_mpi
                )
            except BootstrapError as error:
                answer, reason = None, str(error)
            if answer is not None:
                return bool(answer)
        raise ValueError(
            f"Horovod MPI is not enabled; Please make sure it's installed and enabled. ({reason})"
        )

    def mpi_enabled(self) -> bool:
        """Whether this job uses the backend mpi, for any operation on any device type. False before init()."""
        return self.is_initialized() and _build_info.uses(runtime().plan(), "mpi")

    def mpi_built(self) -> bool:
        """Whether MPI can be used here: the backend mpi is installed (the wheel hvd-backend-mpi), or mpi4py is installed
        and finds an MPI library. Starts no MPI."""
        from hvd_core._bootstrap.rendezvous import mpi4py_support

        return _build_info.backend("mpi") or mpi4py_support.can_be_loaded(os.environ)

    def gloo_enabled(self) -> bool:
        """Whether this job uses the backend gloo, or works without MPI. Programs expect that gloo_enabled() or
        mpi_enabled() is true after init(). False before init()."""
        return self.is_initialized() and (
            _build_info.uses(runtime().plan(), "gloo") or not self.mpi_enabled()
        )

    def gloo_built(self) -> bool:
        """Whether jobs can do without MPI, which is so wherever the engine can be loaded. The backend gloo (the wheel
        hvd-backend-gloo) is not asked about: `hvd plugin list` shows it."""
        return UNAVAILABLE is None

    def nccl_built(self) -> int:
        """NCCL_VERSION_CODE (an int, 21903 for 2.19.3) of the library that the backend nccl finds; 0 without the backend
        or the library."""
        return _build_info.nccl_version_code()

    def ddl_built(self) -> bool:
        """Whether a backend named ddl is installed. hvd-core brings no backend of that name."""
        return _build_info.backend("ddl")

    def ccl_built(self) -> bool:
        """Whether a backend named ccl is installed."""
        return _build_info.backend("ccl")

    def cuda_built(self) -> bool:
        """Whether a backend is installed that opens CUDA devices."""
        return _build_info.device_type("cuda")

    def rocm_built(self) -> bool:
        """Whether a backend is installed that opens ROCm devices."""
        return _build_info.device_type("rocm")

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return engine().process_sets()

    def _add_process_set_impl(self, ranks: Sequence[int]) -> int:
        """Number of the new set, or of the one that has these ranks already. Programs use add_process_set()."""
        known = {tuple(members): number for number, members in self._get_process_set_ids_and_ranks().items()}
        number = known.get(tuple(sorted(ranks)))
        if number is None:
            number = add_process_set(ranks).process_set_id
            assert number is not None
        return number

    def _remove_process_set_impl(self, process_set_id: int) -> int:
        """The number again, or HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET. Programs use remove_process_set()."""
        if process_set_id not in self._get_process_set_ids_and_ranks():
            return self.HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET
        remove_process_set(_temp_process_set_object(process_set_id))
        return process_set_id

    def _comm_process_set_id(self, comm: Any) -> int:
        """Number of the set whose ranks an MPI communicator holds, or HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET."""
        job = runtime().world().comm
        ranks = None if job is None else sorted(job.ranks_of(comm))
        known = self._get_process_set_ids_and_ranks().items()
        return next((n for n, r in known if r == ranks), self.HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET)

    def _ranks_of(self, process_set_id: int) -> list[int]:
        try:
            return self._get_process_set_ids_and_ranks()[process_set_id]
        except KeyError:
            raise ValueError(f"There is no process set with id {process_set_id}.") from None

    def _process_set_size(self, process_set_id: int) -> int:
        return len(self._ranks_of(process_set_id))

    def _process_set_rank(self, process_set_id: int) -> int:
        ranks = self._ranks_of(process_set_id)
        if self.rank() not in ranks:
            raise ValueError("Process is not part of provided process set.")
        return ranks.index(self.rank())
