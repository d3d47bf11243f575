"""Reducing the gradients of a step, for tapes and optimizers alike.

Names are made of the place in the list of gradients and of the variable, so that they agree between ranks also if
their graphs differ. In a graph each large gradient has its own operation, and neighbours that are small have one
together, which begins as soon as they are computed. Eagerly, and in functions that XLA compiles, operations run one
after another, so all gradients are reduced in groups.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import tensorflow as tf

from horovod.common.arguments import Adasum, Average, check_groups, groups_from, predivide_factors
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.tensorflow import _names
from horovod.tensorflow._call import REDUCIBLE, CallOptions, process_set_number, report
from horovod.tensorflow._collectives import allreduce, grouped_allreduce, why_not_slices
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import process_set_included_op, size_op
from horovod.tensorflow.util import (
    _cache,
    decided_at_run_time,
    do_not_convert,
    in_xla,
    plain_variable,
    ref,
    refs_to_vars,
    values_of,
    vars_to_refs,
)
from hvd_core._frontend import initial_weights
from hvd_core._runtime.process_sets import number_of

# Ranks may have different kinds of gradients for one variable: a tensor, tf.IndexedSlices, or None.
#
# So that no rank waits for the others, a rank without a tensor takes part as well, with a stand-in: a tensor whose shape
# fits no gradient. Ranks with a tensor then get an error.


@contextmanager
def fail_together(names: list[str], process_set: ProcessSet) -> Iterator[Callable[..., Any]]:
    """A context for code that makes the allreduces `names` in a graph. It calls the yielded function with each name
    before it makes that operation.

    If one operation cannot be made, the graph does not run, and this rank executes none of them. The operation that
    failed has been reported to the other ranks; the context lets the other ranks' calls of all other names fail as well.
    """
    begun: list[str] = []
    try:
        yield begun.append
    except Exception as error:
        if not tf.executing_eagerly():
            for name in names:
                if name not in begun[-1:]:
                    report(CallOptions("allreduce", name, process_set, True), error)
        raise


def is_tensor(gradient: Any) -> bool:
    """Whether a gradient is neither None nor tf.IndexedSlices."""
    return not (gradient is None or isinstance(gradient, tf.IndexedSlices))


def tensor_to_reduce(gradient: Any, vars: Sequence[Any] | None, place: int) -> Any:
    """A gradient that is a tensor, or the stand-in for None (shape [0]) and for tf.IndexedSlices (shape [0, 0]), whose
    rows are gathered afterwards. `place`: of the gradient's variable in `vars`."""
    if is_tensor(gradient):
        return gradient
    dtype = tf.float32 if vars is None else plain_variable(vars[place]).dtype.base_dtype
    return tf.zeros([0] if gradient is None else [0, 0], dtype if dtype in REDUCIBLE else tf.float32)


def description_of_group(grads: list[Any], vars: Sequence[Any] | None, places: list[int]) -> str:
    """A sentence for an error: the kinds of the gradients that this rank has put in a group."""

    def listed(found: list[int]) -> str:
        labels = ["" if vars is None else _names.variable_label(vars[i]) for i in found]
        return ", ".join(f"{i} ({label})" if label else str(i) for i, label in zip(found, labels)) or "none"

    absent = [i for i in places if grads[i] is None]
    sliced = [i for i in places if isinstance(grads[i], tf.IndexedSlices)]
    tensors = [i for i in places if is_tensor(grads[i])]
    return (
        f"On this rank the group is made of the gradients number {listed(places)}, of which are tensors: "
        f"{listed(tensors)}; tf.IndexedSlices (sent as shape [0, 0]): {listed(sliced)}; None (sent as shape [0]): "
        f"{listed(absent)}."
    )


# The most bytes of a group in eager mode and in XLA. While a group is reduced its memory is needed a second time.
_GROUP_BYTES = 128 << 20
# The same in other functions. Here groups overlap with the computation of the gradients, but an operation costs as much
# as some hundred KiB of data.
_NEIGHBOUR_BYTES = 1 << 20

_REMEDY = "hvd.broadcast_variables(model.variables, root_rank=0)"


def checked_groups(num_groups: int, groups: Any) -> Any:
    """The `groups` that the arguments `num_groups` (deprecated) and `groups` mean together. 0 means None.

    Raises:
        ValueError: `groups` is neither a number of groups nor a list of lists of variables, or a variable is in it
            twice.
    """
    groups = groups_from(num_groups, groups, stacklevel=4)
    check_groups(groups, "tf.Variable", lambda v: hasattr(v, "shape"), ref, zero_is_allowed=True)
    return None if isinstance(groups, int) and groups == 0 else groups


