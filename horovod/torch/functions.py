"""Broadcasting models, optimizer state and Python objects. All ranks call them, one thread each."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from horovod.common.exports import rank
from horovod.common.failed_calls import reported_for_each
from horovod.common.objects import allgather_object, broadcast_object, prepared, require_same
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch._gradients import as_real, empty_sparse
from horovod.torch._operations import BROADCAST, submit, synchronize
from hvd_core._runtime.failures import report_failure

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the root's parameters to all ranks, in place.

    Args:
        params: ``model.state_dict()``, another dict of tensors, a list of (name, tensor), or a list of
            tensors. All ranks must pass the same names, shapes and dtypes, which is checked first. None entries are
            skipped. Tensors may be not contiguous (channels_last), complex, conjugated or negated.
        root_rank: the GLOBAL rank whose values are sent, also within a process set.
        name: begins the names of the operations; required for calls by several threads at the same time, a different
            one for each call.
        process_set: the ranks that take part.

    Raises:
        ValueError: `params` is of another type (a generator such as ``model.named_parameters()`` must be made a
            list or dict first), or holds a value that is not a tensor, or a tensor several of whose elements are one
            place in memory (``expand()``); or another thread is in a call of the same `name`. Nothing has been sent then,
            and the other ranks' calls fail.
        OperationFailedError: the ranks' names, shapes or dtypes differ (the text says where), or another rank has made a
            mistake. Nothing has been sent then.
        HorovodInternalError: a rank is gone.
    """
    call = "broadcast_parameters" if name is None else name
    with prepared(call, process_set):
        named = [(key, param) for key, param in _named(params) if param is not None]
        for key, param in named:
            text = _why_not_received(param)
            if text:
                raise ValueError(f"broadcast_parameters(): entry {key!r} {text}")
        entries = [(key, param.shape, param.dtype) for key, param in named]
    shown = f"broadcast_parameters({'' if name is None else f'name={name!r}'})"
    require_same(shown, entries, call, process_set)
    pending = []
    waiting = [key if name is None else f"{name}.{key}" for key, _ in named]
    with torch.no_grad(), reported_for_each("broadcast", "broadcast", waiting, process_set):
        for _, param in named:
            target = param.detach()
            plain = target.resolve_conj().resolve_neg().contiguous()
            sent = as_real(plain)
            wire_name = waiting.pop(0)  # submit() reports its own failure
            pending.append(
                (submit(BROADCAST, sent, wire_name, process_set, (root_rank,), in_place=True), plain, target)
            )
        for handle, plain, target in pending:
            synchronize(handle)
            if plain is not target:
                target.copy_(plain)


def _named(params: Any) -> list[tuple[Any, Any]]:
    """The parameters as a list of (name, tensor) in the order in which they are sent."""
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, list):
        pairs = (p if isinstance(p, tuple) and len(p) == 2 else None for p in params)
        return [pair or (f"parameter.{i}", params[i]) for i, pair in enumerate(pairs)]
    raise ValueError(
        f"broadcast_parameters() takes a dict or a list, but found {type(params).__name__}. "
        "Pass model.state_dict(), or list(model.named_parameters())."
    )


def _why_not_received(param: Any) -> str:
    """The reason why broadcast_parameters() cannot write to an entry; empty if it can."""
    if param is None:
        return ""
    if not isinstance(param, torch.Tensor):
        return f"is not a tensor but {type(param).__name__}. Send it with hvd.broadcast_object()."
    if param.layout is not torch.strided:
        return f"is a tensor of layout {param.layout}, which cannot be written in place. Pass a dense one."
    if any(n > 1 and not s for n, s in zip(param.shape, param.stride())):
        return (
            f"is an expanded tensor of shape {tuple(param.shape)}: several of its elements are one place in memory "
            f"(strides {param.stride()}). Pass the tensor it was made from, or a clone()."
        )
    return ""


