"""torch's reduce ops as the engine's numbers. Pure functions; any thread."""

from typing import Any

from torch.distributed import ReduceOp

from hvd_core.frontend import reductions
from hvd_core.frontend.reductions import ENGINE_NUMBERS

_OPS = {
    "SUM": ENGINE_NUMBERS[reductions.Sum],
    "AVG": ENGINE_NUMBERS[reductions.Average],
    "MIN": ENGINE_NUMBERS[reductions.Min],
    "MAX": ENGINE_NUMBERS[reductions.Max],
    "PRODUCT": ENGINE_NUMBERS[reductions.Product],
    "PREMUL_SUM": ENGINE_NUMBERS[reductions.Sum],
}


def _kind(op: Any) -> Any:
    return getattr(op, "op", op)  # a ReduceOp, or its RedOpType


_NUMBERS = {
    _kind(getattr(ReduceOp, name)): number for name, number in _OPS.items() if hasattr(ReduceOp, name)
}
SUM = _OPS["SUM"]


def number_and_factor(op: Any) -> tuple[int, float]:
    """The engine's number of a reduce op, and the factor that the tensors are multiplied by before.

    Raises:
        NotImplementedError: BAND, BOR or BXOR, or a factor that is a tensor.
    """
    kind = _kind(op)
    try:
        number = _NUMBERS[kind]
    except (KeyError, TypeError):
        raise NotImplementedError(
            f"hvd: reductions by {getattr(kind, 'name', kind)} are not supported. Use SUM, AVG, MIN, MAX or PRODUCT."
        ) from None
    if kind is not _PREMUL:
        return number, 1.0
    factor = op.__getstate__()[1]
    if not isinstance(factor, (int, float)):
        raise NotImplementedError("hvd: PREMUL_SUM takes a number as its factor, not a tensor.")
    return number, float(factor)


# The ops that are one number.
_PREMUL = _kind(getattr(ReduceOp, "PREMUL_SUM", None))
PLAIN_OPS = {kind: number for kind, number in _NUMBERS.items() if kind is not _PREMUL}
