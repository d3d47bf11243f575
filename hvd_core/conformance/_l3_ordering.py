"""L3: rules between operations, calls into the host table, and what a backend leaves unchanged in its process."""

from __future__ import annotations

import ctypes as C
import locale
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from hvd_core.conformance import _abi
from hvd_core.conformance._abi import BROADCAST, OK, P
from hvd_core.conformance._backend import Phase, deadline
from hvd_core.conformance._cases import Kit, Operation, Sum, case, plain_type, served
from hvd_core.conformance._comm import DeviceSpace, Pending, Space
from hvd_core.conformance._l0_tables import process_state
from hvd_core.conformance._l1_devices import Slow
from hvd_core.conformance._numerics import sample
from hvd_core.conformance._verdicts import Failed


@case(
    "L3.two_comms",
    "operations of two communicators in flight at once, completed in a different order on each rank",
)
def two_comms(kit: Kit) -> None:
    for space in kit.spaces():
        pair = [kit.comm(space), kit.comm(space)]
        streams = _streams(kit, space, 2)
        for turn in range(6):
            sums = [Sum(kit, comm, count, turn) for comm, count in zip(pair, (17, 60_000 + turn))]
            pending = [s.start(stream=stream) for s, stream in zip(sums, streams)]
            order = (0, 1) if (kit.rank + turn) % 2 else (1, 0)
            _complete_all(kit, [pending[i] for i in order])
            for s in sums:
                s.expect_right(f"communicator {pair.index(s.comm)}")


def _complete_all(kit: Kit, pending: list[Pending]) -> None:
    """Drives several operations as the engine does: each gets a look in turn, so that none holds up another."""
    left, until = list(pending), deadline(kit.limit(30))
    while left:
        left = [p for p in left if not p.test()]
        kit.expect(deadline(0) < until, f"{len(left)} operations do not complete within 30 s")
        if left:
            kit.pause(0.0001)


def _streams(kit: Kit, space: Space, count: int) -> list[P | None]:
    if not kit.backend.caps & _abi.CAP_STREAM or not isinstance(space, DeviceSpace):
        return [None] * count
    return [space.new_stream() for _ in range(count)]


@case(
    "L3.two_streams",
    "two communicators on streams of their own, interleaved without a wait on the host",
    seconds=120,
)
def two_streams(kit: Kit) -> None:
    plain_type(kit)
    if not kit.backend.caps & _abi.CAP_STREAM:
        kit.skip("the communicators complete by requests, not on streams")
    space = kit.device_space()
    pair, streams = [kit.comm(space), kit.comm(space)], _streams(kit, space, 2)
    sums = [Sum(kit, pair[i % 2], 1000 + 31 * i, i) for i in range(16)]
    staged = [space.host_buffer(s.source.nbytes) for s in sums]
    for s, (_, raw) in zip(sums, staged):
        raw[:] = s.source.read()
        s.source.poison()
    # The input of each operation is copied on its own stream; the second stream is late.
    busy = Slow(kit, space)
    busy.enqueue(1, streams[1])
    for i, (s, (buffer, _)) in enumerate(zip(sums, staged)):
        space.copy(s.source.buf, buffer, s.source.nbytes, streams[i % 2])
        s.comm.enqueue(**s.arguments(), stream=streams[i % 2], seconds=kit.limit(60))
    for stream in streams:
        space.sync(stream, kit.limit(60))
    for comm in pair:
        comm.raise_async_error()
    for i, s in enumerate(sums):
        s.expect_right(f"operation {i}")


@case(
    "L3.producer_consumer",
    "a collective sees earlier work of its stream, and later work sees its result",
    seconds=120,
)
def producer_consumer(kit: Kit) -> None:
    _, alignment = plain_type(kit)
    if not kit.backend.caps & _abi.CAP_MEM_DEVICE:
        kit.skip("the communicators read host memory, where there is no work in streams")
    kit.need_device()
    space = kit.device_space()
    comm, stream = kit.comm(space), space.new_stream()
    busy = Slow(kit, space)
    Sum(kit, comm, 10).start().wait()  # on the space's own stream, which later ones have nothing to do with
    for turn in range(3):
        step = Sum(kit, comm, 50_000, turn + 1)
        nbytes = step.source.nbytes
        staged, raw = space.host_buffer(nbytes)
        raw[:] = step.source.read()
        step.source.poison()
        after = space.region(nbytes, alignment)
        after.poison()
        # In sequence, behind long work: a backend that ignores the stream reads data that have not arrived.
        busy.enqueue(turn + 1, stream)
        space.copy(step.source.buf, staged, nbytes, stream)
        if not comm.stream_mode:
            space.sync(stream)
        pending = step.start(stream=stream, seconds=kit.limit(60))
        if not comm.stream_mode:
            pending.wait()
        space.copy(after.buf, step.out.buf, nbytes, stream)
        pending.wait()
        space.sync(stream)
        step.out = after
        step.expect_right(f"turn {turn}")