class _SentTensor:
    """Stands for a tensor in the description of an optimizer's state; the values follow in a broadcast."""

    def __init__(self, tensor: torch.Tensor, param: torch.Tensor):
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.follows_param = tensor.device == param.device

    def tensor_like(self, own: Any, param: torch.Tensor) -> torch.Tensor:
        """The tensor `own` of this rank if it has this form, else a new one."""
        if isinstance(own, torch.Tensor) and tuple(own.shape) == self.shape and own.dtype == self.dtype:
            return own
        device = param.device if self.follows_param else torch.device("cpu")
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: torch.nn.Module | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the root's optimizer state and options (learning rate, ...) to all ranks.

    The root describes its state, the other ranks allocate state of the same form, and the tensors are broadcast. This
    takes no optimizer step, so a fresh optimizer stays fresh. If no rank has state yet, parameters without a gradient
    get a gradient of zeros, a sparse one where the optimizer or `model` needs it.

    Args:
        optimizer: the parameters and their groups must be in the same order on all ranks, which is checked first.
        root_rank: the GLOBAL rank whose state is sent, also within a process set.
        model: searched for embeddings with sparse gradients.
        name: begins the names of the operations; required for calls by several threads at the same time, a different
            one for each call.
        process_set: the ranks that take part.

    Raises:
        ValueError: `optimizer` is LBFGS, whose state cannot be sent; or another thread is in a call of the same `name`.
        OperationFailedError: the ranks' parameter groups differ (the text says where), or another rank has made a
            mistake. HorovodInternalError: a rank is gone.
    """
    name = "optimizer_state" if name is None else name
    with prepared(name, process_set):
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("cannot broadcast torch.optim.LBFGS state")
        groups = optimizer.param_groups
        entries = [
            (f"group {i}, parameter {j}", None if is_lazy(param) else param.shape, param.dtype)
            for i, group in enumerate(groups)
            for j, param in enumerate(group["params"])
        ]
    require_same("broadcast_optimizer_state()", entries, name, process_set)
    with report_failure("broadcast", f"broadcast.{name}.sz", process_set):
        description = None
        if rank() == root_rank:
            description = {
                "options": [{k: v for k, v in group.items() if k != "params"} for group in groups],
                "state": [
                    [_describe(optimizer.state.get(p), p) for p in group["params"]] for group in groups
                ],
            }
    description = broadcast_object(description, root_rank, name, process_set)
    with prepared(f"{name}.tensors", process_set):
        tensors = _prepare(optimizer, description)
        if not tensors and not any(state for states in description["state"] for state in states):
            _zero_missing_grads(optimizer, model)
    broadcast_parameters(tensors, root_rank, f"{name}.tensors", process_set)


def _prepare(optimizer: torch.optim.Optimizer, description: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Give the optimizer the described options, and state of the described form. Returns the state's tensors with the
    names under which they are sent."""
    groups = optimizer.param_groups
    for group, options in zip(groups, description["options"]):
        _apply_options(group, options)
    tensors: list[tuple[str, torch.Tensor]] = []
    for i, (group, states) in enumerate(zip(groups, description["state"])):
        for j, (param, state) in enumerate(zip(group["params"], states)):
            if state is None:
                optimizer.state.pop(param, None)
                continue
            own = optimizer.state[param] = _shape_like(optimizer.state.get(param) or {}, state, param)
            tensors += [
                (f"{i}.{j}.{key}", own[key]) for key, value in state.items() if isinstance(value, _SentTensor)
            ]
    return tensors


def _describe(state: Mapping[str, Any] | None, param: torch.Tensor) -> dict[str, Any] | None:
    if not state:
        return None
    return {
        key: _SentTensor(value, param) if torch.is_tensor(value) and value.layout is torch.strided else value
        for key, value in state.items()
    }


def _shape_like(
    own: Mapping[str, Any], description: Mapping[str, Any], param: torch.Tensor
) -> dict[str, Any]:
    """The state that is described: this rank's tensors where they match, new ones elsewhere, other values as sent."""
    return {
        key: value.tensor_like(own.get(key), param) if isinstance(value, _SentTensor) else value
        for key, value in description.items()
    }


def _apply_options(group: dict[str, Any], options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        own = group.get(key)
        if isinstance(own, torch.Tensor) and isinstance(value, torch.Tensor):
            own.detach().copy_(value)  # schedulers and compiled steps hold on to the tensor object
        else:
            group[key] = value


def _zero_missing_grads(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    # A sparse gradient added to dense zeros would become dense, which SparseAdam refuses.
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = () if model is None else model.modules()
    sparse = {module.weight for module in modules if isinstance(module, embeddings) and module.sparse}
    all_sparse = isinstance(optimizer, torch.optim.SparseAdam)
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.requires_grad and param.grad is None:
                if all_sparse or param in sparse:
                    param.grad = empty_sparse(param, 1)
                else:
                    param.grad = torch.zeros_like(param, requires_grad=False)
