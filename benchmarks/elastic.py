#!/usr/bin/env python3
"""What an elastic job costs: its recovery after a death beside torchrun's restart, its commits, its undisturbed steps.

    python benchmarks/elastic.py --ranks 3 --kills 200 [--spares 1] [--torchrun 10]
    python benchmarks/elastic.py --ranks 2 --steady [--runs 7]

Recovery: a model of --megabytes is trained on this machine. A rank other than 0 is killed as soon as a world of full size
has made a few steps. The time runs from SIGKILL to the end of the first step of the next world. Without spares the next
world has one rank less, until a new process has started. With --torchrun K the same program is started by torchrun as
well, which ends all processes and starts them again; K of its restarts are measured.

--steady: jobs without a death, in turns: a plain one, and an elastic one that commits every --commit-every steps. Prints
their median steps and the ratio. The elastic ranks also print what a commit takes beside a bare copy of the same tensors.
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
_FIGURES = re.compile(r"figures: step ([\d.]+)(?: commit ([\d.]+) copy ([\d.]+))?")
_STEPS = 50


def _model(megabytes):
    import torch

    return torch.nn.Linear(1024, megabytes * 256, bias=False)  # 4 bytes * 1024 * 256 = 1 MB


def train(megabytes):
    """The program of the ranks: trains until it is ended."""
    import torch

    import horovod.torch as hvd

    hvd.init()
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
        figures = f"figures: step {hvd.elastic.run(measured)(state)}"
        into = torch.empty_like(model.weight)
        copies = []
        for _ in range(9):
            begun = time.perf_counter()
            into.copy_(model.weight.detach())
            copies.append(time.perf_counter() - begun)
        figures += f" commit {statistics.median(commits)} copy {statistics.median(copies)}"
    else:
        figures = f"figures: step {measured(None)}"
    if hvd.rank() == 0:
        print(figures, flush=True)
    hvd.shutdown()


def _horovodrun(ranks, spares=0, elastic=True):
    words = ["-m", "horovod.runner.launch", "-np", ranks, "-H", f"localhost:{ranks + spares}"]
    if elastic:
        words += [
            "--min-np",
            ranks - 1,
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


def measure(command, ranks, kills):
    """The seconds of each kill: from SIGKILL to the last first step of the next world."""
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


def recovery(args):
    """Prints one line per way: median, 99 %, greatest, in milliseconds."""
    program = _program("--megabytes", args.megabytes)
    after = args.ranks if args.spares else args.ranks - 1
    ways = {
        f"{args.ranks} ranks, then {after}": (_horovodrun(args.ranks, args.spares) + program, args.kills),
        f"torchrun, {args.ranks} ranks again": (
            _torchrun(args.ranks, args.torchrun + 1) + program[1:],
            args.torchrun,
        ),
    }
    for way, (command, kills) in ways.items():
        if not kills:
            continue
        times = sorted(1000 * seconds for seconds in measure(command, args.ranks, kills))
        last = times[min(len(times) - 1, int(len(times) * 0.99))]
        print(
            f"{way}, {args.megabytes} MB: median {statistics.median(times):.0f} ms, 99 % {last:.0f} ms, "
            f"greatest {times[-1]:.0f} ms of {len(times)}",
            flush=True,
        )


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
    parser.add_argument("--torchrun", type=int, default=0, metavar="K", help="restarts of torchrun beside it")
    parser.add_argument("--steady", action="store_true", help="steps without a death instead")
    parser.add_argument("--runs", type=int, default=5, help="turns of --steady")
    parser.add_argument("--commit-every", type=int, default=10, help="steps between two commits of --steady")
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker and args.steady:
        train_steadily(args.megabytes, args.commit_every)
    elif args.worker:
        train(args.megabytes)
    elif args.steady:
        steady(args)
    else:
        recovery(args)


if __name__ == "__main__":
    main()
