"""The names of the parameters of a DistributedOptimizer, and checks of them. Pure functions; any thread."""

from collections.abc import Iterable

import torch


def find_duplicates(values: Iterable) -> set:
    """The elements that occur in `values` more than once."""
    seen: set = set()
    return {value for value in values if value in seen or seen.add(value)}


def name_parameters(param_groups: list, named_parameters: Iterable | None) -> dict[torch.Tensor, str]:
    """{parameter: name} of all parameters. Raises ValueError as DistributedOptimizer documents."""
    if named_parameters is None:
        return {
            param: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(param_groups)
            for j, param in enumerate(group["params"])
        }
    named = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    duplicates = find_duplicates(name for name, _ in named)
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. "
            f"Found duplicates: {', '.join(sorted(duplicates))}"
        )
    names = {param: name for name, param in named}
    unnamed = [
        f"parameter {j} of group {i} with shape {list(param.shape)}"
        for i, group in enumerate(param_groups)
        for j, param in enumerate(group["params"])
        if param not in names
    ]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named: "
            f"{'; '.join(unnamed[:8])}{' ...' if len(unnamed) > 8 else ''}. Pass the names of all of them."
        )
    return names


def require_same_names(of_all: list[list[str]], ranks: list[int] | None) -> None:
    """Raise ValueError, with the difference, unless the ranks reduce the same parameters. The same on all of them.

    `of_all`: each rank's names, by its place in the process set, whose `ranks` are named (None: all in order).
    """
    differences = []
    for place, names in enumerate(of_all):
        missing, more = set(of_all[0]) - set(names), set(names) - set(of_all[0])
        rank, first = (place, 0) if ranks is None else (ranks[place], ranks[0])
        for found, text in ((missing, "lacks"), (more, "has also")):
            if found:
                listed = f"{', '.join(sorted(found)[:8])}{' ...' if len(found) > 8 else ''}"
                differences.append(f"rank {rank} {text} {listed}, compared with rank {first}")
    if differences:
        raise ValueError(
            "groups=n divides the parameters that require grad, which must be the same on all ranks, but "
            f"{'; '.join(differences[:8])}. Freeze the same parameters everywhere, or give `groups` as lists."
        )
