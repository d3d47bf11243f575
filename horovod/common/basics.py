"""HorovodBasics: what every framework module of Horovod exports alike (init, rank, size, what is built in,
...).

A thin layer over ``hvd_core.runtime``. All frameworks of one process share one engine, so every call may be
made through any of them. Any thread; init() and shutdown() by one thread at a time.
"""

from collections.abc import Sequence
from typing import Any

from horovod.common.coexistence import report_original
from horovod.common.process_sets import ProcessSet, global_process_set

try:
    import hvd_core._core  # noqa: F401 (to learn now whether it can be loaded)
    from hvd_core import runtime as _runtime

    UNAVAILABLE: ImportError | None = None
except ImportError as error:
    # Importing must work where the engine cannot run (a Spark driver, a documentation build); calls explain.
    _runtime = None
    UNAVAILABLE = error

__all__ = ["HorovodBasics"]

_NO_TIMELINE = (
    "The timeline is not part of this release of hvd-core; it comes with the diagnostics release. "
    "Remove the call, or use HOROVOD_LOG_LEVEL=debug to see what the engine does."
)


def runtime():
    """The module ``hvd_core.runtime``.

    Raises:
        ImportError: the compiled engine cannot be loaded; the text says why.
    """
    if _runtime is None:
        raise ImportError(
            f"Horovod cannot run here because its engine could not be loaded: {UNAVAILABLE}. "
            "Reinstall hvd-core for this Python and platform."
        ) from UNAVAILABLE
    return _runtime


class HorovodBasics:
    """The basics as methods of one object, reachable by programs as ``hvd.mpi_ops._basics``."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

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
        backend: str | None = None,
    ) -> None:
        """Start the engine. A second call while it runs changes nothing; a call after shutdown() starts it
        anew.

        Args:
            comm: None for all ranks, a list of ranks, or an ``mpi4py.MPI.Comm``.
            process_sets: None, a list of ProcessSet, or the string "dynamic", which allows sets to be added and
                removed later.
            backend: name of the communication backend, a list of names in order of preference, a text such as
                "cuda=nccl,cpu=mpi", or a subclass of hvd_core.backends.PythonBackend; before HOROVOD_BACKEND.

        Raises:
            ValueError: contradictory arguments or environment, or the engine refused to start; the text says
                which. The engine is up after a ValueError about process sets: init() may be called again.
        """
        engine_runtime = runtime()
        report_original()
        engine_runtime.init(comm=comm, process_sets=process_sets, backend=backend)
        if hasattr(comm, "Get_rank"):
            global_process_set.mpi_comm = comm

    def shutdown(self) -> None:
        """Stop the engine. Operations that are still pending fail. Harmless when it does not run."""
        if _runtime is not None:
            _runtime.shutdown()

    def is_initialized(self) -> bool:
        """True between init() and shutdown()."""
        return _runtime is not None and _runtime.is_initialized()

    def rank(self) -> int:
        """Global rank of this process, 0 .. size() - 1. ValueError before init()."""
        return runtime().rank()

    def size(self) -> int:
        """Number of processes of the job. ValueError before init()."""
        return runtime().size()

    def local_rank(self) -> int:
        """Index of this process among those of its host. ValueError before init()."""
        return runtime().local_rank()

    def local_size(self) -> int:
        """Number of processes on this host. ValueError before init()."""
        return runtime().local_size()

    def cross_rank(self) -> int:
        """Index of this host among the hosts that have this local rank. ValueError before init()."""
        return runtime().cross_rank()

    def cross_size(self) -> int:
        """Number of hosts that have a process with this local rank. ValueError before init()."""
        return runtime().cross_size()

    def is_homogeneous(self) -> bool:
        """True when every host has the same number of processes. ValueError before init()."""
        return runtime().is_homogeneous()

    def backend_report(self):
        """Which backend serves each operation on each device type, and who chose it: a tuple of rows (operation, device,
        backend, version, origin, support, score, source); as a text, a table. Before init(): what would be chosen now.

        Raises:
            hvd_core.backends.BackendError, ValueError: what init() would raise.
        """
        return runtime().backend_report()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Not available yet: raises NotImplementedError (ValueError before init())."""
        self.rank()
        raise NotImplementedError(f"start_timeline({file_path!r}): {_NO_TIMELINE}")

    def stop_timeline(self) -> None:
        """Not available yet: raises NotImplementedError (ValueError before init())."""
        self.rank()
        raise NotImplementedError(f"stop_timeline(): {_NO_TIMELINE}")

    def mpi_threads_supported(self) -> bool:
        """Whether MPI offers MPI_THREAD_MULTIPLE. ValueError when the job does not use MPI."""
        if not self.mpi_enabled():
            raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")
        return True

    def mpi_enabled(self) -> bool:
        """Whether this job communicates through MPI."""
        return False

    def mpi_built(self) -> bool:
        """Whether a backend that speaks MPI is installed."""
        return False

    def gloo_enabled(self) -> bool:
        """Whether this job communicates through Gloo."""
        return False

    def gloo_built(self) -> bool:
        """Whether a backend that speaks Gloo is installed."""
        return False

    def nccl_built(self) -> int:
        """NCCL_VERSION_CODE of the installed NCCL backend (an int, such as 21903), 0 without one."""
        return 0

    def ddl_built(self) -> bool:
        """Always False: IBM's DDL is not supported."""
        return False

    def ccl_built(self) -> bool:
        """Whether a backend that speaks oneCCL is installed."""
        return False

    def cuda_built(self) -> bool:
        """Whether a backend that moves CUDA memory is installed."""
        return False

    def rocm_built(self) -> bool:
        """Whether a backend that moves ROCm memory is installed."""
        return False

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return runtime().engine().process_sets()

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
