"""A group of torch.distributed on hvd-core: a ProcessGroup whose methods torch calls from Python and from C++.

The methods have torch's names and arguments, those of torch 2.13 and of earlier versions. Ranks are those of the group.
Each call is made by all ranks of the group, in one order; a call that fails on one rank fails on all.
"""

import functools
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from horovod.common.basics import engine
from horovod.torch.distributed import _startup
from horovod.torch.distributed._collectives import Collectives, copying_back
from horovod.torch.distributed._requests import (
    SUM,
    Calls,
    Taken,
    complex_sums_only,
    operand,
    reduction_of,
)
from horovod.torch.distributed._work import Works, seconds_of
from hvd_core._runtime.failures import report_message_failure
from hvd_core.errors import HorovodInternalError

# Groups of which another backend serves some types of devices, as in "cpu:hvd,cuda:nccl".
#
# PyTorch takes a group that is written in Python as it is, for all types of devices, and creates no backend that stands
# behind it in that text. So the group itself hands the calls on: to a second group of the same ranks, which it makes at
# the first call with a tensor of such a device. Called by the methods of a group.


def served_by_device(*names: str) -> Callable[[type], type]:
    """A decorator for a class of groups, whose methods of these names hand calls on if their tensors are on a device of
    another backend."""

    def decorate(cls: type) -> type:
        for name in names:
            setattr(cls, name, by_device(getattr(cls, name), name))
        return cls

    return decorate


def by_device(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A method that does so, under this name of torch's."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        if self.others() and (tensor := _first_tensor(arguments)) is not None:
            group = self.group_for(tensor.device)
            if group is not None:
                return getattr(group, name)(*arguments, **more)
        return method(self, *arguments, **more)

    return call


def _first_tensor(values: Any) -> torch.Tensor | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (list, tuple)) and (found := _first_tensor(value)) is not None:
            return found
    return None


# torch's annotations of its methods are those for users; it calls the methods with options.
_ProcessGroup: Any = dist.ProcessGroup


