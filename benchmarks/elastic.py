#!/usr/bin/env python3
"""What an elastic job costs: its recovery after a death beside torchrun's restart, its commits, its undisturbed steps.

    python benchmarks/elastic.py --ranks 4 --in-a-row 2 --kills 200 [--torchrun 10]
    python benchmarks/elastic.py --ranks 3 --spares 2 --in-a-row 2 --kills 100 [--model-first]
    python benchmarks/elastic.py --ranks 2 --steady [--runs 7]

Recovery: a model of --megabytes is trained on this machine. --in-a-row ranks are killed one after the other, each as soon
as the world has made a few steps. Then new processes are waited for, until the world has its full size and all spares are
there. The time runs from SIGKILL to the end of the first step of the next world. Without spares the next world has one
rank less. With --torchrun K the same program is started by torchrun as well, which ends all processes and starts them
again; K of its restarts are measured.

--steady: jobs without a death, in turns: a plain one, and an elastic one that commits every --commit-every steps. Prints
their median steps and the ratio. The elastic ranks also print what a commit takes beside a bare copy of the same tensors.
"""

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import time

_STEP = re.compile(r"first step: rank (\d+) of (\d+), process (\d+), at ([\d.]+)")
_WAITS = re.compile(r"comes to init\(\): process (\d+)")
_FIGURES = re.compile(r"figures: step ([\d.]+)(?: commit ([\d.]+) copy ([\d.]+))?")
_STEPS = 50


def _model(megabytes):
    import torch

    return torch.nn.Linear(1024, megabytes * 256, bias=False)  # 4 bytes * 1024 * 256 = 1 MB


def train(megabytes, model_first):
    """The program of the ranks: trains until it is ended."""
    import torch

    import horovod.torch as hvd

    model = _model(megabytes) if model_first else None
    print(f"comes to init(): process {os.getpid()}", flush=True)
    hvd.init()
    if model is None:
        model = _model(megabytes)
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


