"""L5: is it in the right order of magnitude? Ratios within one run; nothing here is a benchmark."""

from __future__ import annotations

import statistics
import time

import numpy as np

from hvd_core.conformance import _abi
from hvd_core.conformance._abi import ALLREDUCE, SUM
from hvd_core.conformance._backend import Backend, deadline
from hvd_core.conformance._cases import Kit, Sum, at_most, case, plain_type, served
from hvd_core.conformance._comm import Comm, HostSpace
from hvd_core.conformance._numerics import NUMBERS, stored
from hvd_core.conformance._verdicts import FAIL, NATIVE, Composed

# A backend that is slower than this part of the host path has something in it that does not belong there.
SLOWEST = 1 / 100


def _seconds(
    kit: Kit,
    comm: Comm,
    elements: int,
    rounds: int,
    dtype: str,
    alignment: int,
    together: bool = True,
) -> float:
    """The median of ``rounds`` allreduces. ``together``: the ranks meet before each of them, otherwise once."""
    width = stored(dtype).itemsize
    source = comm.space.of(np.ones(elements * width, np.uint8), alignment)
    out = comm.space.region(elements * width, alignment)
    took = []
    for turn in range(rounds + 1):
        if together or turn == 0:
            kit.meet()
        started = time.perf_counter()
        comm.run(ALLREDUCE, NUMBERS[dtype], [source], [out], op=SUM, counts=[elements], seconds=kit.limit(60))
        took.append(time.perf_counter() - started)
    return statistics.median(took[1:])


