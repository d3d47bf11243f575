"""Compiles functions for ranks_compile*.py, and counts what ended their graphs."""

import torch
import torch._dynamo as dynamo

# Dynamo measures the guards of each graph for its log, and flushes the processor's caches before: 30 ms a graph.
if hasattr(dynamo.guards, "profile_guard_manager"):
    dynamo.guards.profile_guard_manager = lambda *_, **__: 0.0


def _whole_graphs_take_unknown_sizes():
    """Whether fullgraph=True alone lets a graph have unknown sizes; PyTorch 2.7 wants a setting for that too."""
    try:
        torch.compile(torch.nonzero, backend="eager", fullgraph=True)(torch.ones(2))
    except dynamo.exc.Unsupported:
        return False
    return True


_needs_setting = not _whole_graphs_take_unknown_sizes()
_has_set = False


def compiled(function, backend="aot_eager", whole=True, **options):
    """`function`, compiled. `whole`: in one graph, or compiling fails."""
    global _has_set
    dynamo.reset()
    dynamo.utils.counters.clear()
    if _needs_setting and (whole or _has_set):
        dynamo.config.capture_dynamic_output_shape_ops = _has_set = whole
    return torch.compile(function, backend=backend, fullgraph=whole, **options)


def breaks():
    return dict(dynamo.utils.counters["graph_break"])
