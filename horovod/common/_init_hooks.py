"""What init() does besides starting the engine: warnings about settings and installations, and preloaded modules.

Called by init(); any thread.
"""

import importlib
import logging
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata

# ---- The original ``horovod`` distribution beside this one
#
# Both own the package name, and files of one may have replaced files of the other. The wheel of packages/horovod bears
# the original's name too, and has no package of its own: it requires hvd-core.

_OURS = re.compile(r"hvd[-_.]core\b", re.IGNORECASE)
_looked = False


def report_original() -> None:
    """Log one warning if a distribution named ``horovod`` is installed here that is not that of hvd-core."""
    global _looked
    if _looked:
        return
    _looked = True
    try:
        found = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return
    if any(map(_OURS.match, found.requires or ())):
        return
    logging.getLogger("horovod").warning(
        "The original horovod %s is installed beside hvd-core; both provide the package 'horovod', and their files "
        "may be mixed. Run: pip uninstall horovod hvd-core, then install hvd-core again "
        "(docs/replacing-horovod.md).",
        found.version,
    )


# ---- Settings of the original that have no effect here, or none yet: rank 0 names those that are set, in one line
#
# The launcher turns options and keys of its configuration file into these variables, so that they are named here as well.

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


# ---- Modules that a program would load between init() and its first step
#
# A process of an elastic job calls preload_modules() before it asks for a place in a world. Otherwise a spare would
# load hundreds of modules in that time, while the other ranks wait for it.

# By the module that the program has imported.
_PRELOADED = {
    # PyTorch loads its compiler in the constructor of the first optimizer: 800 modules, a second on an idle core.
    "torch": ("torch._dynamo",),
    # Loaded with the first use of hvd.elastic; the other front ends load theirs immediately.
    "horovod.torch": ("horovod.torch.elastic",),
    # Loaded by init() where there are several ranks, besides those that these load. tests/hvd_core/frontend/
    # test_preloaded_modules.py names missing ones.
    "hvd_core": (
        "encodings.idna",
        "hvd_core._core",
        "hvd_core._bootstrap.hosts",
        "hvd_core._bootstrap.rendezvous.launcher_store",
        "hvd_core._bootstrap.world",
        "hvd_core._observe.settings",
        "hvd_core._observe.watch.start",
        "hvd_core._runtime.doctor_endpoint",
        "hvd_core._runtime.engine_config",
        "hvd_core._runtime.runtime",
        "hvd_core.backends._selection.job",
        "hvd_core.numpy_api",
    ),
}


def preload_modules() -> None:
    """Load them for the modules that the program has imported. A module that fails is left to the program."""
    for imported, names in _PRELOADED.items():
        if imported in sys.modules:
            for name in names:
                with suppress(Exception):
                    importlib.import_module(name)
