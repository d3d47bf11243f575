"""How long an elastic job needs after a death: from SIGKILL of a rank to the end of the first step of the next world.

    python benchmarks/elastic.py --ranks 3 --kills 20
    python benchmarks/elastic.py --ranks 3 --kills 20 --spares 1

A model of --megabytes is trained on this machine. A rank other than 0 is killed as soon as a world of full size has made
a few steps. Without spares the next world has one rank less, until a new process has started. Prints one line with the
median and the greatest time, in milliseconds. Runs on one thread; the ranks are processes of horovodrun.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import time

_STEP = re.compile(r"first step: rank (\d+) of (\d+), process (\d+), at ([\d.]+)")


def train(megabytes):
    """The program of the ranks: trains until it is ended."""
    import torch

    import horovod.torch as hvd

    hvd.init()
    model = torch.nn.Linear(1024, megabytes * 256, bias=False)  # 4 bytes * 1024 * 256 = 1 MB
    inputs = torch.randn(1, 1024)
    state = hvd.elastic.TorchState(model=model, steps=0)

    @hvd.elastic.run
    def loop(state):
        first = True
        while True:
            out = model(inputs).mean()
            hvd.allreduce(out.detach(), name="loss")
            state.steps += 1
            if first:
                where = f"rank {hvd.rank()} of {hvd.size()}, process {os.getpid()}"
                print(f"first step: {where}, at {time.monotonic()}", flush=True)
                first = False
            if state.steps % 10 == 0:
                state.commit()
            time.sleep(0.005)

    loop(state)


def measure(ranks, kills, spares, megabytes):
    """The seconds of each kill."""
    words = ["-np", ranks, "--min-np", ranks - 1, "--max-np", ranks, "--spares", spares]
    words += ["-H", f"localhost:{ranks + spares}", "--blacklist-cooldown-range", 1, 2]
    program = [sys.executable, os.path.abspath(__file__), "--worker", "--megabytes", str(megabytes)]
    command = [sys.executable, "-m", "horovod.runner.launch", *map(str, words), *program]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    killed, waiting, members, times = None, 0, {}, []
    try:
        for line in job.stdout:
            found = _STEP.search(line)
            if found is None:
                continue
            rank, size, process = (int(text) for text in found.groups()[:3])
            members = {} if len(members) in (0, size) and rank in members else members
            members[rank] = process
            if len(members) < size:
                continue
            if killed is not None:
                times.append(float(found[4]) - killed)
                killed = None
                if len(times) == kills:
                    return times
            if size == ranks:
                time.sleep(0.3)
                killed = time.monotonic()
                os.kill(members[1 + waiting % (ranks - 1)], signal.SIGKILL)
                waiting += 1
            members = {}
    finally:
        job.send_signal(signal.SIGTERM)
        job.communicate()
    raise RuntimeError(f"the job ended after {len(times)} kills")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return train(args.megabytes)
    times = [1000 * seconds for seconds in measure(args.ranks, args.kills, args.spares, args.megabytes)]
    after = args.ranks if args.spares else args.ranks - 1
    print(
        f"{args.ranks} ranks, {args.megabytes} MB, then {after}: median {statistics.median(times):.0f} ms, "
        f"greatest {max(times):.0f} ms of {len(times)}"
    )


if __name__ == "__main__":
    main()
