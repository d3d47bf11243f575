#!/usr/bin/env python3
"""An allreduce between two hosts beside a raw socket between them: network namespaces joined by a veth. Needs root and
iproute2.

    python benchmarks/between_hosts.py
    python benchmarks/between_hosts.py --sizes 4,1M,16M --rounds 9 --rate 5gbit --json result.json

Alternatives (--only):
    raw         two processes that only send and receive: each sends the buffer's bytes once and receives as many at the
                same time, as each rank of an allreduce of two ranks does. One connection, one thread: the limit for `tcp`
    tcp         hvd_core.allreduce_ on a NumPy array, two ranks, one on each host
    tcp x 2     the same with HOROVOD_BACKEND_TCP_SOCKETS_PER_PEER=2
    levels      four ranks, two on each host: shared memory within, tcp between, both levels at the same time
    in turn     the same with HOROVOD_HIERARCHICAL_OVERLAP=0: one level after another

--rate limits each direction of the veth (tc tbf). The alternatives stay alive and take turns, round after round; a ratio
is the median of the rounds' ratios. A call lasts from the moment the last process began it to the moment the last one had
the result: processes of one machine share a clock. Each buffer is rewritten before each call, and results are checked.
With four ranks on two cores `levels` shows the work of processors too.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import select
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hvd_core.bench import _report

PORT = 29_411
# Name -> processes on each host, variables of the ranks.
WAYS: dict[str, tuple[int, dict[str, str]]] = {
    "raw": (1, {}),
    "tcp": (1, {}),
    "tcp x 2": (1, {"HOROVOD_BACKEND_TCP_SOCKETS_PER_PEER": "2"}),
    "levels": (2, {}),
    "in turn": (2, {"HOROVOD_HIERARCHICAL_OVERLAP": "0"}),
}
PAIRS = [("raw", "tcp"), ("raw", "tcp x 2"), ("raw", "levels"), ("in turn", "levels")]


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Cable:
    """Two namespaces, joined by a veth."""

    def __init__(self, rate: str | None) -> None:
        self.names = [f"hvdbench-{os.getpid()}-{end}" for end in "ab"]
        net = f"10.199.{os.getpid() % 250}"
        self.addresses = [f"{net}.{end}" for end in (1, 2)]
        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            ip(
                "-n",
                self.names[0],
                *["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns"],
                self.names[1],
            )
            for name, address in zip(self.names, self.addresses):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
                if rate:
                    limit = f"tc qdisc add dev eth0 root tbf rate {rate} burst 256kb latency 20ms".split()
                    subprocess.run(["ip", "netns", "exec", name, *limit], check=True)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


class Team:
    """The processes of one way."""

    def __init__(self, name: str, cable: Cable, port: int) -> None:
        per_host, variables = WAYS[name]
        size = 2 * per_host
        variables = {
            "HOROVOD_SIZE": str(size),
            "HOROVOD_STORE": f"rank0://{cable.addresses[0]}:{port}",
            "HOROVOD_SECRET_KEY": secrets.token_hex(16),
            **variables,
        }
        self.processes = []
        for rank in range(size):
            host = rank // per_host
            words = ["ip", "netns", "exec", cable.names[host], sys.executable, __file__, "--work", name]
            self.processes.append(
                subprocess.Popen(
                    words + [f"{cable.addresses[0]}:{port}", str(rank)],
                    env=os.environ | variables | {"HOROVOD_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        self.answers()

    def answers(self) -> list:
        lines = [process.stdout.readline() for process in self.processes]
        if not all(lines):
            raise RuntimeError("a process of the benchmark has ended; its error is above")
        return [json.loads(line) for line in lines]

    def seconds(self, nbytes: int, calls: int) -> float:
        """Of one call: the median of some."""
        for process in self.processes:
            process.stdin.write(f"{nbytes} {calls}\n")
            process.stdin.flush()
        told = self.answers()
        return statistics.median(
            max(end for _, end in call) - max(begin for begin, _ in call) for call in zip(*told, strict=True)
        )

    def end(self) -> None:
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(30)
            process.stdout.close()


def exchange(sock: socket.socket, out: memoryview, into: memoryview) -> None:
    """Sends and receives at the same time."""
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLOUT)
    sent = received = 0
    while sent < len(out) or received < len(into):
        moved = False
        if sent < len(out):
            try:
                sent += sock.send(out[sent:])
                moved = True
            except BlockingIOError:
                pass
        if received < len(into):
            try:
                received += sock.recv_into(into[received:])
                moved = True
            except BlockingIOError:
                pass
        if not moved:
            poll.modify(
                sock,
                (select.POLLIN if received < len(into) else 0) | (select.POLLOUT if sent < len(out) else 0),
            )
            poll.poll()


def raw(address: str, rank: int):
    """call(array, into), which exchanges the arrays' bytes with the other process, and the meeting before it."""
    host, _, port = address.rpartition(":")
    if rank == 0:
        with socket.create_server((host, int(port))) as listener:
            sock, _ = listener.accept()
    else:
        while True:
            try:
                sock = socket.create_connection((host, int(port)))
                break
            except OSError:
                time.sleep(0.05)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    word, other = memoryview(bytearray(1)), memoryview(bytearray(1))

    def call(array, into):
        exchange(sock, memoryview(array).cast("B"), memoryview(into).cast("B"))

    return call, lambda: exchange(sock, word, other)


