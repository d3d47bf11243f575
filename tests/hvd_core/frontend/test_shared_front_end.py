"""The component that all front ends share (hvd_core/_frontend, horovod/common), one piece after the other."""

import warnings

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import expect
from horovod.common import arguments, compression
from horovod.common.compression import NoneCompressor
from hvd_core import types
from hvd_core._frontend import operations
from hvd_core._runtime import failures


def test_reduce_ops_are_those_of_the_table():
    assert {
        label: getattr(operations, label) for label in ("Average", "Sum", "Adasum", "Min", "Max", "Product")
    } == {
        "Average": 0,
        "Sum": 1,
        "Adasum": 2,
        "Min": 3,
        "Max": 4,
        "Product": 5,
    }
    assert [operations.engine_number(op) for op in range(6)] == [4, 0, 100, 2, 3, 1]
    for wrong in (6, -1, None, "Sum", [], 1.5):
        with pytest.raises(ValueError, match="Unknown reduce op"):
            operations.engine_number(wrong)


def test_element_types():
    assert {name: number for name, number in operations.DTYPE_NUMBERS.items() if number < 3} == {
        "uint8": 0,
        "int8": 1,
        "uint16": 2,
    }
    assert operations.REDUCIBLE < operations.MOVABLE == set(types.DTYPES)
    assert {
        *("bool", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"),
    } == operations.MOVABLE - operations.REDUCIBLE


def test_names():
    assert operations.request_name("grouped_allreduce", "a") == "grouped_allreduce.a"
    assert operations.request_name("allreduce", None) is None
    assert operations.gradient_name("a") == "a.grad"
    assert operations.gradient_name("a", "sizes") == "a.sizes"
    assert operations.gradient_name(None) is None


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 6, 7, 20])
def test_scattered_rows(count, ranks):
    each = [operations.scattered_rows(count, ranks, rank) for rank in range(ranks)]
    assert sum(each) == count
    assert each == sorted(each, reverse=True)
    assert each[0] - each[-1] <= 1


def test_row_counts():
    assert operations.row_counts(np.array([1, 2])) == [1, 2]
    assert operations.row_counts(iter([3])) == [3]
    for wrong, text in ((5, "1D splits"), ([1.0], "integer elements"), (["1"], "integer elements")):
        with pytest.raises(ValueError, match=text):
            operations.row_counts(wrong)


def test_members_of_groups():
    assert operations.members_of((x for x in "ab"), np.ndarray) == ["a", "b"]
    assert operations.members_of([], np.ndarray) == []
    for wrong in (np.ones(2), 5, None):
        with pytest.raises(ValueError, match="takes a list of tensors, but found"):
            operations.members_of(wrong, np.ndarray)
    with pytest.raises(ValueError, match="at least one tensor"):
        operations.some_members_of([], np.ndarray)


def test_op_and_average_together():
    assert [arguments.op_from(op, None) for op in (None, arguments.Max)] == [
        arguments.Average,
        arguments.Max,
    ]
    with pytest.warns(DeprecationWarning, match="has been replaced with `op`"):
        assert arguments.op_from(None, "a name") == arguments.Average
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert arguments.op_from(None, False, deprecated=False) == arguments.Sum
    with pytest.raises(ValueError, match="supersedes average"):
        arguments.op_from(arguments.Sum, False)


def test_arguments_of_optimizers():
    for passes in (0, -1):
        with pytest.raises(ValueError, match="backward_passes_per_step must be > 0"):
            arguments.check_backward_passes(passes)
    for factor, op in ((2.0, arguments.Sum), (0.0, arguments.Average)):
        with pytest.raises(ValueError, match="gradient_predivide_factor"):
            arguments.check_predivide_factor(factor, op)
    assert arguments.predivide_factors(4) == (0.25, 4.0)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert arguments.groups_from(2, None) == 2
    assert arguments.groups_from(0, 3) == 3
    with pytest.raises(ValueError, match="has not been registered"):
        arguments.check_registered(hvd.ProcessSet([0]), "A tape")

    def check(value):
        arguments.check_groups(
            value, "strings", lambda member: isinstance(member, str), lambda member: member
        )

    for right in (None, 1, [["a"], ("b", "c")]):
        check(right)
    for wrong, text in (
        (0, "positive integer"),
        (True, "positive integer"),
        ("a", "positive integer"),
        ([1], "lists of strings"),
        ([["a", 1]], "lists of strings"),
        ([["a"], ["a"]], "only appear once"),
    ):
        with pytest.raises(ValueError, match=text):
            check(wrong)


def test_cast_compression():
    class Compression(compression.Compression, cast=np.ndarray.astype, fp16=np.dtype("float16")):
        """NumPy's."""

    sent, context = Compression.fp16.compress(np.ones(2))
    assert sent.dtype == np.float16
    assert Compression.fp16.decompress(sent, context).dtype == np.float64
    for unchanged in (np.ones(2, np.int64), np.ones(2, np.float16)):
        assert Compression.fp16.compress(unchanged) == (unchanged, None)
        assert Compression.fp16.decompress(*Compression.fp16.compress(unchanged)) is unchanged
    assert not hasattr(Compression, "bf16")
    assert Compression.none is NoneCompressor
    assert NoneCompressor.compress("x") == ("x", None)


def test_reports_are_quiet_where_no_rank_waits():
    failures.send_failure("allreduce", "x", None, "before init()")
    failures.send_failure("allreduce", "x", hvd.ProcessSet([0]), "not registered")
    with pytest.raises(KeyError), failures.report_failure("allreduce", "x", None):
        raise KeyError("passes through")
    with pytest.raises(TypeError, match="text"):
        failures.refuse("allreduce", "x", None, "text", TypeError)


@pytest.mark.ranks(2)
def test_the_other_ranks_read_the_reason():
    def mistake(error):
        with failures.report_failure("allreduce", "allreduce.x", None):
            raise error

    ones = np.ones(2)
    for error, reason in (
        (ValueError("our own text"), "on rank 0: our own text"),
        (ZeroDivisionError("a user's"), "on rank 0: ZeroDivisionError: a user's"),
    ):
        if hvd.rank() == 0:
            expect(type(error), lambda error=error: mistake(error))
        else:
            expect(hvd.HorovodInternalError, lambda: hvd.allreduce(ones, name="x"), reason)
        assert hvd.allreduce(ones, name="x").tolist() == [1, 1]
