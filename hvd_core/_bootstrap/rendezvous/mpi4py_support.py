"""mpi4py: whether it can be used, the MPI library that it should load, and starting MPI through it.

A wheel of mpi4py supports several MPIs and loads the first that it finds. If that is not the launcher's, each rank
becomes a job of its own. The search order for the launcher's library is that of the backend for MPI, so that a process
uses one library.

Programs ask whether MPI can be used (has_all_threads()), and use ``MPI.COMM_WORLD`` for messages of their own, also in
a job whose data another backend moves. Called on a thread of the program, never by the engine.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType

from hvd_core._base.processes import process_stat
from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap import launchers
from hvd_core._bootstrap.launchers.identity import identify
from hvd_core._bootstrap.launchers.slurm import in_step

_LIBRARIES = tuple(dict.fromkeys(name for launcher in launchers.LAUNCHERS for name in launcher.mpi_libraries))
_LOADED = ("libmpi.so", "libmpich.so", "libmpi_abi.so")
OTHER_MPI = (
    "mpi4py uses another MPI than the launcher. Install mpi4py for the launcher's MPI, or start with "
    "horovodrun."
)
# The processes that have spoken to the launcher's process manager, also those whose rendezvous then failed.
_used_process_manager: set[int] = set()


def is_installed() -> bool:
    """Whether mpi4py can be imported, without importing it."""
    return importlib.util.find_spec("mpi4py") is not None


def is_running() -> bool:
    """Whether mpi4py has started MPI in this process, and it has not ended."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and bool(MPI.Is_initialized()) and not MPI.Is_finalized()


def note_process_manager_is_used() -> None:
    """The rendezvous speaks to the launcher's process manager, so that MPI may not be able to any more."""
    _used_process_manager.add(os.getpid())


def process_manager_is_used() -> bool:
    return os.getpid() in _used_process_manager


def can_be_loaded(environ: Mapping[str, str]) -> bool:
    """Whether mpi4py is installed and there is an MPI library for it. Loads neither.

    The search reads file names only, so that a library which cannot be loaded counts as well.
    """
    if "mpi4py.MPI" in sys.modules:
        return True
    spec = importlib.util.find_spec("mpi4py")
    if spec is None:
        return False
    folders = spec.submodule_search_locations or ()
    if any(os.path.exists(os.path.join(f, f"MPI{end}")) for f in folders for end in EXTENSION_SUFFIXES):
        return True  # compiled for the MPI of this machine; a wheel from an index has a file for each MPI
    chosen = environ.get("MPI4PY_LIBMPI", "")
    if chosen:
        return any(os.path.exists(place) for place in chosen.split(os.pathsep))
    places = library_settings("", environ).get("MPI4PY_LIBMPI", "").split(os.pathsep)
    return any(map(os.path.exists, places)) or is_on_the_loaders_path(environ)


