"""L3: what a backend calls on the host while it works: who calls, with which tokens and numbers, phases in pairs."""

from __future__ import annotations

from collections import Counter

from hvd_core.conformance.cases import Kit, case
from hvd_core.conformance.ordering import Sum, plain_type


@case(
    "L3.host_calls",
    "calls of the host: by threads that have announced themselves, with tokens and numbers that exist, phases in pairs",
)
def host_calls(kit: Kit) -> None:
    plain_type(kit)
    host = kit.backend.host
    for space in kit.spaces():
        comms = [kit.comm(space), kit.comm(space)]
        since = len(host.phases)
        for turn in range(8):
            pending = [Sum(kit, comm, count, turn) for comm, count in zip(comms, (17, 60_000))]
            for step in [step.start() for step in pending]:
                step.wait("poll" if turn % 2 else "wait")
            for step in pending:
                kit.expect(not step.wrong(), step.wrong())
        kit.pause(0.05)  # a notification may be a little late
        strangers = set(host.notified) - host.tokens
        kit.expect(
            not strangers,
            f"notify with {sorted(strangers)[:3]}, which is the notify_token of no communicator",
        )
        known = {comm.handle.value: comm.seq for comm in comms}
        _check_phases(kit, host.phases[since:], known)
    kit.expect(not host.unannounced, f"T4: {', '.join(sorted(set(host.unannounced)))}")


def _check_phases(kit: Kit, phases: list[tuple], known: dict[int, int]) -> None:
    """phases: (communicator, seq, phase, 1 or 0) in the order of the calls; known: communicator -> its last seq."""
    open_phases: Counter = Counter()
    for comm, seq, phase, begins in phases:
        what = f"activity '{phase}' of operation {seq}"
        kit.expect(comm in known, f"{what}: of a communicator that there is not")
        kit.expect(1 <= seq <= known[comm], f"{what}: the last operation is number {known[comm]}")
        kit.expect(begins in (0, 1), f"{what}: begin_end is {begins}; 1 begins, 0 ends")
        open_phases[comm, seq, phase] += 1 if begins else -1
        kit.expect(open_phases[comm, seq, phase] >= 0, f"{what}: it ends before it has begun")
    left = [f"'{phase}' of operation {seq}" for (_, seq, phase), n in open_phases.items() if n]
    kit.expect(not left, f"activity that never ends: {', '.join(left[:3])}")