def takes_part(process_set: ProcessSet) -> bool:
    """Whether this rank is a member of the process set, and not its only one.

    Raises:
        ValueError: Horovod is not initialized, or the process set is not registered.
    """
    number_of(process_set)
    return bool(process_set.included()) and (process_set.size() or 0) > 1


@do_not_convert
def scaled_local(gradient: Any, process_set: ProcessSet) -> Any:
    """A gradient that is not reduced, divided by the size of the process set, as if the other ranks had zeros."""
    if gradient is None or not process_set.included():
        return gradient
    at_run_time = decided_at_run_time() and not in_xla()
    ranks = size_op(process_set_number(process_set)) if at_run_time else process_set.size()

    def divide(values: tf.Tensor) -> tf.Tensor:
        return values / tf.cast(ranks, values.dtype)

    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(divide(gradient.values), gradient.indices, gradient.dense_shape)
    return divide(gradient)


@dataclass(frozen=True)
class GradientOptions:
    """How a tape or an optimizer reduces gradients.

    Attributes:
        name: of the tape or optimizer; operations' names begin with it.
        device_dense, device_sparse, compression, op, process_set: as in allreduce().
        sparse_as_dense: make tf.IndexedSlices tensors first.
        gradient_predivide_factor: divide by it before the reduction, and by size / it afterwards.
        groups: None, a number of groups, or lists of variables whose gradients are reduced together.
    """

    name: str
    device_dense: str = ""
    device_sparse: str = ""
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    op: int = Average
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: ProcessSet = global_process_set