@case("L3.small_ops", "ten thousand small operations, one after the other", seconds=240)
def small_ops(kit: Kit) -> None:
    plain_type(kit)
    turns = 500 if kit.quick else 10_000
    for space in kit.spaces():
        comm = kit.comm(space)
        steps = [Sum(kit, comm, 4) for _ in range(8)]
        for turn in range(0, turns, 8):
            is_checked = turn % 800 == 0
            for step in steps if is_checked else ():
                step.out.poison()
            for step in steps:
                step.start(seconds=kit.limit(20)).wait("poll" if turn % 64 == 0 else "wait")
            for step in steps if is_checked else ():
                step.expect_right(f"after {turn} operations")


@case("L3.threads", "calls from changing threads, one call at a time")
def threads(kit: Kit) -> None:
    plain_type(kit)
    for space in kit.spaces():
        comm = kit.comm(space)
        for turn in range(12):
            step = Sum(kit, comm, 100 + turn, turn)
            pending = _in_a_thread(kit, step.start, turn)
            _in_a_thread(kit, pending.wait, turn)
            step.expect_right(f"turn {turn}")


_T = TypeVar("_T")


def _in_a_thread(kit: Kit, call: Callable[[], _T], turn: int) -> _T:
    """The result of the call, made on another thread."""
    box: list[_T | Exception] = []

    def work() -> None:
        try:
            box.append(call())
        except Exception as problem:
            box.append(problem)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (result,) = box
    if isinstance(result, Exception):
        raise Failed(f"turn {turn}: {result}")
    return result


@case(
    "L3.ownership", "arguments may be freed and changed after collective has returned; buffers stay", ranks=2
)
def ownership(kit: Kit) -> None:
    """Comm.enqueue overwrites its arguments after the call; here the operation is held up until that has happened."""
    dtype, _ = plain_type(kit)
    for space in kit.spaces():
        comm = kit.comm(space)
        Sum(kit, comm, 30_000, 0).start().wait()  # a first operation may set up connections
        for turn in range(4):
            late = turn % kit.size
            step = Sum(kit, comm, 30_000, turn)
            if kit.rank == late:
                kit.expect(
                    kit.hear(f"called {space.kind} {turn}"), "the other ranks' collective does not return"
                )
            pending = step.start()
            if kit.rank == (late + 1) % kit.size:
                junk = [np.full(4096, 0xEE, np.uint8) for _ in range(256)]
                kit.tell(f"called {space.kind} {turn}")
                del junk
            pending.wait()
            step.expect_right(f"turn {turn}")
        caps = served(kit, BROADCAST, dtype)
        if caps is not None:
            inputs = [sample(dtype, r, 1000) for r in range(kit.size)]
            Operation(comm, BROADCAST, dtype, inputs, alignment=caps.alignment, in_place=True).verify()


@case("L3.no_waiting", "collective returns although the other ranks have not called it", ranks=2)
def no_waiting(kit: Kit) -> None:
    """T3. A backend that waits on the host in an enqueue never reaches the call that lets the other ranks continue."""
    plain_type(kit)
    for space in kit.spaces():
        comm = kit.comm(space)
        for warm in range(2):  # a first operation may set up connections
            for count in (40, 40_000):
                Sum(kit, comm, count, warm).start().wait()
        steps = [Sum(kit, comm, 40, 5), Sum(kit, comm, 40_000, 6)]
        steps = steps if comm.stream_mode else steps[1:]
        if kit.rank == 0:
            pending = [s.start() for s in steps]
            kit.tell(f"returned {space.kind}")
            waited = False
        else:
            waited = not kit.hear(f"returned {space.kind}", 5)
            pending = [s.start() for s in steps]
        for p in pending:
            p.wait()
        for s in steps:
            s.expect_right()
        kit.expect(
            not waited, "rank 0's collective did not return before the other ranks had made the same call"
        )


# ---- calls into the host table: the calling threads, tokens and numbers, phases in pairs ------------------------------


@case(
    "L3.host_calls",
    "calls into the host table: from announced threads, with valid tokens and numbers, phases in pairs",
)
def host_calls(kit: Kit) -> None:
    plain_type(kit)
    host = kit.backend.host
    for space in kit.spaces():
        comms = [kit.comm(space), kit.comm(space)]
        since = len(host.phases)
        for turn in range(8):
            steps = [Sum(kit, comm, count, turn) for comm, count in zip(comms, (17, 60_000))]
            for pending in [step.start() for step in steps]:
                pending.wait("poll" if turn % 2 else "wait")
            for step in steps:
                step.expect_right()
        kit.pause(0.05)  # a notification may be a little late
        strangers = set(host.notified) - host.tokens
        kit.expect(
            not strangers,
            f"notify with {sorted(strangers)[:3]}, which no communicator has as its notify_token",
        )
        known = {comm.handle.value: comm.seq for comm in comms if comm.handle is not None}
        _check_phases(kit, host.phases[since:], known)
    kit.expect(not host.unannounced, f"T4: {', '.join(sorted(set(host.unannounced)))}")


