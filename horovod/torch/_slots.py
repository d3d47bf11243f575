"""The records of a GradientReducer: one for each parameter and each group. Data, for _reducer.py only."""

from collections import deque
from typing import Any

import torch

from horovod.torch._sparse import SparseReduction


class Slot:
    """One parameter: how many backward passes its gradient still needs, and its pending reduction."""

    __slots__ = (
        "anchor", "context", "delay", "failed", "given", "group", "handle", "home", "made_on", "name", "nbytes",
        "param", "sent", "sparse_dim", "version", "wire", "wire_name",
    )  # fmt: skip

    def __init__(self, param: torch.Tensor, name: str, delay: int):
        self.param = param
        self.name = name
        self.wire_name = f"allreduce.{name}"
        self.nbytes = param.numel() * param.element_size()
        self.delay = delay
        self.handle: int | SparseReduction | None = None
        self.sent: torch.Tensor | None = None
        self.made_on: torch.Stream | None = None  # stream of a device whose work completes the gradient
        self.wire: torch.Tensor | None = (
            None  # the gradient in the type that is sent, if that is another type
        )
        self.home: torch.Tensor | None = None  # for the gradient, in memory that the ranks share
        self.context: Any = None
        self.failed = False  # its reduction could not begin
        # The gradient that was sent, as _changed_gradients.py compares it: PyTorch's count of its changes, and the
        # tensor, None where that is `sent`.
        self.version = -1
        self.given: torch.Tensor | None = None
        self.group: Group | None = None
        self.sparse_dim = 0  # of the last gradient; 0 for a dense one
        self.anchor: Any = None  # keeps the accumulator node alive: the hook is deleted with it


class Group:
    """Parameters that are reduced as one operation, once all their gradients are complete."""

    __slots__ = ("missing", "name", "slots")

    def __init__(self, name: str, slots: list[Slot]):
        self.name = name
        self.slots = slots
        self.renew()
        for slot in slots:
            slot.group = self

    def renew(self) -> None:
        """Wait for all members again."""
        self.missing = list(range(len(self.slots) - 1))

    def arrived(self) -> bool:
        """Count one more member whose gradient is complete. Returns whether it was the last one.

        True for one member only, also when several threads call at once.
        """
        try:
            self.missing.pop()
        except IndexError:
            return True
        return False


def empty_sparse(param: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """A sparse gradient of zeros for `param`."""
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=param.device)
    values = torch.empty((0, *param.shape[sparse_dim:]), dtype=param.dtype, device=param.device)
    return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)


def take_all(slots: deque[Slot]) -> list[Slot]:
    """Take all out of a deque that other threads take from and add to."""
    mine = []
    while slots:
        try:
            mine.append(slots.popleft())
        except IndexError:  # another thread has taken the last one
            break
    return mine