class GradientReduction:
    """Reduces lists of gradients, with options that are given once."""

    autograph_info__: ClassVar[dict[str, Any]] = {}  # marks instances as do_not_convert() marks functions

    def __init__(self, options: GradientOptions) -> None:
        self.options = options
        self.name, self.process_set, self._op = options.name, options.process_set, options.op
        prescale_factor, postscale_factor = predivide_factors(options.gradient_predivide_factor)
        self._of_slices: dict[str, Any] = {
            "device_dense": options.device_dense,
            "device_sparse": options.device_sparse,
            "compression": options.compression,
            "op": options.op,
            "process_set": options.process_set,
            "ignore_name_scope": True,
        }
        # Gathered rows are divided after they have been gathered, so a predivision would change nothing.
        self._of_tensors = {
            **self._of_slices,
            "prescale_factor": prescale_factor,
            "postscale_factor": postscale_factor,
        }

    @do_not_convert
    def __call__(
        self, grads: Sequence[Any], vars: Sequence[Any] | None = None, use_generic_names: bool = False
    ) -> list[Any]:
        """Reduce each gradient with the other ranks' gradients for the same variable.

        Args:
            grads: tensors, tf.IndexedSlices and None, of one kind in each place on all ranks.
            vars: their variables, for `groups` and for names.
            use_generic_names: make names of the places in `grads` only.

        Returns:
            The reduced gradients, with None where `grads` has None. `grads` itself if this rank is not a member of the
            process set, or its only member.
        """
        grads = list(grads)
        # A function may be traced by a rank that is alone, and run when there are more.
        elastic = decided_at_run_time() and (not in_xla() or bool(self.process_set.included()))
        if not grads or not (elastic or takes_part(self.process_set)):
            return grads
        with tf.name_scope(f"{self.name}_Allreduce"):
            call = self.name if use_generic_names else _names.call_prefix(self.name)
            names = [f"{call}.grad_{i}" for i in range(len(grads))]
            if vars is not None and not use_generic_names:
                labels = [_names.variable_label(v) for v in vars]
                names = [f"{name}.{label}" if label else name for name, label in zip(names, labels)]
            if self.options.sparse_as_dense or in_xla():  # XLA has to know how many rows there are
                grads = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
            together, single = self._partition(grads, vars)
            groups = {f"{call}.group_{number}": places for number, places in enumerate(together)}
            # An optimizer of TensorFlow 1 combines changes by Adasum after each rank has changed its weights.
            if vars is not None and self._op != Adasum and initial_weights.checked():
                self._announce_weights(
                    {**groups, **{names[i]: [i] for i in single}}, [plain_variable(v) for v in vars]
                )
            results = list(grads)
            stand_ins: list[Any] = []  # the results for gradients that are None
            # By place: a tensor that exists once all ranks have shown that they have tf.IndexedSlices there too.
            agreed: dict[int, tf.Tensor] = {}
            with fail_together([*groups, *(names[i] for i in single)], self.process_set) as begin:
                self._check_slices(grads)
                for name, places in groups.items():
                    begin(name)
                    reduced = self._reduce_group(grads, places, vars, name, results)
                    agreed |= dict.fromkeys(places, reduced[0])
                    if not any(is_tensor(grads[i]) for i in places):
                        stand_ins.append(reduced[0])
                tensors = [i for i in single if is_tensor(grads[i])]
                for i in tensors:
                    begin(names[i])
                    results[i] = self._reduce_one(grads[i], names[i])
                # A failure ends the step on this rank, and the other ranks would wait for operations that it has not
                # begun. So the stand-ins, which could be sent immediately, come after all gradients have been computed.
                with tf.control_dependencies([grads[i] for i in tensors if tf.is_tensor(grads[i])]):
                    for i in single:
                        if i not in tensors:
                            begin(names[i])
                            stand_in = self._reduce_stand_in(tensor_to_reduce(grads[i], vars, i), names[i])
                            if grads[i] is None:
                                stand_ins.append(stand_in)
                            else:
                                agreed[i] = stand_in
                for i, gradient in enumerate(grads):
                    if isinstance(gradient, tf.IndexedSlices):
                        begin(f"{names[i]}.rows")
                        with tf.control_dependencies([agreed[i]]):
                            results[i] = self._reduce_one(gradient, f"{names[i]}.rows")
            return _depending_on(stand_ins, results)

    def _announce_weights(self, requests: dict[str, list[int]], variables: list[Any]) -> None:
        for name, places in requests.items():
            weights = [
                (getattr(v, "name", name), lambda v=v: values_of(v)) for v in (variables[i] for i in places)
            ]
            number: Any = self.process_set.process_set_id
            initial_weights.announce(f"allreduce.{name}", weights, _REMEDY, number)

    def _partition(self, grads: list[Any], vars: Sequence[Any] | None) -> tuple[list[list[int]], list[int]]:
        """The places of the gradients of each group, and the places of the other gradients. The same on all ranks, also
        where ranks have None or tf.IndexedSlices in different places."""
        everything = list(range(len(grads)))
        if isinstance(self.options.groups, int):
            return split_list(everything, self.options.groups), []
        together = []
        if self.options.groups is not None:
            if vars is None:
                raise ValueError(
                    "groups of variables can only be used where the gradients' variables are known."
                )
            place_of = {ref(v): i for i, v in enumerate(vars)}
            for group in self.options.groups:
                places = [place_of.get(ref(v)) for v in group]
                together.append([i for i in places if i is not None])
            together = [group for group in together if group]
        rest = [i for i in everything if not any(i in group for group in together)]
        if tf.executing_eagerly() or in_xla():
            return together + _chunks(rest, grads, vars, _GROUP_BYTES), []
        if vars is None or self._op == Adasum:
            return together, rest
        parts = _chunks(rest, grads, vars, _NEIGHBOUR_BYTES)
        return together + [part for part in parts if len(part) > 1], [
            part[0] for part in parts if len(part) == 1
        ]

    def _reduce_one(self, gradient: Any, name: str) -> Any:
        options = self._of_slices if isinstance(gradient, tf.IndexedSlices) else self._of_tensors
        return _allreduce_cond(gradient, name=name, **options)

    def _reduce_group(
        self, grads: list[Any], places: list[int], vars: Any, name: str, results: list[Any]
    ) -> list[Any]:
        """Put a group's reduced tensors into `results`. Returns all outputs of the reduction, stand-ins included."""
        packed = [tensor_to_reduce(grads[i], vars, i) for i in places]
        try:
            reduced = _grouped_allreduce_cond(packed, name=name, **self._of_tensors)
        except tf.errors.FailedPreconditionError as error:
            raise type(error)(
                None, None, f"{error.message} {description_of_group(grads, vars, places)}"
            ) from error
        for i, tensor in zip(places, reduced):
            if is_tensor(grads[i]):
                results[i] = tensor
        return list(reduced)

    def _reduce_stand_in(self, stand_in: tf.Tensor, name: str) -> tf.Tensor:
        """Reduce a stand-in, so that ranks that have a tensor get an error instead of waiting. Returns the output."""
        with tf.name_scope("no_tensor_here"):
            return self._reduce_one(stand_in, name)

    def _check_slices(self, grads: list[Any]) -> None:
        problem = why_not_slices(self._op, 1.0, 1.0)
        # In eager mode the operation itself raises it.
        if problem and not tf.executing_eagerly() and any(isinstance(g, tf.IndexedSlices) for g in grads):
            raise NotImplementedError(problem)