def _check_phases(kit: Kit, phases: list[Phase], known: Mapping[int | None, int]) -> None:
    """phases: (communicator, seq, phase, 1 or 0) in the order of the calls; known: communicator -> its last seq."""
    open_phases: Counter[tuple[int | None, int, str]] = Counter()
    for comm, seq, phase, begins in phases:
        what = f"activity '{phase}' of operation {seq}"
        kit.expect(comm in known, f"{what}: of a communicator that does not exist")
        kit.expect(1 <= seq <= known[comm], f"{what}: the last operation is number {known[comm]}")
        kit.expect(begins in (0, 1), f"{what}: begin_end is {begins}; 1 begins, 0 ends")
        open_phases[comm, seq, phase] += 1 if begins else -1
        kit.expect(open_phases[comm, seq, phase] >= 0, f"{what}: the phase ends before it has begun")
    left = [f"'{phase}' of operation {seq}" for (_, seq, phase), n in open_phases.items() if n]
    kit.expect(not left, f"activity that never ends: {', '.join(left[:3])}")


# ---- the process: each call returns, and the process's state stays as it is -------------------------------------------


@case(
    "L3.calls",
    "each call of the communicator table comes back; the slowest ones are reported",
    ranks=2,
    seconds=120,
)
def calls(kit: Kit) -> None:
    # A call that does not come back is found by call_watch.py, whichever case it is in. This case makes every call once.
    plain_type(kit)
    # Longer than the watch waits, so that a rank which hangs is named before the others run into their deadlines.
    long = kit.limit(60)
    kit.backend.calls.longest.clear()
    for space in kit.spaces():
        comm = kit.comm(space, seconds=long)
        for how in ("wait", "poll"):
            step = Sum(kit, comm, 1000)
            step.start(seconds=long).wait(how)
            step.expect_right()
        comm.async_error()
        if kit.backend.has("comm", "group_begin"):
            step = Sum(kit, comm, 40)
            for pending in comm.group([step.arguments() | {"seconds": long}]):
                pending.wait()
        if kit.backend.has("comm", "mem_register"):
            handle = P()
            region = space.region(4096, 64)
            region.poison()
            if kit.backend.call("comm", "mem_register", comm.handle, region.buf, C.byref(handle),
                                allowed=(OK, _abi.UNSUPPORTED)) == OK:  # fmt: skip
                kit.backend.call("comm", "mem_deregister", comm.handle, handle)
        if kit.backend.has("comm", "split"):
            kit.comm(space, tag="split", parent=comm, seconds=long)
        if kit.backend.caps & _abi.CAP_ABORT:
            other = kit.comm(space, seconds=long)
            kit.meet()
            other.abort()
        comm.finalize(kit.limit(20))
    slowest = sorted(kit.backend.calls.longest.items(), key=lambda item: -item[1])[:5]
    kit.note("slowest calls", ", ".join(f"{slot} {seconds * 1000:.1f} ms" for slot, seconds in slowest))


@case(
    "L3.process",
    "a communicator changes nothing in the process: signals, variables, folder, locale, arithmetic, standard output",
)
def process(kit: Kit) -> None:
    plain_type(kit)
    for space in kit.spaces():
        before, variables = _state(), _variables()
        comm = kit.comm(space)
        Sum(kit, comm, 1000).verify()
        now, later = _state(), _variables()
        for what, value in now.items():
            kit.expect(
                value == before[what],
                f"making and using a communicator changes the process's {what}: {before[what]} before, {value} now",
            )
        changed = sorted(name for name, value in variables.items() if later.get(name) != value)
        kit.expect(
            not changed, f"making a communicator changes or removes environment variables: {changed[:3]}"
        )
        added = sorted(set(later) - set(variables))
        if added:
            kit.note("environment variables that it adds", ", ".join(name.decode() for name in added[:5]))


def _state() -> dict[str, Any]:
    kept = process_state()
    del kept["threads"], kept["environment variables"]
    kept["locale"] = locale.setlocale(locale.LC_ALL)
    for name, number in (("standard output", 1), ("standard error", 2)):
        status = os.fstat(number)
        kept[name] = (status.st_dev, status.st_ino)
    return kept


def _variables() -> dict[bytes, bytes]:
    """The variables as C code sees them; os.environ is a copy from the process's start."""
    pairs = (text.partition(b"=") for text in process_state()["environment variables"])
    return {name: value for name, _, value in pairs}
