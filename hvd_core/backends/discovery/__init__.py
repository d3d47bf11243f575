"""From a backend's name to a loaded library: the phases discover, describe, probe and load.

| module | holds |
|---|---|
| search | the functions below: all candidates, the one candidate of a name |
| entry_points | reads which backends the installed distributions announce |
| backend_spec | HOROVOD_BACKEND_SPEC: what the launcher found, handed to its ranks |
| registry | the backends that need no search: embedded, registered in Python, named by a path |
| embedded | the embedded backends as entry points, for other programs |
| installed_backend, wheel_backend, local_backends | a backend with the properties that the selection needs |
| describe_and_probe | asks a plugin for its descriptor, and whether it works on this machine |
| loading | opens the library, and explains why one does not load |
| diagnosis, elf | more about a library that does not open, for ``hvd plugin doctor`` |
| registering | ``register_python_backend`` |
"""

from hvd_core.backends.candidate import GROUP, Candidate, Problem
from hvd_core.backends.discovery.describe_and_probe import describe, probe
from hvd_core.backends.discovery.search import (
    candidates,
    find,
    forget,
    installed,
    launcher_spec,
    lookup,
    problems,
    wheels,
)

__all__ = [
    "GROUP",
    "Candidate",
    "Problem",
    "candidates",
    "describe",
    "find",
    "forget",
    "installed",
    "launcher_spec",
    "lookup",
    "probe",
    "problems",
    "wheels",
]
