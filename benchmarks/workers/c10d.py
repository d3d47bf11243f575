"""A rank of benchmarks/c10d.py: the same calls in a group of each backend, in turns.

All groups live in the same processes; each sleeps while another works. Rank 0 writes the figures, in seconds for each
round, as JSON into the file that is named on the command line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd
from harness.shapes import resnet50
from harness.torch_models import Shaped

MOST_CALLS = 2000


def collective(name: str, size: int, group: Any) -> Callable[[], Any]:
    """A function that carries out a collective of `size` bytes, and returns its result."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    each = max(1, size // 4 // ranks)
    whole, part = torch.ones(max(1, size // 4)), torch.full((each,), me + 1.0)
    rows = torch.ones(each * ranks)
    into, list_of_parts = torch.empty(each * ranks), [torch.empty(each) for _ in range(ranks)]
    if name == "all_reduce":
        return lambda: dist.all_reduce(whole, dist.ReduceOp.MAX, group=group) or whole
    if name == "reduce":
        return lambda: dist.reduce(whole, 0, dist.ReduceOp.MAX, group=group) or whole
    if name == "broadcast":
        return lambda: dist.broadcast(whole, 0, group=group) or whole
    if name == "all_gather":
        return lambda: dist.all_gather_into_tensor(into, part, group=group) or into
    if name == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, rows, group=group) or part
    if name == "all_to_all":
        return lambda: dist.all_to_all_single(into, rows, group=group) or into
    if name == "gather":
        given = list_of_parts if me == 0 else None
        return lambda: dist.gather(part, given, 0, group=group) or (given[-1] if given else part)
    if name == "scatter":
        given = list(rows.view(ranks, each).unbind()) if me == 0 else None
        return lambda: dist.scatter(part, given, 0, group=group) or part
    if name == "barrier":
        return lambda: dist.barrier(group) or part[:0]

    def there_and_back() -> torch.Tensor:
        if me == 0:
            dist.send(whole, 1, group=group)
            dist.recv(whole, 1, group=group)
        elif me == 1:
            dist.recv(whole, 0, group=group)
            dist.send(whole, 0, group=group)
        return whole

    return there_and_back


COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"),
    *("gather", "scatter", "send and back", "barrier"),
)


def seconds_of(call: Callable[[], Any], calls: int) -> float:
    """Seconds of one call: the mean of several that follow each other."""
    hvd.barrier()
    call()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


def calls_within(call: Callable[[], Any], budget: float) -> int:
    """How many calls fit into a turn; rank 0 decides."""
    found = budget / max(1e-7, seconds_of(call, 2))
    return int(hvd.broadcast_object(max(1, min(MOST_CALLS, int(found))), 0))


def in_turns(ways: dict[str, Callable[[], Any]], rounds: int, budget: float) -> dict[str, list[float]]:
    calls = {way: calls_within(call, budget) for way, call in ways.items()}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        names = list(ways)
        for way in names[turn % len(names) :] + names[: turn % len(names)]:
            found[way].append(seconds_of(ways[way], calls[way]))
    return found


def measured_collectives(groups: dict[str, Any], sizes: list[int], options: argparse.Namespace) -> dict:
    result: dict[str, dict] = {}
    for name in COLLECTIVES:
        for size in sizes if name != "barrier" else sizes[:1]:
            ways, wanted = {}, None
            for way, group in groups.items():
                call = collective(name, size, group)
                try:
                    found = call().clone()
                except (RuntimeError, NotImplementedError):
                    continue  # the backend lacks it
                wanted = found if wanted is None else wanted
                if not torch.equal(found, wanted):
                    raise SystemExit(
                        f"{name} of {size} bytes: {way} has another result than {next(iter(ways))}"
                    )
                ways[way] = call
            if name == "all_reduce":
                tensor = torch.ones(max(1, size // 4))
                ways["horovod"] = lambda tensor=tensor, size=size: hvd.allreduce_(
                    tensor, op=hvd.Max, name=f"bench.{size}"
                )
            result.setdefault(name, {})[size] = in_turns(ways, options.rounds, options.budget)
    return result


def _linears() -> torch.nn.Module:
    return torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(12)])


def _transformer() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


# name: the model, its input
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], torch.Tensor]]] = {
    "resnet50": (lambda: Shaped(resnet50()[::-1]), lambda: torch.ones((), requires_grad=True)),
    "linears": (_linears, lambda: torch.randn(16, 1024)),
    "transformer": (_transformer, lambda: torch.randn(2, 32, 256)),
}


def step_of(model: torch.nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def sharded(model: torch.nn.Module, group: Any) -> torch.nn.Module:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for part in getattr(model, "layers", model):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def parallel(views: bool) -> Callable:
    return lambda model, group: DistributedDataParallel(
        model, process_group=group, gradient_as_bucket_view=views
    )


def nothing_sent(state, bucket):
    """A hook of DDP that sends nothing: what is left of a step is DDP's own work."""
    sent = torch.futures.Future()
    sent.set_result(bucket.buffer())
    return sent


def measured_steps(groups: dict[str, Any], names: list[str], options: argparse.Namespace) -> dict:
    result = {}
    for name in names:
        make, inputs = MODELS[name]
        kinds = {"DDP": parallel(False), "DDP with gradients in buckets": parallel(True)}
        if name != "resnet50":  # FSDP shards layers, and its parameters are in no layers
            kinds["FSDP2"] = sharded
        for kind, wrap in kinds.items():
            ways = {}
            others = {} if wrap is sharded else {"silent": groups["hvd"]}
            for way, group in {**groups, **others, "alone": None}.items():
                torch.manual_seed(0)
                model = make() if group is None else wrap(make(), group)
                if way == "silent":
                    model.register_comm_hook(None, nothing_sent)
                ways[way] = step_of(model, inputs())
                ways[way]()
                ways[way]()  # DDP orders its buckets anew after the first step
            result[f"{kind}, {name}"] = in_turns(ways, options.rounds, 3 * options.budget)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--sizes")
    parser.add_argument("--only")
    parser.add_argument("--models")
    parser.add_argument("--budget", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("hvd")
    groups = {"hvd": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if dist.is_mpi_available():
        groups["mpi"] = dist.new_group(backend="mpi")
    only = options.only.split(",")
    sizes = [int(size) for size in options.sizes.split(",")]
    names = [name for name in options.models.split(",") if name]
    result = {
        "ranks": dist.get_world_size(),
        "torch": torch.__version__,
        "ways": list(groups),
        "collectives": measured_collectives(groups, sizes, options) if "collectives" in only else {},
        "steps": measured_steps(groups, names, options) if "steps" in only else {},
    }
    if dist.get_rank() == 0:
        Path(options.out).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
