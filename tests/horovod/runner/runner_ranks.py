"""The programs of these tests' ranks: one function each, named on the command line."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

RANK = os.environ.get("HOROVOD_RANK", "")


def _write(path, text):
    with open(path, "w") as file:
        file.write(text)


def _wait(path, there):
    """Waits until the path exists, or until it does not."""
    while os.path.exists(path) != there:
        time.sleep(0.01)


def sum_ones():
    import numpy as np

    import hvd_core as hvd

    hvd.init()
    print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.allreduce(np.ones(3), op=hvd.Sum).tolist())


def train():
    """Works until it is ended, with a forked child that holds every descriptor, as data loaders do."""
    import numpy as np

    import hvd_core as hvd

    hvd.init()
    if os.fork() == 0:
        time.sleep(600)
    # A rank that has not reported within a second gets SIGTERM; on a busy machine that is early.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    step = 0
    while True:
        hvd.allreduce(np.full(100000, hvd.rank(), np.float32), name="gradient")
        step += 1
        if step == 50:
            _write(f"ready.{hvd.rank()}", f"{os.getpid()}\n")


def rank_1_exits(code):
    if RANK == "1":
        sys.exit(int(code))
    time.sleep(600)


def rank_1_needs_more_memory_than_there_is():
    kept = []
    while RANK == "1":
        kept.append(b"x" * (1 << 24))
    time.sleep(600)


def rank_1_exits_before_init(code):
    if RANK == "1":
        sys.exit(int(code))
    import hvd_core

    hvd_core.init()


def rank_1_never_comes():
    if RANK == "1":
        time.sleep(600)
    import hvd_core as hvd

    hvd.init()


def sleep():
    """Runs for ever; leaves a file with its process id once it is ready."""
    _write(f"ready.{RANK}", f"{os.getpid()}\n")
    time.sleep(600)


def deaf():
    """As sleep(), but SIGTERM does nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep()


def family():
    """Has a child in its group, and a grandchild in a session of its own whose parent has gone."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _write(f"orphan.{RANK}", f"{os.getpid()}\n")
            time.sleep(600)
        os._exit(0)
    os.wait()


def without_a_first_thread():
    """Leaves a process whose first thread has ended, so that the system shows a zombie, and another has not."""
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=time.sleep, args=(600,)).start()
        ctypes.CDLL(None).pthread_exit(None)
    while "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.01)
    print(f"left {pid}", flush=True)


def family_and_sleep():
    family()
    sleep()


def family_and_deaf():
    family()
    deaf()


def rank_0_sees_rank_1_die():
    """Rank 1 does not end before rank 0 has come so far."""
    if RANK == "1":
        os.symlink(f"/proc/{os.getpid()}", "rank 1")
        _wait("ready", True)
        os.kill(os.getpid(), signal.SIGKILL)
    while not os.path.islink("rank 1"):
        time.sleep(0.01)
    _write("ready", "")
    _wait("rank 1/stat", False)
    time.sleep(0.2)
    sys.exit("rank 1 died")


def save_at_the_end():
    def save(*_):
        time.sleep(1.0)
        print("saved", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    _write(f"ready.{RANK}", "x\n")
    time.sleep(600)


def print_how_it_began():
    """Whether the rank leads a session of its own, its open files, and the signals that it ignores."""
    files = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
    with open("/proc/self/status") as status:
        ignored = re.search("SigIgn:\t(.*)", status.read())[1]
    print(os.getsid(0) == os.getpid(), files, ignored)


def chatter():
    for i in range(300):
        sys.stdout.write(f"{RANK}:{i}:" + "x" * (i % 97) + "\n")
        sys.stderr.write(f"{RANK}:{i}:" + "e" * (i % 89) + "\n")
        if i % 50 == 0:
            sys.stdout.flush()


def show_progress():
    """Rank 0 draws a progress bar; the others print a line."""
    if RANK == "0":
        from tqdm import tqdm

        for _ in tqdm(range(5), mininterval=0, ascii=True):
            time.sleep(0.02)
    else:
        print("other")


def dump_environment():
    _write(f"env.{RANK}", json.dumps(dict(os.environ)) + "\n")


def dump_environment_and_sleep():
    dump_environment()
    time.sleep(600)


def meet_in_the_store():
    from hvd_core._bootstrap.store import StoreClient

    secret = bytes.fromhex(os.environ["HOROVOD_SECRET_KEY"])
    client = StoreClient(os.environ["HOROVOD_STORE"], secret, int(RANK))
    client.set(f"from.{RANK}", f"hello {RANK}".encode())
    print(*(client.get(f"from.{peer}", 90).decode() for peer in range(4)))
    client.close()


class OddError(Exception):
    """Cannot be made again from its args."""

    def __init__(self, first, second):
        super().__init__(first)


def rank_in_the_job():
    """Asked anew each time: horovod.run() sends functions to ranks together with the variables that they use."""
    return int(os.environ["HOROVOD_RANK"])


def fail_and_end_slowly():
    """Rank 1 fails, and rank 0 because of it; rank 1's process then does not end by itself."""
    import atexit

    import numpy as np

    import hvd_core as hvd

    if rank_in_the_job() == 1:
        atexit.register(time.sleep, 600)  # runs after shutdown(), which is registered later
    hvd.init()
    hvd.allreduce(np.ones(1), name="first")
    if rank_in_the_job() == 1:
        raise KeyError("lost")
    hvd.allreduce(np.ones(1), name="second")


def run_until_ctrl_c():
    """Not a rank: a program that calls horovod.run()."""
    import horovod

    try:
        horovod.run(_sleep_in_the_job, num_proc=2)
    except KeyboardInterrupt:
        print("interrupted")


def _sleep_in_the_job():
    _write("ready." + os.environ["HOROVOD_RANK"], "x\n")
    time.sleep(600)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
