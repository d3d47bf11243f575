"""Programs for jobs and processes on several hosts that need no engine: one function each, named on the command line,
with its arguments behind. The launcher's ranks execute most of them; some call horovod.run(), or use sockets alone."""

import errno
import json
import os
import select
import signal
import socket
import sys
import threading
import time


def _rank():
    """Asked anew each time: horovod.run() sends functions to ranks together with the variables that they use."""
    return os.environ["HOROVOD_RANK"]


def _ready(text=None):
    with open(f"ready.{_rank()}", "w") as file:
        file.write(f"{os.getpid() if text is None else text}\n")


def _wait(path, there=True):
    """Waits until the path exists, or until it does not."""
    while os.path.exists(path) != there:
        time.sleep(0.01)


def sleep():
    _ready()
    time.sleep(600)


def sleep_with_an_orphan():
    """Would run for ever, with a child in a session of its own that is deaf to SIGTERM."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(f"orphan.{_rank()}", "w") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
    sleep()


def deaf_with_an_orphan():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep_with_an_orphan()


def sleep_when_the_secret_is_told():
    _ready(os.environ["HOROVOD_SECRET_KEY"])
    time.sleep(600)


def one_rank_exits(failing, code):
    if _rank() == failing:
        sys.exit(int(code))
    time.sleep(600)


def see_rank_1_die():
    """The moment of the others begins when rank 1 has ended, and not before they have come so far."""
    if _rank() == "1":
        os.symlink(f"/proc/{os.getpid()}", "rank 1")
        for other in "02":
            _wait(f"ready.{other}")
        os.kill(os.getpid(), signal.SIGKILL)
    while not os.path.islink("rank 1"):
        time.sleep(0.01)
    _ready()
    _wait("rank 1/stat", False)
    time.sleep(0.2)
    sys.exit("rank 1 died")


def save_at_the_end():
    def save(*_):
        time.sleep(1.0)
        print("saved", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    sleep()


def print_for_ever():
    while True:
        print("x" * 1000)
        time.sleep(0.01)


def print_environment(*arguments):
    """With the folder, the arguments, and whether the process leads a session of its own."""
    print(json.dumps([dict(os.environ), os.getcwd(), arguments, os.getpid() == os.getsid(0)]))


def print_odd_bytes():
    sys.stdout.buffer.write(b"bytes \xff of " + _rank().encode() + b"\rsecond\n" + "grüße".encode())
    sys.stderr.write(f"error of {_rank()}\n")


def print_much():
    for number in range(120_000):
        print(number, "." * 100)
    print("all said", file=sys.stderr)


def watch_the_links(talk=""):
    """Connects; once a host has been cut off, waits for the first event on a link between hosts. With "talk", data is
    under way when the host is cut off."""
    from hvd_core._bootstrap.world import connect

    world = connect()
    links = {link.sock_fd: link.peer for link in world.links if link.sock_fd >= 0}
    _ready()
    _wait("cut")
    with open("cut") as file:
        cut = float(file.read())
    if talk:
        for fd, peer in links.items():
            # Rank 1 is not cut off: data sent to it would end its wait.
            if world.rank != 1 and peer != 1:
                os.write(fd, b"still there?")
    for fd in select.select(links, [], [], 60)[0]:
        error = socket.socket(fileno=os.dup(fd)).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        print(links[fd], errno.errorcode.get(error, error), time.monotonic() - cut, flush=True)
    time.sleep(600)


def receive():
    """Counts the bytes that come to any address; says first that it is ready."""
    with socket.create_server(("", 5000)) as server:
        print("ready", flush=True)
        peer = server.accept()[0]
        data = b""
        while chunk := peer.recv(1 << 16):
            data += chunk
        print(len(data))


def send(target, count):
    with socket.create_connection((target, 5000), timeout=3) as peer:
        peer.sendall(bytes(int(count)))


def hold_an_abstract_socket():
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("\0hvd-namespace-test")
    print("bound", flush=True)
    sys.stdin.read()


def run_a_function_that_multiplies(hosts, *ssh):
    """`ssh`: the port and the file of a key, for the default remote shell."""
    import horovod

    options = {"ssh_port": int(ssh[0]), "ssh_identity_file": ssh[1]} if ssh else {}
    print(horovod.run(_multiply, (7,), num_proc=2, hosts=hosts, **options))


def _multiply(scale):
    return int(os.environ["HOROVOD_RANK"]) * scale


def run_a_function_that_sums(hosts):
    import horovod

    print(horovod.run(_sum, (10,), num_proc=2, hosts=hosts))


def _sum(scale):
    import numpy as np

    import hvd_core as hvd

    hvd.init()
    return hvd.rank(), hvd.allreduce(np.ones(2) * scale * (1 + hvd.rank()), op=hvd.Sum).tolist()


def run_functions_with_much_data(hosts, near, far):
    """Data, exceptions and hosts that cannot be reached: one rank on the host `near`, two on the host `far`."""
    import horovod

    data = os.urandom(5 << 20)
    results = horovod.run(_reverse_at_rank_2, (data,), {"scale": 3}, num_proc=3, hosts=hosts)
    assert [result[0] for result in results] == [0, 1, 2]
    assert [result[1] for result in results] == [near, far, far]
    assert results[0][2] == results[1][2] == 3 * len(data) and results[2][2] == data[::-1]
    before = len(os.listdir("/proc/self/fd"))
    try:
        horovod.run(_reverse_at_rank_2, (b"", 0), num_proc=3, hosts=hosts)
    except RuntimeError as error:
        assert isinstance(error.__cause__, KeyError) and "Process name: 2\n" in str(error), error
    else:
        raise AssertionError("no error")
    try:
        horovod.run(_reverse_at_rank_2, (b"", 1), num_proc=2, hosts="nowhere:2")
    except RuntimeError as error:
        assert "host 'nowhere': the remote shell ended with status" in str(error), error
    else:
        raise AssertionError("no error")
    assert len(os.listdir("/proc/self/fd")) == before
    print("passed")


def _reverse_at_rank_2(data, scale):
    rank = int(os.environ["HOROVOD_RANK"])
    if scale == 0 and rank == 2:
        raise KeyError("lost")
    return rank, os.environ["HOROVOD_HOSTNAME"], data[::-1] if rank == 2 else len(data) * scale


def run_a_function_beside_a_fork(hosts):
    """The child that is forked in the middle of the job has copies of all descriptors of this process."""
    import horovod

    threading.Thread(target=_fork_when_the_ranks_run).start()
    horovod.run(sleep_with_an_orphan, num_proc=2, hosts=hosts)


def _fork_when_the_ranks_run():
    _wait("ready.0")
    _wait("ready.1")
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
