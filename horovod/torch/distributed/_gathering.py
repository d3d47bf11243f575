"""The calls of a group that collect tensors: all_gather and gather, in all forms. See _group.py for their rules."""

from typing import Any

import torch

from horovod.torch.distributed._calls import together
from horovod.torch.distributed._operands import Operand, Taken, fill, operand
from horovod.torch.distributed._rooted import Exchange, gathered, goes_apart

# Numbers that tell gather and scatter apart, and their roots; ranks must agree on them.
GATHER, SCATTER = 1 << 20, 2 << 20


class Gathering:
    """A part of Group, which has `_calls`, `_rank`, `_size`."""

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

    def _gather_list(self, outputs: list, tensor: Any, opts: Any) -> Any:
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

    def _gather_ragged(self, name: str, outputs: list, sent: Operand, opts: Any) -> Any:
        """Tensors of several sizes: each rank sends its own to each other."""
        calls = self._calls
        parts = [operand(output, False, calls.process_set, False) for output in outputs]
        counts = [part.flat.numel() for part in parts]
        place = sent.flat.new_empty(sum(counts))
        copies = sent.flat.repeat(self._size)
        taken = Taken(calls.core, [copies], [place])

        def finish() -> None:
            for output, piece in zip(outputs, place.split(counts)):
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

    def _gather_into(self, outputs: list, inputs: list, opts: Any, what: str) -> Any:
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
            if goes_apart(sent.flat, self._size):
                taken, how, finish = gathered(calls, self._rank, self._size, root, sent, results)
            else:
                taken, how, finish = self._gather_joined(sent, root, results)
        return calls.submit(
            "alltoall", name, taken, "gather", results, opts, finish, number=GATHER + root, unit=count, **how
        )

    def _gather_joined(self, sent: Operand, root: int, results: list) -> Exchange:
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


def one_memory(tensors: list, like: torch.Tensor) -> torch.Tensor | None:
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


def check_types(what: str, outputs: list, inputs: list) -> None:
    """Raise ValueError if an output is not of the type of its input."""
    for output, tensor in zip(outputs, inputs, strict=True):
        if output.dtype is not tensor.dtype:
            raise ValueError(f"{what}: an output is of type {output.dtype}, but its input of {tensor.dtype}.")


def copying_back(places: list[Operand]) -> Any:
    """A function that copies results back, for operands that are copies; None without such operands."""
    copies = [place for place in places if place.own]
    return (lambda: [place.copy_back() for place in copies]) if copies else None


def _check_list(what: str, outputs: list, tensor: torch.Tensor, size: int, rank: int) -> None:
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


def _spreading(outputs: list, place: torch.Tensor, sent: Operand) -> Any:
    def spread() -> None:
        for output, piece in zip(outputs, place.split(sent.flat.numel() or 1)):
            fill(output, piece)

    return spread
