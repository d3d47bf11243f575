"""The collectives of a group that gather tensors or scatter them. See _group.py for their rules."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.torch.distributed._requests import (
    SUM,
    Calls,
    Operand,
    Taken,
    complex_sums_only,
    fill,
    operand,
    reduction_of,
    together,
)

# gather and scatter of large tensors in host memory: each part goes straight from and to the tensor of its rank. One
# alltoall with a tensor for each rank that is not the root: that rank sends its part to the root, or gets it from there,
# and the other ranks have an empty tensor instead. The root's own part is copied here.

# Smaller parts are joined, which costs less than a tensor for each rank; so do the parts of many ranks.
_LEAST_BYTES, _MOST_RANKS = 64 << 10, 16

# The tensors, `splits` and `received` of Engine.ordered(), and what puts the results where they belong.
Exchange = tuple[Taken, dict[str, Any], Callable[[], None] | None]


def goes_directly(flat: torch.Tensor, size: int) -> bool:
    """Whether the parts of a gather or scatter go straight to their tensors; `flat`: this rank's part; Equal on all."""
    return flat.is_cpu and flat.numel() * flat.element_size() >= _LEAST_BYTES and 1 < size <= _MOST_RANKS


def gathered(
    calls: Any, rank: int, size: int, root: int, sent: Operand, results: list[torch.Tensor]
) -> Exchange:
    """A gather. `sent`: this rank's part; `results`: on the root, the tensor for each rank."""
    others, nothing, count = _others(size, root), sent.flat.new_empty(0), sent.flat.numel()
    if rank != root:
        inputs = [sent.flat if other == rank else nothing for other in others]
        numbers = {
            "splits": _rows(size, count, [root if other == rank else None for other in others]),
            "received": _rows(size, count, [None] * len(others)),
        }
        return Taken(calls.core, inputs, [nothing] * len(others)), numbers, None
    places = [operand(tensor, False, calls.process_set, False) for tensor in results]

    def finish() -> None:
        fill(results[root], sent.flat)
        for other in others:
            places[other].copy_back()

    numbers = {
        "splits": _rows(size, count, [None] * len(others)),
        "received": _rows(size, count, others),
    }
    outputs = [places[other].flat for other in others]
    return Taken(calls.core, [nothing] * len(others), outputs), numbers, finish


def scattered(
    calls: Any, rank: int, size: int, root: int, parts: list[torch.Tensor], place: Operand
) -> Exchange:
    """A scatter. `parts`: on the root, the tensor for each rank; `place`: for this rank's part."""
    others, nothing, count = _others(size, root), place.flat.new_empty(0), place.flat.numel()
    if rank != root:
        outputs = [place.flat if other == rank else nothing for other in others]
        numbers = {
            "splits": _rows(size, count, [None] * len(others)),
            "received": _rows(size, count, [root if other == rank else None for other in others]),
        }
        finish = place.copy_back if place.own else None
        return Taken(calls.core, [nothing] * len(others), outputs), numbers, finish
    sent = [operand(part, False, calls.process_set).flat for part in parts]
    for flat in sent:
        if flat.numel() != count:
            raise ValueError(
                f"scatter: each of the {size} inputs must have as many elements as the output, {place.tensor.numel()}."
            )
    numbers = {
        "splits": _rows(size, count, others),
        "received": _rows(size, count, [None] * len(others)),
    }
    taken = Taken(calls.core, [sent[other] for other in others], [nothing] * len(others))
    return taken, numbers, lambda: fill(place.tensor, sent[root])


def _others(size: int, root: int) -> list[int]:
    return [rank for rank in range(size) if rank != root]


def _rows(size: int, count: int, at: Sequence[int | None]) -> list[int]:
    """For each tensor one number for each rank: `count` for the rank at[i], if it is not None, and 0 for the others."""
    return [count if rank == one else 0 for one in at for rank in range(size)]


# The calls of a group that collect tensors: all_gather and gather, in all forms. See _group.py for their rules.

# Numbers that distinguish gather and scatter, and their roots; ranks must agree on them.
GATHER, SCATTER = 1 << 20, 2 << 20


class Members:
    """What the collectives use of a group."""

    _calls: Calls
    _rank: int
    _size: int


