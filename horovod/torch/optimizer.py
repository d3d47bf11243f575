"""DistributedOptimizer: a torch optimizer that averages gradients over all ranks before each step.

The arithmetic of the wrapped optimizer is untouched; reductions live in ``_reducer``. One optimizer belongs
to one thread, except the backward hooks.
"""

import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from horovod.common._elastic_job import ranks_may_change
from horovod.common.arguments import (
    Adasum,
    Average,
    check_backward_passes,
    check_groups,
    check_predivide_factor,
    check_registered,
    groups_from,
    predivide_factors,
)
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.torch import _gradients
from horovod.torch._compile import leave_alone
from horovod.torch._gradients import as_real, check_gradient_buffers, refuse_gradient_buffers
from horovod.torch._operations import forget_finished
from horovod.torch._reducer import GradientReducer, keep_until_done
from horovod.torch.compression import Compression, Compressor
from horovod.torch.functions import allgather_object, broadcast_object  # noqa: F401 (see below)
from horovod.torch.mpi_ops import (  # noqa: F401 (modified optimizers import the operations and sizes from here)
    Sum,
    allreduce,
    allreduce_async_,
    grouped_allreduce_async_,
    rank,
    rocm_built,
    size,
    sparse_allreduce_async,
    synchronize,
)
from hvd_core._frontend.initial_weights import checked

__all__ = ["DistributedOptimizer"]


# The names of the parameters of a DistributedOptimizer, and checks of them. Pure functions; any thread.


def find_duplicates(values: Iterable[Any]) -> set[Any]:
    """The elements that occur in `values` more than once."""
    return {value for value, count in Counter(values).items() if count > 1}


def name_parameters(
    param_groups: list[Any], named_parameters: Iterable[Any] | None
) -> dict[torch.Tensor, str]:
    """{parameter: name} of all parameters. Raises ValueError as DistributedOptimizer documents."""
    if named_parameters is None:
        return {
            param: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(param_groups)
            for j, param in enumerate(group["params"])
        }
    named = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    duplicates = find_duplicates(name for name, _ in named)
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. "
            f"Found duplicates: {', '.join(sorted(duplicates))}"
        )
    names = {param: name for name, param in named}
    unnamed = [
        f"parameter {j} of group {i} with shape {list(param.shape)}"
        for i, group in enumerate(param_groups)
        for j, param in enumerate(group["params"])
        if param not in names
    ]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named: "
            f"{'; '.join(unnamed[:8])}{' ...' if len(unnamed) > 8 else ''}. Pass the names of all of them."
        )
    return names


def require_same_names(of_all: list[list[str]], ranks: list[int] | None) -> None:
    """Raise ValueError unless the ranks reduce the same parameters. The same on all of them.

    `of_all`: each rank's names, by its place in the process set, whose `ranks` are named (None: all in order).
    """
    for place, names in enumerate(of_all):
        different = sorted(set(of_all[0]) ^ set(names))
        if different:
            here, first = (place, 0) if ranks is None else (ranks[place], ranks[0])
            raise ValueError(
                "groups=n divides the parameters that require grad, which must be the same on all ranks, but only one of "
                f"the ranks {first} and {here} has {', '.join(different[:8])}{' ...' if len(different) > 8 else ''}. "
                "Freeze the same parameters everywhere, or give `groups` as lists."
            )


_CLASSES: dict[tuple[type, type], type[Any]] = {}

# The optimizers whose hooks are in place.
_WATCHING: weakref.WeakSet[Any] = weakref.WeakSet()


def _world_size() -> int:
    # Looked up in the package at each call: a test may patch horovod.torch.size.
    number: int = sys.modules["horovod.torch"].size()
    return number


# Private names of the original's optimizer that have no counterpart. Those that known programs read exist.
_NAMES_OF_HOROVOD = frozenset(
    (
        *("_allreduce_delay", "_allreduce_grad_async", "_grad_accs", "_group_counts", "_groups", "_handles"),
        *("_grouped_allreduce_grad_async", "_make_hook", "_num_groups", "_optimizer", "_p_to_group"),
        *("_register_hook", "_register_hooks", "_should_synchronize", "_sparse_allreduce_grad_async"),
        *("_starting_models", "_synchronized", "gradient_predivide_factor", "sparse_as_dense"),
    )
)


