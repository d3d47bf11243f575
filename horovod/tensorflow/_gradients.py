"""Reducing the gradients of a step, for tapes and optimizers alike.

Names are made of the place in the list of gradients and of the variable, so that they agree between ranks whatever else a
rank has in its graph. In a graph each gradient is an operation of its own, which begins as soon as it is computed; where
operations run one after another anyway (eagerly, and in functions compiled by XLA) they are groups.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.tensorflow import _gradient_names
from horovod.tensorflow._call import plain
from horovod.tensorflow._collectives import allreduce, grouped_allreduce, why_not_slices
from horovod.tensorflow._gradient_kinds import all_or_none, is_tensor, kinds, sent_for
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import (
    Average,
    process_set_included_op,
    size_op,
)
from horovod.tensorflow.util import (
    _cache,
    decided_at_run_time,
    in_xla,
    plain_variable,
    ref,
    refs_to_vars,
    vars_to_refs,
)

# Of one group in eager mode and in XLA: memory for that much is needed a second time while it is under way.
_GROUP_BYTES = 128 << 20


def check_groups(num_groups: int, groups: Any) -> Any:
    """The `groups` that the arguments `num_groups` (deprecated) and `groups` mean together.

    Raises:
        ValueError: they are no number of groups and no list of lists of variables.
    """
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=3
        )
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, bool) or not (
        isinstance(groups, (list, tuple)) or (isinstance(groups, int) and groups >= 0)
    ):
        raise ValueError(
            f"groups should be a non-negative integer or a list of lists of tf.Variable, not {groups!r}."
        )
    if isinstance(groups, int):
        return groups or None
    members = []
    for group in groups:
        if not isinstance(group, (list, tuple)) or not all(hasattr(v, "shape") for v in group):
            raise ValueError("groups must consist of lists of tf.Variable.")
        members += [ref(v) for v in group]
    if len(set(members)) != len(members):
        raise ValueError("A variable can only appear once in groups.")
    return groups


def check_predivide(gradient_predivide_factor: float, op: int) -> None:
    """Raises ValueError where the factor cannot be used with `op`."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if gradient_predivide_factor <= 0:
        raise ValueError(f"gradient_predivide_factor must be > 0, but is {gradient_predivide_factor!r}.")


def takes_part(process_set: ProcessSet) -> bool:
    """Whether this rank reduces anything with others now.

    Raises:
        ValueError: Horovod is not initialized, or the process set is not registered.
    """
    if process_set.process_set_id is None:
        raise ValueError(
            f"The process set does not exist, or has not been registered: {process_set}. "
            "Pass it to hvd.init(process_sets=...) or hvd.add_process_set() first."
        )
    return bool(process_set.included()) and process_set.size() > 1


@plain
def scaled_local(gradient: Any, process_set: ProcessSet) -> Any:
    """A gradient that is not reduced, divided by the size of the set: as if the other ranks had had zeros."""
    if gradient is None or not process_set.included():
        return gradient
    at_run_time = decided_at_run_time() and not in_xla()
    ranks = size_op(process_set.process_set_id) if at_run_time else process_set.size()

    def divide(values):
        return values / tf.cast(ranks, values.dtype)

    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(divide(gradient.values), gradient.indices, gradient.dense_shape)
    return divide(gradient)


