"""Which exceptions of JAX may be a failed operation in a compiled program. Any thread."""

import jax

__all__ = ["may_be_of_operation"]

# How the text begins if the program has made a mistake, and if a program that JAX waits for at once fails otherwise.
_MISTAKES = ("FAILED_PRECONDITION", "INVALID_ARGUMENT")
_OTHERS = ("UNKNOWN: ", "ABORTED: ", "INTERNAL: ", "CANCELLED: ")


def may_be_of_operation(error: Exception) -> bool:
    """Whether an exception may be the end of the job, as a compiled program raises it."""
    text = str(error)
    if type(error) is ValueError:
        return text.startswith(_OTHERS)
    # Old versions of JAX have another name for it.
    kinds = (getattr(jax.errors, "JaxRuntimeError", ()),)
    return (isinstance(error, kinds) or type(error).__name__ == "XlaRuntimeError") and not text.startswith(
        _MISTAKES
    )
