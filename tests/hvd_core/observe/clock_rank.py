"""A rank that compares its clock with rank 0's over a store: clock_rank.py RANK ADDRESS SECRET HOSTS. Prints the offset
and the largest error as JSON."""

import json
import sys
import time

from hvd_core._base.sockets import Deadline
from hvd_core._bootstrap import hosts as clock
from hvd_core._bootstrap.store import StoreClient
from hvd_core._bootstrap.store.session import Session

rank, address, secret, hosts = (
    int(sys.argv[1]),
    sys.argv[2],
    bytes.fromhex(sys.argv[3]),
    json.loads(sys.argv[4]),
)
deadline = Deadline(60)
store = StoreClient(address, secret, rank, 1, deadline)
session = Session(store, secret, rank, len(hosts), 1, deadline)
measured = clock.offset_to_rank_0(session, hosts)
if rank == 0:
    session.put("wall", time.time_ns() - time.monotonic_ns())
by_wall = clock.offset_by_wall_clocks(session, hosts, session.wait("wall"))
session.count("read")
while session.peek("read") != len(hosts):
    session.check()
print(json.dumps([measured, by_wall[0]]))
