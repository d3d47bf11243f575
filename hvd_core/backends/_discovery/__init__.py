"""From a backend's name to a loaded library: the phases discover, describe, probe and load.

| module | holds |
|---|---|
| registry | the functions below: all backends, the one backend of a name; ``register_python_backend`` |
| entry_points | the backends that installed distributions announce; HOROVOD_BACKEND_SPEC, with which a launcher hands
them on |
| installed_backend | a backend with the properties that the selection needs; describes, probes and loads it |
| diagnosis | why a library does not open, for ``hvd plugin doctor`` |
"""

from hvd_core.backends._candidate import GROUP, Candidate, Problem
from hvd_core.backends._discovery.installed_backend import describe, probe
from hvd_core.backends._discovery.registry import (
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
