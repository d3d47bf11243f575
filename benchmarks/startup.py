#!/usr/bin/env python3
"""The start of a job of many ranks: time, processor time, and the load of the store, from 8 to a thousand ranks.

    python benchmarks/startup.py [--ranks 8,64,256,1024] [--per-host 8] [--json result.json]

Each rank is a process that runs the bootstrap of `hvd.init()` as it is (hvd_core/_bootstrap: rendezvous, roster, hosts,
links), without an engine. All are forks of this process, so that a thousand fit into one machine, and
HOROVOD_SIMULATED_HOSTS makes the hosts. Ranks begin together. Each rank counts requests and bytes of its connection to
the store; a rank that waits sends none, so the machine's load does not count. Times are those of one machine that all
ranks share: of a thousand ranks on two cores each has a five-hundredth of the time. The processor time of a rank, and
that of the store, is what carries over to a cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import signal
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hvd_core._bootstrap import hosts, store
from hvd_core._bootstrap.launchers import process
from hvd_core._bootstrap.rendezvous import launcher_store, mpi4py_support
from hvd_core._bootstrap.store import session
from hvd_core._bootstrap.world import connect
from hvd_core.bench import _report

_IMPORTED = hosts, launcher_store, mpi4py_support, process, session  # init() imports them; forks shall not

SECONDS = 300  # for the whole start


class Counted:
    """Requests and bytes of this process's connection to the store. ``begin()`` counts from now on."""

    def __init__(self) -> None:
        self.requests = self.sent = self.received = 0

    def begin(self) -> None:
        send, answer = store.StoreClient._send, store.StoreClient._answer

        def counted_send(client, op, name, payload, deadline):
            self.requests += 1
            self.sent += 7 + len(name) + len(payload)
            return send(client, op, name, payload, deadline)

        def counted_answer(client, deadline):
            status, value = answer(client, deadline)
            self.received += 5 + len(value)
            return status, value

        store.StoreClient._send, store.StoreClient._answer = counted_send, counted_answer


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rank_main(rank: int, ranks: int, environ: dict[str, str], begin: int, end: int, out: int) -> None:
    """The life of one rank. `begin` and `end` are pipes that this process's parent closes."""
    os.environ.update(environ, HOROVOD_RANK=str(rank), HOROVOD_SIZE=str(ranks))
    counted = Counted()
    counted.begin()
    os.read(begin, 1)
    used, began = cpu_s(), time.monotonic()
    try:
        world = connect(deadline_s=SECONDS)
        world.leave_init()
        found = {"rank": rank, "s": time.monotonic() - began, "cpu_s": cpu_s() - used, **vars(counted)}
    except Exception:
        world, found = None, {"rank": rank, "error": traceback.format_exc()}
    os.write(out, json.dumps(found).encode() + b"\n")
    os.read(end, 1)
    if world is not None:
        world.close()


def forked(work) -> int:
    """The process that runs `work()` and ends."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def serve(secret: bytes, told: int, end: int) -> None:
    """The process of the store: tells its address, then the processor time of its whole life."""
    with store.StoreServer(secret=secret) as server:
        before = cpu_s()
        os.write(told, server.address.encode() + b"\n")
        os.read(end, 1)
        os.write(told, f"{cpu_s() - before}\n".encode())


def measure(ranks: int, per_host: int) -> dict:
    """One start. Raises RuntimeError with the first error of a rank."""
    secret = secrets.token_bytes(16)
    told, tell = os.pipe()
    server_end, server_wait = os.pipe()[::-1]
    children = [forked(lambda: (os.close(server_end), serve(secret, tell, server_wait)))]
    try:
        lines = os.fdopen(told, "r")
        environ = {
            "HOROVOD_STORE": lines.readline().strip(),
            "HOROVOD_SECRET_KEY": secret.hex(),
            "HOROVOD_SIMULATED_HOSTS": ",".join(str(rank // per_host) for rank in range(ranks)),
        }
        go, begin = os.pipe()[::-1]
        stop, end = os.pipe()[::-1]
        found, out = os.pipe()

        def live(rank: int) -> None:
            for fd in (go, stop, server_end, found):
                os.close(fd)
            rank_main(rank, ranks, environ, begin, end, out)

        children += [forked(lambda rank=rank: live(rank)) for rank in range(ranks)]
        os.close(out)
        began = time.monotonic()
        os.close(go)
        answers = []
        with os.fdopen(found) as results:
            for line in results:
                answers.append(json.loads(line))
                if "error" in answers[-1]:
                    raise RuntimeError(f"rank {answers[-1]['rank']} of {ranks}: {answers[-1]['error']}")
                if len(answers) == ranks:
                    break
        took = time.monotonic() - began
        if len(answers) < ranks:
            raise RuntimeError(f"{ranks - len(answers)} of {ranks} ranks ended without a word")
        os.close(stop)
        for child in children[1:]:
            os.waitpid(child, 0)
        del children[1:]
        os.close(server_end)
        store_cpu = float(lines.readline())
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return summary(ranks, per_host, took, store_cpu, sorted(answers, key=lambda a: a["rank"]))


def summary(ranks: int, per_host: int, took: float, store_cpu: float, answers: list[dict]) -> dict:
    """Figures of one start; of the ranks: rank 0, the mean of the other leaders, the mean of the rest."""
    groups = {
        "root": answers[:1],
        "leader": [a for a in answers[1:] if a["rank"] % per_host == 0],
        "leaf": [a for a in answers if a["rank"] % per_host],
    }
    figures: dict = {"ranks": ranks, "s": took, "store_cpu_ms": store_cpu * 1e3}
    for key in ("requests", "sent", "received"):
        figures[f"store_{key}"] = sum(answer[key] for answer in answers)
    for role, of in groups.items():
        if of:
            figures[role] = {
                "cpu_ms": sum(a["cpu_s"] for a in of) / len(of) * 1e3,
                "requests": sum(a["requests"] for a in of) / len(of),
                "bytes": sum(a["sent"] + a["received"] for a in of) / len(of),
            }
    return figures


def table(results: list[dict]) -> str:
    header = ["ranks", "all, s", "store: requests", "KB", "ms", "ms per rank"]
    header += [f"{role} {what}" for role in ("root", "leader", "leaf") for what in ("requests", "KB", "ms")]
    rows = []
    for f in results:
        moved = (f["store_sent"] + f["store_received"]) / 1e3
        row = [f"{f['ranks']:,}", f"{f['s']:.2f}", f"{f['store_requests']:,}", f"{moved:,.0f}"]
        row += [f"{f['store_cpu_ms']:,.0f}", f"{f['store_cpu_ms'] / f['ranks']:.2f}"]
        for role in ("root", "leader", "leaf"):
            of = f.get(role)
            row += (
                [f"{of['requests']:.1f}", f"{of['bytes'] / 1e3:.1f}", f"{of['cpu_ms']:.1f}"]
                if of
                else [""] * 3
            )
        rows.append(row)
    return _report.table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="8,64,256", help="numbers of ranks (default 8,64,256)")
    parser.add_argument("--per-host", type=int, default=8, help="ranks on each host (default 8)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()
    sizes = [int(n) for n in options.ranks.split(",")]
    if options.per_host < 1 or min(sizes) < 2:
        parser.error("--ranks must be at least 2 and --per-host at least 1")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    results = [measure(ranks, options.per_host) for ranks in sizes]
    print(table(results))
    if options.json:
        Path(options.json).write_text(json.dumps({"per_host": options.per_host, "rows": results}, indent=1))


if __name__ == "__main__":
    main()
