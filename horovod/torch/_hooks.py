"""The hook that is called when the gradient of a parameter is complete. Used by _reducer.py."""

from collections.abc import Callable
from typing import Any

import torch

# torch < 2.1 has no hook that runs after the gradient is stored; there the accumulator node of the graph is
# hooked.
HAS_POST_ACCUMULATE_HOOK = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")


def when_complete(param: torch.Tensor, function: Callable) -> tuple[Any, Any]:
    """Have `function` called at each backward, when the gradient of `param` is stored.

    Returns:
        The hook's handle, and an object to be kept alive, because the hook is deleted with it.
    """
    if HAS_POST_ACCUMULATE_HOOK:
        return param.register_post_accumulate_grad_hook(function), None
    accumulator = param.expand_as(param).grad_fn.next_functions[0][0]
    return accumulator.register_hook(function), accumulator
