"""An installation as plain data: each backend is usable or failed. Takes the place of UsableBackends."""

from types import SimpleNamespace

from hvd_core._config.hints import did_you_mean
from hvd_core._config.selection_rules import ladder
from hvd_core.backends._selection.choice import Choice, device_types
from hvd_core.backends._selection.plan import Usable
from hvd_core.backends.errors import BackendNotInstalled

ONE_HOST = SimpleNamespace(
    rank=0, launcher="horovodrun", launcher_used_up=False, hosts=(0, 0), host_names=("alpha", "alpha")
)
TWO_HOSTS = SimpleNamespace(
    rank=0,
    launcher="horovodrun",
    launcher_used_up=False,
    hosts=(0, 0, 1, 1),
    host_names=("alpha", "alpha", "beta", "beta"),
)
ONE_HOST_BY_MPI, TWO_HOSTS_BY_MPI = (
    SimpleNamespace(**{**vars(world), "launcher": "openmpi"}) for world in (ONE_HOST, TWO_HOSTS)
)


def backend(name, origin="embedded", serves=("cpu",), **rest):
    rest.setdefault("automatic", True)
    return Usable(name, f"/lib/lib{name}.so", origin, serves=frozenset(serves), **rest)


SHM = backend("shm", version="1.0.0", spans_hosts=False, table="cpu")
TCP = backend("tcp", version="1.0.0")
NCCL = backend("nccl", "hvd-backend-nccl 0.3.0", ("cuda",), version="0.3.0", table="cuda", priority=60)
ECCL = backend(
    "eccl", "hvd-backend-eccl 0.3.1", ("gcu",), version="0.3.1", vendor_lib="libeccl 3.1.0", table="gcu"
)
MPI = backend(
    "mpi", "hvd-backend-mpi 0.2.0", ("cpu", "cuda"), version="0.2.0", launchers=("openmpi", "mpich")
)
FAR = backend("far", "hvd-backend-far 1.0", (), version="1.0", table="far")
NEAR = backend("near", "hvd-backend-near 1.0", ("gcu",), version="1.0", table="gcu", spans_hosts=False)


class ListedBackends:
    """Has the methods of UsableBackends. ``failed``: name -> the error that usable() raises for it."""

    def __init__(self, *backends, failed=None):
        self.backends, self.failed = backends, failed or {}
        self.unusable = {}
        self.unused_between = ""
        self.looked = False

    def usable(self, name, source, alone=False):
        if name in self.failed:
            raise self.failed[name]
        for found in self.backends:
            if found.name == name:
                return found
        names = [b.name for b in self.backends]
        raise BackendNotInstalled(
            f"horovod: backend '{name}' (from {source}) is not installed.{did_you_mean(name, names)}\n"
            f"  installed: {self.describe_installed()}\n  list: hvd plugin list"
        )

    def embedded(self):
        return [b for b in self.backends if b.origin == "embedded"]

    def for_devices(self, device):
        self.looked = True
        found = [b for b in self._wheels() if not b.launchers and device in device_types(b)]
        return sorted(found, key=lambda b: (-b.priority, b.name))

    def device_types(self):
        wheels = (b for b in self._wheels() if not b.launchers)
        return list(dict.fromkeys(d for b in wheels for d in device_types(b)))

    def of_launcher(self, launcher):
        self.looked = True
        return [b for b in self._wheels() if launcher in b.launchers]

    def _wheels(self):
        return [
            b for b in self.backends if b.origin != "embedded" and b.automatic and b.name not in self.failed
        ]

    def describe_installed(self):
        embedded = ", ".join(b.name for b in self.embedded())
        return ", ".join(
            [
                f"{embedded} (embedded)",
                *(f"{b.name} ({b.origin})" for b in self.backends if b.origin != "embedded"),
            ]
        )


def plan(
    *backends,
    value=None,
    argument=None,
    world=ONE_HOST,
    files=(),
    installed=None,
    levels=(None, None),
    **environ,
):
    """The plan for an installation, HOROVOD_BACKEND's text and other variables, as if all its devices were used."""
    if value is not None:
        environ["HOROVOD_BACKEND"] = value
    installed = installed or ListedBackends(*(backends or (SHM, TCP, NCCL, ECCL, MPI, FAR)))
    choice = Choice(ladder(environ, argument, files), installed, world, *levels)
    return choice.with_devices_here(choice.plan())


def table(made):
    """{device: {operation: (backend, source)}}; a staged one's backend is "staged"."""
    found = {}
    for cell in made.cells():
        over = "staged" if cell.staged else " x ".join(b.name for b in cell.backends)
        found.setdefault(cell.device, {})[cell.operation] = (over, cell.source)
    return found


def chosen(made):
    """{device: (backend, source)} where one serves all operations; {device: {operation: ...}} where not."""
    found = table(made)
    return {d: next(iter(ops.values())) if len(set(ops.values())) == 1 else ops for d, ops in found.items()}