class GradientReduction:
    """Reduces lists of gradients, with options that are given once.

    Args:
        name: what reduces, for the names of operations.
        device_dense, device_sparse, compression, op, process_set: as in allreduce().
        sparse_as_dense: make tf.IndexedSlices tensors first.
        gradient_predivide_factor: divide by it before the reduction, and by size / it afterwards.
        groups: None, a number of groups, or lists of variables whose gradients are reduced together.
    """

    autograph_info__ = plain(lambda: None).autograph_info__  # of instances, as plain() of functions

    def __init__(
        self,
        name: str,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self.name = name
        self._devices = {"device_dense": device_dense, "device_sparse": device_sparse}
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._op = op
        self._factors = {
            "prescale_factor": 1.0 / gradient_predivide_factor,
            "postscale_factor": gradient_predivide_factor,
        }
        self._groups = groups
        self.process_set = process_set

    @plain
    def __call__(
        self, grads: Sequence[Any], vars: Sequence[Any] | None = None, use_generic_names: bool = False
    ) -> list:
        """Reduce gradients, each with that of the other ranks for the same variable.

        Args:
            grads: tensors, tf.IndexedSlices and None, of one kind in each place on all ranks.
            vars: their variables, for `groups` and for names.
            use_generic_names: names say nothing but the place in `grads`.

        Returns:
            The reduced gradients; None where there was none; `grads` unchanged where this rank has nobody to reduce with.
        """
        grads = list(grads)
        elastic = decided_at_run_time() and not in_xla()
        if not grads or not (elastic or takes_part(self.process_set)):
            return grads
        with tf.name_scope(f"{self.name}_Allreduce"):
            call = self.name if use_generic_names else _gradient_names.of_call(self.name)
            names = [f"{call}.grad_{i}" for i in range(len(grads))]
            if vars is not None and not use_generic_names:
                labels = [_gradient_names.of_variable(v) for v in vars]
                names = [f"{name}.{label}" if label else name for name, label in zip(names, labels)]
            if self._sparse_as_dense or in_xla():  # XLA has to know how many rows there are
                grads = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
            together, single = self._partition(grads, vars)
            groups = {f"{call}.group_{number}": places for number, places in enumerate(together)}
            results = list(grads)
            absences: list = []
            shown: dict[int, tf.Tensor] = {}  # by place: that other ranks have tf.IndexedSlices there too
            with all_or_none([*groups, *(names[i] for i in single)], self.process_set) as begun:
                self._check_slices(grads)
                for name, places in groups.items():
                    begun(name)
                    shown |= dict.fromkeys(places, self._reduce_group(grads, places, vars, name, results)[0])
                tensors = [i for i in single if is_tensor(grads[i])]
                for i in tensors:
                    begun(names[i])
                    results[i] = self._reduce_one(grads[i], names[i])
                # What fails ends the step here, and what it has not begun then the others would wait for. So these, which
                # could be sent at once, come when all is there.
                with tf.control_dependencies([grads[i] for i in tensors if tf.is_tensor(grads[i])]):
                    for i in single:
                        if i not in tensors:
                            begun(names[i])
                            stand_in = self._reduce_stand_in(sent_for(grads[i], vars, i), names[i])
                            if grads[i] is None:
                                absences.append(stand_in)
                            else:
                                shown[i] = stand_in
                for i, gradient in enumerate(grads):
                    if isinstance(gradient, tf.IndexedSlices):
                        begun(f"{names[i]}.rows")
                        with tf.control_dependencies([shown[i]]):
                            results[i] = self._reduce_one(gradient, f"{names[i]}.rows")
            return _after(absences, results)

    def _partition(self, grads: list, vars: Sequence[Any] | None) -> tuple[list[list[int]], list[int]]:
        """Places of gradients that go together, and those that go alone. The same on all ranks, also where these have
        None or tf.IndexedSlices in other places."""
        everything = list(range(len(grads)))
        if isinstance(self._groups, int):
            return split_list(everything, self._groups), []
        together = []
        if self._groups is not None:
            if vars is None:
                raise ValueError(
                    "groups of variables can only be used where the gradients' variables are known."
                )
            place_of = {ref(v): i for i, v in enumerate(vars)}
            for group in self._groups:
                places = [place_of.get(ref(v)) for v in group]
                together.append([i for i in places if i is not None])
            together = [group for group in together if group]
        rest = [i for i in everything if not any(i in group for group in together)]
        if tf.executing_eagerly() or in_xla():
            return together + _chunks(rest, grads, vars), []
        return together, rest

    def _options_of(self, gradient: Any) -> dict:
        # The mean of rows that are gathered is what it is, whatever it is divided by first.
        factors = {} if isinstance(gradient, tf.IndexedSlices) else self._factors
        return {"op": self._op, "process_set": self.process_set, "ignore_name_scope": True, **factors}

    def _reduce_one(self, gradient: Any, name: str) -> Any:
        return _allreduce_cond(
            gradient, compression=self._compression, name=name, **self._devices, **self._options_of(gradient)
        )

    def _reduce_group(self, grads: list, places: list[int], vars: Any, name: str, results: list) -> list:
        """Put a group's tensors, reduced, into `results`. Returns all that the reduction has returned."""
        packed = [sent_for(grads[i], vars, i) for i in places]
        try:
            reduced = _grouped_allreduce_cond(
                packed, compression=self._compression, name=name, **self._devices, **self._options_of(None)
            )
        except tf.errors.FailedPreconditionError as error:
            raise type(error)(None, None, f"{error.message} {kinds(grads, vars, places)}") from error
        for i, tensor in zip(places, reduced):
            if is_tensor(grads[i]):
                results[i] = tensor
        return list(reduced)

    def _reduce_stand_in(self, stand_in: tf.Tensor, name: str) -> tf.Tensor:
        """Take part where there is no tensor here, so that ranks with one get an error instead of waiting."""
        with tf.name_scope("no_tensor_here"):
            return self._reduce_one(stand_in, name)

    def _check_slices(self, grads: list) -> None:
        problem = why_not_slices(self._op, 1.0, 1.0)
        # Eagerly the ranks find that one after the other, each at the operation.
        if problem and not tf.executing_eagerly() and any(isinstance(g, tf.IndexedSlices) for g in grads):
            raise NotImplementedError(problem)


def _after(absences: list[tf.Tensor], results: list) -> list:
    """`results`, of which one has to wait for `absences`: what nobody waits for is not executed in a graph."""
    place = next((i for i, result in enumerate(results) if result is not None), None)
    if not absences or place is None or tf.executing_eagerly():
        return results
    with tf.control_dependencies(absences):
        results[place] = tf.nest.map_structure(tf.identity, results[place], expand_composites=True)
    return results


def _chunks(places: list[int], grads: list, vars: Sequence[Any] | None) -> list[list[int]]:
    """Cut `places` where _GROUP_BYTES are full. By the variables, which all ranks have, where there is no gradient."""
    chunks: list[list[int]] = []
    filled = _GROUP_BYTES
    for i in places:
        sized = plain_variable(vars[i]) if vars is not None else grads[i]
        elements = 0 if sized is None else (sized.shape.num_elements() or 0)
        size = elements * (sized.dtype.size if elements else 0)
        if filled + size > _GROUP_BYTES:
            chunks.append([])
            filled = 0
        chunks[-1].append(i)
        filled += size
    return chunks


def _where_it_takes_part(process_set: ProcessSet, reduce: Callable, leave: Callable) -> Any:
    if decided_at_run_time() and not tf.executing_eagerly() and not in_xla():
        number = process_set.process_set_id
        several = tf.logical_and(tf.equal(process_set_included_op(number), 1), tf.greater(size_op(number), 1))
        return tf.cond(several, reduce, leave)
    return reduce() if takes_part(process_set) else leave()


@plain
def _allreduce_cond(
    tensor: Any, *args: Any, process_set: ProcessSet = global_process_set, **options: Any
) -> Any:
    """allreduce() where this rank takes part and is not alone, else the tensor as it is. Decided now; with
    HOROVOD_ELASTIC, in graphs, each time it is executed."""
    return _where_it_takes_part(
        process_set,
        lambda: allreduce(tensor, *args, process_set=process_set, **options),
        lambda: tf.nest.map_structure(tf.identity, tensor, expand_composites=True),
    )


@plain
def _grouped_allreduce_cond(
    tensors: Sequence[Any], *args: Any, process_set: ProcessSet = global_process_set, **options: Any
) -> list:
    """As _allreduce_cond(), of grouped_allreduce()."""
    return _where_it_takes_part(
        process_set,
        lambda: grouped_allreduce(tensors, *args, process_set=process_set, **options),
        lambda: tf.nest.map_structure(tf.identity, list(tensors), expand_composites=True),
    )


@plain
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
    """What reduces lists of gradients: called as ``reduce(grads, vars=None, use_generic_names=False)``."""
    return GradientReduction(
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
    )


@_cache
def _made_before(
    name, device_dense, device_sparse, compression, sparse_as_dense, op, factor, groups, process_set
):
    if isinstance(groups, tuple):
        groups = refs_to_vars(groups)
    return GradientReduction(
        name, device_dense, device_sparse, compression, sparse_as_dense, op, factor, groups, process_set
    )


@plain
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
    """_make_allreduce_grads_fn(), once for equal arguments."""
    if isinstance(groups, (list, tuple)):
        groups = vars_to_refs(groups)
    return _made_before(
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
    )
