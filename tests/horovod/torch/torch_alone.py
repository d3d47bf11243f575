"""What test_torch_module.py executes in other processes, where the state of the module matters."""

import sys

from harness.rank import expect_ctrl_c


def import_horovod():
    import horovod.torch

    assert not horovod.torch.is_initialized()


def why_no_device():
    """The reason for which the simulated device cannot be used; empty if it can."""
    import torch

    return torch.gcu.why_unavailable() if hasattr(torch, "gcu") else "no module torch.gcu"


def use_without_a_launcher():
    import torch

    import horovod.torch as hvd

    hvd.init()
    assert (hvd.rank(), hvd.size()) == (0, 1)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [1.0, 1.0]
    model = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def errors_without_the_engine():
    """{call: (class, text)}, and the module's own flag. For a process that has not imported the module."""
    assert "horovod.torch" not in sys.modules
    sys.modules["hvd_core._core"] = None  # as if it had not been built
    import torch

    import horovod.torch as hvd

    found = {"available": hvd._MPI_LIB_AVAILABLE}
    for name, call in {
        "init": hvd.init,
        "rank": hvd.rank,
        "allreduce": lambda: hvd.allreduce(torch.ones(2)),
    }.items():
        try:
            call()
        except (ImportError, ValueError) as error:
            found[name] = (type(error).__name__, str(error))
    found["initialized"] = hvd.is_initialized()
    return found


def interrupt_waits_of_rank_0():
    """Rank 0 waits for rank 1, which comes to the barrier alone, and is interrupted twice."""
    import torch

    import horovod.torch as hvd

    if hvd.rank() == 0:
        expect_ctrl_c(lambda: hvd.allreduce(torch.ones(1000), name="sync"))
        handle = hvd.allreduce_async_(torch.ones(1000), name="async")
        expect_ctrl_c(lambda: hvd.synchronize(handle))
        assert len(hvd.mpi_ops._handle_map) == 1
        hvd.mpi_ops._handle_map.clear()  # for the checks that come after this one
    hvd.barrier()
