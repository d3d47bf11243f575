"""L3: calls of a backend into the host table: the calling threads, tokens and numbers, phases in pairs."""

from __future__ import annotations

from collections import Counter

from hvd_core.conformance.cases import Kit, Sum, case, plain_type


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
            pending = [Sum(kit, comm, count, turn) for comm, count in zip(comms, (17, 60_000))]
            for step in [step.start() for step in pending]:
                step.wait("poll" if turn % 2 else "wait")
            for step in pending:
                kit.expect(not step.wrong(), step.wrong())
        kit.pause(0.05)  # a notification may be a little late
        strangers = set(host.notified) - host.tokens
        kit.expect(
            not strangers,
            f"notify with {sorted(strangers)[:3]}, which no communicator has as its notify_token",
        )
        known = {comm.handle.value: comm.seq for comm in comms}
        _check_phases(kit, host.phases[since:], known)
    kit.expect(not host.unannounced, f"T4: {', '.join(sorted(set(host.unannounced)))}")


def _check_phases(kit: Kit, phases: list[tuple], known: dict[int, int]) -> None:
    """phases: (communicator, seq, phase, 1 or 0) in the order of the calls; known: communicator -> its last seq."""
    open_phases: Counter = Counter()
    for comm, seq, phase, begins in phases:
        what = f"activity '{phase}' of operation {seq}"
        kit.expect(comm in known, f"{what}: of a communicator that does not exist")
        kit.expect(1 <= seq <= known[comm], f"{what}: the last operation is number {known[comm]}")
        kit.expect(begins in (0, 1), f"{what}: begin_end is {begins}; 1 begins, 0 ends")
        open_phases[comm, seq, phase] += 1 if begins else -1
        kit.expect(open_phases[comm, seq, phase] >= 0, f"{what}: the phase ends before it has begun")
    left = [f"'{phase}' of operation {seq}" for (_, seq, phase), n in open_phases.items() if n]
    kit.expect(not left, f"activity that never ends: {', '.join(left[:3])}")
