"""A group of torch.distributed on hvd-core: a ProcessGroup whose methods torch calls from Python and from C++.

The methods have torch's names and arguments, those of torch 2.13 and of earlier versions. Ranks are those of the group.
Each call is made by all ranks of the group, in one order; a call that fails on one rank fails on all.
"""

from typing import Any

import torch
import torch.distributed as dist

from horovod.torch.distributed import _start
from horovod.torch.distributed._calls import Calls
from horovod.torch.distributed._gathering import Gathering
from horovod.torch.distributed._mixed import Others, by_device, others_of, served_by_device
from horovod.torch.distributed._monitored import monitored_barrier
from horovod.torch.distributed._operands import Taken, complex_sums_only, operand
from horovod.torch.distributed._point_to_point import PointToPoint
from horovod.torch.distributed._reductions import SUM, number_and_factor
from horovod.torch.distributed._scattering import Scattering
from horovod.torch.distributed._work import Done
from hvd_core.errors import HorovodInternalError


def list_of(tensors: Any) -> list:
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
class Group(Gathering, Scattering, dist.ProcessGroup):
    """See the module. Made by `_create.create` only.

    Args:
        store: of torch.distributed, for monitored_barrier().
        rank, size: of this process in the group, of the group.
        name: torch's name of the group.
        ranks: the job's ranks of the group's members, ascending.
        number: of the engine's process set.
        seconds: limit of time for calls that give no limit.
    """

    def __init__(self, store: Any, rank: int, size: int, name: str, ranks: list, number: int, seconds: float):
        dist.ProcessGroup.__init__(self, rank, size)
        self._store, self._rank, self._size, self._ranks = store, rank, size, ranks
        self._name, self._description = name, "undefined"
        self._calls = Calls(number, seconds)
        self._point_to_point = PointToPoint(self._calls, rank, ranks, name)
        self._ended = False
        self._others: Others | None = None
        self._default = (
            getattr(dist.distributed_c10d, "GroupMember", None) is not None and not dist.is_initialized()
        )

    # ------------------------------------------------------------------------------------------- what torch asks for

    def getBackendName(self) -> str:
        return "hvd"

    _get_backend_name = name = getBackendName

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_desc(self, text: str) -> None:
        self._description = text

    @property
    def group_desc(self) -> str:
        return self._description

    # The names by which C++ asks.
    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, text: str) -> None:
        self._description = text

    def get_group_store(self) -> Any:
        return self._store

    supports_splitting = supports_coalescing = supports_time_estimate = False

    # Of the tensors that a group takes; objects go through host memory.
    _device_types = (torch.device("cpu"),)

    def others(self) -> Others | None:
        """The other backends of the group; None while torch is making the group."""
        if self._others is None:
            self._others = others_of(self, self._ranks, self._calls.seconds)
            if self._others is not None and "cpu" not in self._others.names:
                self._calls.begin_short_way()
        return self._others

    def _get_backend(self, device: Any) -> Any:
        others, device = self.others(), torch.device(device)
        group = None if others is None else others.made.get(device.type)
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
        others = self.others()
        group = None if device is None or others is None else others.group(device.type)
        if group is None:
            self._calls.start_coalescing()
        else:
            group._start_coalescing(device)

    def _end_coalescing(self, device: Any = None) -> Any:
        if self._calls.coalesces or device is None or self._others is None:
            return self._calls.end_coalescing()
        group = self._others.group(device.type)
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
            _start.say_farewell()

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
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("allreduce", name):
            tensors = list_of(tensors)
            number, factor = _reduction(opts)
            complex_sums_only(tensors, number == SUM)
            taken_from = [operand(tensor, True, calls.process_set) for tensor in tensors]
            flats = [each.flat for each in taken_from]
            taken = Taken(calls.core, flats, flats)
            finish = _copying_back(taken_from)
        return calls.submit(
            "allreduce", name, taken, "all_reduce", tensors, opts, finish, number=number, prescale=factor
        )

    _allreduce = by_device(allreduce_coalesced, "allreduce")

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """All ranks reduce, and the result is written on the root alone: the tensors of the others stay as they are."""
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("allreduce", name):
            tensors = list_of(tensors)
            number, factor = _reduction(opts)
            complex_sums_only(tensors, number == SUM)
            is_root = self._rank == opts.rootRank
            taken_from = [operand(tensor, True, calls.process_set) for tensor in tensors]
            flats = [each.flat for each in taken_from]
            # Elsewhere a backend may use the memory of the output, and most of them never touch it.
            outputs = flats if is_root else [torch.empty_like(flat) for flat in flats]
            taken = Taken(calls.core, flats, outputs, True, is_root)
            finish = _copying_back(taken_from) if is_root else None
        return calls.submit(
            "reduce", name, taken, "reduce", tensors, opts, finish,
            number=number, prescale=factor, root=self._ranks[opts.rootRank],
        )  # fmt: skip

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("broadcast", name):
            tensors = list_of(tensors)
            root = 0 if opts is None else opts if isinstance(opts, int) else opts.rootRank
            is_root = self._rank == root
            taken_from = [operand(tensor, False, calls.process_set, is_root) for tensor in tensors]
            flats = [each.flat for each in taken_from]
            taken = Taken(calls.core, flats, flats, is_root, not is_root)
            finish = None if is_root else _copying_back(taken_from)
            job_root = self._ranks[root]
        return calls.submit("broadcast", name, taken, "broadcast", tensors, opts, finish, number=job_root)

    # ------------------------------------------------------------------------------------------------------ barriers

    def barrier(self, opts: Any = None) -> Any:
        calls = self._calls
        work = calls.submit("barrier", calls.next_name(), None, "barrier", [], opts)
        return Done() if work is None else work

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        monitored_barrier(self, timeout, wait_all_ranks)

    # ------------------------------------------------------------------------------------------------ point to point

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        return self._point_to_point.send(list_of(tensors), dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        return self._point_to_point.receive(list_of(tensors), src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        if self._size == 2:
            return self.recv(tensors, 1 - self._rank, tag)
        raise NotImplementedError(
            f"hvd: a receive from any source is not supported in a group of {self._size} ranks. Pass src, the rank that "
            "sends; the ranks can agree on it with an all_gather before."
        )


def _reduction(opts: Any) -> tuple[int, float]:
    if opts is None:
        return SUM, 1.0
    return number_and_factor(getattr(opts, "reduceOp", opts))


def _copying_back(operands: list) -> Any:
    copies = [each for each in operands if each.own]
    if not copies:
        return None

    def copy() -> None:
        for each in copies:
            each.copy_back()

    return copy
