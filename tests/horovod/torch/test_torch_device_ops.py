"""Checks of horovod.torch on tensors of a device, run on every rank by tests/harness. The device's streams are late
(TOPS_SIM_DELAY_US, hold()): work that does not wait for the right stream gets wrong numbers."""

import gc
import os
import weakref

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from harness.rank import needs
from horovod.common.exceptions import HorovodInternalError
from torch_device import COUNT, KIND, MODULE, TABLE, device, hold, is_served, native
from torch_support import MOVABLE, REDUCIBLE, data_of, expect, raises, reduced

pytestmark = [
    pytest.mark.ranks(2, framework="torch", id="eccl_stub", env={"HOROVOD_BACKEND": "eccl_stub"}),
    pytest.mark.ranks(2, framework="torch", id="staged", env={"HOROVOD_BACKEND": "gcu=shm"}),
    pytest.mark.ranks(2, framework="torch", id="no-backend", env={"HOROVOD_BACKEND": "shm"}),
]

OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]


def on_device(shape, dtype, seed=0, rank=None):
    return data_of(hvd.rank() if rank is None else rank, shape, dtype, seed).to(device())


def same(tensor, wanted, dtype, what=""):
    """`tensor` is on the device and holds the wanted values."""
    assert tensor.device == device(), f"{what}: on {tensor.device}"
    expect(tensor.cpu(), wanted, dtype, what)


def still_works():
    same(
        hvd.allreduce(torch.ones(3, device=device()), op=hvd.Sum),
        [hvd.size()] * 3,
        torch.float32,
        "afterwards",
    )


def test_allreduce_every_type_and_op():
    for dtype in REDUCIBLE:
        for op in OPS:
            for shape in [(), (0,), (5, 7)]:
                what = f"{dtype} op {op} {shape}"
                mine = on_device(shape, dtype)
                wanted = reduced(op, range(hvd.size()), shape, dtype)
                same(hvd.allreduce(mine, op=op, name=what), wanted, dtype, what)
                assert torch.equal(mine.cpu(), data_of(hvd.rank(), shape, dtype)), (
                    f"{what}: the input was changed"
                )
                assert hvd.allreduce_(mine, op=op, name=what) is mine
                same(mine, wanted, dtype, what + " in place")


def test_factors():
    for op in (hvd.Sum, hvd.Average):
        out = hvd.allreduce(on_device((9,), torch.float32), op=op, prescale_factor=0.5, postscale_factor=3.0)
        same(out, reduced(op, range(hvd.size()), (9,), torch.float32, 0.5, 3.0), torch.float32)


def reduce_two_types():
    """The engine reports the operations that it has served."""
    for dtype in (torch.float32, torch.int64):
        hvd.allreduce(on_device((1,), dtype), op=hvd.Sum, name=f"first {dtype}")


@needs(lambda: not is_served(), "a backend serves the device")
def test_the_report_says_that_pytorch_copies():
    reduce_two_types()
    report = hvd.backend_report()
    rows = {row.operation: row for row in report if row.device == KIND}
    assert len(rows) == 5 and {row.support for row in rows.values()} == {"STAGED"}
    served = {(row.operation, row.dtype, row.reduction): row for row in report.served if row.device == KIND}
    row = served["allreduce", "int64", "sum"]
    assert (row.support, row.backend) == ("STAGED", rows["allreduce"].backend)


@needs(is_served, "no backend serves the device")
def test_who_serves_says_so():
    from hvd_core._runtime.runtime import engine

    reduce_two_types()
    row = next(row for row in engine().backend_info() if row.get("device_type") == KIND)
    assert row["name"] == TABLE and row["ordinal"] == device().index
    found = {(how["collective"], how["dtype"], how["op"]): how["served"] for how in row["served"]}
    staged = os.environ["HOROVOD_BACKEND"] != TABLE
    assert found["allreduce", "float32", "Sum"] == ("STAGED" if staged else "NATIVE"), row["served"]
    wide = (
        "EMULATED" if TABLE == "eccl_stub" else "NATIVE"
    )  # the vendor's library moves 64 bits, but does not add them
    assert found["allreduce", "int64", "Sum"] == ("STAGED" if staged else wide), row["served"]


