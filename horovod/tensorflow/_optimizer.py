"""DistributedOptimizer, for optimizers of tf.compat.v1 and of Keras."""

import warnings
from typing import Any

import tensorflow as tf

from horovod.common.arguments import Adasum, Average, Sum, check_backward_passes, check_predivide_factor
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._adasum_optimizer import _DistributedAdasumOptimizer
from horovod.tensorflow._autograph import plain
from horovod.tensorflow._gradient_optimizer import _DistributedOptimizer
from horovod.tensorflow._gradients import checked_groups
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.util import _executing_eagerly

__all__ = ["DistributedOptimizer"]


def _is_keras(optimizer: Any) -> bool:
    """Whether it is an optimizer of one of the packages of Keras. Imports none of them."""
    return any(
        cls.__module__.split(".")[0] in ("keras", "tf_keras")
        or cls.__module__.startswith("tensorflow.python.keras")
        for cls in type(optimizer).__mro__
    )


@plain
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that reduces gradients over all ranks before `optimizer` applies them.

    Args:
        optimizer: of tf.compat.v1.train, or of Keras: then horovod.tensorflow.keras.DistributedOptimizer() is called.
        name: of the optimizer, and the beginning of its operations' names; ``Distributed<class>`` by default.
        use_locking: of tf.compat.v1.train.Optimizer; not used by Keras.
        device_dense, device_sparse: names of the devices to reduce tensors and tf.IndexedSlices on; empty: TensorFlow's
            choice.
        compression: hvd.Compression.none, .fp16 or .bf16: the form in which gradients are sent.
        sparse_as_dense: reduce tf.IndexedSlices (of embeddings) as tensors, rather than gathering their rows.
        backward_passes_per_step: gradients of so many passes are added up before they are reduced and applied. Each
            pass counts as a step in global_step and in iterations.
        op: Average, Sum, or Adasum, which combines the changes of the ranks' own steps (tf.compat.v1 only).
        gradient_predivide_factor: f divides the gradients by f before the sum, and by size / f after it. Only with
            op=Average.
        average_aggregated_gradients: divide the sum of the passes by their number.
        num_groups: deprecated, see `groups`.
        groups: the number of groups in which the gradients are reduced, or lists of variables, each of which is a group;
            the gradients of other variables are reduced one by one.
        process_set: the ranks that take part. On other ranks gradients stay as they are.
        scale_local_gradients: divide gradients that register_local_var() keeps from being reduced by the number of ranks.

    Returns:
        An optimizer of the same kind. For tf.compat.v1 it has register_local_var(), and get_slot(), get_slot_names() and
        variables() return those of the wrapped optimizer.

    Raises:
        ValueError: `optimizer` is neither of tf.compat.v1 nor of Keras; arguments contradict each other. With
            `backward_passes_per_step` > 1 and an optimizer of tf.compat.v1 also: eager mode; tf.IndexedSlices without
            `sparse_as_dense`; variables that are not resource variables, while
            tf.compat.v1.control_flow_v2_enabled().
    """
    check_predivide_factor(gradient_predivide_factor, op)
    check_backward_passes(backward_passes_per_step)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    groups = checked_groups(num_groups, groups)

    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if backward_passes_per_step > 1 and _executing_eagerly():
            raise ValueError(
                f"backward_passes_per_step={backward_passes_per_step} with an optimizer of tf.compat.v1 needs a graph, "
                "and eager execution is on. Use tf.keras.optimizers there, or call "
                "tf.compat.v1.disable_eager_execution()."
            )
        if op == Adasum:
            return _DistributedAdasumOptimizer(
                optimizer,
                name,
                use_locking,
                device_dense,
                device_sparse,
                compression,
                backward_passes_per_step,
                process_set,
            )
        if op not in (Average, Sum):
            warnings.warn(f"DistributedOptimizer reduces gradients with op={op}.", stacklevel=2)
        return _DistributedOptimizer(
            optimizer,
            name,
            use_locking,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            backward_passes_per_step,
            average_aggregated_gradients,
            groups,
            process_set,
            scale_local_gradients,
        )
    if _is_keras(optimizer):
        if op == Adasum:
            raise ValueError(
                "op == Adasum is not supported yet with Keras optimizers. Use "
                "hvd.DistributedGradientTape(op=hvd.Adasum), or an optimizer of tf.compat.v1.train."
            )
        # horovod.tensorflow.keras is built on this package. It is imported here because it loads Keras.
        from horovod.tensorflow.keras import DistributedOptimizer as KerasDistributedOptimizer

        return KerasDistributedOptimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    raise ValueError(
        "Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer: "
        f"{optimizer!r}. Pass one of tf.compat.v1.train or of tf.keras.optimizers."
    )