def work(name: str, address: str, rank: int) -> None:
    """One process of a way: for each line 'bytes calls' it answers with the begin and end of each call."""
    import numpy as np

    if name == "raw":
        exchanged, meet = raw(address, rank)
        into: dict[int, np.ndarray] = {}

        def call(array):
            exchanged(array, into[array.size])

        size = 1
    else:
        import hvd_core as hvd

        hvd.init()
        size, meet = hvd.size(), hvd.barrier

        def call(array):
            hvd.allreduce_(array, op=hvd.Sum, name=f"bench.{array.size}")

    print("0", flush=True)
    for line in sys.stdin:
        nbytes, calls = map(int, line.split())
        array, times = np.empty(nbytes // 4, np.float32), []
        if name == "raw":
            into[array.size] = np.zeros_like(array)
        for _ in range(calls):
            array.fill(1.0)
            meet()
            begin = time.monotonic()
            call(array)
            times.append((begin, time.monotonic()))
            assert array[0] == array[-1] == size
        print(json.dumps(times), flush=True)
    if name != "raw":
        hvd.shutdown()


def measure(options: argparse.Namespace) -> dict:
    cable = Cable(options.rate)
    teams: dict[str, Team] = {}
    names = [name for name in WAYS if options.only is None or name in options.only.split(",")]
    found: dict = {"machine": _report.machine(), "rate": options.rate, "sizes": {}}
    try:
        for number, name in enumerate(names):
            teams[name] = Team(name, cable, PORT + number)
        for nbytes in map(_report.parse_size, options.sizes.split(",")):
            calls = max(3, min(50, (32 << 20) // nbytes))
            times: dict[str, list[float]] = {name: [] for name in names}
            for team in teams.values():
                team.seconds(nbytes, 2)
            for _ in range(options.rounds):
                for name, team in teams.items():
                    times[name].append(team.seconds(nbytes, calls))
            found["sizes"][nbytes] = {
                "us": {name: statistics.median(t) * 1e6 for name, t in times.items()},
                "ratios": {
                    f"{limit} / {name}": _report.ratio(times[limit], times[name])
                    for limit, name in PAIRS
                    if name in times and limit in times
                },
            }
        for team in teams.values():
            team.end()
        return found
    finally:
        for team in teams.values():
            for process in team.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        cable.remove()


def table(found: dict) -> str:
    first = next(iter(found["sizes"].values()))
    header = ["size", *(f"{name}, us" for name in first["us"]), *first["ratios"]]
    rows = [
        [_report.size_text(nbytes), *map(_report.number, entry["us"].values())]
        + [f"{value:.2f}" for value in entry["ratios"].values()]
        for nbytes, entry in found["sizes"].items()
    ]
    return _report.table(header, rows)


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        return work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="4,4K,64K,1M,4M,16M,64M", help="bytes of the buffer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="some of the alternatives, separated by commas")
    parser.add_argument("--rate", help="limit of each direction, as tc has it: 5gbit")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()
    found = measure(options)
    print(table(found))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return None


if __name__ == "__main__":
    main()