class Gathering(Members):
    """A part of Group."""

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[i][r] becomes rank r's inputs[i]. Rank r's tensor has the size of outputs[i][r], on all ranks."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        return together(
            [self._gather_list(o, i, opts) for o, i in zip(outputs, inputs, strict=True)], list(outputs)
        )

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[r][i] becomes rank r's inputs[i]."""
        return self.allgather([list(each) for each in zip(*outputs, strict=True)], list(inputs), opts)

    def _gather_list(self, outputs: list[torch.Tensor], tensor: Any, opts: Any) -> Any:
        calls, name = self._calls, self._calls.next_name()
        sizes = {output.numel() for output in outputs if isinstance(output, torch.Tensor)}
        ragged = len(sizes) > 1
        operation = "alltoall" if ragged else "allgather"
        with calls.refusing(operation, name):
            _check_list("all_gather", outputs, tensor, self._size, self._rank)
            sent = operand(tensor, False, calls.process_set)
            if ragged:
                return self._gather_ragged(name, outputs, sent, opts)
            whole = one_memory(outputs, sent.flat)
            place = whole if whole is not None else sent.flat.new_empty(sent.flat.numel() * self._size)
            taken = Taken(calls.core, [sent.flat], [place])
            finish = None if whole is not None else _spreading(outputs, place, sent)
        return calls.submit("allgather", name, taken, "all_gather", outputs, opts, finish)

    def _gather_ragged(self, name: str, outputs: list[torch.Tensor], sent: Operand, opts: Any) -> Any:
        """Tensors of several sizes: each rank sends its own to each other."""
        calls = self._calls
        parts = [operand(output, False, calls.process_set, False) for output in outputs]
        counts = [part.flat.numel() for part in parts]
        place = sent.flat.new_empty(sum(counts))
        copies = sent.flat.repeat(self._size)
        taken = Taken(calls.core, [copies], [place])

        def finish() -> None:
            for output, piece in zip(outputs, torch.split(place, counts)):
                fill(output, piece)

        splits = [sent.flat.numel()] * self._size
        return calls.submit(
            "alltoall", name, taken, "all_gather", outputs, opts, finish, splits=splits, received=counts
        )

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """`output` becomes the ranks' tensors behind each other."""
        return self._gather_into([output], [tensor], opts, "all_gather_single")

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._gather_into(list(outputs), list(inputs), opts, "all_gather_single_coalesced")

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_into(self, outputs: list[torch.Tensor], inputs: list[Any], opts: Any, what: str) -> Any:
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("allgather", name):
            sources = [operand(tensor, False, calls.process_set) for tensor in inputs]
            places = [operand(tensor, False, calls.process_set, False) for tensor in outputs]
            check_types(what, outputs, inputs)
            for source, place in zip(sources, places, strict=True):
                if place.flat.numel() != source.flat.numel() * self._size:
                    raise ValueError(
                        f"{what}: the output must have as many elements as the inputs of all {self._size} ranks, but has "
                        f"{place.tensor.numel()} for an input of {source.tensor.numel()}."
                    )
            ins, flats = [], [place.flat for place in places]
            for source, place in zip(sources, places):
                overlaps = same_memory(source.flat, place.flat)
                ins.append(source.flat.clone() if overlaps else source.flat)
            taken = Taken(calls.core, ins, flats)
            finish = copying_back(places)
        return calls.submit("allgather", name, taken, what, outputs, opts, finish)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[0][r] becomes rank r's inputs[0], on the root; the other ranks give no outputs."""
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("alltoall", name):
            tensor = inputs if isinstance(inputs, torch.Tensor) else inputs[0]
            root = opts.rootRank
            is_root = self._rank == root
            sent = operand(tensor, False, calls.process_set)
            count = sent.flat.numel()
            results = []
            if is_root:
                results = list(
                    outputs[0] if outputs and not isinstance(outputs[0], torch.Tensor) else outputs
                )
                _check_list("gather", results, tensor, self._size, self._rank)
            if goes_directly(sent.flat, self._size):
                taken, how, finish = gathered(calls, self._rank, self._size, root, sent, results)
            else:
                taken, how, finish = self._gather_joined(sent, root, results)
        return calls.submit(
            "alltoall", name, taken, "gather", results, opts, finish, number=GATHER + root, unit=count, **how
        )

    def _gather_joined(self, sent: Operand, root: int, results: list[torch.Tensor]) -> Exchange:
        """A gather whose parts come to the root behind each other, and are copied from there."""
        count, is_root = sent.flat.numel(), self._rank == root
        how = {
            "splits": [count if rank == root else 0 for rank in range(self._size)],
            "received": [count if is_root else 0] * self._size,
        }
        whole, finish, targets = None, None, sent.flat.new_empty(0)
        if is_root:
            whole = one_memory(results, sent.flat)
            targets = whole if whole is not None else sent.flat.new_empty(count * self._size)
            finish = None if whole is not None else _spreading(results, targets, sent)
        return Taken(self._calls.core, [sent.flat], [targets], True, is_root), how, finish


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two flat tensors share a byte."""
    first, second = one.data_ptr(), other.data_ptr()
    ends = first + one.numel() * one.element_size(), second + other.numel() * other.element_size()
    return one.numel() > 0 and other.numel() > 0 and first < ends[1] and second < ends[0]


def one_memory(tensors: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor | None:
    """The memory of a list of dense tensors that lie behind each other, as one flat tensor; None if they do not, or if
    `like`, which the list's ranks send, lies there too."""
    first = tensors[0]
    width = first.numel() * first.element_size()
    address = first.data_ptr()
    for place, tensor in enumerate(tensors):
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.data_ptr() != address + place * width:
            return None
        if tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
    if width == 0 or first.is_complex() or first.dtype is not like.dtype:
        return None
    whole = first.detach().as_strided((first.numel() * len(tensors),), (1,))
    return None if same_memory(whole, like) else whole


