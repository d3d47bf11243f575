"""The backend interface's numbers by name, in their order: collectives, element types, reductions, support.

Pure data, compared with the header by tests/abi. (The conformance kit has its own mirror, written by hand on purpose.)
"""

from __future__ import annotations

COLLECTIVES = (
    *("allreduce", "reduce", "broadcast", "allgather", "reducescatter"),
    *("alltoall", "send", "recv", "barrier"),
)
DTYPES = (
    *("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("bool", "bfloat16", "float8_e4m3fn", "float8_e5m2", "uint32", "uint64"),
)
REDUCTIONS = ("sum", "prod", "min", "max", "avg")

COLLECTIVE = {name: number for number, name in enumerate(COLLECTIVES)}
DTYPE = {name: number for number, name in enumerate(DTYPES)}
REDUCTION = {name: number for number, name in enumerate(REDUCTIONS)}

UNSERVED, NATIVE = 0, 1
REDUCING = ("allreduce", "reduce", "reducescatter")
"""The collectives that have a reduction."""
