"""torch's reduce ops as the engine's numbers. Pure functions; any thread."""

from typing import Any

from torch.distributed import AllreduceOptions, ReduceOp

from hvd_core._frontend import operations
from hvd_core._frontend.operations import ENGINE_NUMBERS

_OPS = {
    "SUM": ENGINE_NUMBERS[operations.Sum],
    "AVG": ENGINE_NUMBERS[operations.Average],
    "MIN": ENGINE_NUMBERS[operations.Min],
    "MAX": ENGINE_NUMBERS[operations.Max],
    "PRODUCT": ENGINE_NUMBERS[operations.Product],
    "PREMUL_SUM": ENGINE_NUMBERS[operations.Sum],
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
    if kind != _PREMUL:  # each access makes an object
        return number, 1.0
    factor = op.__getstate__()[1]
    if not isinstance(factor, (int, float)):
        raise NotImplementedError("hvd: PREMUL_SUM takes a number as its factor, not a tensor.")
    return number, float(factor)


_PREMUL = _kind(getattr(ReduceOp, "PREMUL_SUM", None))


def _numbers_by_hash() -> dict[int, int]:
    """hash(options.reduceOp) -> the engine's number, of the ops that need no factor. A hash costs less than a comparison
    of ops; empty if hashes do not tell this PyTorch's ops apart."""
    options, found = AllreduceOptions(), {}
    for kind in ReduceOp.RedOpType.__members__.values():
        if kind == _PREMUL:
            continue  # it has a factor, and no constructor
        options.reduceOp = one = ReduceOp(kind)
        try:
            if hash(options.reduceOp) != hash(one) or hash(ReduceOp(kind)) != hash(one):
                return {}  # of the object, not of the op
            if found.setdefault(hash(one), kind) != kind:
                return {}
        except TypeError:
            return {}
    return {mark: _NUMBERS[kind] for mark, kind in found.items() if kind in _NUMBERS}


# Whether the options of each call say that the caller waits, and torch then takes None for a call that is over. Older
# versions (2.7 has been seen) say so in the options of some calls, and wait for what every call returns.
TELLS_WHO_WAITS = hasattr(AllreduceOptions(), "asyncOp")
NUMBERS_BY_HASH = _numbers_by_hash() if TELLS_WHO_WAITS else {}
