"""TorchState: models, optimizers, samplers and plain values that survive a change of the ranks.

Each value whose type is in the registry has a handler, which copies it at a commit, restores it, and sends it.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten

from horovod.common import _elastic_state
from horovod.common._elastic_state import ATOMS, ObjectState, require_same_names
from horovod.common.exports import rank
from horovod.common.objects import require_same
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "GradScalerStateHandler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


# Copies of a state with tensors: made immediately, or by a thread while training continues. One thread of a rank calls
# all of this.

# Decides whether a tensor is copied later, into the memory of the earlier copy, and notes it then.
Later = Callable[[torch.Tensor, torch.Tensor], bool]


def _fits(earlier: Any, value: torch.Tensor) -> bool:
    """Whether the memory of `earlier` can hold the tensor as it is."""
    if not isinstance(earlier, torch.Tensor) or value.layout is not torch.strided:
        return False
    forms = [(t.layout, t.dtype, t.device, t.shape, t.stride()) for t in (earlier, value)]
    return forms[0] == forms[1]


def copied(value: Any, earlier: Any, later: Later | None = None) -> Any:
    """A copy of nested dicts and lists with tensors. `earlier` is a copy of the same thing: its memory is used again
    where shapes and types are the same, unless `later` postpones the copy."""
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
            made._metadata = value._metadata  # type: ignore[attr-defined]  # PyTorch sets it on an OrderedDict
        return made
    if isinstance(value, list):
        same = isinstance(earlier, list) and len(earlier) == len(value)
        before = earlier if same else [None] * len(value)
        return [copied(item, earlier_item, later) for item, earlier_item in zip(value, before)]
    return copy.deepcopy(value)


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
        self._running: Future[Any] | None = None
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


class StateHandler:
    """Saves, restores and sends one value. Derive from it for types of your own; see set_handler_registry()."""

    def __init__(self, value: Any) -> None:
        self.value: Any = value

    def save(self) -> None:
        """Keep a copy of the value's state in memory."""
        raise NotImplementedError

    def save_by(self, copier: Copier) -> None:
        """As save(), but tensors that only an optimizer's step changes may be left to the copier."""
        self.save()

    def restore(self) -> None:
        """Give the value the state of the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give the value the state that it has on rank 0. All values are saved when all of them have it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to another number of ranks."""

    def saved(self) -> Any:
        """What save() has kept, as a value that can be pickled. For states whose commits are written to a file."""
        raise NotImplementedError(f"{type(self).__name__} does not define saved() and set_saved().")

    def set_saved(self, saved: Any) -> None:
        """Take what saved() has returned as the last save()."""
        raise NotImplementedError(f"{type(self).__name__} does not define saved() and set_saved().")

    def set_value(self, value: Any) -> None:
        """Handle another object from now on."""
        self.value = value
        self.save()


class _OwnHandler(StateHandler):
    """A handler that keeps its copy in `_saved`."""

    _saved: Any = None

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def saved(self) -> Any:
        return self._saved

    def set_saved(self, saved: Any) -> None:
        self._saved = saved


class ModelStateHandler(_OwnHandler):
    """For torch.nn.Module."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def save(self) -> None:
        self._saved = copied(self.value.state_dict(), self._saved)

    def save_by(self, copier: Copier) -> None:
        # Buffers change in a forward pass, parameters in a step.
        parameters = {parameter.data_ptr() for parameter in self.value.parameters()}
        later = copier.takes(lambda tensor: tensor.data_ptr() in parameters)
        self._saved = copied(self.value.state_dict(), self._saved, later)

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        state = self.value.state_dict()
        require_same("TorchState.sync()", [(key, None, "") for key in sorted(state)], "horovod.elastic.model")
        tensors = {key: value for key, value in state.items() if torch.is_tensor(value)}
        same = _elastic_state.alike([as_array(tensor) for tensor in tensors.values()])
        broadcast_parameters({key: tensors[key] for key, ok in zip(tensors, same) if not ok}, root_rank=0)
        others = {key: value for key, value in state.items() if not torch.is_tensor(value)}
        if others:  # what get_extra_state() of a module returns
            self.value.load_state_dict({**state, **broadcast_object(others, 0, "horovod.elastic.extra")})


class OptimizerStateHandler(_OwnHandler):
    """For torch.optim.Optimizer, also one that DistributedOptimizer() has made."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def save(self) -> None:
        self._saved = copied(self.value.state_dict(), self._saved)

    def save_by(self, copier: Copier) -> None:
        self._saved = copied(self.value.state_dict(), self._saved, copier.takes(lambda tensor: True))

    def restore(self) -> None:
        # The optimizer may keep the tensors that it is given, and change them in its next step.
        self.value.load_state_dict(copied(self._saved, None))

    def sync(self) -> None:
        leaves, structure = tree_flatten(self.value.state_dict())
        arrays = [as_array(leaf) for leaf in leaves if torch.is_tensor(leaf)]
        rest = [structure, *(leaf for leaf in leaves if not torch.is_tensor(leaf))]
        arrays.append(np.frombuffer(repr(rest).encode(), np.uint8))
        if not all(_elastic_state.alike(arrays)):
            broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_OwnHandler):
    """For ElasticSampler. All ranks continue where rank 0 is: it holds the newest commit."""

    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        self.value.load_state_dict(
            broadcast_object(self.value.state_dict(), 0, name="horovod.elastic.sampler")
        )

    def reset(self) -> None:
        self.value.reset()