def test_many_at_once_in_another_order_on_each_rank():
    numbers = list(range(hvd.size())) * 8
    order = range(len(numbers)) if hvd.rank() == 0 else reversed(range(len(numbers)))
    tensors = [on_device((100 + i,), torch.float32, i) for i in range(len(numbers))]
    handles = {i: hvd.allreduce_async_(tensors[i], op=hvd.Sum, name=f"many.{i}") for i in order}
    for i, handle in handles.items():
        wanted = reduced(hvd.Sum, range(hvd.size()), (100 + i,), torch.float32, seed=i)
        same(hvd.synchronize(handle), wanted, torch.float32, f"many.{i}")


def test_data_made_on_a_late_stream_and_read_on_another():
    maker, reader = MODULE.Stream(), MODULE.Stream()
    for _ in range(3):
        with MODULE.stream(maker):
            tensor = torch.zeros(4096, device=device())
            hold()
            for _ in range(3):
                tensor += hvd.rank() + 1
            handle = hvd.allreduce_async(tensor, op=hvd.Sum)
            del tensor
        with MODULE.stream(reader):
            result = hvd.synchronize(handle)
            hold()
            copies = result.clone()  # enqueued, not yet done
            del result
            # The memory may be allocated again now, but must not be written to before the reading stream is done.
            with MODULE.stream(maker):
                torch.full((4096,), -1.0, device=device())
                torch.full((4096,), -1.0, device=device())
            wanted = 3.0 * sum(r + 1 for r in range(hvd.size()))
            assert copies.cpu().unique().tolist() == [wanted]


def test_poll_is_true_only_when_the_device_is_done():
    most = 0
    for _ in range(10):  # if the host waits for a processor, the device may be done first
        tensor = torch.zeros(4096, device=device())
        hold()
        tensor += hvd.rank() + 1.0
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="polled")
        polls = 1
        while not hvd.poll(handle):
            polls += 1
        with MODULE.stream(MODULE.Stream()):  # waits for nothing
            assert tensor.cpu().unique().tolist() == [float(sum(r + 1 for r in range(hvd.size())))]
        hvd.synchronize(handle)
        most = max(most, polls)
    assert most > 1


def test_broadcast():
    for dtype in MOVABLE:
        for root in range(hvd.size()):
            what = f"broadcast {dtype} from {root}"
            mine = on_device((4, 3), dtype)
            wanted = data_of(root, (4, 3), dtype).to(torch.float64)
            same(hvd.broadcast(mine, root, name=what), wanted, dtype, what)
            assert hvd.broadcast_(mine, root, name=what) is mine
            same(mine, wanted, dtype, what + " in place")


def test_allgather_of_different_lengths():
    for dtype in (torch.float32, torch.int64, torch.bool):
        for lengths in (
            [r + 1 for r in range(hvd.size())],
            [2 * r for r in range(hvd.size())],
            [0 for _ in range(hvd.size())],
        ):
            what = f"allgather {dtype} {lengths}"
            rows = hvd.allgather(on_device((lengths[hvd.rank()], 3), dtype), name=what)
            parts = [data_of(r, (lengths[r], 3), dtype) for r in range(hvd.size())]
            same(rows, torch.cat(parts).to(torch.float64), dtype, what)


