"""The calls of a group that give each rank a part: reduce_scatter, scatter, all_to_all. See _group.py for their rules."""

from typing import Any

import torch

from horovod.torch.distributed._calls import together
from horovod.torch.distributed._gathering import (
    SCATTER,
    check_types,
    copying_back,
    one_memory,
    same_memory,
)
from horovod.torch.distributed._operands import Operand, Taken, complex_sums_only, fill, operand
from horovod.torch.distributed._reductions import SUM, number_and_factor
from horovod.torch.distributed._rooted import Exchange, goes_apart, scattered


class Scattering:
    """A part of Group, which has `_calls`, `_rank`, `_size`."""

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[i] becomes the reduction of the ranks' inputs[i][r], on rank r."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        return together(
            [self._reduce_list(o, i, opts) for o, i in zip(outputs, inputs, strict=True)], list(outputs)
        )

    def _reduce_list(self, output: torch.Tensor, inputs: list, opts: Any) -> Any:
        sizes = {tensor.numel() for tensor in inputs}
        if len(sizes) == 1:
            return self._scatter_reduced([output], [inputs], opts, "reduce_scatter")
        # Parts of several sizes: all are reduced behind each other, and this rank keeps its own.
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("allreduce", name):
            number, factor = _reduction(opts)
            complex_sums_only(inputs, number == SUM)
            check_types("reduce_scatter", [output] * len(inputs), inputs)
            sent = operand(_joined(inputs, self._size, "reduce_scatter"), True, calls.process_set)
            if output.numel() != inputs[self._rank].numel():
                raise ValueError(
                    f"reduce_scatter: the output must have as many elements as this rank's input, "
                    f"{inputs[self._rank].numel()}, but has {output.numel()}."
                )
            target = torch.empty_like(sent.flat)
            width = sent.flat.numel() // max(
                1, sum(tensor.numel() for tensor in inputs)
            )  # 2 for complex numbers
            sizes = [tensor.numel() * width for tensor in inputs]
            taken = Taken(calls.core, [sent.flat], [target])
        return calls.submit(
            "allreduce", name, taken, "reduce_scatter", [output], opts,
            lambda: fill(output, target.split(sizes)[self._rank]), number=number, prescale=factor,
        )  # fmt: skip

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """`output` becomes this rank's part of the reduction of the ranks' tensors."""
        return self._scatter_reduced([output], [tensor], opts, "reduce_scatter_single")

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._scatter_reduced(list(outputs), list(inputs), opts, "reduce_scatter_single_coalesced")

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_reduced(self, outputs: list, inputs: list, opts: Any, what: str) -> Any:
        """Each of `inputs` is one tensor, or the list of the ranks' parts, of equal sizes."""
        calls, name = self._calls, self._calls.next_name()
        with calls.refusing("reducescatter", name):
            number, factor = _reduction(opts)
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
            if goes_apart(place.flat, self._size):
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

    def _scatter_joined(self, parts: list, root: int, place: Operand) -> Exchange:
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
                for output, piece in zip(outputs, target.split(received)):
                    fill(output, piece)

            taken = Taken(calls.core, [sent], [target])
            finish = None if whole is not None else spread
        return calls.submit(
            "alltoall", name, taken, "all_to_all", outputs, opts, finish, splits=splits, received=received
        )


def _reduction(opts: Any) -> tuple[int, float]:
    if opts is None:
        return SUM, 1.0
    return number_and_factor(getattr(opts, "reduceOp", opts))


def check_count(what: str, parts: list, size: int) -> None:
    """Raise ValueError unless there is a part for each rank."""
    if len(parts) != size:
        raise ValueError(f"{what}: {size} tensors are needed, one for each rank, but found {len(parts)}.")


def _joined(parts: list, size: int, what: str) -> torch.Tensor:
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
