"""Elastic training with PyTorch: ``hvd.elastic.run``, ``TorchState`` and ``ElasticSampler``. See docs/elastic.md."""

from collections.abc import Callable
from typing import Any

from horovod.common.elastic import commit_async as commit_async
from horovod.common.elastic import restart, run_fn
from horovod.common.elastic import worker_id as worker_id
from horovod.common.elastic import workers as workers
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function whose first parameter is a state: it is called again when ranks have changed.

        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

        @hvd.elastic.run
        def train(state):
            for state.epoch in range(state.epoch, 10):
                ...
                state.commit()

        train(state)

    Each call begins with the state of the last commit, on all ranks. It is called again after the death of a rank, and
    after a commit at which ranks were added or removed. Mistakes of the program (a mismatch of ranks, a wrong argument)
    are raised at once.

    Returns:
        A function with the parameters and the result of `func`.
    """
    return run_fn(func, restart)
