"""Checks of broadcast_parameters, broadcast_optimizer_state and the object helpers, run by tests/harness."""

import collections
import threading

import pytest
import torch

import horovod.torch as hvd
from harness.rank import await_told, needs, tell
from horovod.common import objects as structures
from horovod.common.exceptions import OperationFailedError
from torch_support import NO_DLPACK_API, raises, same_everywhere

pytestmark = [
    pytest.mark.ranks(1, 3, framework="torch"),
    pytest.mark.ranks(2, framework="torch", id="no-dlpack", process_env=NO_DLPACK_API),
]


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 2)
    )


def train(model, optimizer, steps, seed):
    torch.manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().sum().backward()
        optimizer.step()


def test_broadcast_parameters():
    wanted = model_of(0).state_dict()
    for make in (
        lambda m: m.state_dict(),
        lambda m: list(m.state_dict().items()),
        lambda m: dict(m.named_parameters()),
    ):
        model = model_of(hvd.rank())
        hvd.broadcast_parameters(make(model), root_rank=0)
        for name in make(model) if isinstance(make(model), dict) else wanted:
            assert torch.equal(model.state_dict()[name], wanted[name]), name
    tensors = [torch.full((3,), hvd.rank()), torch.full((), float(hvd.rank()))]
    hvd.broadcast_parameters(tensors, root_rank=hvd.size() - 1)
    assert tensors[0].tolist() == [hvd.size() - 1] * 3 and tensors[1].item() == hvd.size() - 1


def test_broadcast_parameters_of_every_kind():
    strided = torch.full((2, 3, 4, 4), float(hvd.rank())).to(memory_format=torch.channels_last)
    state = {
        "channels_last": strided,
        "complex": torch.full((3,), complex(hvd.rank(), -hvd.rank())),
        "bool": torch.tensor([hvd.rank() == 0, hvd.rank() != 0]),
        "half": torch.full((2,), float(hvd.rank()), dtype=torch.float16),
        "empty": torch.empty(0, 3),
        "nothing": None,
        "conjugated": torch.full((3, 2), complex(hvd.rank(), 1 + hvd.rank())).conj(),
        "conjugated.t": torch.full((3, 2), complex(hvd.rank(), 1 + hvd.rank())).t().conj(),
        "negated": torch.tensor(complex(0, 1 + hvd.rank())).conj().imag,
    }
    lazy = {name: t.data_ptr() for name, t in state.items() if name[:3] in ("con", "neg")}
    hvd.broadcast_parameters(state, 0)
    for name, address in lazy.items():
        # The same view, with the root's values, in the same memory.
        assert (state[name] == (-1 if name == "negated" else -1j)).all(), (name, state[name])
        assert state[name].data_ptr() == address and (state[name].is_conj() or state[name].is_neg()), name
    assert strided.sum() == 0 and not strided.is_contiguous()
    assert state["complex"].abs().sum() == 0 and state["bool"].tolist() == [True, False]


def test_broadcast_parameters_refuses():
    model = model_of(0)
    with raises(ValueError, "generator", "model.state_dict()"):
        hvd.broadcast_parameters(model.named_parameters(), 0)
    with raises(ValueError, "'epoch'", "int", "broadcast_object"):
        hvd.broadcast_parameters({"weight": torch.ones(2), "epoch": 3}, 0)
    with raises(ValueError, "'sparse'", "torch.sparse_coo"):
        hvd.broadcast_parameters([("sparse", torch.ones(2).to_sparse())], 0)
    for wrong in range(hvd.size() + 1):  # on one rank, or, the last, on all of them
        first, weight = torch.full((2,), float(hvd.rank())), torch.full((1,), float(hvd.rank()))
        mine = wrong in (hvd.rank(), hvd.size())
        entries = {"first": first, "weight": weight.expand(3) if mine else torch.zeros(3)}
        kind = ValueError if mine else hvd.HorovodInternalError
        with raises(kind, "entry 'weight' is an expanded tensor of shape (3,)"):
            hvd.broadcast_parameters(entries, 0)
        assert first.eq(hvd.rank()).all() and weight.eq(hvd.rank()).all(), "something was sent"
        for handle in list(hvd.mpi_ops._handle_map):
            with raises(hvd.HorovodInternalError, "'weight'"):
                hvd.synchronize(handle)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.001 * (hvd.rank() + 1)),
    "momentum": lambda p: torch.optim.SGD(
        p, lr=0.001 * (hvd.rank() + 1), momentum=0.9 - 0.1 * hvd.rank(), nesterov=True
    ),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01 * (hvd.rank() + 1), betas=(0.9, 0.99 - 0.01 * hvd.rank())),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01 * (hvd.rank() + 1), amsgrad=True, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01 * (hvd.rank() + 1), momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01 * (hvd.rank() + 1)),
    "tensor_lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01 * (hvd.rank() + 1))),
}