class _Wrapper(torch.optim.Optimizer):
    """The base of both kinds of distributed optimizers: methods that precede those of the wrapped optimizer's class."""

    _original: torch.optim.Optimizer
    _parameter_names: dict[torch.Tensor, str]

    find_duplicates = staticmethod(find_duplicates)

    def _own_step(self, closure: Callable[..., Any] | None) -> Any:
        """The step of the wrapped optimizer, which may take no closure."""
        # A scheduler that was made for the original asks it whether a step was done.
        self._original._opt_called = True  # type: ignore[attr-defined]  # of schedulers
        return super().step() if closure is None else super().step(closure)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; their gradients are reduced too. Call it on all ranks. Another DistributedOptimizer
        that has some of them is replaced by this one."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        for position, param in enumerate(self.param_groups[index]["params"]):
            self._parameter_names.setdefault(param, f"allreduce.noname.{index}.{position}")

    def __getattr__(self, name: str) -> Any:
        # Called where a name is not found otherwise. An optimizer of a program may have such a method too.
        text = f"'{type(self).__name__}' object has no attribute '{name}'"
        inherited = getattr(super(), "__getattr__", None)
        if name not in _NAMES_OF_HOROVOD and inherited is not None:
            return inherited(name)
        if name in _NAMES_OF_HOROVOD:
            text += (
                ", a private name of Horovod 0.28's optimizer. Here the public methods are synchronize(), "
                "skip_synchronize(), step() and set_backward_passes_per_step()."
            )
        raise AttributeError(text, name=name, obj=self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a loaded state. The groups and the state stay the same objects: the original has them too, and a scheduler
        that was made for it changes the learning rate there."""
        groups, values = self.param_groups, self.state
        super().__setstate__(state)
        if self.param_groups is not groups:
            for own, loaded in zip(groups, self.param_groups):
                own.clear()
                own.update(loaded)
            self.param_groups = groups
        if self.state is not values:
            values.clear()
            values.update(self.state)
            self.state = values

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"horovod: a DistributedOptimizer ({type(self).__name__}) cannot be copied or pickled, as it belongs to this "
            "process in the job. Copy or save its state_dict(), or copy the optimizer before it is wrapped."
        )


class _DistributedAdasumOptimizer(_Wrapper):
    """op=Adasum: each rank does its own step, and Adasum combines the changes of the weights.

    Adasum is for changes of the weights rather than for gradients: a change contains the learning rate and the
    optimizer's own arithmetic. Belongs to one thread, like any optimizer; there are no hooks.
    """

    op: int = Adasum

    def _distribute(
        self,
        names: dict[torch.Tensor, str],
        compression: type[Compressor],
        passes: int,
        process_set: ProcessSet,
    ) -> None:
        self._parameter_names = names
        self._compression = compression
        self.backward_passes_per_step: int = passes
        self.process_set = process_set
        self._starts: dict[torch.Tensor, torch.Tensor] = {}  # the weights before the step

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """The parameters whose changes are combined. A new set."""
        return {param for group in self.param_groups for param in group["params"] if param.requires_grad}

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes per step()."""
        check_backward_passes(passes)
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Does nothing: gradients stay this rank's own."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Not possible with Adasum. Raises AssertionError."""
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer: step() does a step with this rank's "
            "gradients and combines the changes of the weights. Change gradients before step(), without "
            "skip_synchronize()."
        )
        yield

    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """Do a step of the wrapped optimizer with this rank's gradients, and combine the changes of all ranks' steps.

        Args:
            closure: as in the wrapped optimizer.

        Returns:
            The result of the wrapped optimizer's step().

        Raises:
            HorovodInternalError: the ranks could not combine their steps. The parameters are as before the call then.
        """
        if not self.process_set.included():
            return self._own_step(closure)
        own = {param for group in self.param_groups for param in group["params"]}
        params = [param for param in self._parameter_names if param.requires_grad and param in own]
        with torch.no_grad():
            for param in params:
                start = self._starts.get(param)
                if start is None or start.shape != param.shape or start.dtype != param.dtype:
                    start = self._starts[param] = torch.empty_like(param, requires_grad=False)
                start.copy_(param)
        loss = self._own_step(closure)
        with torch.no_grad():
            try:
                self._combine(params)
            except BaseException:
                for param in params:
                    param.copy_(self._starts[param])
                raise
        return loss

    # torch wraps the step() of each optimizer class to call its step hooks; _own_step() already does.
    step.hooked = True  # type: ignore[attr-defined]  # PyTorch's mark

    def _combine(self, params: list[torch.Tensor]) -> None:
        """Replace the change that the step made to each parameter by the Adasum of all ranks' changes."""
        pending = []
        compared = checked()
        try:
            for param in params:
                change = param.detach().sub(self._starts[param])
                plain = as_real(change)
                sent, context = self._compression.compress(plain.contiguous())
                name = self._parameter_names[param]
                if compared:
                    start = self._starts[param]
                    _gradients.announce(f"allreduce.{name}", [(name, start)], self.process_set)
                handle = allreduce_async_(sent, name=name, op=Adasum, process_set=self.process_set)
                pending.append((param, handle, context))
            for param, handle, context in pending:
                change = self._compression.decompress(synchronize(handle), context)
                if param.is_complex():
                    change = torch.view_as_complex(change)
                torch.add(self._starts[param], change, out=param.detach())
        except BaseException:
            forget_finished(handle for _, handle, _ in pending)
            raise


