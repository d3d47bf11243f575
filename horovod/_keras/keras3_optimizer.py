"""DistributedOptimizer for Keras 3: `apply` is what all its training loops call, whichever the backend.

Gradients are reduced first; clipping, weight decay, moving averages and accumulation of Keras' own see reduced ones. One
optimizer belongs to one thread.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from horovod._keras.backends import Backend
from horovod._keras.distributed import Distributed
from horovod._keras.gradients import GradientReducer, same_variables
from horovod._keras.options import Options


class CallableList(list):
    """A list that is also called: `optimizer.variables` and `optimizer.variables()` are both in use."""

    def __call__(self) -> "CallableList":
        return self


class Distribution:
    """What a distributed optimizer has besides what Keras knows of."""

    def __init__(self, keras: Any, options: Options, backend: Backend):
        self.keras, self.options, self.backend = keras, options, backend
        self.reducer = GradientReducer(options, backend)
        self.reduce = backend.untouched(self.reducer.reduce)
        self._introduce = backend.untouched(self.reducer.introduce)
        self.reduced = False
        self.aggregated = False  # the next gradients to be applied have been reduced when they were computed
        self.counter: Any = None
        self.sums: list = []
        self._summed: list = []  # the variables
        self._seen: set[int] = set()

    @contextmanager
    def already_reduced(self):
        """Within it the optimizer takes gradients as they are."""
        before, self.reduced = self.reduced, True
        try:
            yield
        finally:
            self.reduced = before

    def apply(self, optimizer: Any, gradients: Sequence, variables: Sequence, step: Callable) -> None:
        """Call `step(gradients, variables)` with reduced gradients: at once, or after the last of several passes."""
        if self.options.backward_passes_per_step == 1:
            step(self.reduce(gradients, variables), variables)
        else:
            self._aggregate(optimizer, gradients, variables, step)

    def _aggregate(self, optimizer, gradients, variables, step) -> None:
        ops, passes = self.keras.ops, self.options.backward_passes_per_step
        self._introduce(gradients, variables)
        self._make_sums(variables)
        if self.backend.mode() != "eager":
            self._seen.clear()
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if self.backend.sparse_kind(gradient):
                if not self.options.sparse_as_dense:
                    raise ValueError(
                        "IndexedSlices are not supported when `backward_passes_per_step` > 1 and "
                        f"`sparse_as_dense` is False: {self.backend.described(variables[index])[0]} has a sparse "
                        "gradient. Pass sparse_as_dense=True."
                    )
                gradient = self.backend.dense(gradient)
            self._seen.add(index)
            self.sums[index].assign_add(gradient)
        self.counter.assign_add(1)
        seen = set(self._seen)

        def last():
            scale = 1.0 / passes if self.options.average_aggregated_gradients else 1.0
            # A copy: the reduction may write to what it is given.
            sums = [ops.multiply(v, scale) if i in seen else None for i, v in enumerate(self.sums)]
            step(self.reduce(sums, variables), variables)
            for value in self.sums:
                value.assign(ops.zeros_like(value))
            self.counter.assign(0)
            self._seen.clear()

        def another():
            # Schedules count passes, as with Keras' own gradient_accumulation_steps.
            optimizer._iterations.assign_add(1)

        ops.cond(ops.equal(self.counter, passes), last, another)

    def _make_sums(self, variables: Sequence) -> None:
        if self.counter is not None:
            same_variables(self._summed, variables, self.backend)
            return
        self._summed = list(variables)
        with self.backend.lifted():
            self.counter = self.keras.Variable(0, dtype="int32", trainable=False, name="aggregated_passes")
            self.sums = [
                self.keras.Variable(
                    initializer="zeros",
                    shape=v.shape,
                    dtype=v.dtype,
                    trainable=False,
                    name="aggregated_gradient",
                )
                for v in variables
            ]


class Keras3Methods(Distributed):
    """The methods that DistributedOptimizer puts in front of those of the wrapped optimizer's class."""

    @property
    def _hvd(self) -> Distribution:
        # Not an attribute that Keras sees: what is in there belongs into no checkpoint. By class, as optimizers that have
        # been wrapped when they had state already share that with the original.
        states = vars(self).get("_hvd_states", {})
        if type(self) not in states:
            return self._hvd_begin(self._hvd_options)
        return states[type(self)]

    def _hvd_begin(self, options: Options) -> Distribution:
        states = vars(self).setdefault("_hvd_states", {})
        states[type(self)] = Distribution(self._hvd_keras, options, self._hvd_backend)
        return states[type(self)]

    def register_local_var(self, var: Any) -> None:
        """Leave a variable to each rank: its gradient is not reduced."""
        self._hvd.reducer.register_local(var)

    def apply(self, grads, trainable_variables=None):
        """Reduce the gradients over all ranks, then do what the wrapped optimizer does with them."""
        grads = list(grads)
        distribution = self._hvd
        aggregated, distribution.aggregated = distribution.aggregated and not distribution.reduced, False
        if aggregated:
            with distribution.already_reduced():
                return super().apply(grads, trainable_variables)
        if distribution.reduced or not grads:
            return super().apply(grads, trainable_variables)
        variables = self._hvd_built(grads, trainable_variables)

        def step(reduced, variables):
            with distribution.already_reduced():
                super(Keras3Methods, self).apply(reduced, variables)

        return distribution.apply(self, grads, variables, step)

    def _hvd_built(self, grads: list, variables: Sequence | None) -> list:
        """The variables of the gradients. Builds the optimizer, which may not happen within a branch of a graph."""
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

    # What optimizers of Keras 2 have, under its names: gradients, reduced once, for apply_gradients().

    @property
    def _aggregated_gradients(self) -> bool:
        return self._hvd.aggregated

    def _compute_gradients(self, loss, var_list, grad_loss=None, tape=None):
        variables = list(var_list() if callable(var_list) else var_list)
        return self._aggregate_gradients(
            zip(self._hvd_backend.gradients(loss, variables, grad_loss, tape), variables)
        )

    def compute_gradients(self, loss, var_list, tape=None):
        """Compute gradients, reduced over all ranks: pairs with their variables, for apply_gradients().

        Args:
            loss: a function of no arguments; or a tensor, with `tape` on TensorFlow.
            var_list: the variables.
        """
        return self._compute_gradients(loss, var_list, tape=tape)

    def get_gradients(self, loss, params):
        """Gradients of a loss for variables, reduced over all ranks."""
        return [gradient for gradient, _ in self._compute_gradients(loss, params)]

    def _aggregate_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        distribution = self._hvd
        if not pairs or distribution.aggregated or self._hvd_options.backward_passes_per_step > 1:
            return pairs  # of several passes they are summed where they are applied
        gradients, variables = zip(*pairs)
        reduced = distribution.reduce(list(gradients), list(variables))
        distribution.aggregated = True
        return list(zip(reduced, variables))

    def _allreduce_grads(self, grads: Sequence, variables: Sequence | None = None) -> list:
        return self._hvd.reduce(
            list(grads), list(self._trainable_variables if variables is None else variables)
        )

    @property
    def variables(self) -> CallableList:
        """The variables of the wrapped optimizer: a list, which may also be called."""
        return CallableList(super().variables)

    @property
    def iterations(self) -> Any:
        """Number of steps that were made, as in the wrapped optimizer."""
        value = super().iterations
        passes = self._hvd_options.backward_passes_per_step
        return value if passes == 1 else self._hvd_keras.ops.floor_divide(value, passes)


