"""L4: when something goes wrong: abort, deadlines, a rank that is killed, ranks that disagree.

The only times that count are deadlines: an operation that cannot be completed must have ended, one way or another, five
seconds after its own. STREAM communicators have no deadline of their own; there the host aborts, as the engine does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hvd_core.conformance import _abi
from hvd_core.conformance._abi import ABORTED, ALLREDUCE, BROADCAST, OK, SUM, UNSUPPORTED
from hvd_core.conformance._backend import BackendFailure, code_name
from hvd_core.conformance._cases import Kit, Operation, Sum, at_most, case, plain_type, served
from hvd_core.conformance._comm import Comm, Pending, Region
from hvd_core.conformance._leaks import SharedNames, leaked, settled
from hvd_core.conformance._numerics import NUMBERS
from hvd_core.conformance._verdicts import NATIVE

LATE_S = 5.0  # beyond a deadline


def need_abort(kit: Kit) -> None:
    """Skips the case for a backend without abort."""
    kit.need_comm()
    if not kit.backend.caps & _abi.CAP_ABORT:
        kit.skip("ABORT is not declared: elastic jobs refuse this backend, other jobs end by their deadline")


def outcome(kit: Kit, start: Callable[[], Pending], abort_at_deadline: bool = True) -> tuple[int, str]:
    """(code, text) with which an operation ends: ``start`` gives it, or fails. STREAM: the host aborts at its deadline.

    Raises Failed when it has not ended ``LATE_S`` after that.
    """
    try:
        pending: Pending = start()
    except BackendFailure as problem:
        return problem.code, problem.text
    comm, aborted = pending.comm, False
    limit = pending.until + int(kit.limit(LATE_S) * 1e9)
    while True:
        try:
            if pending.event is not None:
                code, text = comm.async_error()
                if code not in (OK, UNSUPPORTED):
                    return _drained(kit, pending, limit, code, text)
            if pending.test():
                return OK, ""
        except BackendFailure as problem:
            return problem.code, problem.text
        now = time.monotonic_ns()
        if pending.event is not None and now > pending.until and not aborted and abort_at_deadline:
            comm.abort()
            aborted = True
        kit.expect(now < limit, f"an operation has not ended {LATE_S:g} s after its deadline")
        kit.pause(0.0005)


def _drained(kit: Kit, pending: Pending, limit: int, code: int, text: str) -> tuple[int, str]:
    """A failed communicator lets its stream go on once it is aborted: work behind it in the stream must not hang."""
    if kit.backend.caps & _abi.CAP_ABORT:
        pending.comm.abort()
    limit = max(limit, time.monotonic_ns() + int(kit.limit(LATE_S) * 1e9))
    while True:
        try:
            if kit.backend.call("device", "event_query", pending.event, allowed=(OK, _abi.INPROGRESS)) == OK:
                break
        except BackendFailure:
            break
        kit.expect(
            time.monotonic_ns() < limit,
            f"the stream of an aborted communicator still hangs after {LATE_S:g} s",
        )
        kit.pause(0.001)
    return code, text


def local_and_bounded(kit: Kit, comm: Comm) -> None:
    """T5: destroy after a failure. Raises Failed when it takes more than five seconds."""
    kit.forget(comm)
    started = time.monotonic()
    comm.destroy()
    kit.expect(
        time.monotonic() - started < kit.limit(LATE_S), f"destroy after a failure took more than {LATE_S:g} s"
    )


def _is_dead(kit: Kit, comm: Comm, wanted: tuple[int, ...], why: str) -> None:
    """Checks that later calls answer with one of the codes, and that async_error does not answer OK."""
    code, _ = outcome(kit, lambda: Sum(kit, comm, 17).start(seconds=kit.limit(3)))
    names = " or ".join(code_name(c) for c in wanted)
    kit.expect(code in wanted, f"{why}, a collective answers {code_name(code)}; it must answer {names}")
    code, _ = comm.async_error()
    kit.expect(
        code in (*wanted, UNSUPPORTED),
        f"{why}, async_error answers {code_name(code)}; it must answer {names}",
    )


@case(
    "L4.abort",
    "abort from another thread ends an operation in flight; later calls answer ABORTED",
    ranks=2,
)
def abort(kit: Kit) -> None:
    need_abort(kit)
    for space in kit.spaces():
        for count in (40, 400_000):
            comm = kit.comm(space)
            Sum(kit, comm, count).start().wait()
            last = kit.size - 1
            over = f"over {space.kind} {count} "
            if kit.rank == last:  # never comes: the others' operation stays in flight
                ended = all(kit.hear(f"{over}{r}", 30) for r in range(last))
                kit.expect(ended, "the other ranks' aborted operations do not end")
                comm.abort()
            else:
                # Rank 0 aborts; the others when they are notified, as the flood of ABORT in the engine has it. A backend
                # whose abort reaches its peers by itself may notify them sooner, and in another way.
                problems: list[str] = []
                step, wanted = (
                    Sum(kit, comm, count, 1),
                    (ABORTED,) if kit.rank == 0 else (ABORTED, _abi.REMOTE),
                )
                helper = threading.Thread(target=_abort_twice, args=(kit, comm, f"aborted {over}", problems))
                helper.start()
                code, text = outcome(
                    kit, partial(step.start, seconds=kit.limit(LATE_S)), abort_at_deadline=False
                )
                helper.join()
                kit.expect(not problems, f"abort: {problems}")
                kit.expect(code in wanted, f"an aborted operation ends with {code_name(code)}: {text}")
                _is_dead(kit, comm, wanted, "after abort")
                kit.row(f"in flight, {count} elements [{space.name}]", NATIVE)
                kit.tell(f"{over}{kit.rank}")
            local_and_bounded(kit, comm)


def _abort_twice(kit: Kit, comm: Comm, signal_name: str, problems: list[str]) -> None:
    if kit.rank == 0:
        kit.pause(0.3)  # the operation is in flight by then
    elif not kit.hear(signal_name):
        return problems.append("rank 0's abort does not return")
    try:
        for _ in range(2):  # idempotent
            started = time.monotonic()
            comm.abort()
            if time.monotonic() - started > kit.limit(LATE_S):
                problems.append(f"took more than {LATE_S:g} s; it must not block")
    except BackendFailure as problem:
        problems.append(str(problem))
    if kit.rank == 0:
        kit.tell(signal_name)
    return None


@case("L4.abort_idle", "abort of an idle communicator; a new communicator works", ranks=1)
def abort_idle(kit: Kit) -> None:
    need_abort(kit)
    for space in kit.spaces():
        comm = kit.comm(space)
        Sum(kit, comm, 10).start().wait()
        kit.meet()
        comm.abort()
        _is_dead(kit, comm, (ABORTED,), "after abort")
        local_and_bounded(kit, comm)
        again = kit.comm(space)
        Sum(kit, again, 1000).verify("a new communicator after an abort")


@case("L4.async_error", "async_error: no error before a failure, its cause after it")
def async_error(kit: Kit) -> None:
    kit.need_comm()
    if not kit.backend.has("comm", "async_error"):
        kit.skip("the table has no async_error; hvd-core notices failures by the operations alone")
    for space in kit.spaces():
        comm = kit.comm(space)
        Sum(kit, comm, 10).start().wait()
        code, text = comm.async_error()
        kit.expect(
            code in (OK, UNSUPPORTED),
            f"no operation has failed, but async_error answers {code_name(code)}: {text}",
        )
        if code == UNSUPPORTED:
            kit.note("async_error", "answers UNSUPPORTED")
            continue
        kit.meet()
        if kit.backend.caps & _abi.CAP_ABORT:
            comm.abort()
            code, text = comm.async_error()
            kit.expect(code == ABORTED, f"after abort, async_error answers {code_name(code)}: {text}")
            local_and_bounded(kit, comm)


@case(
    "L4.deadline",
    "an operation that one rank never calls ends at most five seconds after its deadline",
    ranks=2,
)
def deadlines(kit: Kit) -> None:
    plain_type(kit)
    for space in kit.spaces():
        for count in (40, 400_000):
            comm = kit.comm(space)
            Sum(kit, comm, count).start().wait()
            if kit.rank != kit.size - 1:
                code, text = outcome(kit, partial(Sum(kit, comm, count, 1).start, seconds=1.0))
                wanted = (
                    (_abi.TIMEOUT, _abi.REMOTE, ABORTED) if comm.stream_mode else (_abi.TIMEOUT, _abi.REMOTE)
                )
                kit.expect(code in wanted, f"ends with {code_name(code)}; it must end with TIMEOUT. {text}")
                kit.row(f"{count} elements [{space.name}]", NATIVE, code_name(code))
            kit.meet()
            local_and_bounded(kit, comm)


@case("L4.create_deadline", "create that one rank never calls ends by its deadline", ranks=2)
def create_deadline(kit: Kit) -> None:
    for space in kit.spaces():
        started = time.monotonic()
        if kit.rank != kit.size - 1:
            comm, problem = None, None
            try:
                comm = kit.comm(space, seconds=1.0)
            except BackendFailure as failure:
                problem = failure
            took = time.monotonic() - started
            kit.expect(took < 1.0 + kit.limit(LATE_S), f"create ended {took - 1:.1f} s after its deadline")
            if comm is not None:  # made without the others; the first operation cannot be
                code, text = outcome(kit, partial(Sum(kit, comm, 40).start, seconds=1.0))
                kit.expect(
                    code != OK, "create and an operation answered OK, although a rank has not called create"
                )
                kit.row(
                    f"[{space.name}]",
                    NATIVE,
                    f"create returns before all ranks have called it; then {code_name(code)}: {text}",
                )
                local_and_bounded(kit, comm)
            else:
                wanted = (_abi.TIMEOUT, _abi.REMOTE)
                kit.expect(
                    problem is not None and problem.code in wanted, f"{problem}; it must answer TIMEOUT"
                )
        else:
            kit._turn += 1  # as the others' comm() does
        kit.meet()


@case(
    "L4.killed_rank",
    "kill -9 of a rank: the other ranks' operation ends at most five seconds after its deadline",
    ranks=2,
    kills=True,
)
def killed_rank(kit: Kit) -> None:
    plain_type(kit)
    space = kit.spaces()[-1]
    comm = kit.comm(space)
    Sum(kit, comm, 40_000).start().wait()
    kit.meet()
    if kit.rank == kit.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    code, text = outcome(kit, lambda: Sum(kit, comm, 40_000, 1).start(seconds=3.0))
    wanted = (_abi.REMOTE, _abi.TIMEOUT, ABORTED) if comm.stream_mode else (_abi.REMOTE, _abi.TIMEOUT)
    kit.expect(code in wanted, f"ends with {code_name(code)}; it must end with REMOTE or TIMEOUT. {text}")
    kit.row(f"rank {kit.rank}", NATIVE, f"{code_name(code)}: {text}")
    _is_dead(kit, comm, (_abi.REMOTE, _abi.TIMEOUT, ABORTED), "after a rank has died")
    local_and_bounded(kit, comm)


def _disagreement(
    kit: Kit, comm: Comm, what: str, start: Callable[[], Pending], buffers: Sequence[Region]
) -> None:
    """An end within the deadline + 5 s, nothing written outside of buffers, and no false success on all ranks."""
    code, _ = outcome(kit, start)
    for buffer in buffers:
        buffer.read()  # raises Failed if a guard was written to
    codes = kit.share(code)
    kit.row(what, NATIVE, f"ends with {', '.join(sorted({code_name(c) for c in codes}))}")
    if any(c != OK for c in codes):
        local_and_bounded(kit, comm)
        return
    kit.expect(False, f"{what}: every rank answers OK, although their arguments differ")


@case(
    "L4.disagree_size",
    "ranks that request different counts: an end in time, and no false success",
    ranks=2,
)
def disagree_size(kit: Kit) -> None:
    dtype, alignment = plain_type(kit)
    width = np.dtype("uint16" if dtype == "float16" else dtype).itemsize
    for space in kit.spaces():
        for mine in ((100, 101), (40, 200_000)):
            comm = kit.comm(space)
            count = at_most(kit, dtype, mine[1]) if kit.rank == kit.size - 1 else mine[0]
            buffers = [space.of(np.ones(count * width, np.uint8), alignment) for _ in range(2)]
            _disagreement(
                kit, comm, f"allreduce of {mine[0]} and {mine[1]} [{space.name}]",
                partial(
                    comm.start, ALLREDUCE, NUMBERS[dtype], [buffers[0]], [buffers[1]], op=SUM, counts=[count],
                    seconds=2.0,
                ),
                buffers,
            )  # fmt: skip


@case(
    "L4.disagree_root",
    "ranks that name different roots: an end in time, and no false success",
    ranks=2,
)
def disagree_root(kit: Kit) -> None:
    kit.need_comm()
    caps = served(kit, BROADCAST, "float32") or served(kit, BROADCAST, "uint8")
    if caps is None:
        kit.skip("broadcast is not declared")
    dtype = "float32" if served(kit, BROADCAST, "float32") else "uint8"
    for space in kit.spaces():
        comm = kit.comm(space)
        buffer = space.of(np.ones(400, np.uint8), caps.alignment)
        _disagreement(
            kit, comm, f"broadcast from roots 0 and 1 [{space.name}]",
            # Two roots only send, and may complete; but no rank can complete the operation that follows.
            partial(_two_broadcasts, kit, comm, dtype, buffer),
            [buffer],
        )  # fmt: skip


def _two_broadcasts(kit: Kit, comm: Comm, dtype: str, buffer: Region) -> Pending:
    """A broadcast from different roots, to its end, and the next operation, which may receive messages that the first one
    left."""
    first = comm.start(
        BROADCAST, NUMBERS[dtype], [buffer], [buffer], counts=[400 // (4 if dtype == "float32" else 1)],
        root=1 if kit.rank == 0 else 0, seconds=2.0,
    )  # fmt: skip
    code, text = outcome(kit, lambda: first)
    if code != OK:
        raise BackendFailure("broadcast", code, text)
    return Sum(kit, comm, 100).start(seconds=2.0)


# ---- communicators made repeatedly, in other sizes, after failures; leaks ---------------------------------------------


def _use(kit: Kit, comm: Comm, turn: int) -> None:
    for count in (40, 20_000):
        Sum(kit, comm, count, turn).verify(f"turn {turn}", seconds=kit.limit(20))


@case(
    "L4.recreate",
    "50 communicators one after the other: no descriptors, threads, memory, store keys left",
    seconds=240,
)
def recreate(kit: Kit) -> None:
    turns = 20 if kit.quick else 50
    for space in kit.spaces():
        before, shared, kept = {}, SharedNames(), len(kit.backend.host.keys)
        for turn in range(turns):
            if turn == 5:
                before, shared = settled(), SharedNames()
                kit.meet()
            comm = kit.comm(space)
            shared.look()
            if turn < 3 or turn % 10 == 0:
                _use(kit, comm, turn)
            comm.finalize(kit.limit(20))
            kit.forget(comm)
            comm.destroy()
        left = leaked(before, turns - 5)
        kit.expect(not left, f"{turns - 5} communicators have leaked {left}")
        kit.meet()  # until the rank that removes a name has done so
        names = sorted(shared.left(turns - 5))
        kit.expect(
            not names, f"{turns - 5} communicators have left {len(names)} names in /dev/shm: {names[:3]}"
        )
        _check_keys(kit, kept)


def _check_keys(kit: Kit, since: int) -> None:
    """All keys that ranks put into the store were deleted, each by some rank."""
    kit.meet()
    all_keys = kit.share(kit.backend.host.keys[since:])
    put = {key for keys in all_keys for verb, key in keys if verb == "set"}
    gone = {key for keys in all_keys for verb, key in keys if verb == "del"}
    left = sorted(put - gone)
    kit.expect(not left, f"{len(left)} keys are left in the store, such as {left[0] if left else ''}")


@case("L4.resize", "communicators over fewer ranks, then over all ranks again, as in an elastic job", ranks=2)
def resize(kit: Kit) -> None:
    for space in kit.spaces():
        for turn, members in enumerate(
            (range(kit.size), range(kit.size - 1), range(kit.size), range(1, kit.size), range(kit.size))
        ):
            comm = kit.comm(space, list(members), tag=f"turn{turn}")
            if comm is not None:
                _use(kit, comm, turn)
                kit.forget(comm)
                comm.destroy()
            kit.meet()


@case("L4.alone", "a communicator of one rank: every operation is the identity")
def alone(kit: Kit) -> None:
    for space in kit.spaces():
        comm = kit.comm(space, [kit.rank], tag=f"of{kit.rank}")
        assert comm is not None
        _use(kit, comm, 1)
        code, text = comm.async_error()
        kit.expect(code in (OK, 3), f"async_error: {text}")


@case("L4.split", "split makes communicators of parts of a communicator", ranks=2)
def split(kit: Kit) -> None:
    kit.need_comm()
    if not kit.backend.has("comm", "split"):
        kit.skip("the table has no split; hvd-core creates such communicators")
    for space in kit.spaces():
        parent = kit.comm(space)
        # Another order of ranks than the parent's, and not all of them.
        for members in ([kit.size - 1, 0], list(reversed(range(kit.size))), [kit.size - 1]):
            child = kit.comm(space, members, tag="split", parent=parent)
            if child is not None:
                _use(kit, child, 1)
                wrong = _first_member_is_root_0(kit, child)
                kit.expect(not wrong, f"members {members}: {wrong}")
            _use(kit, parent, 2)


def _first_member_is_root_0(kit: Kit, comm: Comm) -> str:
    caps = served(kit, BROADCAST, "uint8")
    if caps is None:
        return ""
    inputs = [np.full(64, member, np.uint8) for member in comm.members]
    return Operation(comm, BROADCAST, "uint8", inputs, alignment=caps.alignment, in_place=True).check()
