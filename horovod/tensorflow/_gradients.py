"""Reducing the gradients of a step, for tapes and optimizers alike.

Names are made of the place in the list of gradients and of the variable, so that they agree between ranks also if
their graphs differ. In a graph each large gradient has its own operation, and neighbours that are small have one
together, which begins as soon as they are computed. Eagerly, and in functions that XLA compiles, operations run one
after another, so all gradients are reduced in groups.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from horovod.common.arguments import Adasum, Average, check_groups, groups_from, predivide_factors
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.tensorflow import _names
from horovod.tensorflow._call import REDUCIBLE, CallOptions, process_set_number, report
from horovod.tensorflow._xla import is_traced_for_xla
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import (
    allreduce,
    grouped_allreduce,
    process_set_included_op,
    ranks_of,
    size_op,
    why_not_slices,
)
from horovod.tensorflow.util import (
    GROUP_BYTES,
    _cache,
    bytes_of,
    decided_at_run_time,
    do_not_convert,
    plain_variable,
    ref,
    refs_to_vars,
    runs_of,
    values_of,
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


def _sent(gradient: Any, variable: Any) -> Any:
    """A gradient that is a tensor, or the stand-in for None (shape [0]) and for tf.IndexedSlices (shape [0, 0]), whose
    rows are gathered afterwards."""
    if is_tensor(gradient):
        return gradient
    dtype = tf.float32 if variable is None else plain_variable(variable).dtype.base_dtype
    return tf.zeros([0] if gradient is None else [0, 0], dtype if dtype in REDUCIBLE else tf.float32)


def description_of_group(grads: list[Any], vars: Sequence[Any] | None, places: list[int]) -> str:
    """A sentence for an error: the kinds of the gradients that this rank has put in a group."""

    def listed(found: list[int]) -> str:
        labels = ["" if vars is None else _names.variable_label(vars[i]) for i in found]
        return ", ".join(f"{i} ({label})" if label else str(i) for i, label in zip(found, labels)) or "none"

    return (
        f"On this rank the group is made of the gradients number {listed(places)}. Of these are tf.IndexedSlices (sent "
        f"as shape [0, 0]): {listed([i for i in places if isinstance(grads[i], tf.IndexedSlices)])}; None (sent as shape "
        f"[0]): {listed([i for i in places if grads[i] is None])}."
    )


# The most bytes of a group in functions that XLA does not compile. Here groups overlap with the computation of the
# gradients, but an operation costs as much as some hundred KiB of data.
NEIGHBOUR_BYTES = 1 << 20

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
def scaled(gradient: Any, factor: Any) -> Any:
    """A gradient, which may be tf.IndexedSlices, times a number or a scalar tensor."""

    def times(values: tf.Tensor) -> tf.Tensor:
        # (tf.cast would convert a Python number to float32 first.)
        return values * (tf.cast(factor, values.dtype) if tf.is_tensor(factor) else factor)

    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(times(gradient.values), gradient.indices, gradient.dense_shape)
    return times(gradient)


def one_of(process_set: ProcessSet) -> Any:
    """1 / the number of ranks, a number or a scalar tensor."""
    ranks = ranks_of(process_set)
    return 1.0 / (tf.cast(ranks, tf.float64) if tf.is_tensor(ranks) else ranks)


@do_not_convert
def scaled_local(gradient: Any, process_set: ProcessSet) -> Any:
    """A gradient that is not reduced, divided by the size of the process set, as if the other ranks had zeros."""
    if gradient is None or not process_set.included():
        return gradient
    return scaled(gradient, one_of(process_set))


def reduce_shared(
    reduce: Callable[..., list[Any]],
    grads: Sequence[Any],
    variables: Sequence[Any],
    local: set[Any],
    share_of: ProcessSet | None,
) -> list[Any]:
    """The gradients, reduced by `reduce(grads, variables)`, except for those of the variables in `local`.

    Args:
        local: references (util.ref) of variables.
        share_of: the process set by whose size gradients are divided that are not reduced; None: they are left alone.
    """
    shared = [i for i, v in enumerate(variables) if ref(v) not in local]
    result = list(grads)
    for i, gradient in zip(shared, reduce([grads[i] for i in shared], [variables[i] for i in shared])):
        result[i] = gradient
    if share_of is not None:
        for i in set(range(len(result))).difference(shared):
            result[i] = scaled_local(result[i], share_of)
    return result


@dataclass
class GradientReduction:
    """Reduces the lists of gradients of a tape or an optimizer.

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

    autograph_info__: ClassVar[dict[str, Any]] = {}  # marks instances as do_not_convert() marks functions

    def _arguments(self, name: str) -> dict[str, Any]:
        """Of allreduce() and grouped_allreduce()."""
        return {
            "name": name,
            "device_dense": self.device_dense,
            "device_sparse": self.device_sparse,
            "compression": self.compression,
            "op": self.op,
            "process_set": self.process_set,
            "ignore_name_scope": True,
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
        elastic = decided_at_run_time() and (not is_traced_for_xla() or bool(self.process_set.included()))
        if not grads or not (elastic or takes_part(self.process_set)):
            return grads
        with tf.name_scope(f"{self.name}_Allreduce"):
            call = self.name if use_generic_names else _names.call_prefix(self.name)
            names = [f"{call}.grad_{i}" for i in range(len(grads))]
            if vars is not None and not use_generic_names:
                labels = [_names.variable_label(v) for v in vars]
                names = [f"{name}.{label}" if label else name for name, label in zip(names, labels)]
            if self.sparse_as_dense or is_traced_for_xla():  # XLA has to know how many rows there are
                grads = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
            together, single = self._partition(grads, vars)
            requests = {f"{call}.group_{number}": places for number, places in enumerate(together)}
            requests |= {names[i]: [i] for i in single}
            # An optimizer of TensorFlow 1 combines changes by Adasum after each rank has changed its weights.
            if vars is not None and self.op != Adasum and initial_weights.checked():
                self._announce_weights(requests, [plain_variable(v) for v in vars])
            # A failure ends the step on this rank, and the other ranks would wait for operations that it has not begun.
            # So the stand-ins, which could be sent immediately, come after all gradients have been computed.
            late = [names[i] for i in single if not is_tensor(grads[i])]
            computed = [grads[i] for i in single if tf.is_tensor(grads[i]) and is_tensor(grads[i])]
            results = list(grads)
            stand_ins: list[Any] = []  # the results of requests without tensors
            # By place: a tensor that exists once all ranks have shown that they have tf.IndexedSlices there too.
            agreed: dict[int, tf.Tensor] = {}
            with fail_together(list(requests), self.process_set) as begin:
                self._check_slices(grads)
                for name in sorted(requests, key=late.__contains__):
                    begin(name)
                    places = requests[name]
                    with tf.control_dependencies(computed if name in late else []):
                        reduced = self._reduce(grads, places, vars, name, name not in names)
                    agreed |= dict.fromkeys(places, reduced[0])
                    if not any(is_tensor(grads[i]) for i in places):
                        stand_ins.append(reduced[0])
                    for i, tensor in zip(places, reduced):
                        if is_tensor(grads[i]):
                            results[i] = tensor
                for i, gradient in enumerate(grads):
                    if isinstance(gradient, tf.IndexedSlices):
                        begin(f"{names[i]}.rows")
                        with tf.control_dependencies([agreed[i]]):
                            results[i] = _allreduce_cond(gradient, **self._arguments(f"{names[i]}.rows"))
            return depending_on(stand_ins, results)

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
        if isinstance(self.groups, int):
            return split_list(everything, self.groups), []
        together = []
        if self.groups is not None:
            if vars is None:
                raise ValueError(
                    "groups of variables can only be used where the gradients' variables are known."
                )
            place_of = {ref(v): i for i, v in enumerate(vars)}
            for group in self.groups:
                places = [place_of.get(ref(v)) for v in group]
                together.append([i for i in places if i is not None])
            together = [group for group in together if group]
        rest = [i for i in everything if not any(i in group for group in together)]
        if tf.executing_eagerly() or is_traced_for_xla():
            return together + _chunks(rest, grads, vars, GROUP_BYTES), []
        if vars is None or self.op == Adasum:
            return together, rest
        parts = _chunks(rest, grads, vars, NEIGHBOUR_BYTES)
        return together + [part for part in parts if len(part) > 1], [
            part[0] for part in parts if len(part) == 1
        ]

    def _reduce(
        self, grads: list[Any], places: list[int], vars: Sequence[Any] | None, name: str, grouped: bool
    ) -> list[Any]:
        """The reduced gradients of these places, or what the reduction of their stand-ins returns."""
        packed = [_sent(grads[i], None if vars is None else vars[i]) for i in places]
        # Gathered rows are divided after they have been gathered, so a predivision would change nothing there.
        prescale, postscale = predivide_factors(self.gradient_predivide_factor)
        arguments = {**self._arguments(name), "prescale_factor": prescale, "postscale_factor": postscale}
        if not grouped:
            return [_allreduce_cond(packed[0], **arguments)]
        try:
            return list(_grouped_allreduce_cond(packed, **arguments))
        except tf.errors.FailedPreconditionError as error:
            raise type(error)(
                None, None, f"{error.message} {description_of_group(grads, vars, places)}"
            ) from error

    def _check_slices(self, grads: list[Any]) -> None:
        problem = why_not_slices(self.op, 1.0, 1.0)
        # In eager mode the operation itself raises it.
        if problem and not tf.executing_eagerly() and any(isinstance(g, tf.IndexedSlices) for g in grads):
            raise NotImplementedError(problem)


def depending_on(tensors: list[tf.Tensor], results: list[Any]) -> list[Any]:
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
    sized = grads if vars is None else [plain_variable(v) for v in vars]
    return runs_of(places, lambda i: None, lambda i: 0 if sized[i] is None else bytes_of(sized[i]), most)


def _reduced_by_members(
    process_set: ProcessSet, reduce: Callable[..., Any], leave: Callable[..., Any]
) -> Any:
    """The result of `reduce()` if this rank reduces with others, else that of `leave()`."""
    if decided_at_run_time() and is_traced_for_xla():
        # Nothing is decided at run time; one rank alone reduces as well.
        return reduce() if process_set.included() else leave()
    if decided_at_run_time() and not tf.executing_eagerly():
        number = process_set_number(process_set)
        several = tf.logical_and(tf.equal(process_set_included_op(number), 1), tf.greater(size_op(number), 1))
        return tf.cond(several, reduce, leave)
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
    return GradientReduction(**locals())


@_cache
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
    """As _make_allreduce_grads_fn(), but the same object for equal arguments. `groups`: as vars_to_refs() returns it."""
    groups = refs_to_vars(groups) if isinstance(groups, tuple) else groups
    return GradientReduction(**locals())
