"""The programs of these tests' ranks: one function per scenario, named on the command line.

Each returns what this rank saw; it is printed as one line of JSON.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

import hvd_core as hvd
from harness import rank as waiting
from hvd_core._runtime import runtime

ME = next(
    (
        int(os.environ[name])
        for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
        if name in os.environ
    ),
    0,
)


def place():
    """This process's place in its job, and the sum over the job of a value that identifies each process."""
    total = hvd.allreduce(np.full(5, 10.0**ME), op=hvd.Sum, name="total")
    assert (total == total[0]).all()
    gathered = hvd.allgather(np.array([ME]), name="who").tolist()
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    return {name: getattr(hvd, name)() for name in names} | {"total": int(total[0]), "who": gathered}


def job(comm, **options):
    hvd.init(comm=comm, **options)
    seen = place()
    hvd.shutdown()
    return seen


def refusal(comm, **options):
    """The text of what init() raises, behind its kind."""
    return mistake(lambda: hvd.init(comm=comm, **options))


def mistake(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def lists():
    """Two jobs of two at once, twice with other partners, then all together; in between what a second init() may say."""
    first = [0, 2] if ME in (0, 2) else [3, 1]
    seen = [job(first)]
    second = [1, 0] if ME < 2 else [2, 3]
    hvd.init(comm=second)
    hvd.init()
    hvd.init(comm=second)
    other = refusal(second[::-1])
    seen.append(place())
    hvd.shutdown()
    seen.append(job([ME]))
    seen.append(job([] if ME == 0 else np.arange(4) if ME == 1 else None))
    return {"seen": seen, "other": other}


def training():
    """Two jobs fit a line each, to points of their own, at once; the members of a job end with the same weights."""
    members = [0, 1] if ME < 2 else [3, 2]
    hvd.init(comm=members)
    generator = np.random.default_rng(ME)
    slope = 2.0 if ME < 2 else -3.0
    weight = np.zeros(2)
    for _ in range(60):
        x = generator.uniform(-1, 1, 32)
        error = weight[0] * x + weight[1] - slope * x - 1.0
        gradient = np.array([(error * x).mean(), error.mean()])
        weight -= 0.5 * hvd.allreduce(gradient, op=hvd.Average, name="gradient")
    return {"weight": weight.tolist(), "weights": hvd.allgather(weight[None], name="end").tolist()}


def refused():
    """Lists that make no sense by themselves; all ranks go on together afterwards."""
    texts = [
        refusal(comm)
        for comm in ([0, 0], [0, 3], [-1, 0], ["0"], [0.5], 7, [(ME + 1) % 3], object(), "world")
    ]
    return {"texts": texts, "seen": job(None)}


def disagree():
    """Lists that cannot be true together, in turn; all ranks go on together afterwards."""
    rounds = (
        {0: [0, 1], 1: [1, 0]},
        {0: [0, 1], 1: [1, 2, 0], 2: [1, 2, 0]},
        {0: [2, 1, 0], 1: [1, 2], 2: [2, 1, 0]},
        {0: None, 1: [1, 2], 2: None},
    )
    texts = []
    for number, turn in enumerate(rounds):
        texts.append(refusal(turn[ME]) if ME in turn else None)
        meet(number)  # what a rank hears that is a round behind is not the subject
    return {"texts": texts, "seen": job(None)}


def meet(number):
    """Waits until the three ranks have ended that round."""
    waiting.folder = Path(os.environ["HVD_TEST_FOLDER"])
    waiting.tell(f"{number}.{ME}")
    for rank in range(3):
        waiting.await_told(f"{number}.{rank}", 100)


def on_hosts():
    """Parts of a job on (simulated) hosts: 0,1,0,1."""
    hvd.init(comm=[0, 1] if ME < 2 else [3, 2])
    across = place() | {"hosts": list(runtime.world().hosts)}
    across["backends"] = sorted({row.backend for row in hvd.backend_report() if row.operation == "allreduce"})
    hvd.shutdown()
    return {"across": across, "within": job([0, 2] if ME % 2 == 0 else [3, 1])}


def mpi_lists():
    """The same as lists(), but with a rendezvous over MPI."""
    seen = [job([0, 2] if ME in (0, 2) else [3, 1]), job([1, 0] if ME < 2 else [2, 3]), job(None)]
    texts = [refusal([0, 1] if ME == 0 else [1, 0]) if ME < 2 else ""]
    return {"seen": [*seen, job(None)], "texts": texts}


def communicators():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    seen = [job(world), job(world.Split(ME % 2, -ME)), job(MPI.COMM_SELF)]
    evens = world.Split(0 if ME % 2 == 0 else MPI.UNDEFINED)
    texts = {"null": refusal(evens) if ME % 2 else ""}
    if ME % 2 == 0:
        seen.append(job(evens))
    half = world.Split(ME % 2)
    between = half.Create_intercomm(0, world, 1 - ME % 2)
    texts["inter"] = refusal(between)
    texts["group"] = refusal(world.Get_group())
    hvd.init(comm=world)
    kept = hvd.global_process_set.mpi_comm is world
    hvd.init(comm=world.Dup())
    hvd.init(comm=list(range(4)))
    texts["again"] = refusal(half)
    # The program's own messages and the job's do not mix.
    exchanged = world.sendrecv(ME, (ME + 1) % 4, source=(ME - 1) % 4)
    hvd.shutdown()
    return {
        "seen": seen,
        "texts": texts,
        "kept": kept and hvd.global_process_set.mpi_comm is None,
        "exchanged": exchanged,
        "left": [MPI.Is_finalized(), world.allreduce(1)],
    }


def process_sets():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    split, listed = hvd.ProcessSet(world.Split(ME % 2)), hvd.ProcessSet([0, 3])
    part = world.Split(0 if ME < 3 else MPI.UNDEFINED)
    some = hvd.ProcessSet(part)
    turned = world.Split(0, -ME)  # the job counts the other way round
    hvd.init(comm=turned, process_sets=[split, listed, some])
    rank = hvd.rank()
    told = [[s.process_set_id, s.ranks, s.included()] for s in (split, listed, some)]
    sums = int(hvd.allreduce(np.array([10**ME]), op=hvd.Sum, process_set=split)[0])
    again = hvd.ProcessSet(split.mpi_comm)
    hvd.init(comm=turned, process_sets=[again])
    same = again.process_set_id
    texts = [mistake(lambda: hvd.add_process_set(hvd.ProcessSet(part or world)))]
    hvd.shutdown()
    ended = split.process_set_id
    texts.append(refusal(None, process_sets=[hvd.ProcessSet(world)]))
    texts.append(refusal(turned, process_sets=[hvd.ProcessSet(world)]))
    # The engine is up after that.
    hvd.init(comm=turned, process_sets=[split])
    back = split.process_set_id
    hvd.shutdown()
    # Members that do not name their communicator in the same place.
    crossed = [split, some] if ME % 2 else [some, split]
    texts.append(refusal(turned, process_sets=crossed))
    return {
        "rank": rank,
        "told": told,
        "sums": sums,
        "same": same,
        "ended": ended,
        "back": back,
    } | {"texts": texts}


def without_launcher_variables():
    """MPI without any variable in the environment: rank and size come from the communicator."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI", "MPI_LOCAL", "HYDI")):
            del os.environ[name]
    return {"seen": job(world), "launcher": [hvd.init(comm=world), runtime.world().launcher][1]}


def under_mpirun():
    """Scenarios of four ranks, in one launch. The first two begin before the process has mpi4py. The second one has a
    rendezvous over MPI, as between hosts, for which mpi4py is left to find the library of the launcher."""
    seen = {"lists": lists(), "before": "mpi4py" in sys.modules}
    os.environ["HOROVOD_RENDEZVOUS"] = "mpi4py"
    seen["mpi_lists"] = mpi_lists()
    del os.environ["HOROVOD_RENDEZVOUS"]
    return seen | {"communicators": communicators(), "process_sets": process_sets()}


def alone():
    from mpi4py import MPI

    return {"text": refusal(MPI.COMM_WORLD)}


if __name__ == "__main__":
    report = {"me": ME, **globals()[sys.argv[1]]()}
    # One write, so that lines of several ranks on one pipe stay whole.
    os.write(1, (json.dumps(report) + "\n").encode())