@case(
    "L5.bandwidth",
    "an allreduce of 16 MiB compared with an embedded backend on host memory in the same run",
    ranks=2,
    seconds=180,
)
def bandwidth(kit: Kit) -> None:
    dtype, alignment = plain_type(kit)
    width = stored(dtype).itemsize
    nbytes = at_most(kit, dtype, ((4 if kit.quick else 16) << 20) // width) * width
    host_name, reference = _reference(kit)
    base = _seconds(kit, reference, nbytes // 4, 5, "float32", 64)
    reference.destroy()
    for space in kit.spaces():
        took = _seconds(kit, kit.comm(space), nbytes // width, 5, dtype, max(alignment, 64))
        ratio = base / took
        text = f"{nbytes / took / 1e9:.2f} GB/s; {host_name} on host memory {nbytes / base / 1e9:.2f} GB/s in this run"
        kit.note(f"[{space.name}]", text)
        worst = min(kit.share(ratio))
        kit.expect(worst > SLOWEST, f"{text}: less than one hundredth of it")


def _reference(kit: Kit) -> tuple[str, Comm]:
    """The embedded backend of host memory that suits the hosts of the ranks, and a communicator of it over all ranks."""
    from hvd_core.backends._discovery import lookup

    name = "shm" if len(set(kit.hosts)) == 1 else "tcp"
    host = kit.backend
    if host.name != name:
        host = Backend(name, str(lookup(name, "hvd_core.conformance").path()), kit._store)
    key = f"comm/{kit._case}/reference"
    limit = deadline(kit.limit(20))
    return name, Comm(host, HostSpace(), key, range(kit.size), kit.rank, kit.hosts, limit)


@case(
    "L5.latency",
    "an allreduce of one element compared with an embedded backend; reported, never a fault",
    ranks=2,
)
def latency(kit: Kit) -> None:
    dtype, alignment = plain_type(kit)
    rounds = 10 if kit.quick else 200
    name, reference = _reference(kit)
    base = _seconds(kit, reference, 1, rounds, "float32", 64, together=False)
    reference.destroy()
    for space in kit.spaces():
        took = _seconds(kit, kit.comm(space), 1, rounds, dtype, max(alignment, 64), together=False)
        here = f"{name} on host memory {base * 1e6:.1f} us in this run"
        kit.note(
            f"one {dtype} [{space.name}]", f"{took * 1e6:.1f} us; {here}: {took / base:.1f} times as long"
        )


@case("L5.fusion", "many small buffers in one call compared with one call for each", ranks=2, seconds=120)
def fusion(kit: Kit) -> None:
    dtype, alignment = plain_type(kit)
    if not kit.backend.caps & _abi.CAP_VECTORED:
        raise Composed("VECTORED is not declared; hvd-core packs lists into one buffer")
    lengths = [at_most(kit, dtype, (i * 97) % 900 + 1) for i in range(161)]
    for space in kit.spaces():
        comm = kit.comm(space)
        width = stored(dtype).itemsize
        ins = [space.of(np.ones(n * width, np.uint8), alignment) for n in lengths]
        outs = [space.region(n * width, alignment) for n in lengths]
        many, one = [], []
        for _ in range(6):
            kit.meet()
            started = time.perf_counter()
            for i, n in enumerate(lengths):
                comm.run(ALLREDUCE, NUMBERS[dtype], [ins[i]], [outs[i]], op=SUM, counts=[n])
            many.append(time.perf_counter() - started)
            kit.meet()
            started = time.perf_counter()
            comm.run(ALLREDUCE, NUMBERS[dtype], ins, outs, op=SUM, counts=lengths)
            one.append(time.perf_counter() - started)
        gain = statistics.median(many[1:]) / statistics.median(one[1:])
        kit.note(f"161 buffers at once [{space.name}]", f"{gain:.1f} times as fast as one by one")
        worst = max(kit.share(gain))
        kit.row(
            f"fusion [{space.name}]", NATIVE if worst > 0.5 else FAIL,
            "" if worst > 0.5 else "a list takes more than twice as long as its buffers one by one",
        )  # fmt: skip


@case(
    "L5.asynchronous",
    "STREAM: collective and the copies before it return while the stream is held up",
    ranks=2,
)
def asynchronous(kit: Kit) -> None:
    """An operation holds up the stream, because another rank calls it only after tell(). A backend that synchronises with
    the host in an enqueue never reaches tell()."""
    plain_type(kit)
    if not kit.backend.caps & _abi.CAP_STREAM:
        kit.skip("the communicators complete by requests; L3.no_waiting tests those")
    space = kit.device_space()
    comm, stream = kit.comm(space), space.new_stream()
    for _ in range(2):
        Sum(kit, comm, 5000).start(stream=stream).wait()
    steps = [Sum(kit, comm, 5000, i) for i in range(3)]
    after, copy = space.region(steps[0].out.nbytes), steps[0]
    after.poison()
    if kit.rank != 0:
        waited = not kit.hear("enqueued", 5)
    pending = []
    for step in steps:
        pending.append(step.start(stream=stream, seconds=kit.limit(60)))
    space.copy(after.buf, copy.out.buf, copy.out.nbytes, stream)
    if kit.rank == 0:
        held = not pending[0].test()
        kit.tell("enqueued")
        kit.expect(held or kit.size == 1, "an operation was complete before the other ranks had called it")
    for p in pending:
        p.wait()
    space.sync(stream)
    for step in steps:
        step.expect_right()
    kit.expect(
        (after.read() == copy.out.read()).all(),
        "a copy behind a collective on the same stream saw something else",
    )
    kit.expect(
        kit.rank == 0 or not waited,
        "rank 0 did not finish its enqueues: one of them waits on the host",
    )


@case("L5.idle", "an idle communicator uses no processor time", ranks=2)
def idle(kit: Kit) -> None:
    for space in kit.spaces():
        comm = kit.comm(space)
        Sum(kit, comm, 1000).start().wait()
        kit.pause(0.2)
        kit.meet()
        started, used = time.monotonic(), time.process_time()
        kit.pause(0.5 if kit.quick else 1.0)
        share = (time.process_time() - used) / (time.monotonic() - started)
        kit.note(f"idle [{space.name}]", f"{share * 100:.1f} % of a core")
        kit.expect(share < 0.5, f"an idle communicator uses {share * 100:.0f} % of a core")
        if served(kit, ALLREDUCE, "float32"):
            Sum(kit, comm, 10).start().wait()
