"""DistributedOptimizer for Keras 3, whose training loops all call `apply`, on each backend.

Gradients are reduced first; Keras' clipping, weight decay, moving averages and accumulation see reduced gradients. One
optimizer belongs to one thread.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from horovod._keras.backends import Backend
from horovod._keras.gradients import CallableList, Distributed, DistributedState
from horovod._keras.options import Options


class Keras3State(DistributedState):
    """The state of a distributed optimizer that Keras does not know of."""

    def __init__(self, keras: ModuleType, options: Options, backend: Backend) -> None:
        if refusal := backend.why_not(options):
            raise ValueError(refusal)
        super().__init__(keras, options, backend)
        self.reduce = backend.not_rewritten(self.reducer.reduce)
        self._agree_first = backend.not_rewritten(self.reducer.agree_first)
        self.reduced = False

    @contextmanager
    def already_reduced(self) -> Iterator[None]:
        """A context in which the optimizer does not reduce gradients."""
        before, self.reduced = self.reduced, True
        try:
            yield
        finally:
            self.reduced = before

    def apply(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], step: Callable[..., Any]
    ) -> None:
        """Call `step(gradients, variables)` with reduced gradients: now, or in the last of several passes."""
        if self.options.backward_passes_per_step == 1:
            step(self.reduce(gradients, variables), variables)
        else:
            self._aggregate(optimizer, gradients, variables, step)

    def _aggregate(
        self,
        optimizer: Any,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        step: Callable[[Sequence[Any], Sequence[Any]], None],
    ) -> None:
        ops, passes = self.keras.ops, self.options.backward_passes_per_step
        self._agree_first(gradients, variables)
        self.make_sums(variables)
        if self.backend.mode() != "eager":
            self._seen.clear()
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if self.backend.sparse_kind(gradient):
                if not self.options.sparse_as_dense:
                    raise ValueError(
                        "IndexedSlices are not supported when `backward_passes_per_step` > 1 and "
                        f"`sparse_as_dense` is False: {self.backend.description_of(variables[index])[0]} has a sparse "
                        "gradient. Pass sparse_as_dense=True."
                    )
                gradient = self.backend.dense(gradient)
            self._seen.add(index)
            self.sums[index].assign_add(gradient)
        self.counter.assign_add(1)
        seen = set(self._seen)

        def apply_sums() -> None:
            scale = 1.0 / passes if self.options.average_aggregated_gradients else 1.0
            # Copies: the reduction may write to its input.
            sums = [ops.multiply(v, scale) if i in seen else None for i, v in enumerate(self.sums)]
            step(self.reduce(sums, variables), variables)
            for value in self.sums:
                value.assign(ops.zeros_like(value))
            self.counter.assign(0)
            self._seen.clear()

        def count_pass() -> None:
            # Schedules count passes, as with Keras' own gradient_accumulation_steps.
            optimizer._iterations.assign_add(1)

        ops.cond(ops.equal(self.counter, passes), apply_sums, count_pass)

    def _new_sums(self, variables: list[Any]) -> tuple[Any, list[Any]]:
        counter = self.keras.Variable(0, dtype="int32", trainable=False, name="aggregated_passes")
        sums = [
            self.keras.Variable(
                initializer="zeros",
                shape=v.shape,
                dtype=v.dtype,
                trainable=False,
                name="aggregated_gradient",
            )
            for v in variables
        ]
        return counter, sums


class Keras3Methods(Distributed):
    """The methods that DistributedOptimizer puts in front of those of the wrapped optimizer's class."""

    _hvd: Keras3State
    _hvd_state_class = Keras3State

    def apply(self, grads: Iterable[Any], trainable_variables: Any = None) -> Any:
        """Reduce the gradients over all ranks, then apply them as the wrapped optimizer does."""
        grads = list(grads)
        state = self._hvd
        aggregated, state.aggregated = state.aggregated and not state.reduced, False
        if aggregated:
            with state.already_reduced():
                return super().apply(grads, trainable_variables)
        if state.reduced or not grads:
            return super().apply(grads, trainable_variables)
        variables = self._hvd_built(grads, trainable_variables)

        def step(reduced: Sequence[Any], variables: Sequence[Any]) -> None:
            with state.already_reduced():
                super(Keras3Methods, self).apply(reduced, variables)

        return state.apply(self, grads, variables, step)

    def _hvd_built(self, grads: list[Any], variables: Sequence[Any] | None) -> list[Any]:
        """The variables of the gradients. Builds the optimizer, as a branch of a graph must not build it."""
        if variables is None:
            variables = self._trainable_variables if self.built else []
        variables = list(variables)
        if len(variables) != len(grads):
            raise ValueError(
                f"There are {len(grads)} gradients for {len(variables)} variables. Pass both, in the same order; without "
                "variables the optimizer must be built: optimizer.build(model.trainable_variables)."
            )
        if not self.built:
            with self._hvd_keras.name_scope(self.name, caller=self):
                self.build(variables)
            self.built = True
        return variables

    # Methods of Keras 2, under its names: they return reduced gradients for apply_gradients().

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        variables = list(var_list() if callable(var_list) else var_list)
        return self._aggregate_gradients(
            zip(self._hvd_backend.gradients(loss, variables, grad_loss, tape), variables)
        )

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """Compute gradients, reduced over all ranks: pairs with their variables, for apply_gradients().

        Args:
            loss: a function of no arguments; or a tensor, with `tape` on TensorFlow.
            var_list: the variables.
        """
        return self._compute_gradients(loss, var_list, tape=tape)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Gradients of a loss for variables, reduced over all ranks."""
        return [gradient for gradient, _ in self._compute_gradients(loss, params)]

    def _aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        pairs = list(grads_and_vars)
        state = self._hvd
        if not pairs or state.aggregated or self._hvd_options.backward_passes_per_step > 1:
            return pairs  # with several passes they are summed when they are applied
        gradients, variables = zip(*pairs)
        reduced = state.reduce(list(gradients), list(variables))
        state.aggregated = True
        return list(zip(reduced, variables))

    def _allreduce_grads(self, grads: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        return self._hvd.reduce(
            list(grads), list(self._trainable_variables if variables is None else variables)
        )

    @property
    def variables(self) -> CallableList:
        """The variables of the wrapped optimizer: a list that can also be called."""
        return CallableList(super().variables)

    @property
    def iterations(self) -> Any:
        """Number of steps that were made; without the passes that only summed gradients."""
        value = super().iterations
        passes = self._hvd_options.backward_passes_per_step
        return value if passes == 1 else self._hvd_keras.ops.floor_divide(value, passes)


def apply_scaled(
    original: Callable[..., Any], scaler: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None
) -> None:
    """`apply` of Keras' LossScaleOptimizer with a distributed inner optimizer.

    LossScaleOptimizer skips the step if a gradient is not finite. It must check the reduced gradients: if ranks decided
    differently, they would wait for each other indefinitely. For several passes gradients without the scale are summed,
    as the scale may change between passes.

    Args:
        original: the `apply` of LossScaleOptimizer itself.
    """
    inner = scaler.inner_optimizer
    state = inner._hvd
    state.reducer.spread_overflow = True
    grads = list(grads)
    variables = list(scaler._trainable_variables if trainable_variables is None else trainable_variables)
    if not scaler.built:
        with inner._hvd_keras.name_scope(scaler.name, caller=scaler):
            scaler.build(variables)
        scaler.built = True
    ops, passes = inner._hvd_keras.ops, inner._hvd_options.backward_passes_per_step
    overwritten = getattr(scaler, "_overwrite_variable_with_gradient", lambda variable: False)

    def times(gradients: Sequence[Any], factor: Any) -> list[Any]:
        return [
            g if g is None or overwritten(v) else state.backend.scaled(g, factor)
            for g, v in zip(gradients, variables)
        ]

    def step(reduced: Sequence[Any], variables: Sequence[Any]) -> None:
        if passes > 1:
            reduced = times(reduced, ops.convert_to_tensor(scaler.dynamic_scale))
        with state.already_reduced():
            original(scaler, reduced, variables)

    if passes > 1:
        grads = times(grads, ops.divide(1.0, scaler.dynamic_scale))
    state.apply(inner, grads, variables, step)