def test_alltoall():
    for dtype in (torch.float32, torch.int64, torch.bool):
        for pattern in (
            [[r + 1 for r in range(hvd.size())] for _ in range(hvd.size())],
            [[0] * hvd.size() for _ in range(hvd.size())],
        ):
            splits = pattern[hvd.rank()]
            given = torch.tensor(
                splits, dtype=torch.int32, device=device() if dtype is torch.int64 else "cpu"
            )
            mine = on_device((sum(splits) + 1, 3), dtype)  # the last row is not sent
            output, received = hvd.alltoall(mine, given, name=f"alltoall {dtype}")
            assert received.device == given.device and received.dtype is torch.int32
            assert received.tolist() == [pattern[r][hvd.rank()] for r in range(hvd.size())]
            parts = []
            for r in range(hvd.size()):
                start = sum(pattern[r][: hvd.rank()])
                parts.append(
                    data_of(r, (sum(pattern[r]) + 1, 3), dtype)[start : start + pattern[r][hvd.rank()]]
                )
            same(output, torch.cat(parts).to(torch.float64), dtype, f"alltoall {dtype} {pattern}")


def test_reducescatter():
    rows = 2 * hvd.size() + 1  # rank 0 gets one more
    own = slice(2 * hvd.rank() + (hvd.rank() > 0), 2 * hvd.rank() + (hvd.rank() > 0) + 2 + (hvd.rank() == 0))
    for dtype in (torch.float32, torch.float16, torch.int32):
        for op in (hvd.Sum, hvd.Average, hvd.Max):
            wanted = reduced(op, range(hvd.size()), (rows, 3), dtype)[own]
            same(hvd.reducescatter(on_device((rows, 3), dtype), op=op), wanted, dtype, f"{dtype} {op}")
            pair = [on_device((rows, 3), dtype), on_device((hvd.size(),), dtype, 1)]
            first, second = hvd.grouped_reducescatter(pair, op=op, name="scattered")
            same(first, wanted, dtype, f"grouped {dtype} {op}")
            same(
                second,
                reduced(op, range(hvd.size()), (hvd.size(),), dtype, seed=1)[hvd.rank() : hvd.rank() + 1],
                dtype,
                "grouped",
            )


def test_8_bit_floats_are_moved():
    for kind in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"):
        if not hasattr(torch, kind):
            continue
        dtype = getattr(torch, kind)
        mine = torch.full((hvd.size(), 2), 2.0 ** hvd.rank()).to(dtype).to(device())
        gathered = hvd.allgather(mine, name=kind)
        sent, _ = hvd.synchronize(hvd.alltoall_async(mine, name=kind))
        several = hvd.grouped_allgather([mine, mine], name=kind)[1]
        assert hvd.broadcast_(mine, hvd.size() - 1, name=kind) is mine
        for tensor, wanted in (
            (gathered, [2.0**r for r in range(hvd.size()) for _ in range(hvd.size())]),
            (several, [2.0**r for r in range(hvd.size()) for _ in range(hvd.size())]),
            (sent, [2.0**r for r in range(hvd.size())]),
            (mine, [2.0 ** (hvd.size() - 1)] * hvd.size()),
        ):
            assert tensor.device == device() and tensor.dtype is dtype
            assert tensor.cpu().float()[:, 1].tolist() == wanted, kind


def test_groups():
    shapes = [(3,), (0,), (2, 5)]
    dtypes = [torch.float32, torch.float32, torch.float16]
    mine = [on_device(shape, dtype, i) for i, (shape, dtype) in enumerate(zip(shapes, dtypes))]
    reductions = hvd.grouped_allreduce(mine, op=hvd.Average, name="group")
    gathered = hvd.grouped_allgather(mine, name="group")
    hvd.grouped_allreduce_(mine, op=hvd.Sum, name="group")
    for i, (shape, dtype) in enumerate(zip(shapes, dtypes)):
        same(
            reductions[i],
            reduced(hvd.Average, range(hvd.size()), shape, dtype, seed=i),
            dtype,
            f"average {i}",
        )
        same(mine[i], reduced(hvd.Sum, range(hvd.size()), shape, dtype, seed=i), dtype, f"sum {i}")
        parts = [data_of(r, shape, dtype, i) for r in range(hvd.size())]
        same(gathered[i], torch.cat(parts).to(torch.float64), dtype, f"gathered {i}")


