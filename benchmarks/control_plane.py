#!/usr/bin/env python3
"""The control plane of many ranks: messages, bytes and processor time of a training step at each kind of rank.

    python benchmarks/control_plane.py [--ranks 8,64,256,1024] [--per-host 8] [--json result.json]

Runs the engine's own control-plane code (the nodes, coordinator, merger and messages of hvd_core/engine/agreement) of all
ranks in this process, in the tree that the ranks of a job form: the ranks of a host below its leader, leaders below
leaders with the fan-out of hvd_core/_bootstrap/hosts.py. Queues take the place of shared memory and sockets, no data is
reduced, and the clock is virtual. Needs a checkout that is built in place. Each step all ranks submit the same tensors
and wait for the last one. Scenarios:

  known       steps whose tensors form a known batch, which all but the first steps of a training are
  changing    the same names with another shape in each step, so that no batch is ever known
  first       the first step: names and signatures are new to all ranks
  first 2000  the first step with 2,000 tensors

"hops" counts rounds of deliveries until every rank has the entry of the log: twice the depth of the tree. Frames and
bytes are those that a rank sends in a step, upwards and to its children; processor time is that of all the rank's
control-plane work in the step. Frames and bytes are exact and the same in each run; times are the smallest of the runs,
since other programs on the machine only add to them. `--sealed` gives every link the authentication that links between
hosts have (SECURITY.md); without it no link has.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hvd_core._bootstrap import hosts
from hvd_core.bench import _report
from protocol_sim import ProtocolSim

_KEY = "k" * 32


class Account(NamedTuple):
    """Work of one rank: frames and bytes to its parent and to its children, and nanoseconds of processor time."""

    frames_up: int
    bytes_up: int
    frames_down: int
    bytes_down: int
    ns: int

    def since(self, earlier: Account) -> Account:
        return Account(*(now - before for now, before in zip(self, earlier)))


class Step(NamedTuple):
    """One step of all ranks: rounds of deliveries, virtual nanoseconds of waiting, and an account per rank."""

    hops: int
    waited_ns: int
    accounts: list[Account]


class Scenario(NamedTuple):
    name: str
    tensors: int
    warm_up: int  # steps before the first measured one
    steps: int  # measured steps; in each run
    changing: bool = False  # another signature in each step


SCENARIOS = [
    Scenario("known", 161, 6, 10),
    Scenario("changing", 161, 2, 4, changing=True),
    Scenario("first", 161, 0, 1),
    Scenario("first 2000", 2000, 0, 1),
]


def tree(ranks: int, per_host: int) -> list[int]:
    """The parent of each rank of a job with `per_host` ranks on each host; -1 for rank 0."""
    leaders = [rank // per_host * per_host for rank in range(ranks)]
    parents = (hosts.topology_of(rank, leaders).parent for rank in range(ranks))
    return [-1 if parent is None else parent for parent in parents]


def names(count: int) -> list[str]:
    """Names as a DistributedOptimizer gives them to gradients."""
    return [f"allreduce.layer{i // 8}.{i % 8}.conv.weight" for i in range(count)]


def run(parents: list[int], scenario: Scenario, key: str) -> list[Step]:
    """The measured steps of one run, in a new job."""
    sim = ProtocolSim(parents=parents, key=key, repeats=3)
    tensors = names(scenario.tensors)
    steps = []
    for number in range(scenario.warm_up + scenario.steps):
        before = [Account(*a) for a in sim.accounts(parents)]
        sim.submit_everywhere(tensors, number if scenario.changing else 0)
        hops, waited = sim.settle(scenario.tensors)
        after = [Account(*a) for a in sim.accounts(parents)]
        steps.append(Step(hops, waited, [now.since(then) for now, then in zip(after, before)]))
    return steps[scenario.warm_up :]


def roles(parents: list[int], per_host: int) -> dict[str, int]:
    """A rank of each kind: the root, a leader with leaders below it (if there is one), a rank that leads nothing."""
    found = {"root": 0}
    leaders = list(range(per_host, len(parents), per_host))
    if leaders:
        children = [sum(1 for other in leaders if parents[other] == r) for r in leaders]
        found["leader"] = leaders[children.index(max(children))]
    if per_host > 1:
        found["leaf"] = len(parents) - 1
    return found


def measure(ranks: int, per_host: int, scenario: Scenario, runs: int, key: str) -> dict:
    """Figures of the last measured step, whose times are the smallest of all measured steps of all runs."""
    parents = tree(ranks, per_host)
    steps = [step for _ in range(runs) for step in run(parents, scenario, key)]
    last = steps[-1]
    figures = {
        "ranks": ranks,
        "scenario": scenario.name,
        "hops": last.hops,
        "waited_us": last.waited_ns / 1e3,
    }
    for role, rank in roles(parents, per_host).items():
        account = last.accounts[rank]
        figures[role] = {
            "frames": account.frames_up + account.frames_down,
            "bytes": account.bytes_up + account.bytes_down,
            "cpu_us": min(step.accounts[rank].ns for step in steps) / 1e3,
        }
    return figures


def rows(results: list[dict]) -> str:
    kinds = ("root", "leader", "leaf")
    header = [
        "scenario, ranks",
        "hops",
        *(f"{k} {what}" for k in kinds for what in ("frames", "bytes", "us")),
    ]
    lines = []
    for figures in results:
        cells = [f"{figures['scenario']}, {figures['ranks']:,}", str(figures["hops"])]
        for kind in kinds:
            of = figures.get(kind)
            cells += [f"{of['frames']:,}", f"{of['bytes']:,}", f"{of['cpu_us']:,.0f}"] if of else ["", "", ""]
        lines.append(cells)
    return _report.table(header, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="8,64,256,1024", help="numbers of ranks (default 8,64,256,1024)")
    parser.add_argument("--per-host", type=int, default=8, help="ranks on each host (default 8)")
    parser.add_argument("--runs", type=int, default=3, help="jobs of each kind (default 3)")
    parser.add_argument("--scenarios", default="", help="names, separated by commas (default all)")
    parser.add_argument("--sealed", action="store_true", help="authenticate the messages of every link")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    arguments = parser.parse_args()
    sizes = [int(n) for n in arguments.ranks.split(",")]
    if arguments.per_host < 1 or min(sizes) < 1:
        parser.error("--ranks and --per-host must be at least 1")
    wanted = [s for s in SCENARIOS if not arguments.scenarios or s.name in arguments.scenarios.split(",")]
    if not wanted:
        parser.error(f"--scenarios: choose from {', '.join(s.name for s in SCENARIOS)}")
    key = _KEY if arguments.sealed else ""
    results = [measure(n, arguments.per_host, s, arguments.runs, key) for s in wanted for n in sizes]
    print(rows(results))
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"per_host": arguments.per_host, "rows": results}, indent=1)
        )


if __name__ == "__main__":
    main()
