"""Gradient tapes whose gradients are reduced over all ranks."""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod._keras import patches
from horovod.common.arguments import Average, check_predivide_factor
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._gradients import (
    GradientOptions,
    GradientReduction,
    cached_reduction,
    checked_groups,
    scaled_local,
)
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.util import do_not_convert, plain_variable, ref

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


class _DistributedTape:
    """The methods of a distributed tape, in front of those of the wrapped tape's class. Their state is in slots, because
    the wrapped tape and the distributed one share their attributes."""

    __slots__ = ("_hvd_local", "_hvd_reduce", "_hvd_scale_local")
    _hvd_local: set[Any]
    _hvd_reduce: GradientReduction
    _hvd_scale_local: bool

    @do_not_convert
    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a variable (or of a list of them) as this rank computes it."""
        self._hvd_local.update(ref(v) for v in tf.nest.flatten(source))

    @do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The gradients of `target`, reduced over all ranks. All ranks must call it, in the same order.

        Args:
            target, sources, output_gradients, unconnected_gradients: as in tf.GradientTape.
            use_generic_names: see get_local_and_global_gradients().

        Returns:
            Gradients in the structure of `sources`, as from tf.GradientTape. None for a source that `target` does not
            depend on. Which gradients are None, and which are tf.IndexedSlices, must be the same on all ranks. A source
            that was given to register_local_source() has this rank's gradient, divided by the number of ranks if
            `scale_local_gradients` is set.

        Raises:
            The errors of hvd.allreduce(). tf.errors.FailedPreconditionError also if only some ranks have a gradient, or
            have it as tf.IndexedSlices: in the message shape [0] then means None, and [0, 0] tf.IndexedSlices.
        """
        flat = tf.nest.flatten(sources)
        grads = self._hvd_plain().gradient(target, flat, output_gradients, unconnected_gradients)
        shared = [i for i, source in enumerate(flat) if ref(source) not in self._hvd_local]
        reduced = self._hvd_reduce([grads[i] for i in shared], [flat[i] for i in shared], use_generic_names)
        for i, gradient in zip(shared, reduced):
            grads[i] = gradient
        if self._hvd_scale_local:
            for i in set(range(len(flat))).difference(shared):
                grads[i] = scaled_local(grads[i], self._hvd_reduce.process_set)
        return tf.nest.pack_sequence_as(sources, grads) if tf.nest.is_nested(sources) else grads[0]

    @do_not_convert
    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """As gradient(), but separates the sources that are not reduced from the others.

        Args:
            use_generic_names: name the operations ``grad_0``, ``grad_1``, ... in each function.

        Returns:
            Two lists of pairs (source, gradient): first the gradients that are not reduced, then the reduced ones.
        """
        flat = tf.nest.flatten(sources)
        pairs = list(zip(flat, self.gradient(target, flat, output_gradients, use_generic_names)))
        local = [ref(source) in self._hvd_local for source in flat]
        return [p for p, is_local in zip(pairs, local) if is_local], [
            p for p, is_local in zip(pairs, local) if not is_local
        ]

    @do_not_convert
    def jacobian(self, *args: Any, **options: Any) -> Any:
        """As tf.GradientTape: for this rank's `target`; nothing is reduced."""
        return self._hvd_plain().jacobian(*args, **options)

    @do_not_convert
    def batch_jacobian(self, *args: Any, **options: Any) -> Any:
        """As tf.GradientTape: for this rank's `target`; nothing is reduced."""
        return self._hvd_plain().batch_jacobian(*args, **options)

    def _hvd_plain(self) -> tf.GradientTape:
        """This tape as an instance of the class that was wrapped."""
        plain_class: Any = type(self).__mro__[2]
        tape = plain_class.__new__(plain_class)
        tape.__dict__ = self.__dict__
        return tape


@do_not_convert
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """A tape like `gradtape` whose gradient() reduces over all ranks.

        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(model(x, training=True), y)
        gradients = tape.gradient(loss, model.trainable_variables)

    It shares what `gradtape` has recorded, and both may be used; wrap it before, within or after the ``with`` block.

    Args:
        gradtape: a tf.GradientTape.
        device_dense, device_sparse: names of the devices to reduce tensors and tf.IndexedSlices on; empty: TensorFlow's
            choice.
        compression: hvd.Compression.none, .fp16 or .bf16: the form in which gradients are sent.
        sparse_as_dense: reduce tf.IndexedSlices (of embeddings) as tensors, rather than gathering their rows.
        op: Average, Sum or Adasum (or Min, Max, Product).
        gradient_predivide_factor: f divides the gradients by f before the sum, and by size / f after it. Only with
            op=Average.
        num_groups: deprecated, see `groups`.
        groups: the number of groups in which the gradients are reduced, or lists of variables, each of which is a group;
            the gradients of other variables are reduced one by one.
        process_set: the ranks that take part. On other ranks gradients stay as they are.
        scale_local_gradients: divide gradients that are not reduced by the number of ranks.

    Returns:
        An instance of a class with the name of `gradtape`'s class, derived from it.

    Raises:
        ValueError: bad `groups`, or `gradient_predivide_factor` with an op other than Average.
    """
    _prepare_keras()
    check_predivide_factor(gradient_predivide_factor, op)
    options = GradientOptions(
        "DistributedGradientTape", device_dense, device_sparse, compression, sparse_as_dense,
        op, gradient_predivide_factor, checked_groups(num_groups, groups), process_set,
    )  # fmt: skip
    plain_class: Any = type(gradtape)
    distributed_class: Any = _distributed_class(plain_class)
    tape = distributed_class.__new__(distributed_class)
    tape.__dict__ = gradtape.__dict__
    tape._hvd_reduce = cached_reduction(options)
    tape._hvd_local = set()
    tape._hvd_scale_local = scale_local_gradients
    return tape


def _prepare_keras() -> None:
    """Let `optimizer.variables` of Keras 3 be called, as programs with a tape do. Does not import Keras."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "optimizers"):  # the import of Keras has ended
        patches.let_variables_be_called(keras)


@functools.cache
def _distributed_class(plain_class: type) -> type:
    return type(plain_class.__name__, (_DistributedTape, plain_class), {"__doc__": plain_class.__doc__})


@do_not_convert
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """DistributedGradientTape() for models in which some layers are different on each rank.

    Args:
        local_layers: a Keras layer, or a list of them, whose trainable weights' gradients are not reduced.
        The others are those of DistributedGradientTape().

    Raises:
        ValueError: as DistributedGradientTape(); or `local_layers` is neither a layer nor a list of layers.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in _layers(local_layers):
        tape.register_local_source([plain_variable(v) for v in layer.trainable_weights])
    return tape


def _layers(local_layers: Any) -> Sequence[Any]:
    if local_layers is None:
        return []
    layers = local_layers if isinstance(local_layers, (list, tuple, set)) else [local_layers]
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError(
            f"local_layers should be a Keras layer or a list of Keras layers, but found {local_layers!r}."
        )
    return list(layers)