def _depending_on(tensors: list[tf.Tensor], results: list[Any]) -> list[Any]:
    """`results`, one of which depends on `tensors`: a graph does not execute operations on which no result depends."""
    place = next((i for i, result in enumerate(results) if result is not None), None)
    if not tensors or place is None or tf.executing_eagerly():
        return results
    with tf.control_dependencies(tensors):
        results[place] = tf.nest.map_structure(tf.identity, results[place], expand_composites=True)
    return results


def _chunks(places: list[int], grads: list[Any], vars: Sequence[Any] | None, most: int) -> list[list[int]]:
    """`places` in runs of at most `most` bytes. The sizes are those of the variables, which all ranks have, if the
    variables are known."""
    chunks: list[list[int]] = []
    filled = 0
    for place in places:
        sized = plain_variable(vars[place]) if vars is not None else grads[place]
        elements = 0 if sized is None else (sized.shape.num_elements() or 0)
        size = elements * sized.dtype.size if elements else 0
        if not chunks or filled + size > most:
            chunks.append([])
            filled = 0
        chunks[-1].append(place)
        filled += size
    return chunks


def _reduced_by_members(
    process_set: ProcessSet, reduce: Callable[..., Any], leave: Callable[..., Any]
) -> Any:
    """The result of `reduce()` if this rank reduces with others, else that of `leave()`."""
    if decided_at_run_time() and not tf.executing_eagerly() and not in_xla():
        number = process_set_number(process_set)
        several = tf.logical_and(tf.equal(process_set_included_op(number), 1), tf.greater(size_op(number), 1))
        return tf.cond(several, reduce, leave)
    if (
        decided_at_run_time() and in_xla()
    ):  # where nothing is decided at run time; one rank alone reduces as well
        return reduce() if process_set.included() else leave()
    return reduce() if takes_part(process_set) else leave()


@do_not_convert
def _allreduce_cond(
    tensor: Any, *args: Any, process_set: ProcessSet = global_process_set, **options: Any
) -> Any:
    """allreduce() if this rank is a member of the process set and not its only one, else the tensor itself. Decided now;
    in graphs with HOROVOD_ELASTIC, each time the graph runs."""
    options["process_set"] = process_set
    return _reduced_by_members(
        process_set,
        lambda: allreduce(tensor, *args, **options),
        lambda: tf.nest.map_structure(tf.identity, tensor, expand_composites=True),
    )


@do_not_convert
def _grouped_allreduce_cond(
    tensors: Sequence[Any], *args: Any, process_set: ProcessSet = global_process_set, **options: Any
) -> list[Any]:
    """As _allreduce_cond(), but for grouped_allreduce()."""
    options["process_set"] = process_set
    reduced: list[Any] = _reduced_by_members(
        process_set,
        lambda: grouped_allreduce(tensors, *args, **options),
        lambda: tf.nest.map_structure(tf.identity, list(tensors), expand_composites=True),
    )
    return reduced


@do_not_convert
def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: type[Compressor],
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float = 1.0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
) -> GradientReduction:
    """A function that reduces lists of gradients: ``reduce(grads, vars=None, use_generic_names=False)``."""
    return GradientReduction(
        GradientOptions(
            name, device_dense, device_sparse, compression, sparse_as_dense,
            op, gradient_predivide_factor, groups, process_set,
        )
    )  # fmt: skip


@do_not_convert
def _make_cached_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: type[Compressor],
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float = 1.0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
) -> GradientReduction:
    """As _make_allreduce_grads_fn(), but the same object for equal arguments."""
    return cached_reduction(
        GradientOptions(
            name, device_dense, device_sparse, compression, sparse_as_dense,
            op, gradient_predivide_factor, groups, process_set,
        )
    )  # fmt: skip


def cached_reduction(options: GradientOptions) -> GradientReduction:
    """A reduction with these options, the same object for equal options."""
    groups = options.groups
    return _cached_reduction(
        replace(options, groups=vars_to_refs(groups) if isinstance(groups, (list, tuple)) else groups)
    )


@_cache
def _cached_reduction(options: GradientOptions) -> GradientReduction:
    if isinstance(options.groups, tuple):  # references to variables, which can be hashed
        options = replace(options, groups=refs_to_vars(options.groups))
    return GradientReduction(options)
