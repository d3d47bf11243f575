"""What AutoGraph, which rewrites the Python code of a function that TensorFlow traces, shall leave as it is."""

from collections.abc import Callable


def plain(function: Callable) -> Callable:
    """Tell AutoGraph to call a function as it is: rewriting it costs tens of milliseconds, and so does each function that
    it calls. Sets AutoGraph's mark, as its decorator costs each eager call more."""
    function.autograph_info__ = {}
    return function
