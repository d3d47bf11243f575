"""DistributedOptimizer for Keras 2, whose optimizers also compute gradients.

Optimizers have one of two sets of methods: those of TensorFlow 2.11 and later, and those of keras.optimizers.legacy.

Gradients are reduced once: by the method that computes them (minimize(), model.fit), or else by the method that applies
them (tf.GradientTape). One optimizer belongs to one thread.
"""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import tensorflow as tf

from horovod._keras.backends import version
from horovod._keras.gradients import Distributed, DistributedState

# (gradient, variable)
Pair = tuple[Any, Any]


class Keras2State(DistributedState):
    """The state of a distributed optimizer that Keras does not know of."""

    to_sum = False  # gradients were computed, and are to be summed when they are applied

    def reduced(self, pairs: list[Pair]) -> list[Pair]:
        """(gradient, variable) pairs with reduced gradients."""
        gradients, variables = zip(*pairs)
        return list(zip(self.reducer.reduce(gradients, variables), variables))

    def summed(self, pairs: list[Pair]) -> list[Pair]:
        """(gradient, variable) pairs: the reduced sums of several passes in the last of them, zeros in the others."""
        passes = self.options.backward_passes_per_step
        backend = self.backend
        for gradient, variable in pairs:
            if backend.sparse_kind(gradient) and not self.options.sparse_as_dense:
                raise ValueError(
                    "IndexedSlices are not supported when `backward_passes_per_step` > 1 and "
                    f"`sparse_as_dense` is False: {variable.name} has a sparse gradient. Pass sparse_as_dense=True."
                )
        # Indices of the variables that get a gradient.
        results_at: Iterable[int] = self.reducer.agree_first(*zip(*pairs))
        self.make_sums([variable for _, variable in pairs])
        present = [i for i, (gradient, _) in enumerate(pairs) if gradient is not None]
        summed = present
        if backend.mode() == "eager":  # which gradients are None may differ between passes and between ranks
            self._seen.update(present)
            summed, results_at = sorted(self._seen), range(len(pairs))
        results_at = sorted({*results_at, *summed})
        added = [self.sums[i].assign_add(tf.convert_to_tensor(pairs[i][0])) for i in present]
        with tf.control_dependencies(added):
            count = self.counter.assign(self.counter % passes + 1)
        with tf.control_dependencies([count]):
            scale = 1.0 / passes if self.options.average_aggregated_gradients else 1.0
            sums = {i: tf.identity(self.sums[i]) * scale for i in summed}

        def reduce_sums() -> list[Any]:
            gradients = [sums.get(i) for i in range(len(pairs))]
            reduced = self.reducer.reduce(gradients, [variable for _, variable in pairs])
            emptied = [self.sums[i].assign(tf.zeros_like(self.sums[i])) for i in summed]
            self._seen.clear()
            with tf.control_dependencies(emptied):
                return [None if reduced[i] is None else tf.convert_to_tensor(reduced[i]) for i in results_at]

        values = tf.cond(
            self.is_last_pass(), reduce_sums, lambda: [tf.zeros_like(self.sums[i]) for i in results_at]
        )
        result: list[Any] = [None] * len(pairs)
        for i, value in zip(results_at, values if isinstance(values, (list, tuple)) else [values]):
            result[i] = value
        return [(value, variable) for value, (_, variable) in zip(result, pairs)]

    def is_last_pass(self) -> tf.Tensor:
        return tf.equal(self.counter, self.options.backward_passes_per_step)

    def _new_sums(self, variables: list[Any]) -> tuple[Any, list[Any]]:
        counter = tf.Variable(0, dtype=tf.int32, trainable=False, name="aggregated_passes")
        return counter, [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in variables]