def library_settings(launcher: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that make mpi4py load the right library when it is imported; {} if the user has set them.

    If no library is found, the system's search path decides.
    """
    if {"MPI4PY_MPIABI", "MPI4PY_LIBMPI"} & environ.keys():
        return {}
    own = _libraries_of(launcher)
    names = own or _LIBRARIES
    wish = environ.get("HOROVOD_BACKEND_MPI_LIBRARY", "")
    certain = [wish] if wish else _loaded()
    found = certain or [
        path
        for folder in _folders(environ)
        for path in (os.path.join(folder, name) for name in names)
        if os.path.exists(path)
    ]
    places = found[:1] if certain else [*found, *own]
    return {"MPI4PY_LIBMPI": os.pathsep.join(places)} if places else {}


def is_on_the_loaders_path(environ: Mapping[str, str]) -> bool:
    """Whether the dynamic loader knows a library of MPI by its bare name. Reads the loader's cache."""
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any(os.path.exists(os.path.join(folder, name)) for folder in folders for name in _LIBRARIES):
        return True
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            content = cache.read()
    except OSError:
        return False
    return any(b"\0" + name.encode() + b"\0" in content for name in _LIBRARIES)


def _libraries_of(launcher: str) -> tuple[str, ...]:
    """The names of the library of a launcher's own MPI; () if it starts ranks of any MPI."""
    found = launchers.named(launcher)
    return () if found is None else found.mpi_libraries


def _loaded() -> list[str]:
    """Paths of MPI libraries that the process has loaded already."""
    try:
        with open("/proc/self/maps", errors="surrogateescape") as maps:
            paths = dict.fromkeys(line.split(None, 5)[5].strip() for line in maps if "/" in line)
    except OSError:
        return []
    return [path for path in paths if os.path.basename(path).startswith(_LOADED)]


def _folders(environ: Mapping[str, str]) -> dict[str, None]:
    """The folders to search: beside the processes that started this one, beside the mpirun of the PATH, and where a wheel
    installs libraries."""
    prefixes = [*_ancestors(), *_on_path(environ.get("PATH", "")), sys.prefix, site.getuserbase()]
    return dict.fromkeys(os.path.join(prefix, lib) for prefix in prefixes for lib in ("lib", "lib64"))


def _ancestors() -> Iterator[str]:
    pid = os.getppid()
    while pid > 1:
        try:
            executable = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            executable = ""
        if launchers.is_launcher_name(os.path.basename(executable)):
            yield os.path.dirname(os.path.dirname(executable))
        stat = process_stat(pid)
        if stat is None:
            return
        pid = stat.parent


def _on_path(path: str) -> Iterator[str]:
    for folder in path.split(os.pathsep):
        for command in ("mpirun", "mpiexec"):
            candidate = os.path.join(folder, command)
            if folder and os.access(candidate, os.X_OK):
                # The path as it is, and the target of its links: either may have the library beside it.
                for place in (candidate, os.path.realpath(candidate)):
                    yield os.path.dirname(os.path.dirname(place))
                return


def start_mpi(launcher: str, before: Callable[[], object] | None = None) -> ModuleType:
    """The initialised module mpi4py.MPI, on the MPI of the launcher.

    Args:
        launcher: Launcher.name.
        before: called if MPI is about to start, which waits for all ranks, without a timeout and with the GIL held.

    Raises:
        BootstrapError: mpi4py cannot be imported, uses another MPI than the launcher, or MPI has ended in this process.
    """
    fresh = "mpi4py.MPI" not in sys.modules
    variables = library_settings(launcher, os.environ) if fresh else {}
    os.environ.update(variables)
    try:
        import mpi4py

        if fresh:
            # The initialisation of a wrong MPI ends the process, so check which MPI it is first.
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BootstrapError(
            f"mpi4py is needed to bring the ranks together but cannot be used: {error}. Install it for the "
            "MPI you launch with (pip install mpi4py), or start with horovodrun."
        ) from error
    finally:
        for name in variables:
            del os.environ[name]
    vendor = MPI.get_vendor()[0]
    if _libraries_of(launcher) and (vendor == "Open MPI") != (launcher == "openmpi"):
        raise BootstrapError(f"the launcher is that of {launcher}, mpi4py found {vendor}: {OTHER_MPI}")
    if MPI.Is_finalized():
        raise BootstrapError(
            "horovod: MPI has been finalized in this process, and cannot be started again. Call MPI.Finalize() after "
            "the last shutdown() only."
        )
    if not MPI.Is_initialized():
        if before is not None:
            before()
        alone = os.environ.get("HOROVOD_MPI_THREADS_DISABLE", "").strip() not in ("", "0")
        MPI.Init_thread(MPI.THREAD_SINGLE if alone else MPI.THREAD_MULTIPLE)
    module: ModuleType = MPI
    return module


def has_all_threads(launcher: str, size: int, before: Callable[[], object]) -> bool | None:
    """Whether MPI may be called by several threads at the same time (MPI_THREAD_MULTIPLE).

    Starts MPI with that level if the program has not started it; HOROVOD_MPI_THREADS_DISABLE=1 asks for no threads.

    Args:
        launcher: World.launcher.
        size: how many ranks the job has. MPI starts on all processes of the launcher together: it is not started for a
            job of some of them.
        before: called before MPI starts; it returns when all ranks have called it.

    Returns:
        None if ``launcher`` has started no MPI.

    Raises:
        BootstrapError: mpi4py cannot be used, uses another MPI than the launcher, or cannot be started.
    """
    runs = is_running()
    found = launchers.named(launcher)
    starts_mpi = launcher == "mpi" or (found is not None and found.starts_mpi)
    if not starts_mpi and not (launcher == "srun" and runs):  # srun may have started MPI or not
        return None
    launched = identify(os.environ) if launcher != "mpi" else None
    if not runs and launched is not None and (launched.size or size) != size:
        raise BootstrapError(
            f"this job has {size} of the {launched.size} processes that {launcher} has started, and MPI starts on all of "
            "them together: let all processes start it before init(), by 'from mpi4py import MPI'"
        )
    if not runs and process_manager_is_used() and in_step(os.environ):
        raise BootstrapError(
            "srun's process manager has been used by init(), and under Slurm it serves a process once: MPI would "
            "end the job. Start MPI before init(), by 'from mpi4py import MPI'; the ranks then find each other over MPI."
        )
    MPI = start_mpi(launcher, before)
    place = (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
    if launched is not None and place != (launched.rank, launched.size or place[1]):
        raise BootstrapError(
            f"horovod: {launcher} says this is rank {launched.rank} of {launched.size}, MPI says {place[0]} of "
            f"{place[1]}: mpi4py uses another MPI than the launcher. Set MPI4PY_LIBMPI to the library of the launcher's "
            "MPI."
        )
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)