def test_gradients():
    sent = np.arange(3.0)[:, None] < hvd.size()  # of three rows, one to each rank
    for name, call, factor in (
        ("allreduce", lambda t: hvd.allreduce(t, op=hvd.Sum, name="g.r"), hvd.size()),
        ("allgather", lambda t: hvd.allgather(t, name="g.g"), 1.0),
        ("broadcast", lambda t: hvd.broadcast(t, 0, name="g.b"), 1.0 if hvd.rank() == 0 else 0.0),
        ("alltoall", lambda t: hvd.alltoall(t, [1] * hvd.size(), name="g.a")[0], sent),
        ("reducescatter", lambda t: hvd.reducescatter(t, op=hvd.Sum, name="g.s"), hvd.size()),
        ("group", lambda t: hvd.grouped_allreduce([t, t * 2], op=hvd.Sum, name="g.gr")[1], 2.0 * hvd.size()),
    ):
        tensor = torch.ones(3, 2, device=device(), requires_grad=True)
        call(tensor).sum().backward()
        same(tensor.grad, np.full((3, 2), factor), torch.float32, f"gradient of {name}")


def test_sparse_allreduce():
    indices = torch.tensor([[hvd.rank(), 4]], device=device())
    sparse = torch.sparse_coo_tensor(
        indices, torch.ones(2, 3, device=device()), (5, 3), check_invariants=True
    )
    total = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)().to_dense()
    wanted = np.zeros((5, 3))
    for rank in range(hvd.size()):
        wanted[rank] += 1
        wanted[4] += 1
    same(total, wanted, torch.float32)


def test_compression():
    tensor = on_device((64,), torch.float32)
    out = hvd.allreduce(tensor, compression=hvd.Compression.fp16, op=hvd.Sum, name="compressed")
    same(out, reduced(hvd.Sum, range(hvd.size()), (64,), torch.float32), torch.float32)


def test_host_and_device_side_by_side():
    handles = [
        hvd.allreduce_async(torch.full((10,), float(hvd.rank()), device=where), op=hvd.Sum, name=f"side.{i}")
        for i, where in enumerate(["cpu", device()] * 4)
    ]
    for i, handle in enumerate(handles):
        result = hvd.synchronize(handle)
        assert result.device == (device() if i % 2 else torch.device("cpu"))
        assert result.cpu().unique().tolist() == [float(sum(range(hvd.size())))]


@needs(is_served, "PyTorch copies, and knows its streams")
def test_another_stream_provider():
    asked = []

    def provider(index):
        asked.append(index)
        return native(MODULE.current_stream(index))

    def waiting(index):
        asked.append(index)
        MODULE.synchronize(index)

    for function in (provider, waiting):
        hvd.register_stream_provider(KIND, function)
        still_works()
        same(hvd.allgather(torch.ones(1, device=device())), [1.0] * hvd.size(), torch.float32)
    assert set(asked) == {device().index} and len(asked) >= 4
    hvd.register_stream_provider(KIND, lambda index: native(MODULE.current_stream(index)))


def test_the_current_device_stays_what_it_was():
    other = (device().index + 1) % COUNT
    MODULE.set_device(other)
    still_works()
    assert MODULE.current_device() == other
    MODULE.set_device(device().index)


def test_mistakes():
    tensor = torch.ones(3, device=device())
    with raises(ValueError, "same device", "cpu", str(device())):
        hvd.grouped_allreduce([tensor, torch.ones(3)], name="mixed")
    still_works()
    with raises(ValueError, "contiguous"):
        hvd.allreduce_(torch.ones(4, 6, device=device()).t(), name="strided")
    still_works()
    with raises(ValueError, "device 'meta'", "no data", "to_empty"):
        hvd.allreduce(torch.ones(2, device="meta"), name="meta")
    still_works()
    if COUNT > 1 and is_served():
        elsewhere = torch.device(KIND, (device().index + 1) % COUNT)
        with raises(ValueError, KIND):
            hvd.allreduce(torch.ones(2, device=elsewhere), name="another device")
        still_works()
    if hvd.size() > 1:
        with raises(HorovodInternalError):
            hvd.allreduce(torch.ones(2 + hvd.rank(), device=device()), name="shapes")
        still_works()