def state_digest(optimizer):
    """The contents of state_dict(), with tensors as lists, in an order that does not depend on the rank."""

    def plain(value):
        return value.tolist() if isinstance(value, torch.Tensor) else value

    content = optimizer.state_dict()
    state = {k: {n: plain(v) for n, v in sorted(s.items())} for k, s in sorted(content["state"].items())}
    return state, [{k: plain(v) for k, v in sorted(g.items())} for g in content["param_groups"]]


def test_broadcast_optimizer_state():
    # The ranks that have trained before: all, the root only, the others only, none.
    for kind, make in OPTIMIZERS.items():
        for trained in (lambda: True, lambda: hvd.rank() == 0, lambda: hvd.rank() != 0, lambda: False):
            model = model_of(hvd.rank())
            optimizer = make(model.parameters())
            if trained():
                train(model, optimizer, 2 + hvd.rank(), seed=hvd.rank())
            values = [p.detach().clone() for p in model.parameters()]
            before = state_digest(optimizer)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            after = state_digest(optimizer)
            assert hvd.broadcast_object(after, 0) == after, f"{kind}: differs from the root's"
            if hvd.rank() == 0:
                assert before == after, f"{kind}: the root's state changed"
            assert all(torch.equal(p, v) for p, v in zip(model.parameters(), values)), (
                f"{kind}: parameters changed"
            )
            hvd.broadcast_parameters(model.state_dict(), 0)
            train(model, optimizer, 2, seed=7)  # the same data on all ranks, so their states stay equal
            for name, param in model.named_parameters():
                same_everywhere(param, f"{kind}.{name}")


def test_broadcast_optimizer_state_keeps_python_types():
    model = model_of(0)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1 if hvd.rank() == 0 else 0.5, betas=(0.5, 0.25), amsgrad=hvd.rank() == 0
    )
    optimizer.param_groups[0]["note"] = f"from rank {hvd.rank()}"
    hvd.broadcast_optimizer_state(optimizer, 0)
    group = optimizer.param_groups[0]
    assert group["lr"] == 1 and type(group["lr"]) is int and group["betas"] == (0.5, 0.25)
    assert group["amsgrad"] is True and group["note"] == "from rank 0"


def test_broadcast_optimizer_state_through_the_wrapper():
    model = model_of(hvd.rank())
    frozen, *_ = model.parameters()
    frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
    assert optimizer.param_groups[0]["lr"] == 0.1 and frozen.grad is None
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters() if p.requires_grad)
    train(model, optimizer, 2, seed=hvd.rank())
    same_everywhere(model[3].weight, "wrapped")


