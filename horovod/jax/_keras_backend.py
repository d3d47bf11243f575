"""Keras 3 on JAX: its gradients and variables through ``horovod.jax``. See horovod/_keras/backends.py.

Keras traces its training step, so gradients are reduced in a compiled program, by operations of about 25 MB. A variable's
array changes with each step, and is a tracer in the step: the variable itself is its identity.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod._keras.backends import Backend
from horovod._keras.options import Options
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.jax import mpi_ops
from horovod.jax._trace import is_traced
from horovod.jax.elastic import copied, may_be_of_operation, restored
from horovod.jax.functions import broadcast_parameters
from horovod.jax.optimizer import buckets_of
from hvd_core._runtime.failures import send_failure


class JaxBackend(Backend):
    """jax.Array and keras.Variable."""

    batch_prefix = "allreduce."

    def mode(self) -> str:
        return "graph" if is_traced(()) else "eager"

    def identity(self, variable: Any) -> Any:
        return variable

    def is_variable(self, value: Any) -> bool:
        return isinstance(value, sys.modules["keras"].Variable)  # loaded, as it runs on JAX

    def description_of(self, variable: Any) -> tuple[str, list[int], str]:
        name = getattr(variable, "path", None) or getattr(variable, "name", None) or "a tensor"
        return name, list(variable.shape), str(variable.dtype)

    def values_of(self, variable: Any) -> np.ndarray | None:
        with suppress(Exception):  # of a tracer, and of an array that the step has been given
            return np.asarray(variable.value)
        return None

    def gradients(self, loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> list[Any]:
        raise ValueError(
            "Keras on JAX has no tape: compute gradients with jax.grad() of a function of the variables' values, and "
            "pass them to optimizer.apply() or stateless_apply()."
        )

    def why_not(self, options: Options) -> str:
        if options.backward_passes_per_step > 1:
            return (
                "backward_passes_per_step > 1 does not work with Keras on JAX, whose steps have no side effects. Pass "
                "gradient_accumulation_steps to the Keras optimizer instead."
            )
        return ""

    def sync_model(self, model: Any) -> None:
        # In fit() the trainer keeps the values, and takes them from the variables again after this.
        getattr(model, "jax_state_sync", lambda: None)()

    def may_be_of_operation(self, error: Exception) -> bool:
        return may_be_of_operation(error)

    def forget_step(self, model: Any) -> None:
        # The arrays have been given to the step.
        model._jax_state, model._jax_state_synced = None, True

    def copies_of(self, variables: Sequence[Any], earlier: Sequence[Any] | None) -> list[Any]:
        return list(copied([variable.value for variable in variables], earlier))

    def assign(self, variables: Sequence[Any], copies: Sequence[Any]) -> None:
        for variable, value in zip(variables, restored(copies)):
            variable.assign(value)

    def sparse_kind(self, gradient: Any) -> int:
        return 0

    def dense(self, gradient: Any) -> Any:
        return gradient

    def sparse(self, gradient: Any, kind: int) -> Any:
        raise ValueError("Keras on JAX has no sparse gradients here.")

    def zeros_for(self, variable: Any, kind: int) -> jax.Array:
        return jnp.zeros(variable.shape, variable.dtype)

    def misfit_for(self, variable: Any, kind: int) -> jax.Array:
        return jnp.zeros((0,), variable.dtype)

    def depending_on(self, outcomes: list[Any], gradients: list[Any]) -> list[Any]:
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if outcomes and present:  # so that the compiler does not leave the operations out
            tied = jax.lax.optimization_barrier((gradients[present[0]], *outcomes))
            gradients[present[0]] = tied[0]
        return gradients

    def scaled(self, gradient: Any, factor: Any) -> Any:
        return gradient * jnp.asarray(factor, gradient.dtype)

    def nan_unless_finite(self, gradients: list[Any]) -> jax.Array:
        finite = jnp.stack([jnp.isfinite(gradient).all() for gradient in gradients]).all()
        return jnp.where(finite, 1.0, jnp.nan)

    def batches(self, indices: list[int], gradients: list[Any], variables: list[Any]) -> list[list[int]]:
        return [
            [indices[place] for place in bucket] for bucket in buckets_of([gradients[i] for i in indices])
        ]

    def reduce(
        self,
        batches: list[list[Any]],
        names: list[str],
        variables: list[Any],
        options: Options,
        presence: list[bool] | None,
    ) -> tuple[list[list[Any]], Any]:
        results: list[list[Any]] = []
        reduced_presence = None
        for arrays, name in zip(batches, names):
            with self.reported("allreduce", name, options.process_set):
                pairs = [options.compression.compress(array) for array in arrays]
            sent = [wire for wire, _ in pairs]
            if presence is not None and not results:
                sent.append(jnp.asarray(presence, sent[0].dtype))
            received = mpi_ops.grouped_allreduce(
                sent,
                options.op,
                name,
                prescale_factor=1.0 / options.gradient_predivide_factor,
                postscale_factor=options.gradient_predivide_factor,
                process_set=options.process_set,
            )
            if len(sent) > len(pairs):
                reduced_presence = received[-1]
            results.append(
                [
                    options.compression.decompress(array, context)
                    for array, (_, context) in zip(received, pairs)
                ]
            )
        return results, reduced_presence

    def any_rank_has(self, presence: Any) -> list[bool]:
        return [bool(value > 0) for value in np.asarray(presence)]

    def reduce_sparse(self, gradient: Any, name: str, options: Options) -> Any:
        raise ValueError("Keras on JAX has no sparse gradients here.")

    def report(
        self, operation: str, name: str | None, error: BaseException | str, process_set: ProcessSet
    ) -> None:
        send_failure(operation, name, process_set, error, operation)

    def broadcast_variables(
        self,
        variables: Sequence[Any],
        root_rank: int,
        name: str,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        values = broadcast_parameters(
            [variable.value for variable in variables], root_rank, name, process_set
        )
        for variable, value in zip(variables, values):
            variable.assign(value)

    def allreduce(
        self,
        value: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        compression: Any,
        process_set: ProcessSet,
    ) -> Any:
        with self.reported("allreduce", name, process_set):
            sent, context = compression.compress(_array(value))
        reduced = mpi_ops.allreduce(
            sent,
            op,
            name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
        )
        return compression.decompress(reduced, context)

    def allgather(self, value: Any, name: str | None, process_set: ProcessSet) -> jax.Array:
        with self.reported("allgather", name, process_set):
            sent = _array(value)
        return mpi_ops.allgather(sent, name, process_set)

    def broadcast(self, value: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> jax.Array:
        with self.reported("broadcast", name, process_set):
            sent = _array(value)
        return mpi_ops.broadcast(sent, root_rank, name, process_set)

    def reducescatter(self, value: Any, name: str | None, op: int, process_set: ProcessSet) -> jax.Array:
        with self.reported("reducescatter", name, process_set):
            sent = _array(value)
        return mpi_ops.reducescatter(sent, op, name, process_set=process_set)


def _array(value: Any) -> jax.Array:
    """A keras.Variable, an array or a number as an array."""
    return jnp.asarray(getattr(value, "value", value))
