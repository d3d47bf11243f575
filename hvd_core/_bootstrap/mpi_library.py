"""Finds the MPI library that mpi4py should load: the library of the launcher that started this process.

A wheel of mpi4py supports several MPIs and loads the first that it finds. If that is not the launcher's, each rank
becomes a job of its own. The search order is that of the backend for MPI, so that a process uses one library. Reads
/proc and the environment; loads no library.
"""

import os
import site
import sys

from hvd_core._bootstrap.identity import LAUNCHER_NAMES, process_status

# By launcher. A launcher that is not listed starts ranks of any MPI.
_NAMES = {"openmpi": ("libmpi.so.40",), "mpich": ("libmpi.so.12", "libmpich.so.12")}
_ALL = ("libmpi.so.40", "libmpi.so.12", "libmpich.so.12")
_LOADED = ("libmpi.so", "libmpich.so", "libmpi_abi.so")
FAMILIES = frozenset(_NAMES)


def settings(launcher, environ):
    """Environment variables that make mpi4py load the right library when it is imported; {} if the user has set them.

    Raises nothing. If no library is found, the system's search path decides.
    """
    if {"MPI4PY_MPIABI", "MPI4PY_LIBMPI"} & environ.keys():
        return {}
    names = _NAMES.get(launcher, _ALL)
    wish = environ.get("HOROVOD_BACKEND_MPI_LIBRARY", "")
    certain = [wish] if wish else _loaded()
    found = certain or [
        path
        for folder in _folders(environ)
        for path in (os.path.join(folder, n) for n in names)
        if os.path.exists(path)
    ]
    places = found[:1] if certain else [*found, *(names if launcher in _NAMES else ())]
    return {"MPI4PY_LIBMPI": os.pathsep.join(places)} if places else {}


def on_the_loaders_path(environ):
    """Whether the dynamic loader knows a library of MPI by its bare name. Reads the loader's cache."""
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any(os.path.exists(os.path.join(folder, name)) for folder in folders for name in _ALL):
        return True
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            content = cache.read()
    except OSError:
        return False
    return any(b"\0" + name.encode() + b"\0" in content for name in _ALL)


def _loaded():
    """Paths of MPI libraries that the process has loaded already."""
    try:
        with open("/proc/self/maps", errors="surrogateescape") as maps:
            paths = dict.fromkeys(line.split(None, 5)[5].strip() for line in maps if "/" in line)
    except OSError:
        return []
    return [path for path in paths if os.path.basename(path).startswith(_LOADED)]


def _folders(environ):
    """The folders to search: beside the processes that started this one, beside the mpirun of the PATH, and where a wheel
    installs libraries."""
    prefixes = [*_ancestors(), *_on_path(environ.get("PATH", "")), sys.prefix, site.getuserbase()]
    return dict.fromkeys(os.path.join(prefix, lib) for prefix in prefixes for lib in ("lib", "lib64"))


def _ancestors():
    pid = os.getppid()
    while pid > 1:
        try:
            executable = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            executable = ""
        if os.path.basename(executable) in LAUNCHER_NAMES:
            yield os.path.dirname(os.path.dirname(executable))
        _, pid, _ = process_status(pid)
        if pid is None:
            return


def _on_path(path):
    for folder in path.split(os.pathsep):
        for command in ("mpirun", "mpiexec"):
            candidate = os.path.join(folder, command)
            if folder and os.access(candidate, os.X_OK):
                # The path as it is, and the target of its links: either may have the library beside it.
                for place in (candidate, os.path.realpath(candidate)):
                    yield os.path.dirname(os.path.dirname(place))
                return