def check_types(what: str, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    """Raise ValueError if an output is not of the type of its input."""
    for output, tensor in zip(outputs, inputs, strict=True):
        if output.dtype is not tensor.dtype:
            raise ValueError(f"{what}: an output is of type {output.dtype}, but its input of {tensor.dtype}.")


def copying_back(places: list[Operand]) -> Any:
    """A function that copies results back, for operands that are copies; None without such operands."""
    copies = [place for place in places if place.own]

    def copy() -> None:
        for place in copies:
            place.copy_back()

    return copy if copies else None


def _check_list(what: str, outputs: list[torch.Tensor], tensor: torch.Tensor, size: int, rank: int) -> None:
    if len(outputs) != size:
        raise ValueError(
            f"{what}: {size} tensors are needed for the results, one for each rank, but found {len(outputs)}."
        )
    for output in outputs:
        if output.dtype is not tensor.dtype:
            raise ValueError(f"{what}: a result is of type {output.dtype}, but the input of {tensor.dtype}.")
    if what == "gather" and any(output.numel() != tensor.numel() for output in outputs):
        raise ValueError(
            f"gather: each result must have {tensor.numel()} elements, as the input has, but they have "
            f"{[output.numel() for output in outputs]}."
        )
    if outputs[rank].numel() != tensor.numel():
        raise ValueError(
            f"{what}: this rank sends {tensor.numel()} elements, but its own place in the results has "
            f"{outputs[rank].numel()}."
        )


def _spreading(outputs: list[torch.Tensor], place: torch.Tensor, sent: Operand) -> Any:
    def spread() -> None:
        for output, piece in zip(outputs, torch.split(place, sent.flat.numel() or 1)):
            fill(output, piece)

    return spread


# The calls of a group that give each rank a part: reduce_scatter, scatter, all_to_all. See _group.py for their rules.


class Scattering(Members):
    """A part of Group."""

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[i] becomes the reduction of the ranks' inputs[i][r], on rank r."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        return together(
            [self._reduce_list(o, i, opts) for o, i in zip(outputs, inputs, strict=True)], list(outputs)
        )

    def _reduce_list(self, output: torch.Tensor, inputs: list[torch.Tensor], opts: Any) -> Any:
        sizes = {tensor.numel() for tensor in inputs}
        if len(sizes) == 1:
            return self._scatter_reduced([output], [inputs], opts, "reduce_scatter")
        # Parts of several sizes: all are reduced behind each other, and this rank keeps its own.
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("allreduce", name):
            number, factor = reduction_of(opts)
            complex_sums_only(inputs, number == SUM)
            check_types("reduce_scatter", [output] * len(inputs), inputs)
            sent = operand(_joined(inputs, self._size, "reduce_scatter"), True, calls.process_set)
            if output.numel() != inputs[self._rank].numel():
                raise ValueError(
                    f"reduce_scatter: the output must have as many elements as this rank's input, "
                    f"{inputs[self._rank].numel()}, but has {output.numel()}."
                )
            target = torch.empty_like(sent.flat)
            # 2 for complex numbers
            width = sent.flat.numel() // max(1, sum(tensor.numel() for tensor in inputs))
            parts = [tensor.numel() * width for tensor in inputs]
            taken = Taken(calls.core, [sent.flat], [target])
        return calls.submit(
            "allreduce", name, taken, "reduce_scatter", [output], opts,
            lambda: fill(output, torch.split(target, parts)[self._rank]), number=number, prescale=factor,
        )  # fmt: skip

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """`output` becomes this rank's part of the reduction of the ranks' tensors."""
        return self._scatter_reduced([output], [tensor], opts, "reduce_scatter_single")

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._scatter_reduced(list(outputs), list(inputs), opts, "reduce_scatter_single_coalesced")

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_reduced(self, outputs: list[torch.Tensor], inputs: list[Any], opts: Any, what: str) -> Any:
        """Each of `inputs` is one tensor, or the list of the ranks' parts, of equal sizes."""
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("reducescatter", name):
            number, factor = reduction_of(opts)
            sources, places = [], []
            for output, tensor in zip(outputs, inputs, strict=True):
                joined = tensor if isinstance(tensor, torch.Tensor) else _joined(tensor, self._size, what)
                complex_sums_only([joined], number == SUM)
                check_types(what, [output], [joined])
                source = operand(joined, True, calls.process_set)
                place = operand(output, True, calls.process_set, False)
                if source.flat.numel() != place.flat.numel() * self._size:
                    raise ValueError(
                        f"{what}: the input must have as many elements as the outputs of all {self._size} ranks, but has "
                        f"{joined.numel()} for an output of {output.numel()}."
                    )
                # With one row for each rank, every rank gets one.
                flat = source.flat.clone() if same_memory(source.flat, place.flat) else source.flat
                sources.append(flat.view(self._size, place.flat.numel()))
                places.append(place)
            targets = [
                place.flat.view(1, -1) if place.flat.numel() else place.flat.view(1, 0) for place in places
            ]
            taken = Taken(calls.core, sources, targets)
            finish = copying_back(places)
        return calls.submit(
            "reducescatter", name, taken, what, outputs, opts, finish, number=number, prescale=factor
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[0] becomes the root's inputs[0][r], on rank r; the other ranks give no inputs."""
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("alltoall", name):
            output = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
            root = opts.rootRank
            place = operand(output, False, calls.process_set, False)
            count = place.flat.numel()
            parts = []
            if self._rank == root:
                parts = list(inputs[0] if inputs and not isinstance(inputs[0], torch.Tensor) else inputs)
                check_types("scatter", [output] * len(parts), parts)
                check_count("scatter", parts, self._size)
            if goes_directly(place.flat, self._size):
                taken, how, finish = scattered(calls, self._rank, self._size, root, parts, place)
            else:
                taken, how, finish = self._scatter_joined(parts, root, place)
        return calls.submit(
            "alltoall",
            name,
            taken,
            "scatter",
            [output],
            opts,
            finish,
            number=SCATTER + root,
            unit=count,
            **how,
        )

    def _scatter_joined(self, parts: list[torch.Tensor], root: int, place: Operand) -> Exchange:
        """A scatter whose parts lie behind each other on the root, or are copied so."""
        calls, count = self._calls, place.flat.numel()
        sent, splits = place.flat.new_empty(0), [0] * self._size
        if self._rank == root:
            sent = operand(_joined(parts, self._size, "scatter"), False, calls.process_set).flat
            if sent.numel() != count * self._size:
                raise ValueError(
                    f"scatter: each of the {self._size} inputs must have as many elements as the output, "
                    f"{place.tensor.numel()}."
                )
            sent = sent.clone() if same_memory(sent, place.flat) else sent
            splits = [count] * self._size
        taken = Taken(calls.core, [sent], [place.flat], self._rank == root)
        received = [count if rank == root else 0 for rank in range(self._size)]
        return taken, {"splits": splits, "received": received}, copying_back([place])

    def all_to_all_single(
        self, output: Any, tensor: Any, output_splits: Any = (), input_splits: Any = (), opts: Any = None
    ) -> Any:
        """Rank r's `output` becomes the r-th parts of the ranks' tensors behind each other. The splits count rows."""
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("alltoall", name):
            check_types("all_to_all_single", [output], [tensor])
            source = operand(tensor, False, calls.process_set)
            place = operand(output, False, calls.process_set, False)
            splits = _elements(tensor, source.flat.numel(), input_splits, self._size, "input")
            received = _elements(output, place.flat.numel(), output_splits, self._size, "output")
            sent = source.flat.clone() if same_memory(source.flat, place.flat) else source.flat
            taken = Taken(calls.core, [sent], [place.flat])
            # Equal parts need no comparison of the ranks' splits: the ranks agree on the size of a part.
            equal = not input_splits and not output_splits and splits == received
            finish = copying_back([place])
        return calls.submit(
            "alltoall", name, taken, "all_to_all_single", [output], opts, finish,
            splits=splits, received=received, unit=splits[0] if equal else -1,
        )  # fmt: skip

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[r] becomes the rank-th of rank r's inputs."""
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("alltoall", name):
            outputs, inputs = list(outputs), list(inputs)
            if not len(outputs) == len(inputs) == self._size:
                raise ValueError(
                    f"all_to_all: {self._size} inputs and outputs are needed, but found {len(inputs)} and {len(outputs)}."
                )
            check_types("all_to_all", outputs, inputs)
            sent = operand(_joined(inputs, self._size, "all_to_all"), False, calls.process_set).flat
            parts = [operand(tensor, False, calls.process_set) for tensor in inputs]
            places = [operand(tensor, False, calls.process_set, False) for tensor in outputs]
            splits = [part.flat.numel() for part in parts]
            received = [place.flat.numel() for place in places]
            whole = one_memory(outputs, sent) if len(set(received)) == 1 else None
            target = whole if whole is not None else sent.new_empty(sum(received))

            def spread() -> None:
                for output, piece in zip(outputs, torch.split(target, received)):
                    fill(output, piece)

            taken = Taken(calls.core, [sent], [target])
            finish = None if whole is not None else spread
        return calls.submit(
            "alltoall", name, taken, "all_to_all", outputs, opts, finish, splits=splits, received=received
        )


def check_count(what: str, parts: list[torch.Tensor], size: int) -> None:
    """Raise ValueError unless there is a part for each rank."""
    if len(parts) != size:
        raise ValueError(f"{what}: {size} tensors are needed, one for each rank, but found {len(parts)}.")


def _joined(parts: list[torch.Tensor], size: int, what: str) -> torch.Tensor:
    """The ranks' parts behind each other: as they lie there, or copied."""
    check_count(what, parts, size)
    if len({(part.numel(), part.dtype) for part in parts}) == 1:
        # A tensor that is nowhere: the parts may lie in any memory.
        whole = one_memory(parts, parts[0].new_empty(0))
        if whole is not None:
            return whole
    return torch.cat([part.detach().reshape(-1) for part in parts])


def _elements(tensor: torch.Tensor, flat: int, splits: Any, size: int, which: str) -> list[int]:
    """The elements, as the engine counts them, that go to or come from each rank; from splits in rows."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(
                f"all_to_all_single: the {which} has {rows} rows, which {size} ranks cannot share equally. Give splits."
            )
        return [flat // size] * size
    splits = [int(split) for split in splits]
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"all_to_all_single: the {which}'s splits {splits} must be {size} numbers whose sum is {rows}, its rows."
        )
    width = flat // rows if rows else 0
    return [split * width for split in splits]