def list_of(tensors: Any) -> list[torch.Tensor]:
    """The tensors of a call; torch passes one tensor, or a list of them."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


@served_by_device(
    *("allreduce_coalesced", "reduce", "broadcast", "send", "recv", "recv_anysource"),
    *("allgather", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced"),
    *("_allgather_base", "allgather_into_tensor_coalesced", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("all_to_all_single", "alltoall_base", "alltoall"),
)
class Group(Collectives, _ProcessGroup):
    """See the module. Made by create() only.

    Args:
        store: of torch.distributed, for monitored_barrier().
        rank, size: of this process in the group, of the group.
        name: torch's name of the group.
        ranks: the job's ranks of the group's members, ascending.
        number: of the engine's process set.
        seconds: timeout of calls that give none.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        name: str,
        ranks: list[int],
        number: int,
        seconds: float,
    ):
        _ProcessGroup.__init__(self, rank, size)
        self._store, self._rank, self._size, self._ranks = store, rank, size, ranks
        self._name, self._description = name, "undefined"
        self._label = name  # torch may give the group another name later; this one is equal on its members
        self._calls = Calls(number, seconds)
        # Messages so far: (this rank sends, other rank, tag) -> their number.
        self._messages: dict[tuple[bool, int, int], int] = {}
        self._ended = False
        # Type of device -> another backend's name; None while torch is making the group. The groups of these backends.
        self._others: dict[str, str] | None = None
        self._made: dict[str, Any] = {}
        self._default = not dist.is_initialized()

    # ------------------------------------------------------------------------------------------- what torch asks for

    def getBackendName(self) -> str:
        return "hvd"

    _get_backend_name = name = getBackendName

    # The names by which C++ asks, and those by which Python does.
    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, text: str) -> None:
        self._description = text

    group_name, _set_group_name = property(getGroupName), setGroupName
    group_desc, _set_group_desc = property(getGroupDesc), setGroupDesc

    def get_group_store(self) -> Any:
        return self._store

    supports_splitting = supports_coalescing = supports_time_estimate = False

    # Of the tensors that a group takes; objects go through host memory.
    _device_types = (torch.device("cpu"),)

    def others(self) -> dict[str, str]:
        """The other backends that the program has named with this group, by types of devices."""
        if self._others is None:
            text = dist.distributed_c10d._world.pg_backend_config.get(self)
            if text is None:  # torch is making the group
                return {}
            pairs = [pair.split(":") for pair in text.split(",") if pair.count(":") == 1]
            self._others = {device: name for device, name in pairs if name != self.name()}
            if "cpu" not in self._others:
                self._calls.enable_short_way()
        return self._others

    def group_for(self, device: Any) -> Any:
        """The group of another backend that serves a device; None if hvd does. All members come here at the same call."""
        kind: Any = None if device is None else device.type
        name = self.others().get(kind)
        if name is not None and kind not in self._made:
            self._made[kind] = dist.new_group(
                self._ranks,
                timeout=timedelta(seconds=self._calls.seconds),
                backend=f"{kind}:{name}",
                use_local_synchronization=True,
            )
        return self._made.get(kind)

    def _get_backend(self, device: Any) -> Any:
        group = self._made.get(torch.device(device).type)
        return self if group is None else group._get_backend(device)

    def _has_hooks(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: the calls of a group are counted from its beginning."""

    def _get_sequence_number_for_group(self) -> int:
        return self._calls.count()

    def set_timeout(self, timeout: Any) -> None:
        self._calls.seconds = timeout.total_seconds()

    _set_timeout = _set_default_timeout = set_timeout

    def _start_coalescing(self, device: Any = None) -> None:
        group = self.group_for(device)
        if group is None:
            self._calls.start_coalescing()
        else:
            group._start_coalescing(device)

    def _end_coalescing(self, device: Any = None) -> Any:
        group = None if self._calls.coalesced is not None else self.group_for(device)
        return self._calls.end_coalescing() if group is None else group._end_coalescing(device)

    def shutdown(self) -> None:
        """End the group on this rank. Its process set ends when all members have ended it."""
        if self._ended:
            return
        self._ended = True
        core = self._calls.core
        if core.stopped:
            return
        try:
            core.release(core.remove_members_set(self._calls.number))
        except (HorovodInternalError, ValueError):
            return
        if self._default:
            _startup.leave_job()

    def abort(self) -> None:
        """End the job at once, on all ranks: operations under way fail. hvd has no abort of one group alone."""
        self._ended = True
        self._calls.core.abort(f"rank {self._rank} of group {self._name!r} has called abort()")

    # -------------------------------------------------------------------------------------------------- reductions

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        if opts is not None and self._calls.reduced_at_once(tensors, opts):
            return None
        return self._allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self._over_all("allreduce", "all_reduce", tensors, opts)

    _allreduce = by_device(allreduce_coalesced, "allreduce")

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """All ranks reduce, and the result is written on the root alone: the tensors of the others stay as they are."""
        return self._over_all("reduce", "reduce", tensors, opts, opts.rootRank)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        root = 0 if opts is None else opts if isinstance(opts, int) else opts.rootRank
        return self._over_all("broadcast", "broadcast", tensors, opts, root)

    def _over_all(self, operation: str, what: str, tensors: Any, opts: Any, root: int | None = None) -> Any:
        """An operation whose tensors have one shape on all ranks, and are overwritten. `root`: of the group."""
        calls, name, reduces = self._calls, self._calls.next_name(), operation != "broadcast"
        with calls.refusing("allreduce" if reduces else "broadcast", name):
            tensors = list_of(tensors)
            how: dict[str, Any] = {}
            if reduces:
                how["number"], how["prescale"] = reduction_of(opts)
                complex_sums_only(tensors, how["number"] == SUM)
            is_root = self._rank == root
            reads, writes = reduces or is_root, root is None or is_root == reduces
            operands = [operand(tensor, reduces, calls.process_set, reads) for tensor in tensors]
            outputs = flats = [each.flat for each in operands]
            if reduces and not writes:
                # A backend may use the memory of the output elsewhere, and most of them never touch it.
                outputs = [torch.empty_like(flat) for flat in flats]
            if root is not None:
                how["root" if reduces else "number"] = self._ranks[root]
            taken = Taken(calls.core, flats, outputs, reads, writes)
            finish = copying_back(operands) if writes else None
        return calls.submit(operation, name, taken, what, tensors, opts, finish, **how)

    # ------------------------------------------------------------------------------------------------------ barriers

    def barrier(self, opts: Any = None) -> Any:
        calls = self._calls
        work = calls.submit("barrier", calls.next_name(), None, "barrier", [], opts)
        return Works([]) if work is None else work

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that have not come in time.

        Args:
            timeout: a timedelta, which may be 0; None for the group's limit.
            wait_all_ranks: whether the error names all missing ranks, or the first one.

        Raises:
            RuntimeError: ranks have not come in time, or the barrier has failed.
        """
        calls, me = self._calls, self._rank
        seconds = 0.0 if timeout is not None and not timeout else seconds_of(timeout, calls.seconds)
        name = calls.next_name()
        keys = [f"hvd/monitored/{name}/{rank}" for rank in range(self._size)]
        # The engine does not report which ranks have submitted a barrier: each rank announces itself in torch's store.
        self._store.set(keys[me], b"here")
        handle = calls.core.ordered("barrier", name, calls.number, None, None)
        try:
            if calls.core.wait_for(handle, seconds):
                return
        except HorovodInternalError as error:
            raise RuntimeError(f"[Rank {me}]: monitoredBarrier failed: {error}") from error
        finally:
            calls.core.release(handle)
        missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        who = "A rank"  # all have come meanwhile
        if missing:
            who = "Ranks " + ", ".join(map(str, missing)) if wait_all_ranks else f"Rank {missing[0]}"
        raise RuntimeError(
            f"[Rank {me}]: Rank {me} timed out in monitoredBarrier: {who} failed to pass monitoredBarrier in "
            f"{round(seconds * 1000)} ms"
        )

    # ------------------------------------------------------------------------------------------------ point to point

    # Only these two ranks take part. Messages of one sender, receiver and tag match in their order; the engine carries
    # out the messages of two ranks, of all tags, in the order in which both of them have asked. So a receiver must know
    # the sender.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        return self._message(list_of(tensors), True, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        return self._message(list_of(tensors), False, src, tag)

    def _message(self, tensors: list[torch.Tensor], sends: bool, other: int, tag: int) -> Any:
        if other == self._rank or not 0 <= other < self._size:
            raise ValueError(
                f"hvd: rank {self._rank} cannot send to or receive from rank {other} of a group of {self._size}."
            )
        works = [self._one_message(tensor, sends, other, tag) for tensor in tensors]
        return works[0] if len(works) == 1 else Works(works, tensors)

    def _one_message(self, tensor: Any, sends: bool, other: int, tag: int) -> Any:
        calls, peer = self._calls, self._ranks[other]
        count = self._messages.get((sends, other, tag), 0)
        self._messages[sends, other, tag] = count + 1
        name = f"p2p.{self._label}.{tag}.{count}"
        with report_message_failure(sends, peer, name, calls.process_set):
            one = operand(tensor, False, calls.process_set, sends)
            flats = [one.flat]
            taken = Taken(calls.core, flats, flats, sends, not sends)
        operation, what = ("send", "send to") if sends else ("recv", "recv from")
        finish = one.copy_back if one.own and not sends else None
        work = calls.submit(
            operation, name, taken, f"{what} rank {other}", [tensor], None, finish, number=peer
        )
        work.source = self._rank if sends else other
        return work

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        if self._size == 2:
            return self.recv(tensors, 1 - self._rank, tag)
        raise NotImplementedError(
            f"hvd: a receive from any source is not supported in a group of {self._size} ranks. Pass src, the rank that "
            "sends; the ranks can agree on it with an all_gather before."
        )


# A group for torch.distributed: the engine, and a process set that the group's ranks make among themselves.
#
# torch.distributed calls create() on the members of a group only. So the process set is one that its members alone ask
# for, and each group has its own: the order of calls in one group says nothing about another.

# For each engine; a set of the next job begins at 0 on all of its ranks.
_counts: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


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

    setattr(dist.distributed_c10d, "_shutdown_backend", shutdown_backend)  # noqa: B010 (mypy knows of no such name)


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
        _startup.start(options.store, rank, size)
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