def test_broadcast_optimizer_state_refuses():
    model = model_of(0)
    with raises(ValueError, "cannot broadcast torch.optim.LBFGS state"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


def broadcast_in_a_thread(params, **options):
    thread = threading.Thread(target=hvd.broadcast_parameters, args=(params,), kwargs=options)
    thread.start()
    return thread


@needs(ranks=2)
def test_calls_of_two_threads_need_names():
    first, second = (
        {"first": torch.full((3,), float(hvd.rank()))},
        {"second": torch.full((5,), float(hvd.rank()))},
    )
    if hvd.rank() == 0:
        thread = broadcast_in_a_thread(first)
        while not structures._under_way:
            assert thread.is_alive()
        with raises(ValueError, "another thread is in a call of the name 'broadcast_parameters'"):
            hvd.broadcast_parameters(second)
        tell("refused")
        thread.join()
    else:
        await_told("refused")
        hvd.broadcast_parameters(first)
        with raises(OperationFailedError, "another thread is in a call", "rank 0"):
            hvd.broadcast_parameters(second)
    assert not first["first"].any() and second["second"].tolist() == [hvd.rank()] * 5
    # With names the order of the threads does not matter.
    calls = [("one", first), ("two", second)]
    threads = [broadcast_in_a_thread(params, name=name) for name, params in calls[:: -1 if hvd.rank() else 1]]
    for thread in threads:
        thread.join()
    assert not first["first"].any() and not second["second"].any()


def test_structures_that_differ_are_refused_everywhere():
    if hvd.size() == 1:
        pytest.skip("one rank has no other to differ from")
    last = hvd.size() - 1
    others = "rank 0" if last == 1 else "ranks 0, 1"
    odd = last == hvd.rank()
    body = torch.full((3,), float(hvd.rank()))
    optimizer = torch.optim.SGD([torch.ones(2)] if odd else [torch.ones(2), torch.ones(1)], lr=0.1)
    for send, texts in (
        (
            lambda: hvd.broadcast_parameters({"body": body, "head" if odd else "tail": torch.ones(2)}, 0),
            [
                f"'head' is on rank {last}, but not on {others}",
                f"'tail' is on {others}, but not on rank {last}",
            ],
        ),
        (
            lambda: hvd.broadcast_parameters({"body": body, "none": None if odd else torch.ones(1)}),
            [f"'none' is on {others}, but not on rank {last}"],
        ),
        (
            lambda: hvd.broadcast_parameters([body, torch.ones(2, 1 + odd)], 0, "named"),
            [f"'parameter.1' is (2, 1) torch.float32 on {others}, but (2, 2) torch.float32 on rank {last}"],
        ),
        (
            lambda: hvd.broadcast_parameters({"body": body.to(torch.float64 if odd else torch.float32)}),
            [f"'body' is (3,) torch.float32 on {others}, but (3,) torch.float64 on rank {last}"],
        ),
        (
            lambda: hvd.broadcast_parameters({f"{i}": body for i in range(9)} if odd else {}),
            [f"'5' is on rank {last}, but not on {others}; and 3 more differences"],
        ),
        (
            lambda: hvd.broadcast_optimizer_state(optimizer, 0),
            ["broadcast_optimizer_state()", f"'group 0, parameter 1' is on {others}, but not on rank {last}"],
        ),
    ):
        with raises(OperationFailedError, "the ranks differ, so nothing was sent", *texts):
            send()
        assert body.eq(hvd.rank()).all(), "something was sent"
    hvd.broadcast_parameters({"body": body}, 0)
    assert body.eq(0).all()


Point = collections.namedtuple("Point", "x y")


def test_broadcast_object():
    for root in {0, hvd.size() - 1}:
        obj = (
            {"rank": hvd.rank(), "nested": [1, (2.5, "three"), None], "tensor": torch.full((2,), hvd.rank())}
            if root == hvd.rank()
            else None
        )
        got = hvd.broadcast_object(obj, root)
        assert (
            got["rank"] == root
            and got["tensor"].tolist() == [root] * 2
            and got["nested"][1] == (2.5, "three")
        )
        assert got is obj or root != hvd.rank()
    assert hvd.broadcast_object(Point(hvd.rank(), 2), 0, name="point") == Point(0, 2)
    double = hvd.broadcast_object((lambda x: x * 2) if hvd.rank() == 0 else None, 0)
    assert double(21) == 42
    big = hvd.broadcast_object(bytes(range(256)) * 20_000 if hvd.rank() == 0 else b"", 0)
    assert len(big) == 256 * 20_000 and big[:256] == bytes(range(256))


def test_allgather_object():
    objects = hvd.allgather_object({"rank": hvd.rank(), "padding": "x" * (hvd.rank() * 1000)}, name="objects")
    assert [o["rank"] for o in objects] == list(range(hvd.size()))
    assert [len(o["padding"]) for o in objects] == [r * 1000 for r in range(hvd.size())]
    assert hvd.allgather_object(None) == [None] * hvd.size()


def test_fresh_sparse_optimizers_get_sparse_gradients():
    for make in (torch.optim.SparseAdam, torch.optim.SGD):
        model = torch.nn.Embedding(10, 3, sparse=True)
        optimizer = make(list(model.parameters()), lr=0.1)
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0, model=model)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        model(torch.tensor([hvd.rank()])).sum().backward()  # without zero_grad() before it
        optimizer.step()
        assert model.weight.grad.is_sparse
