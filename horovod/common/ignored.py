"""Settings of the original that have no effect here, or none yet: rank 0 names those that are set, in one line.

The launcher turns options and keys of its configuration file into these variables, so that they are named here as well.
Called by init(); any thread.
"""

import logging
from collections.abc import Mapping

_log = logging.getLogger("horovod")
_logged: set[str] = set()

_OFF = ("", "0", "false", "no", "off")

# By variable: values that ask for nothing, the option of horovodrun or "", the reason.
_IGNORED = {
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": (
        (),
        "--autotune-gaussian-process-noise",
        "the search of autotuning has no Gaussian process",
    ),
    "HOROVOD_TORUS_ALLREDUCE": (
        _OFF,
        "--torus-allreduce",
        "on several hosts the hierarchical transport has a lane per local rank anyway",
    ),
    "HOROVOD_NUM_NCCL_STREAMS": (("", "0", "1"), "--num-nccl-streams", "there is one stream per device"),
    "HOROVOD_CCL_CACHE": (_OFF, "", "there is no backend for oneCCL"),
    "HOROVOD_BATCH_D2D_MEMCOPIES": (("", "1"), "", "copies on a device are the backend's"),
    "HOROVOD_DISABLE_GROUP_FUSION": (_OFF, "", "groups and single tensors are batched alike"),
    "HOROVOD_ENABLE_ASYNC_COMPLETION": (_OFF, "", "operations on devices complete asynchronously anyway"),
    "HOROVOD_ENABLE_XLA_OPS": (_OFF, "", "operations take part in functions that XLA compiles anyway"),
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": ((), "", "Adasum is computed by the engine"),
    "HOROVOD_DISABLE_NVTX_RANGES": (("", "1", "true"), "", "there are no NVTX ranges yet"),
}


def ignored_settings(environ: Mapping[str, str]) -> list[str]:
    """Each setting that is set and has no effect, as "NAME=value (--option): the reason"."""
    found = []
    for name, (nothing, option, reason) in _IGNORED.items():
        value = environ.get(name)
        if value is not None and value.strip().lower() not in nothing:
            found.append(f"{name}={value}{f' ({option})' if option else ''}: {reason}")
    return found


def warn_about_ignored(environ: Mapping[str, str], rank: int) -> None:
    """Log one line on rank 0 for all of them, once in a process for each text."""
    found = ignored_settings(environ) if rank == 0 else []
    text = "; ".join(found)
    if found and text not in _logged:
        _logged.add(text)
        _log.warning("horovod: settings without effect: %s", text)
