"""The collectives of a group that gather tensors or scatter them. See _group.py for their rules."""

from collections.abc import Callable
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

# Numbers that distinguish gather and scatter, and their roots; ranks must agree on them.
GATHER, SCATTER = 1 << 20, 2 << 20
# gather and scatter: smaller parts are joined, which costs less than a tensor for each rank; so do the parts of many
# ranks.
_LEAST_BYTES, _MOST_RANKS = 64 << 10, 16

# The tensors, `splits` and `received` of Engine.ordered(), and what puts the results where they belong.
Exchange = tuple[Taken, list[int], list[int], Callable[[], None] | None]


class Collectives:
    """A part of Group."""

    _calls: Calls
    _rank: int
    _size: int

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
        ragged = len({output.numel() for output in outputs if isinstance(output, torch.Tensor)}) > 1
        operation = "alltoall" if ragged else "allgather"
        how: dict[str, Any] = {}
        with calls.refusing(operation, name):
            _check_list("all_gather", outputs, tensor, self._size, self._rank)
            source = sent = operand(tensor, False, calls.process_set).flat
            counts = [sent.numel()] * self._size
            if ragged:  # tensors of several sizes: each rank sends its own to each other
                parts = [operand(output, False, calls.process_set, False) for output in outputs]
                how = {"splits": counts, "received": [part.flat.numel() for part in parts]}
                counts, source = how["received"], sent.repeat(self._size)
            target, finish = _target(outputs, sent, counts)
            taken = Taken(calls.core, [source], [target])
        return calls.submit(operation, name, taken, "all_gather", outputs, opts, finish, **how)

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
        return self._with_root("gather", inputs, outputs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[0] becomes the root's inputs[0][r], on rank r; the other ranks give no inputs."""
        return self._with_root("scatter", outputs, inputs, opts)

    def _with_root(self, what: str, part: Any, parts: Any, opts: Any) -> Any:
        """A gather into `parts` of the root, or a scatter of them. `part`: of this rank."""
        calls, name, gathers = self._calls, self._calls.next_name(), what == "gather"
        with calls.refusing("alltoall", name):
            tensor = part if isinstance(part, torch.Tensor) else part[0]
            root = opts.rootRank
            mine = operand(tensor, False, calls.process_set, gathers)
            count = mine.flat.numel()
            listed: list[torch.Tensor] = []
            if self._rank == root:
                listed = list(parts[0] if parts and not isinstance(parts[0], torch.Tensor) else parts)
                if gathers:
                    _check_list("gather", listed, tensor, self._size, self._rank)
                else:
                    check_types("scatter", [tensor] * len(listed), listed)
                    check_count("scatter", listed, self._size)
                    if any(each.numel() != tensor.numel() for each in listed):
                        raise ValueError(
                            f"scatter: each of the {self._size} inputs must have as many elements as the output, "
                            f"{tensor.numel()}."
                        )
            direct = mine.flat.is_cpu and count * mine.flat.element_size() >= _LEAST_BYTES
            exchange = self._direct if direct and 1 < self._size <= _MOST_RANKS else self._joined
            taken, splits, received, finish = exchange(mine, listed, root, gathers)
        return calls.submit(
            "alltoall", name, taken, what, listed if gathers else [tensor], opts, finish,
            number=(GATHER if gathers else SCATTER) + root, unit=count, splits=splits, received=received,
        )  # fmt: skip

    def _direct(self, mine: Operand, parts: list[torch.Tensor], root: int, gathers: bool) -> Exchange:
        """Each part goes straight from and to the tensor of its rank: an alltoall with a tensor for each rank that is not
        the root. The other ranks have an empty tensor instead; the root's own part is copied here."""
        calls, size, is_root = self._calls, self._size, self._rank == root
        others = [rank for rank in range(size) if rank != root]
        nothing, count = mine.flat.new_empty(0), mine.flat.numel()
        places = [operand(part, False, calls.process_set, not gathers) for part in parts]
        if is_root:
            used = [places[other].flat for other in others]
        else:
            used = [mine.flat if other == self._rank else nothing for other in others]
        # For each tensor a number for each rank.
        peers = others if is_root else [root if other == self._rank else None for other in others]
        rows = [count if rank == peer else 0 for peer in peers for rank in range(size)]
        unused, none = [nothing] * len(others), [0] * len(rows)

        def finish() -> None:
            if not is_root:
                mine.copy_back()
            elif gathers:
                fill(parts[root], mine.flat)
                for other in others:
                    places[other].copy_back()
            else:
                fill(mine.tensor, places[root].flat)

        if is_root == gathers:  # this rank receives
            return Taken(calls.core, unused, used), none, rows, finish
        return Taken(calls.core, used, unused), rows, none, finish if is_root else None

    def _joined(self, mine: Operand, parts: list[torch.Tensor], root: int, gathers: bool) -> Exchange:
        """The parts lie behind each other on the root, or are copied from and to there."""
        calls, count, is_root = self._calls, mine.flat.numel(), self._rank == root
        of_root = [count if is_root else 0] * self._size
        with_root = [count if rank == root else 0 for rank in range(self._size)]
        other, finish = mine.flat.new_empty(0), None
        if gathers:
            if is_root:
                other, finish = _target(parts, mine.flat, of_root)
            return Taken(calls.core, [mine.flat], [other], True, is_root), with_root, of_root, finish
        if is_root:
            other = operand(_joined(parts, self._size, "scatter"), False, calls.process_set).flat
            other = other.clone() if same_memory(other, mine.flat) else other
        return Taken(calls.core, [other], [mine.flat], is_root), of_root, with_root, copying_back([mine])

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
            target, finish = _target(outputs, sent, received)
            taken = Taken(calls.core, [sent], [target])
        return calls.submit(
            "alltoall", name, taken, "all_to_all", outputs, opts, finish, splits=splits, received=received
        )


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


def _target(outputs: list[torch.Tensor], like: torch.Tensor, counts: list[int]) -> Any:
    """A flat tensor for results that lie behind each other, `counts` elements for each of `outputs`, and the function
    that copies them there; None if it is the memory of `outputs` itself."""
    whole = one_memory(outputs, like) if len(set(counts)) == 1 else None
    if whole is not None:
        return whole, None
    place = like.new_empty(sum(counts))

    def spread() -> None:
        for output, piece in zip(outputs, torch.split(place, counts)):
            fill(output, piece)

    return place, spread


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
