"""Checks of the alternatives of `hvd bench` on PyTorch's tensors, in the ranks of one job."""

from dataclasses import replace

import horovod.torch as hvd
from hvd_core.bench import _teams as sweep
from hvd_core.bench import alternative
from hvd_core.bench._teams import InJob
from hvd_core.bench.alternative import Call

_NAMES = ("numpy", "torch", "torch.distributed")


def measure_all(collectives, device):
    """{(collective, alternative, is in place): (wrong elements, why not measured)}, and the alternatives that
    cannot run."""
    every = alternative.catalog()
    teams = InJob({name: every[name] for name in _NAMES}, device)
    found = {}
    for number, collective in enumerate(collectives):
        reduces = "reduce" in collective
        call = Call(
            collective,
            "float32",
            "sum" if reduces else "none",
            1 if collective == "broadcast" else -1,
            0,
            False,
        )
        if number % 2:
            call = replace(call, dtype="bfloat16")
        plan = sweep.Plan(call, [12, 3072], 1, 0.001, 1, 1, hvd.size())
        for row in sweep.sweep(teams, plan, lambda text: None):
            assert "without" in row or row["us"] > 0, row
            found[collective, row["name"], row["in_place"]] = (row.get("wrong"), row.get("without"))
    for made in teams._made.values():
        if made.title.startswith("torch.distributed"):
            made.close()
    return found, teams.failed