class GradScalerStateHandler(_OwnHandler):
    """For torch.amp.GradScaler. After a failure in the middle of a step it would take the next gradients for unscaled."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        super().__init__(scaler)

    def save(self) -> None:
        self._saved = self.value.state_dict()

    def restore(self) -> None:
        self._load(self._saved)

    def sync(self) -> None:
        self._load(broadcast_object(self.value.state_dict(), 0, name="horovod.elastic.scaler"))

    def _load(self, state: dict[str, Any]) -> None:
        if not self.value.is_enabled():
            return
        self.value.load_state_dict(state)
        if self.value._scale is not None:  # it has been used
            self.value.update(state["scale"])  # forgets what it has done to the gradients of each optimizer


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (torch.amp.GradScaler, GradScalerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """The pairs of a type and its handler; the first pair that fits a value counts."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replace the pairs of a type and its handler, for the states that are made from now on."""
    global _registry
    _registry = registry


def _handler_for(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)


def _handlers_for(values: dict[str, Any]) -> dict[str, StateHandler]:
    """The handlers of values, and of the members of lists, tuples and dicts, by names such as "models[0]['encoder']"."""
    found = {}
    seen = set()
    queue = list(values.items())
    for name, value in queue:  # which grows: members come after all values
        if name not in values and (type(value) in ATOMS or id(value) in seen):
            continue
        seen.add(id(value))
        handler = _handler_for(value)
        if handler is not None:
            found[name] = handler
        elif isinstance(value, dict):
            queue += [(f"{name}[{key!r}]", member) for key, member in value.items()]
        elif isinstance(value, (list, tuple)):
            queue += [(f"{name}[{place}]", member) for place, member in enumerate(value)]
    return found


class TorchState(ObjectState):
    """The state of a training with PyTorch, for ``hvd.elastic.run``.

    Args:
        model, optimizer: a module and an optimizer, or None.
        kwargs: more values, by name. Modules, optimizers, ElasticSamplers and GradScalers are saved and sent by
            handlers, also those that are within lists, tuples and dicts now; other values with state_dict() and
            load_state_dict() (a scheduler of the learning rate) by these methods. All of them stay the same objects. Any
            other value is a plain attribute that can be copied and pickled (epoch=0, batch=0, a list of modules that
            are added later); where it refers to a module, a parameter or an optimizer of the state, its copies do so too.

    The values are attributes: ``state.model``, ``state.epoch``. Another model may be assigned; it is saved at once.

    Raises:
        TypeError: a value can neither be copied nor has a state.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        self._copier = Copier()
        kwargs.update(model=model, optimizer=optimizer)
        # A member of a list keeps its name when it moves, so that the ranks agree whatever they have done to their lists.
        self._handlers = _handlers_for(kwargs)
        plain = {}
        for name, value in kwargs.items():
            if name in self._handlers:
                object.__setattr__(self, name, value)
            else:
                plain[name] = value
        super().__init__(bcast_object=_broadcast, get_rank=rank, **plain)

    def commit_async(self) -> None:
        """As commit(), but parameters and the optimizer's state are copied while training continues: the next
        ``optimizer.step()`` waits for the copies. See hvd.elastic.commit_async."""
        self._copier.begin()
        for handler in self._handlers.values():
            handler.save_by(self._copier)
        super().save()
        self._copier.start()
        self._committed()

    def wait(self) -> None:
        """Return when the copies of the last commit_async() are complete.

        Raises:
            ValueError: a tensor was changed before it was copied.
        """
        self._copier.wait()

    def save(self) -> None:
        self.wait()
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        self.wait()
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def _references(self) -> dict[str, Any]:
        found = super()._references()
        for name, handler in self._handlers.items():
            found.update(_parts_of(name, handler.value))
        return found

    def sync(self) -> None:
        self.wait()
        self._require_same_values()
        for name in sorted(self._handlers):
            self._handlers[name].sync()
        self._sync_values()
        # Not one after the other: a rank that dies meanwhile must not leave a model of one step with the optimizer of
        # another.
        for handler in self._handlers.values():
            handler.save()

    def _kinds(self) -> dict[str, str]:
        handled = {name: f"handled by {type(handler).__name__}" for name, handler in self._handlers.items()}
        return super()._kinds() | handled

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()

    def durable_parts(self) -> dict[str, Any]:
        self.wait()
        handled = {name: handler.saved() for name, handler in self._handlers.items()}
        return {**super().durable_parts(), "handled": handled}

    def set_durable_parts(self, parts: dict[str, Any]) -> None:
        require_same_names(self._handlers, parts["handled"])
        super().set_durable_parts(parts)
        for name, saved in parts["handled"].items():
            self._handlers[name].set_saved(saved)

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            self.wait()
            handler.set_value(value)
        super().__setattr__(name, value)


def _parts_of(name: str, value: Any) -> dict[str, Any]:
    """A value that a handler keeps, and the objects in it that other values may refer to."""
    found = {name: value}
    if isinstance(value, torch.nn.Module):
        for kind in (value.named_modules, value.named_parameters, value.named_buffers):
            found.update({f"{name}.{part}": member for part, member in kind() if part})
    if isinstance(value, torch.optim.Optimizer):
        found.update({f"{name}.groups": value.param_groups, f"{name}.state": value.state})
        found.update({f"{name}.groups.{i}": group for i, group in enumerate(value.param_groups)})
        original = value.__dict__.get("_original")  # of a DistributedOptimizer
        if isinstance(original, torch.optim.Optimizer):
            found[f"{name}.original"] = original
    return found


def _broadcast(value: Any) -> Any:
    return broadcast_object(value, 0, name="horovod.elastic.values")
