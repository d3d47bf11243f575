"""The text of a call in a function that XLA compiles: Python writes it, libhvd_tf.so reads it. Needs no TensorFlow: the
library loads without it, and the module that writes the text is loaded as a file.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path

import pytest

TENSORFLOW = Path(__file__).resolve().parents[2] / "horovod" / "tensorflow"
LIBRARY = TENSORFLOW / "lib" / "libhvd_tf.so"
FLOAT32, INT64 = 1, 9  # TensorFlow's numbers

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="libhvd_tf.so is not built; `make install` builds it"
)


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("_xla_call_text", TENSORFLOW / "_xla_call_text.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def problem_of():
    """A function that returns the library's message for a text; "" for a text that it can read."""
    function = ctypes.CDLL(str(LIBRARY)).hvd_tf_xla_call_problem
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_int]
    return lambda text, is_collective=True: function(text.encode(), int(is_collective)).decode()


def collective(writer, **attributes):
    tensors = [writer.TensorText(FLOAT32, (3, 2), (6, 2)), writer.TensorText(INT64, (), ())]
    attributes = {"process_set_id": 2, "tensor_name": "step/a b=c", **attributes}
    return writer.collective_text("HorovodGroupedAllreduce", attributes, tensors)


def test_the_text_of_a_collective(writer):
    assert collective(writer, reduce_op=4, prescale_factor="0.1") == (
        "hvd1 operation=HorovodGroupedAllreduce process_set=2 reduce_op=4 root_rank=0 prescale_factor=0.1 "
        "postscale_factor=1 tensors=1:3,2>6,2;9:> name=step/a b=c"
    )
    assert writer.fact_text("HorovodSize", 3) == "hvd1 operation=HorovodSize process_set=3"


def test_the_library_reads_what_python_writes(writer, problem_of):
    assert problem_of(collective(writer)) == ""
    assert problem_of(collective(writer, tensor_name="")) == ""
    for factor in (0.1, 1e-300, -2.5, float("inf"), float("nan")):
        assert problem_of(collective(writer, prescale_factor=repr(factor))) == ""
    assert problem_of(writer.fact_text("HorovodRank", 0), is_collective=False) == ""


def test_both_files_have_the_same_version(writer, problem_of):
    assert f"reads version {writer.VERSION}." in problem_of("hvd0 ")


@pytest.mark.parametrize(
    "text", ["0 4 0 0 1 1 1 1 1 3 1 3 HorovodAllreduce x", "", "hvd0 operation=x", "hvdx "]
)
def test_a_call_of_an_older_release_says_so(problem_of, text):
    problem = problem_of(text)
    assert "made by an older hvd-core than libhvd_tf.so" in problem
    assert "Trace the function again" in problem


def test_a_call_of_a_newer_release_says_so(writer, problem_of):
    problem = problem_of(collective(writer).replace("hvd1 ", "hvd2 ", 1))
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
def test_a_text_that_cannot_be_read_is_named_with_the_reason(writer, problem_of, change, reason):
    text = collective(writer)
    assert change[0] in text
    text = text.replace(*change, 1)
    assert reason in problem_of(text)
    assert problem_of(text).endswith(f"The call: {text}")