def train_steadily(megabytes, commit_every):
    """The program of --steady: rank 0 prints its median step, and the times of a commit and of a copy."""
    import torch

    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    model = _model(megabytes)
    inputs = torch.randn(4, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    commits = []

    def steps(state):
        begun = time.perf_counter()
        for step in range(_STEPS):
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
            if state is not None and (step + 1) % commit_every == 0:
                before = time.perf_counter()
                state.commit()
                commits.append(time.perf_counter() - before)
        return (time.perf_counter() - begun) / _STEPS

    def measured(state):
        steps(state)  # first uses
        commits.clear()
        return statistics.median(steps(state) for _ in range(5))

    if commit_every:
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
        figures = f"figures: step {hvd.elastic.run(measured)(state):.9f}"
        into = torch.empty_like(model.weight)
        copies = []
        for _ in range(9):
            begun = time.perf_counter()
            into.copy_(model.weight.detach())
            copies.append(time.perf_counter() - begun)
        figures += f" commit {statistics.median(commits):.9f} copy {statistics.median(copies):.9f}"
    else:
        figures = f"figures: step {measured(None):.9f}"
    if hvd.rank() == 0:
        print(figures, flush=True)
    hvd.shutdown()


def _horovodrun(ranks, spares=0, elastic=True, least=1):
    words = ["-m", "horovod.runner.launch", "-np", ranks, "-H", f"localhost:{ranks + spares}"]
    if elastic:
        words += [
            "--min-np",
            least,
            "--max-np",
            ranks,
            "--spares",
            spares,
            "--blacklist-cooldown-range",
            1,
            2,
        ]
    return [sys.executable, *map(str, words)]


def _torchrun(ranks, restarts):
    words = ["--nproc-per-node", ranks, "--max-restarts", restarts, "--monitor-interval", 0.1]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", *map(str, words)]


def _program(*words):
    return [sys.executable, os.path.abspath(__file__), "--worker", *map(str, words)]


class Kills:
    """Kills ranks of a running job and measures from SIGKILL to the last first step of the next world. The program prints
    a line when a process comes to init(), and one at each rank's first step in a world. A spare then still loads modules:
    `settle_s` seconds later a rank is killed."""

    def __init__(self, job, ranks, spares, in_a_row, settle_s):
        self._job, self._ranks, self._spares, self._in_a_row = job, ranks, spares, in_a_row
        self._settle_s = settle_s
        self._waiting = set()  # processes that have come to init() and have no place yet
        self._world, self._size, self._last = {}, 0, 0.0  # the world that is there, or comes: rank -> process
        self._killed = None  # (when, number of ranks)
        self._turn = self._left = 0
        self.times = {}  # (ranks before, ranks after): seconds

    def run(self, kills):
        for line in self._job.stdout:
            # torchrun's ranks share one stream: a line may have the words of several.
            for found in _WAITS.finditer(line):
                self._waiting.add(int(found[1]))
            for found in _STEP.finditer(line):
                self._first_step(*(int(text) for text in found.groups()[:3]), float(found[4]))
            if sum(map(len, self.times.values())) >= kills:
                return
            self._perhaps_kill()
        raise RuntimeError(f"the job has ended after {sum(map(len, self.times.values()))} kills")

    def _first_step(self, rank, size, process, at):
        self._waiting.discard(process)
        if rank in self._world or size != self._size:
            self._world, self._size, self._last = {}, size, 0.0
        self._world[rank] = process
        self._last = max(self._last, at)
        if len(self._world) == size and self._killed is not None:
            when, before = self._killed
            self.times.setdefault((before, size), []).append(self._last - when)
            self._killed = None

    def _perhaps_kill(self):
        if self._killed is not None or len(self._world) < max(self._size, 1):
            return
        if self._size == self._ranks and len(self._waiting) >= self._spares:
            self._left = self._in_a_row
        if not self._left:
            return
        self._left -= 1
        time.sleep(self._settle_s)
        victim = self._world[self._turn % self._size]
        self._turn += 1
        self._killed = time.monotonic(), self._size
        os.kill(victim, signal.SIGKILL)


def measure(command, ranks, kills, spares=0, in_a_row=1, settle_s=0.3):
    """The seconds of each kill, by the numbers of ranks before and after."""
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    measured = Kills(job, ranks, spares, in_a_row, settle_s)
    try:
        measured.run(kills)
    finally:
        job.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.communicate(timeout=30)
        job.kill()
        job.communicate()
    return measured.times


def recovery(args):
    """Prints a line for each way and each change of the number of ranks, in milliseconds."""
    program = _program("--megabytes", args.megabytes, *(["--model-first"] if args.model_first else []))
    elastic = _horovodrun(args.ranks, args.spares, least=max(1, args.ranks - args.in_a_row)) + program
    ways = [(f"elastic, {args.spares} spares", elastic, args.kills, args.spares, args.in_a_row)]
    if args.torchrun:
        restarts = _torchrun(args.ranks, args.torchrun + 1) + program[1:]
        ways.append(("torchrun", restarts, args.torchrun, 0, 1))
    for way, command, kills, spares, in_a_row in ways:
        begun = time.monotonic()
        found = measure(command, args.ranks, kills, spares, in_a_row, args.settle)
        for (before, after), seconds in sorted(found.items(), reverse=True):
            times = sorted(1000 * each for each in seconds)
            last = times[min(len(times) - 1, int(len(times) * 0.99))]
            print(
                f"{way}, {args.megabytes} MB, {before} ranks, then {after}: median {statistics.median(times):.0f} ms, "
                f"99 % {last:.0f} ms, greatest {times[-1]:.0f} ms of {len(times)}",
                flush=True,
            )
        print(f"{way}: {kills} kills in {time.monotonic() - begun:.0f} s", flush=True)


def steady(args):
    """Prints the steps of plain and elastic jobs, which take turns, and the time of a commit beside that of a copy."""
    plain, elastic, commits, copies = [], [], [], []
    for _ in range(args.runs):
        for commit_every in (0, args.commit_every):
            command = _horovodrun(args.ranks, elastic=bool(commit_every))
            command += _program("--steady", "--megabytes", args.megabytes, "--commit-every", commit_every)
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            step, commit, copy = _FIGURES.search(text).groups()
            (elastic if commit_every else plain).append(float(step))
            if commit_every:
                commits.append(float(commit))
                copies.append(float(copy))
    ratio = statistics.median(mine / other for mine, other in zip(elastic, plain, strict=True))
    print(
        f"{args.ranks} ranks, {args.megabytes} MB: a step takes {1000 * statistics.median(plain):.2f} ms in a plain job, "
        f"{1000 * statistics.median(elastic):.2f} ms in an elastic one with a commit every {args.commit_every} steps: "
        f"{ratio:.3f} (median of {args.runs} turns)"
    )
    share = statistics.median(copy / commit for copy, commit in zip(copies, commits, strict=True))
    print(
        f"a commit takes {1000 * statistics.median(commits):.1f} ms, a copy of its tensors "
        f"{1000 * statistics.median(copies):.1f} ms: {share:.0%} of the speed of the copy"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument(
        "--in-a-row", type=int, default=1, metavar="N", help="kills before new processes are waited for"
    )
    parser.add_argument(
        "--settle", type=float, default=0.3, metavar="SECONDS", help="of steps before each kill"
    )
    parser.add_argument("--torchrun", type=int, default=0, metavar="K", help="restarts of torchrun beside it")
    parser.add_argument("--steady", action="store_true", help="steps without a death instead")
    parser.add_argument("--runs", type=int, default=5, help="turns of --steady")
    parser.add_argument("--commit-every", type=int, default=10, help="steps between two commits of --steady")
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument(
        "--model-first",
        action="store_true",
        help="the program makes its model before init(): a spare waits with it",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker and args.steady:
        train_steadily(args.megabytes, args.commit_every)
    elif args.worker:
        train(args.megabytes, args.model_first)
    elif args.steady:
        steady(args)
    else:
        recovery(args)


if __name__ == "__main__":
    main()