def test_join():
    if hvd.rank() == 0:
        for i in range(3):
            same(
                hvd.allreduce(torch.ones(4, device=device()), op=hvd.Sum, name=f"j.{i}"),
                [1.0] * 4,
                torch.float32,
            )
    assert hvd.join(hvd.local_rank()) == 0


def test_objects_and_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(device())
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(hvd.rank() + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1))
    if hvd.rank() == 0:
        model(torch.ones(2, 3, device=device())).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    state = optimizer.state[next(model.parameters())]
    assert state["exp_avg"].device == device() and float(state["step"]) == 1.0
    everything = [*model.state_dict().values(), state["exp_avg"], state["exp_avg_sq"]]
    for tensor in everything:
        rows = hvd.allgather(tensor.reshape(1, -1)).cpu()
        assert all(torch.equal(rows[0], row) for row in rows), rows
    assert hvd.broadcast_object({"rank": hvd.rank()}, 0) == {"rank": 0}
    sent = hvd.broadcast_object(
        torch.full((2,), float(hvd.rank()), device=device()) if hvd.rank() == 0 else None, 0
    )
    assert sent.cpu().tolist() == [0.0, 0.0]


def test_optimizers_train_as_one_process_would():
    """Two ranks with half a batch each on their devices against one process with the whole batch on the CPU."""

    def model_of(seed):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    generator = torch.Generator().manual_seed(5)
    batches = [
        (
            torch.randn(4 * hvd.size(), 6, generator=generator),
            torch.randn(4 * hvd.size(), 2, generator=generator),
        )
        for _ in range(4)
    ]
    for case, (kind, options, extra) in enumerate(
        [
            (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, {}),
            (torch.optim.Adam, {"lr": 0.01}, {"groups": 2}),
            (torch.optim.SGD, {"lr": 0.1}, {"backward_passes_per_step": 2}),
            (torch.optim.SGD, {"lr": 0.1}, {"compression": hvd.Compression.fp16}),
        ]
    ):
        passes = extra.get("backward_passes_per_step", 1)
        alone, shared = model_of(1), model_of(1 + hvd.rank()).to(device())
        hvd.broadcast_parameters(shared.state_dict(), root_rank=0)
        lone = kind(alone.parameters(), **options)
        named = [(f"{case}.{name}", parameter) for name, parameter in shared.named_parameters()]
        distributed = hvd.DistributedOptimizer(kind(shared.parameters(), **options), named, **extra)
        for inputs, targets in batches:
            lone.zero_grad()
            for _ in range(passes):
                torch.nn.functional.mse_loss(alone(inputs), targets).backward()
            lone.step()
            distributed.zero_grad()
            for _ in range(passes):
                mine = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
                predicted = shared(inputs[mine].to(device()))
                torch.nn.functional.mse_loss(predicted, targets[mine].to(device())).backward()
            distributed.step()
        tolerance = 5e-3 if "compression" in extra else 1e-5 if KIND == "gcu" else 1e-4
        for own, wanted in zip(shared.parameters(), alone.parameters()):
            torch.testing.assert_close(own.detach().cpu(), wanted.detach(), rtol=tolerance, atol=tolerance)


def test_shutdown_and_init_again():
    from hvd_core._runtime.runtime import engine

    gone = weakref.ref(engine())
    hvd.shutdown()
    gc.collect()
    assert gone() is None, "something holds on to an engine that was shut down"
    hvd.init()
    still_works()
