"""Every public name of horovod.torch as programs use it. Never run: `make lint` checks it with mypy."""

from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import assert_type

import horovod.torch as hvd

some = hvd.ProcessSet([0, 1])
hvd.init()
hvd.init(process_sets=[some], backend=["shm", "tcp"])
hvd.init(None, "dynamic")
x = torch.ones(4)

for number in (
    hvd.rank(),
    hvd.size(),
    hvd.local_rank(),
    hvd.local_size(),
    hvd.cross_rank(),
    hvd.cross_size(),
):
    assert_type(number, int)
for answer in (
    hvd.is_initialized(),
    hvd.is_homogeneous(),
    hvd.mpi_built(),
    hvd.gloo_enabled(),
    hvd.cuda_built(),
):
    assert_type(answer, bool)
assert_type(hvd.nccl_built(), int)
assert_type(hvd.join(), int)
hvd.start_timeline("timeline.json", mark_cycles=True)
hvd.stop_timeline()
print(hvd.backend_report())

assert_type(hvd.allreduce(x, op=hvd.Sum, name="a", compression=hvd.Compression.fp16), torch.Tensor)
assert_type(hvd.allreduce_(x, op=hvd.Adasum, prescale_factor=0.5), torch.Tensor)
assert_type(hvd.grouped_allreduce([x], process_set=some), list[torch.Tensor])
assert_type(hvd.grouped_allreduce_((x, x)), list[torch.Tensor])
assert_type(hvd.allgather(x, "b"), torch.Tensor)
assert_type(hvd.grouped_allgather([x]), list[torch.Tensor])
assert_type(hvd.broadcast(x, 0), torch.Tensor)
assert_type(hvd.broadcast_(x, root_rank=0), torch.Tensor)
assert_type(hvd.alltoall(x), torch.Tensor)
assert_type(hvd.alltoall(x, [1, 3]), tuple[torch.Tensor, torch.Tensor])
assert_type(hvd.alltoall(x, splits=torch.tensor([1, 3])), tuple[torch.Tensor, torch.Tensor])
assert_type(hvd.reducescatter(x, op=hvd.Max), torch.Tensor)
assert_type(hvd.grouped_reducescatter([x, x]), list[torch.Tensor])

handles = [
    hvd.allreduce_async(x),
    hvd.allreduce_async_(x, name="c"),
    hvd.grouped_allreduce_async([x]),
    hvd.grouped_allreduce_async_([x]),
    hvd.allgather_async(x),
    hvd.grouped_allgather_async([x]),
    hvd.broadcast_async(x, 0),
    hvd.broadcast_async_(x, 0),
    hvd.alltoall_async(x, [4]),
    hvd.reducescatter_async(x, op=hvd.Sum),
    hvd.grouped_reducescatter_async([x]),
]
assert_type(handles, list[int])
for handle in handles:
    assert_type(hvd.poll(handle), bool)
    assert_type(hvd.synchronize(handle), Any)
assert_type(hvd.sparse_allreduce_async(x.to_sparse(), None, hvd.Sum), Callable[[], torch.Tensor])

hvd.barrier(some)
assert_type(some.size(), int | None)
assert_type(some.included(), bool | None)
assert_type(hvd.add_process_set([0]), hvd.ProcessSet)
assert_type(hvd.remove_process_set(some), bool)

model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Average
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
assert_type(hvd.broadcast_object({"epoch": 1}, 0), Any)
assert_type(hvd.allgather_object(1), list[Any])


def reset() -> None:
    try:
        hvd.allreduce(x)
    except hvd.HorovodInternalError:
        hvd.shutdown()


hvd.allredcue(x)  # type: ignore[attr-defined]  # a misspelt name is an error