class _Methods(Distributed):
    """The methods that both sets have in common."""

    _hvd: Keras2State
    _hvd_state_class = Keras2State
    _compute_gradients: Callable[..., list[Pair]]
    _aggregate_gradients: Callable[..., list[Pair]]

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[Pair]:
        """Compute gradients, reduced over all ranks."""
        return self._compute_gradients(loss, var_list, tape=tape)

    def aggregate_gradients(self, grads_and_vars: Iterable[Pair]) -> list[Pair]:
        """Reduce gradients over all ranks, unless they have been reduced."""
        return self._aggregate_gradients(grads_and_vars)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Gradients of a loss, reduced over all ranks: those that the wrapped class's get_gradients() returns, or, if it
        has no such method, those of a loss in a graph."""
        params = tf.nest.flatten(params)
        own = getattr(super(), "get_gradients", tf.gradients)
        return [gradient for gradient, _ in self._hvd_computed(zip(own(loss, params), params))]

    def _allreduce_grads(self, grads: Iterable[Any], variables: Iterable[Any]) -> list[Any]:
        return self._hvd.reducer.reduce(list(grads), list(variables))

    def _hvd_computed(self, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs for a method that computes gradients to return: reduced, unless several passes are summed."""
        pairs = list(pairs)
        if self._hvd_options.backward_passes_per_step > 1 or not pairs:
            self._hvd.to_sum = bool(pairs)
            return pairs
        self._hvd.aggregated = True
        return self._hvd.reduced(pairs)

    def _hvd_aggregated(
        self, pairs: Iterable[Pair], over_replicas: Callable[[list[Pair]], Iterable[Pair]]
    ) -> list[Pair]:
        """The pairs for a method that sums gradients over replicas to return: reduced, if they are not yet."""
        pairs = list(pairs)
        # If all are None Keras raises, but other ranks may have gradients.
        if any(gradient is not None for gradient, _ in pairs):
            pairs = list(over_replicas(pairs))
        state = self._hvd
        if not pairs or state.aggregated:
            return pairs
        if self._hvd_options.backward_passes_per_step > 1:
            state.to_sum = False
            return state.summed(pairs)
        return state.reduced(pairs)

    def _hvd_apply(
        self, build: Callable[..., Any], apply: Callable[..., Any], pairs: Any, aggregate: bool
    ) -> Any:
        """Apply gradients in the last of several passes. In the other passes count the iteration."""
        state = self._hvd
        try:
            if self._hvd_options.backward_passes_per_step == 1:
                return apply(pairs, aggregate)
            pairs = list(pairs)
            with tf.init_scope():  # a branch of a graph must not make variables
                build([variable for _, variable in pairs])
            if aggregate or state.to_sum:
                pairs = state.summed(pairs)
            elif state.counter is None:  # the program has reduced the gradients: there are no passes to count
                return apply(pairs, False)

            def apply_sums() -> tf.Tensor:
                apply(pairs, False)
                return tf.identity(self.iterations)

            def count_pass() -> tf.Tensor:
                return tf.identity(self.iterations.assign_add(1))

            return tf.cond(state.is_last_pass(), apply_sums, count_pass)
        finally:
            state.aggregated = state.to_sum = False


class Keras2Methods(_Methods):
    """In front of the methods of an optimizer of Keras 2."""

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[Pair]:
        if grad_loss is not None:
            raise ValueError(
                "grad_loss is for optimizers of keras.optimizers.legacy. Multiply the loss by it."
            )
        return self._hvd_computed(super(_Methods, self).compute_gradients(loss, var_list, tape))

    def _aggregate_gradients(self, grads_and_vars: Iterable[Pair]) -> list[Pair]:
        return self._hvd_aggregated(grads_and_vars, super(_Methods, self).aggregate_gradients)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[Pair],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Reduce gradients over all ranks, unless they have been reduced, and apply them."""
        aggregate = not skip_gradients_aggregation and kwargs.pop("experimental_aggregate_gradients", True)

        def apply(pairs: Iterable[Pair], aggregate: bool) -> Any:
            return super(Keras2Methods, self).apply_gradients(
                pairs, name=name, skip_gradients_aggregation=not aggregate, **kwargs
            )

        return self._hvd_apply(self.build, apply, grads_and_vars, aggregate)


class LegacyMethods(_Methods):
    """In front of the methods of an optimizer of keras.optimizers.legacy."""

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[Pair]:
        return self._hvd_computed(super()._compute_gradients(loss, var_list, grad_loss, tape))

    def _aggregate_gradients(self, grads_and_vars: Iterable[Pair]) -> list[Pair]:
        return self._hvd_aggregated(grads_and_vars, super()._aggregate_gradients)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[Pair],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Reduce gradients over all ranks, unless they have been reduced, and apply them."""

        def apply(pairs: Iterable[Pair], aggregate: bool) -> Any:
            return super(LegacyMethods, self).apply_gradients(
                pairs, name=name, experimental_aggregate_gradients=aggregate
            )

        done = self._hvd_apply(
            self._create_all_weights, apply, grads_and_vars, experimental_aggregate_gradients
        )
        # LossScaleOptimizer calls this in a branch of a graph, and expects an operation.
        return tf.group(done) if tf.is_symbolic_tensor(done) else done


def methods_for(keras: ModuleType, optimizer: Any) -> type:
    """The class of methods for an optimizer. Raises TypeError if `optimizer` is not an optimizer of Keras 2."""
    if isinstance(optimizer, keras.optimizers.legacy.Optimizer):
        return LegacyMethods
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return Keras2Methods
    raise TypeError(
        f"DistributedOptimizer takes an optimizer of Keras {version(keras)} (keras.optimizers or "
        f"keras.optimizers.legacy), but found {type(optimizer).__module__}.{type(optimizer).__name__}."
    )


def scaler_around(scaler: Any, cls: type, inner: Any) -> Any:
    """A LossScaleOptimizer like `scaler`, of `cls`, around `inner`."""
    result: Any = object.__new__(cls)
    if vars(inner) is vars(scaler.inner_optimizer):  # the optimizer has state, and so has the scale
        object.__setattr__(result, "__dict__", vars(scaler))
        vars(result)["_optimizer"] = inner
        inner._hvd.reducer.spread_overflow = True
        return result
    inner._is_wrapped_by_loss_scale_optimizer = False  # the copy has the attribute of the original
    config = dict(scaler.get_config())
    config.pop("inner_optimizer", None)
    if isinstance(config.get("dynamic"), bool) and not config["dynamic"]:
        config.pop("dynamic_growth_steps", None)
    result.__init__(inner, **config)
    return result