class _DistributedOptimizer(_Wrapper):
    """Reduces the gradients before each step."""

    def _distribute(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        groups: int | list[Any] | None,
        reducer: GradientReducer,
        shared: bool,
    ) -> None:
        self._reducer = reducer
        self._asked_groups = groups
        self._should_synchronize = True
        self._synchronized = False
        self._frozen: list[tuple[torch.Tensor, str]] = []
        self._parameter_names = name_parameters(self.param_groups, named_parameters)
        self._replaced: str | None = None  # the name of a parameter that a newer optimizer has too
        self._finalizer = weakref.finalize(self, _let_go, reducer.hooks, reducer.active, reducer.process_set)
        self._active = bool(reducer.process_set.included()) and (_world_size() > 1 or ranks_may_change())
        try:
            for group in self.param_groups:
                for param in group["params"]:
                    self._watch(param)
            if groups is not None:
                self._form_groups(groups)
            if shared and self._active:
                reducer.share_memory()
        except BaseException:
            self._finalizer()
            raise
        if self._active:
            self._replace_others()
            _WATCHING.add(self)

    def _replace_others(self) -> None:
        """Take over from other optimizers that have some of this one's parameters, and that something keeps alive, such
        as a scheduler of the first run of a notebook's cell. With the hooks of both, gradients would be reduced twice."""
        own = {param for group in self.param_groups for param in group["params"]}
        for other in list(_WATCHING - {self}):
            theirs = (param for group in other.param_groups for param in group["params"])
            shared = next((param for param in theirs if param in own), None)
            if shared is not None:
                other._reducer.abandon()
                other._finalizer()
                other._active, other._replaced = False, other._parameter_names[shared]
                _WATCHING.discard(other)

    def _watch(self, param: torch.Tensor) -> None:
        if not self._active:
            return
        if param.requires_grad:
            self._reducer.watch(param, self._parameter_names[param])
        else:
            self._frozen.append((param, self._parameter_names[param]))

    def _watch_unfrozen(self) -> None:
        """Watch parameters that did not require grad when the optimizer was wrapped but do now."""
        still_frozen = []
        for param, name in self._frozen:
            if param.requires_grad:
                self._reducer.watch(param, name)
            else:
                still_frozen.append((param, name))
        self._frozen = still_frozen

    def _form_groups(self, groups: int | Sequence[Sequence[torch.Tensor]]) -> None:
        # Names may include parameters of other optimizers, which must not name our groups.
        slots = self._reducer.slots
        if isinstance(groups, int):
            by_name = {name: param for param, name in self._parameter_names.items() if param in slots}
            names = list(by_name)
            if self._active:
                # All ranks use the order of the first rank, so that a group has the same members everywhere.
                process_set = self._reducer.process_set
                of_all = allgather_object(names, "optimizer_groups", process_set)
                require_same_names(of_all, process_set.ranks)
                names = of_all[0]
            groups = [[by_name[name] for name in part] for part in split_list(names, groups)]
        for index, members in enumerate(groups):
            own = [param for param in members if param in slots]
            if own:
                self._reducer.group(own, f"group.{index}.{self._parameter_names[own[0]]}")

    @property
    def backward_passes_per_step(self) -> int:
        """Number of backward passes whose gradients are summed locally before they are reduced."""
        return self._reducer.passes

    @property
    def op(self) -> int:
        """The reduce op."""
        return self._reducer.op

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that take part."""
        return self._reducer.process_set

    # Names of the original's that programs read.

    @property
    def gradient_predivide_factor(self) -> float:
        """The argument of DistributedOptimizer."""
        return self._reducer.factors[1]

    @property
    def sparse_as_dense(self) -> bool:
        """Whether sparse gradients are reduced as dense tensors."""
        return self._reducer.sparse_as_dense

    @property
    def _compression(self) -> type[Compressor]:
        """The class that compresses gradients."""
        return self._reducer.compression

    @property
    def _groups(self) -> int | list[Any] | None:
        """The argument `groups` of DistributedOptimizer."""
        return self._asked_groups

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """The parameters whose gradients are reduced. A new set."""
        return set(self._reducer.slots)

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        """Start reducing the gradient of a parameter now, instead of the hook. synchronize() waits for it.

        Returns the handle of the reduction, as `hvd.poll` takes it (a function for a sparse gradient), and the context of
        the compression. Raises ValueError: the optimizer does not reduce the gradient of `p`.
        """
        return self._reducer.start(p)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes per step(). Call it between steps, on all ranks."""
        check_backward_passes(passes)
        self._reducer.set_passes(passes)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of state_dict(). Pending reductions are abandoned."""
        self._reducer.abandon()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            self._watch(param)
        if self._active:
            self._replace_others()

    def synchronize(self) -> None:
        """Wait until the gradients of all parameters are reduced; they are in ``param.grad`` then.

        Parameters without a gradient on this rank count as zero. Call it before gradients are read or changed
        (clipping), and step() inside ``with optimizer.skip_synchronize()`` after it.

        Raises:
            HorovodInternalError: a reduction failed, here or on another rank.
        """
        self._reduce()
        self._reducer.remember_reduced()
        self._synchronized = True

    def _reduce(self) -> None:
        if self._replaced is not None:
            raise ValueError(
                f"Another DistributedOptimizer was made for parameters of this {type(self).__name__} (such as "
                f"{self._replaced!r}), and reduces their gradients since then. Use the newer one, or give each optimizer "
                "parameters of its own."
            )
        if self._active:
            if self._frozen:
                self._watch_unfrozen()
            self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it step() does not reduce gradients, because synchronize() was called before."""
        before, self._should_synchronize = self._should_synchronize, False
        try:
            yield
        finally:
            self._should_synchronize = before

    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """Reduce the gradients and do one step of the wrapped optimizer.

        Args:
            closure: as in the wrapped optimizer. The gradients that it computes are reduced when it returns. For LBFGS
                the loss is reduced too, as LBFGS decides by it; all ranks evaluate the closure equally often.

        Returns:
            The result of the wrapped optimizer's step().

        Raises:
            HorovodInternalError: a reduction failed, here or on another rank.
        """
        if not self._should_synchronize:
            self._synchronized = False
            self._reducer.reduced = {}
            return self._own_step(closure)
        done = self._synchronized and not self._reducer.busy and self._reducer.still_reduced()
        if done:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(). The gradients are already reduced. Put step() into "
                "`with optimizer.skip_synchronize():`.",
                stacklevel=2,
            )
        self._synchronized = False
        self._reducer.reduced = {}
        if closure is None:
            if not done:
                if not self._reducer.has_warned and self._reducer.busy:
                    _gradients.warn_of_scaler(self, self._reducer)
                self._reduce()
            return self._own_step(None)
        # The gradients of a closure do not exist yet. Reductions that a backward before step() has begun are finished
        # first.
        if self._reducer.busy:
            self._reduce()
            done = True

        decides_by_loss = self._active and isinstance(self, torch.optim.LBFGS)

        def reducing_closure() -> Any:
            loss = closure()
            if self._reducer.busy or not done:
                self._reduce()
            return self._loss_of_all(loss) if decides_by_loss else loss

        return self._own_step(reducing_closure)

    def _loss_of_all(self, loss: Any) -> torch.Tensor:
        """The loss, reduced like the gradients, for optimizers that decide by it.

        With its own loss each rank would choose another step, evaluate the closure another number of times, and wait for
        the other ranks forever.
        """
        value = torch.as_tensor(loss).detach().clone().contiguous()
        name = self._parameter_names[self.param_groups[0]["params"][0]]
        return allreduce(value, name=f"loss.{name}", op=self.op, process_set=self.process_set)

    # torch wraps the step() of each optimizer class to call its step hooks; _own_step() already does.
    step.hooked = True  # type: ignore[attr-defined]  # PyTorch's mark

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients. Arguments (`set_to_none`) are those of the wrapped optimizer's zero_grad().

        Raises:
            AssertionError: gradients are being reduced, because a backward ran and neither step() nor
                synchronize().
        """
        if self._reducer.busy:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). The gradients are being reduced, so this would be a race."
            )
        self._synchronized = False  # also if a GradScaler has skipped the step
        self._reducer.reduced = {}
        super().zero_grad(*args, **kwargs)  # a user's optimizer may take no arguments


def _let_go(hooks: list[Any], active: list[Any], process_set: ProcessSet) -> None:
    """Clean up after an optimizer that was deleted: remove its hooks, and keep its pending reductions until they end."""
    for hook in hooks:
        hook.remove()
    keep_until_done(active, process_set.process_set_id)
    active.clear()


def _wrap(optimizer: torch.optim.Optimizer, methods: type[_Wrapper]) -> Any:
    """`optimizer` as an instance of a class whose `methods` precede those of its own class."""
    base = type(optimizer)
    cls = _CLASSES.get((methods, base))
    if cls is None:
        cls = _CLASSES[methods, base] = type(base.__name__, (methods, base), {"__module__": __name__})
    # Not through __init__, which differs between optimizers: the wrapper takes over options, state and hooks
    # unchanged. An instance attribute `step` is a scheduler's wrapper around the step() of the original optimizer.
    wrapped: Any = object.__new__(cls)
    wrapped.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    wrapped._original = optimizer
    return wrapped


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[Any] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient_buffers: str | None = None,
) -> Any:
    """Wrap an optimizer so that step() uses gradients reduced over all ranks.

    Each gradient is sent as soon as backward has computed it, so that communication overlaps with
    computation.
    Broadcast the initial values first: hvd.broadcast_parameters(model.state_dict(), root_rank=0).

    Args:
        optimizer: any torch optimizer. Parameter groups and state are shared with it, not copied.
        named_parameters: (name, parameter) pairs, usually ``model.named_parameters()``; all parameters of the
            optimizer must be named. Names identify gradients across ranks. Needed when several optimizers are
            in use at the same time.
        compression: makes a smaller tensor that is sent for a gradient, such as hvd.Compression.fp16.
        backward_passes_per_step: gradients of this many backward passes are summed locally, then reduced.
        op: hvd.Average (default), Sum, Min, Max or Product. With hvd.Adasum each rank does a step of the wrapped
            optimizer with its own gradients, and Adasum combines the changes of the weights. The state of the
            optimizer (momentum) is each rank's own then: a checkpoint of rank 0 has that of rank 0. synchronize() does
            nothing, skip_synchronize() raises AssertionError, `groups` and `sparse_as_dense` do not matter.
        gradient_predivide_factor: f splits the averaging: gradients are divided by f before the sum, and
            multiplied by f / size after it. Only with op=Average.
        num_groups: deprecated, use `groups`.
        groups: n > 0 reduces the gradients in n all-or-nothing groups of about equal length; a list of lists
            of parameters says which belong together. None: no groups.
        sparse_as_dense: reduce sparse gradients as dense tensors.
        process_set: the ranks that take part. On other ranks step() changes the local parameters only.
        gradient_buffers: "shared" keeps the gradients in memory that the ranks of one host share, where they are reduced
            without a copy. All ranks give the same value. Where the ranks cannot share memory, the gradients stay in
            ordinary memory, and a warning has the reason. Forked processes do not have these gradients.

    Returns:
        An optimizer of a class that derives from that of `optimizer` and bears its name, with synchronize(),
        skip_synchronize() and set_backward_passes_per_step() in addition.

    Raises:
        ValueError: Horovod is not initialized; backward_passes_per_step <= 0; gradient_predivide_factor
            without Average; named_parameters are not pairs, not unique or incomplete; wrong groups; `groups`
            is a number and the ranks have frozen different parameters; the process set is not registered; an unknown
            value of `gradient_buffers`;
            `optimizer` is a DistributedOptimizer already.

    An earlier DistributedOptimizer that has some of the same parameters is replaced: its step() and synchronize() raise
    ValueError from now on.
    """
    check_predivide_factor(gradient_predivide_factor, op)
    check_backward_passes(backward_passes_per_step)
    check_gradient_buffers(gradient_buffers)
    if isinstance(optimizer, _Wrapper):
        raise ValueError(
            f"This {type(optimizer).__name__} is a DistributedOptimizer already. Wrap the original optimizer, once."
        )
    groups = groups_from(num_groups, groups)
    check_groups(groups, "torch.Tensor", lambda value: isinstance(value, torch.Tensor))
    check_registered(process_set, "DistributedOptimizer")
    if op == Adasum and _world_size() > 1:
        if gradient_buffers is not None:
            refuse_gradient_buffers(
                "op=hvd.Adasum reduces changes of the weights, not gradients", process_set
            )
        wrapped = _wrap(optimizer, _DistributedAdasumOptimizer)
        names = name_parameters(optimizer.param_groups, named_parameters)
        wrapped._distribute(names, compression, backward_passes_per_step, process_set)
        return wrapped
    wrapped = _wrap(optimizer, _DistributedOptimizer)
    reducer = GradientReducer(
        compression,
        op,
        *predivide_factors(gradient_predivide_factor),
        backward_passes_per_step,
        sparse_as_dense,
        process_set,
    )
    wrapped._distribute(named_parameters, groups, reducer, gradient_buffers == "shared")
    leave_alone()
    return wrapped
