"""The text of a call in a function that XLA compiles, as libhvd_tf.so reads it. The library loads without TensorFlow."""

import ctypes
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[3] / "horovod" / "tensorflow" / "lib" / "libhvd_tf.so"
# As horovod/tensorflow/_xla.py writes it.
TEXT = (
    "hvd1 operation=HorovodGroupedAllreduce process_set=2 reduce_op=0 root_rank=0 prescale_factor=1 "
    "postscale_factor=1 tensors=1:3,2>6,2;9:> name=step/a b=c"
)

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="libhvd_tf.so is not built; `make install` builds it"
)


@pytest.fixture(scope="module")
def problem_of():
    """A function that returns the library's message for a text; "" for a text that it can read."""
    function = ctypes.CDLL(str(LIBRARY)).hvd_tf_xla_call_problem
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_int]
    return lambda text, is_collective=True: function(text.encode(), int(is_collective)).decode()


def test_the_library_reads_texts_with_all_values(problem_of):
    assert problem_of(TEXT) == ""
    assert problem_of(TEXT.replace("name=step/a b=c", "name=")) == ""
    for factor in (0.1, 1e-300, -2.5, float("inf"), float("nan")):
        assert problem_of(TEXT.replace("prescale_factor=1", f"prescale_factor={factor!r}")) == ""
    assert problem_of("hvd1 operation=HorovodRank process_set=0", is_collective=False) == ""
    assert "reads version 1." in problem_of("hvd0 ")


@pytest.mark.parametrize(
    "text", ["0 4 0 0 1 1 1 1 1 3 1 3 HorovodAllreduce x", "", "hvd0 operation=x", "hvdx "]
)
def test_a_call_of_an_older_release_says_so(problem_of, text):
    problem = problem_of(text)
    assert "made by an older hvd-core than libhvd_tf.so" in problem
    assert "Trace the function again" in problem


def test_a_call_of_a_newer_release_says_so(problem_of):
    problem = problem_of(TEXT.replace("hvd1 ", "hvd2 ", 1))
    assert "has version 2, but this libhvd_tf.so reads version 1" in problem
    assert "libhvd_tf.so is older than the hvd-core that made the call" in problem


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("reduce_op=0", "reduce_op=x"), "the key 'reduce_op' has the value 'x'"),
        (("process_set=2", "process_set=2.5"), "the key 'process_set' has the value '2.5'"),
        (("prescale_factor=1", "prescale_factor="), "the key 'prescale_factor' has the value ''"),
        (("tensors=1:", "tensors=99:"), "the key 'tensors' has the value '99:3,2>6,2;9:>'"),
        (("1:3,2>6,2;", "1:3,y>6,2;"), "the key 'tensors'"),
        (("tensors=1:3,2>6,2;9:>", "tensors="), "the key 'tensors' has the value ''"),
        (("root_rank=", "root="), "version 1 has no key 'root'"),
        (("root_rank=0", "reduce_op=0"), "the key 'reduce_op' is there twice"),
        (("root_rank=0 ", "root_rank "), "has no key 'root_rank prescale_factor'"),
        ((" name=step/a b=c", ""), "the key 'name' is missing"),
        (("operation=HorovodGroupedAllreduce ", ""), "the key 'operation' is missing"),
        ((" name=step/a b=c", " name"), "'name' is not KEY=VALUE"),
    ],
)
def test_a_text_that_cannot_be_read_is_named_with_the_reason(problem_of, change, reason):
    assert change[0] in TEXT
    text = TEXT.replace(*change, 1)
    assert reason in problem_of(text)
    assert problem_of(text).endswith(f"The call: {text}")
