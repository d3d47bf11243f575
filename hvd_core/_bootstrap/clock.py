"""The clocks of the hosts: what has to be added to this host's CLOCK_MONOTONIC for the clock of rank 0's host.

Measured over the job's store at init(), as timelines of several hosts are put on one clock by it. Within a host there is
one clock. Called once per init() by all ranks, on the thread that runs it.
"""

import time

ROUNDS = 5


def offset_to_rank_0(session, hosts):
    """(offset in ns, the largest possible error in ns) of this rank's host. Rank 0 answers each other host's first rank.

    The error is half of the shortest round trip. Raises BootstrapError as the session does.
    """
    mine = hosts[session.rank]
    firsts = {host: hosts.index(host) for host in sorted(set(hosts))}
    if session.rank == 0:
        for host in sorted(firsts)[1:]:
            for i in range(ROUNDS):
                session.wait(f"clock/{host}/{i}/asked")
                session.put(f"clock/{host}/{i}/told", time.monotonic_ns())
        return 0, 0
    if mine == hosts[0]:
        return 0, 0
    if session.rank != firsts[mine]:
        return tuple(session.wait(f"clock/{mine}/offset"))
    best = None
    for i in range(ROUNDS):
        asked = time.monotonic_ns()
        session.put(f"clock/{mine}/{i}/asked", True)
        told = session.wait(f"clock/{mine}/{i}/told")
        now = time.monotonic_ns()
        found = told - (asked + now) // 2, (now - asked) // 2 + 1
        if best is None or found[1] < best[1]:
            best = found
    session.put(f"clock/{mine}/offset", best)
    return best


def offset_by_wall_clocks(session, hosts, wall_ns):
    """The same without a question to rank 0, as good as the hosts' wall clocks agree: the error is not known (None).
    ``wall_ns``: the wall clock minus CLOCK_MONOTONIC on rank 0's host."""
    if hosts[session.rank] == hosts[0]:
        return 0, 0
    return time.time_ns() - time.monotonic_ns() - wall_ns, None
