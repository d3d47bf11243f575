"""The table of types agrees with both headers, with its Python mirror, and with the reductions of the engine."""

from __future__ import annotations

import re

import pytest

from abi_toolchain import PACKAGE
from hvd_core import types
from hvd_core.backends._discovery import registry

HVD = PACKAGE / "include" / "hvd"
BACKEND = {n: int(v) for n, v in re.findall(r"\bHVD_(\w+) = (\d+)", (HVD / "backend_abi.h").read_text())}
FRONTEND = {
    n: int(v) for n, v in re.findall(r"\bHVD_FE_(\w+)(?: =)? (\d+)", (HVD / "frontend_abi.h").read_text())
}


def test_types_are_the_backend_header_s():
    for rows, count in (
        (types.DTYPES, "DTYPE_COUNT"),
        (types.REDUCTIONS, "REDOP_COUNT"),
        (types.COLLECTIVES, "COLL_COUNT"),
    ):
        assert [row.number for row in rows.values()] == list(range(BACKEND[count]))
        assert [BACKEND[name.upper()] for name in rows] == list(range(BACKEND[count]))


def test_types_operations_are_the_frontend_header_s():
    operations = [FRONTEND[name.upper()] for name in types.OPERATIONS]
    assert operations == [o.number for o in types.OPERATIONS.values()] == list(range(7))
    assert types.ENGINE_REDUCTIONS["adasum"].number == FRONTEND["ADASUM"]


def test_types_operations_and_collectives_keep_the_numbers_they_were_released_with():
    # (operation of frontend_abi.h, collective of backend_abi.h): different on purpose, one mapping.
    assert {
        name: (o.number, o.collective and o.collective.number) for name, o in types.OPERATIONS.items()
    } == {
        "allreduce": (0, 0),
        "allgather": (1, 3),
        "broadcast": (2, 2),
        "barrier": (3, 8),
        "alltoall": (4, 5),
        "reducescatter": (5, 4),
        "join": (6, None),
    }


def test_types_users_numbers_of_reductions_are_horovod_s():
    labels = ["Average", "Sum", "Adasum", "Min", "Max", "Product"]
    assert [types.USER_REDUCTIONS[n].label for n in range(6)] == labels
    assert len(types.USER_REDUCTIONS) == 6


def test_types_sizes_are_those_of_numpy():
    numpy = pytest.importorskip("numpy")
    for name, dtype in types.DTYPES.items():
        if hasattr(numpy, name) or name == "bool":
            assert numpy.dtype(name).itemsize == dtype.bytes, name


def test_types_reducible_are_what_the_embedded_backends_reduce():
    from hvd_core._core import query_backend

    library = str(registry.shm().library)
    for dtype in types.DTYPES.values():
        for op in types.REDUCTIONS.values():
            answer = query_backend(
                "shm", library, types.COLLECTIVES["allreduce"].number, dtype.number, op.number
            )
            served = answer["support"] == types.NATIVE
            assert served == (op.name in dtype.reductions), (dtype.name, op.name)
    assert {d.name for d in types.DTYPES.values() if not d.reducible} == {
        "bool",
        "float8_e4m3fn",
        "float8_e5m2",
    }
