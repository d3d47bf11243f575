"""The kit's ctypes mirror of the ABI against the header's own lists, and the kit's numbers against NumPy."""

import ctypes as C
import re
from pathlib import Path

import numpy as np
import pytest

from hvd_core.backends._slots import slots
from hvd_core.conformance import _abi, _numerics
from hvd_core.conformance._cases import LEVELS, all_cases

HEADER = Path(_abi.__file__).parents[1] / "include" / "hvd" / "backend_abi.h"


@pytest.mark.parametrize(
    ("table", "struct"),
    [
        ("host", _abi.HostApi),
        ("device", _abi.DeviceApi),
        ("comm", _abi.CommApi),
        ("backend", _abi.BackendApi),
    ],
)
def test_slots_are_those_of_the_list(table, struct):
    functions = [
        name for name, kind in struct._fields_ if isinstance(kind, type) and issubclass(kind, C._CFuncPtr)
    ]
    assert functions == [s.name for s in slots() if s.table == table]


def test_numbers_are_the_headers():
    text = HEADER.read_text()
    enums = dict(re.findall(r"HVD_([A-Z0-9_]+) = (\d+)\b", text))
    for name, number in _numerics.NUMBERS.items():
        assert int(enums[name.upper()]) == number
    for name, number in _numerics.OPS.items():
        assert int(enums[name.upper()]) == number
    for number, name in enumerate(_abi.CODES):
        assert int(enums[name if number < 2 else f"E_{name}"]) == number
    caps = {name: 1 << int(bit) for name, bit in re.findall(r"HVD_CAP_(\w+) = 1u << (\d+)", text)}
    assert caps == _abi.CAPS


def test_case_ids_are_readable_and_unique():
    # The kit's own; another test of this process may have brought cases of its own.
    kit = [c for c in all_cases() if c.run.__module__.startswith("hvd_core.conformance.")]
    names = [c.name for c in kit]
    assert len(names) == len(set(names)) >= 60
    assert all(re.fullmatch(r"L[0-5]\.[a-z_]+", name) for name in names)
    assert {c.level for c in kit} == set(LEVELS)


def test_bfloat16_and_float8_are_converted_as_they_are_defined():
    every = np.arange(65536, dtype=np.uint16)
    real = _numerics.to_real("bfloat16", every)
    number = ~np.isnan(real)
    assert np.array_equal(_numerics.to_stored("bfloat16", real[number]), every[number])
    assert _numerics.to_stored("bfloat16", np.array([1 + 2**-8, 1 + 3 * 2**-8])).tolist() == [0x3F80, 0x3F82]
    e4m3 = _numerics.to_real("float8_e4m3fn", np.array([0x00, 0x01, 0x08, 0x38, 0x7E, 0xFE], np.uint8))
    assert e4m3.tolist() == [0.0, 2.0**-9, 2.0**-6, 1.0, 448.0, -448.0]
    e5m2 = _numerics.to_real("float8_e5m2", np.array([0x01, 0x04, 0x3C, 0x7B, 0x7C, 0xFC], np.uint8))
    assert e5m2.tolist() == [2.0**-16, 2.0**-14, 1.0, 57344.0, np.inf, -np.inf]


@pytest.mark.parametrize("dtype", list(_numerics.NUMBERS))
def test_samples_depend_on_rank_and_index(dtype):
    one, two = _numerics.sample(dtype, 0, 64), _numerics.sample(dtype, 1, 64)
    assert one.dtype == _numerics.stored(dtype)
    assert (one != two).any() and len(np.unique(one)) > 1
    if dtype in ("int64", "uint64"):
        assert (one >= 2**40).all(), "no narrower type holds them"
    if dtype == "float64":
        assert (one != one.astype(np.float32)).all(), "no narrower type holds them"


# NumPy has no type to take the steps in for those of 8 bits.
@pytest.mark.parametrize("dtype", [dtype for dtype in _numerics.ROUNDING if not dtype.startswith("float8")])
@pytest.mark.parametrize("op", list(_numerics.OPS))
def test_tolerance_admits_a_sum_rounded_at_every_step_and_no_more(dtype, op):
    number = _numerics.OPS[op]
    columns = [_numerics.sample(dtype, r, 500) for r in range(4)]
    value, allowed = _numerics.reduced(dtype, number, columns)
    running = _numerics.to_real(dtype, columns[0])
    fold = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    for column in columns[1:]:
        running = _numerics.to_real(
            dtype, _numerics.to_stored(dtype, fold(running, _numerics.to_real(dtype, column)))
        )
    running = running / 4 if op == "avg" else running
    got = _numerics.to_stored(dtype, running)
    assert _numerics.compare(dtype, got, value, allowed) == ""
    if op in ("sum", "prod"):
        wrong = got.copy()
        wrong[7] = _numerics.to_stored(dtype, np.array([_numerics.to_real(dtype, got[7:8])[0] * 1.5 + 0.5]))[
            0
        ]
        assert "1 of 500" in _numerics.compare(dtype, wrong, value, allowed)
