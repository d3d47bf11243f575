"""A group for torch.distributed: the engine, and a process set that the group's ranks make among themselves.

torch.distributed calls create() on the members of a group only. So the process set is one that its members alone ask for,
and each group has its own: the order of calls in one group says nothing about another.
"""

import functools
import itertools
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from horovod.common.basics import engine
from horovod.torch.distributed import _start
from horovod.torch.distributed._group import Group

# For each engine; a set of the next job begins at 0 on all of its ranks.
_counts: WeakKeyDictionary = WeakKeyDictionary()


def _let_torch_end_groups() -> None:
    """Have destroy_process_group() end our groups where it knows those of NCCL alone (seen in PyTorch 2.4)."""
    original = getattr(dist.distributed_c10d, "_shutdown_backend", None)
    if original is None:
        return

    @functools.wraps(original)
    def shutdown_backend(group: Any) -> None:
        if isinstance(group, Group):
            group.shutdown()
        else:
            original(group)

    dist.distributed_c10d._shutdown_backend = shutdown_backend


_let_torch_end_groups()


def create(options: Any, backend_options: Any = None) -> Group:
    """The group that torch.distributed asks for. Waits until its members have asked too.

    Args:
        options: torch's _DistributedBackendOptions.
        backend_options: of the program; they are not used.

    Raises:
        ValueError: the ranks are not in ascending order, or hvd.init() has given this process another rank.
        HorovodInternalError: the members disagree, or the job ends. TimeoutError: members do not ask in time.
    """
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    name = str(options.group_id)
    if not ranks:  # the default group
        _start.start(options.store, rank, size)
        ranks = list(range(size))
    if ranks != sorted(ranks):
        raise ValueError(f"hvd: the ranks of a group must be in ascending order, but are {ranks}.")
    seconds = options.timeout.total_seconds()
    number = add_members_set(ranks, name, seconds)
    return Group(options.store, rank, size, name, ranks, number, seconds)


def add_members_set(ranks: list[int], name: str, seconds: float) -> int:
    """The number of a new process set of `ranks`, ascending, this one among them. The n-th set of one name meets the n-th
    of the other members."""
    core = engine()
    count = next(_counts.setdefault(core, {}).setdefault((tuple(ranks), name), itertools.count()))
    handle = core.add_members_set(ranks, f"{name}.{count}")
    try:
        if not core.wait_for(handle, seconds):
            raise TimeoutError(
                f"hvd: not all of the ranks {ranks} have made the group {name!r} within {seconds:g} s. Each of them must "
                "call new_group() with the same ranks, in the same order of calls."
            )
        return core.process_set_of(handle)
    finally:
        core.release(handle)
