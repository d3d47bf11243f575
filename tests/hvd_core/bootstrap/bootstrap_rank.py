"""One rank of a test job: connects, uses every link once in both directions, closes, and prints what it saw
as one line of JSON. Started by the tests as a process of its own; the arguments choose what it does besides.

    fork        forks while connected; the child reports which descriptors it can still see
    twice       connects and closes two more times
    same-hints  claims the hints of one single host wherever it runs
    sleep=S     sleeps before connecting
"""

import json
import mmap
import os
import select
import socket
import sys
import time

from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap import hosts
from hvd_core._bootstrap.world import connect

TIMEOUT = 20
REPORTED = ("rank", "size", "hosts", "host_names", "pids", "launcher")
REPORTED += ("local_rank", "local_size", "cross_rank", "cross_size")


def open_descriptors():
    with os.scandir("/proc/self/fd") as entries:
        names = [int(entry.name) for entry in entries]
    return {fd for fd in names if os.path.exists(f"/proc/self/fd/{fd}")}


def wait_readable(fd):
    if not select.select([fd], [], [], TIMEOUT)[0]:
        raise SystemExit(f"descriptor {fd} did not become readable")


def use_tcp(world, link):
    sock = socket.socket(fileno=os.dup(link.sock_fd))
    assert not os.get_blocking(link.sock_fd) and sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    sock.send(b"%08d" % world.rank)
    wait_readable(sock.fileno())
    said = int(sock.recv(8))
    sock.close()
    return said == link.peer


def speak_shm(world, link, segment):
    # A child writes in the first half of its line of the segment, the parent in the second.
    at = link.slot * 64 + (0 if link.is_parent else 32)
    segment[at : at + 8] = b"%08d" % (world.rank + 1)
    os.eventfd_write(link.peer_bells[0], 1)
    os.eventfd_write(link.peer_bells[1], 1)


def hear_shm(world, link, segment):
    at = link.slot * 64 + (32 if link.is_parent else 0)
    end = time.monotonic() + TIMEOUT
    while segment[at : at + 8] == bytes(8):
        for bell in world.eventfds:
            select.select([bell], [], [], 0.1)
        if time.monotonic() > end:
            raise SystemExit(f"rank {link.peer} wrote nothing into slot {link.slot}")
    alive = not select.select([link.guard_fd], [], [], 0)[0]
    rung = bool(select.select([world.eventfds[1]], [], [], TIMEOUT)[0])
    right_process = link.peer_pid == world.pids[link.peer]
    return int(segment[at : at + 8]) == link.peer + 1 and alive and rung and right_process


def use_links(world):
    shm = [link for link in world.links if link.sock_fd < 0]
    results = {}
    if shm:
        assert os.fstat(world.segment_fd).st_size == world.segment_bytes
        segment = mmap.mmap(world.segment_fd, world.segment_bytes)
        for link in shm:
            speak_shm(world, link, segment)
        for link in shm:
            results[link.peer] = hear_shm(world, link, segment)
        segment.close()
    for link in world.links:
        if link not in shm:
            results[link.peer] = use_tcp(world, link)
    return results


def barrier(world):
    """No rank closes its links while a peer still checks that it is alive."""
    if world.size > 1:
        if world.store.add(f"test/{world.epoch}/through", 1) == world.size:
            world.store.set(f"test/{world.epoch}/end", b"")
        world.store.get(f"test/{world.epoch}/end", TIMEOUT)
        world.store.add(f"test/{world.epoch}/gone", 1)
        while world.rank == 0 and world.store.add(f"test/{world.epoch}/gone", 0) < world.size:
            time.sleep(0.002)


def fork_and_look(world, before):
    mine = open_descriptors() - before
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        left = sorted(open_descriptors() & mine)
        os.write(writer, json.dumps({"open": left, "rank": world.rank}).encode())
        world.close()
        os._exit(0)
    os.close(writer)
    said = b"".join(iter(lambda: os.read(reader, 4096), b""))
    os.close(reader)
    os.waitpid(pid, 0)
    return {"parent_had": len(mine), **json.loads(said)}


def run(options):
    before = open_descriptors()
    started = time.perf_counter()
    world = connect()
    took = time.perf_counter() - started
    report = {name: getattr(world, name) for name in REPORTED}
    report["links"] = [
        ["tcp" if link.sock_fd >= 0 else "shm", link.peer, list(link.subtree), link.is_parent]
        for link in world.links
    ]
    inheritable = [fd for fd in open_descriptors() - before if os.get_inheritable(fd)]
    if "fork" in options:
        report["fork"] = fork_and_look(world, before)
    report["uses"] = use_links(world)
    barrier(world)
    world.close()
    world.close()
    report |= {
        "seconds": took,
        "inheritable": inheritable,
        "left_over": sorted(open_descriptors() - before),
        "secret_in_argv": world.secret.hex() in " ".join(sys.argv) if world.secret else False,
    }
    return report


def main(options):
    for option in options:
        if option.startswith("sleep="):
            time.sleep(float(option[6:]))
    if "same-hints" in options:
        hosts.hints = lambda: ["one", "and", "the same"]
    try:
        report = run(options)
        for _ in range(2 if "twice" in options else 0):
            report = run(options)
    except (BootstrapError, ValueError) as error:
        report = {"error": type(error).__name__, "text": str(error)}
    # One write, so that lines of several ranks on one pipe stay whole.
    os.write(1, (json.dumps(report) + "\n").encode())
    sys.exit(1 if "error" in report else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
