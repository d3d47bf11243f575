"""Copies of a state with tensors: made at once, or by a thread while training goes on.

One thread of a rank calls all of this.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

__all__ = ["Copier", "as_array", "copied", "is_tensor", "taken_apart"]

# Decides whether a tensor is copied later, into the memory of the earlier copy, and notes it then.
Later = Callable[[torch.Tensor, torch.Tensor], bool]


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _fits(earlier: Any, value: torch.Tensor) -> bool:
    """Whether the memory of `earlier` can hold the tensor as it is."""
    if not isinstance(earlier, torch.Tensor) or value.layout is not torch.strided:
        return False
    told = [(t.layout, t.dtype, t.device, t.shape) for t in (earlier, value)]
    return told[0] == told[1] and earlier.stride() == value.stride()


def copied(value: Any, earlier: Any, later: Later | None = None) -> Any:
    """A copy of nested dicts and lists with tensors. `earlier` is a copy of the same thing: its memory is used again
    where shapes and types are the same. There `later` is asked."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if not _fits(earlier, value):
            return value.clone()
        return earlier if later is not None and later(earlier, value) else earlier.copy_(value)
    if isinstance(value, Mapping):
        known = earlier if isinstance(earlier, Mapping) else {}
        pairs = {key: copied(item, known.get(key), later) for key, item in value.items()}
        made = OrderedDict(pairs) if isinstance(value, OrderedDict) else pairs
        if hasattr(value, "_metadata"):  # the versions of modules, in the state of a model
            made._metadata = value._metadata
        return made
    if isinstance(value, list):
        known = earlier if isinstance(earlier, list) and len(earlier) == len(value) else [None] * len(value)
        return [copied(item, before, later) for item, before in zip(value, known)]
    return copy.deepcopy(value)


def taken_apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Nested dicts and lists with a number in place of each tensor. Adds the tensors to a list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return len(tensors)
    if isinstance(value, Mapping):
        return {key: taken_apart(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [taken_apart(item, tensors) for item in value]
    return value


def as_array(tensor: torch.Tensor) -> np.ndarray | None:
    """The bytes of a tensor; None for one that is not dense or not in host memory."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()


class Copier:
    """Copies tensors in a thread. The next step() of any optimizer waits for its end.

    One commit is: begin(), copied(..., copier.takes(...)) for each part, and start().
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._pending: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._running: Future | None = None
        self._hook: Any = None

    def begin(self) -> None:
        """Waits for the end of the commit before. Raises as wait()."""
        self.wait()
        self._pending = []

    def takes(self, wanted: Callable[[torch.Tensor], bool]) -> Later:
        """For copied(): notes tensors in host memory for which `wanted` returns True."""

        def later(earlier: torch.Tensor, value: torch.Tensor) -> bool:
            if value.device.type != "cpu" or not wanted(value):
                return False
            self._pending.append((earlier, value, value._version))
            return True

        return later

    def start(self) -> None:
        """Copies what was noted."""
        if not self._pending:
            return
        self._thread = self._thread or ThreadPoolExecutor(1, "hvd-commit")
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.wait())
        self._running = self._thread.submit(_copy, self._pending)

    def wait(self) -> None:
        """Returns when all tensors have been copied.

        Raises:
            ValueError: a tensor was changed meanwhile, so that its copy is worth nothing.
        """
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._running is None:
            return
        changed = self._running.result()
        if changed:
            raise ValueError(
                f"commit_async(): {changed} tensors of the state were changed before they had been copied, so the commit "
                "is lost. Only optimizer.step() waits for the copies: call state.wait() before you change parameters by "
                "other means, or use state.commit()."
            )
        self._running = None


def _copy(pending: list[tuple[torch.Tensor, torch.Tensor, int]]) -> int:
    for copy_of, tensor, _ in pending:
        copy_of.copy_(tensor)
    return sum(tensor._version != version for _, tensor, version in pending)