def apply_scaled(keep: Callable, scaler: Any, grads: Sequence, trainable_variables: Sequence | None) -> None:
    """`apply` of Keras' LossScaleOptimizer, around an optimizer of ours. `keep`: its own `apply`.

    Whether gradients are finite decides if a step is made, and must be asked of the reduced ones: ranks that answer
    differently would wait for each other for ever. Sums of several passes are made of gradients without the scale, as it
    may change between them.
    """
    inner = scaler.inner_optimizer
    distribution = inner._hvd
    distribution.reducer.spread_overflow = True
    grads = list(grads)
    variables = list(scaler._trainable_variables if trainable_variables is None else trainable_variables)
    if not scaler.built:
        with inner._hvd_keras.name_scope(scaler.name, caller=scaler):
            scaler.build(variables)
        scaler.built = True
    ops, passes = inner._hvd_keras.ops, inner._hvd_options.backward_passes_per_step
    overwritten = getattr(scaler, "_overwrite_variable_with_gradient", lambda variable: False)

    def times(gradients, factor):
        return [
            g if g is None or overwritten(v) else distribution.backend.scaled(g, factor)
            for g, v in zip(gradients, variables)
        ]

    def step(reduced, variables):
        if passes > 1:
            reduced = times(reduced, ops.convert_to_tensor(scaler.dynamic_scale))
        with distribution.already_reduced():
            keep(scaler, reduced, variables)

    if passes > 1:
        grads = times(grads, ops.divide(1.0, scaler.dynamic_scale))
    distribution.apply(inner, grads, variables, step)
