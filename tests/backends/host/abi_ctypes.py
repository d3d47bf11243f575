"""The ABI's mirror in ctypes, which is part of the conformance kit, under the name these tests know it by."""

from hvd_core.conformance._abi import *  # noqa: F403

DTYPES = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bool": 9,
    "uint32": 13,
    "uint64": 14,
}
