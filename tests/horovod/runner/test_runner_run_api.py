"""horovod.run: a function in several processes, called as programs call it."""

import functools
import gc
import inspect
import os
import signal
import subprocess
import sys

import pytest

import horovod
import runner_ranks
from horovod.common.exceptions import NotInitializedError
from launchers import program_words
from runner_ranks import OddError, fail_and_end_slowly
from runner_ranks import rank_in_the_job as rank


def test_results_in_rank_order():
    def work(a, b=0):
        return rank(), os.environ["HOROVOD_SIZE"], a + b

    assert horovod.run(work, (1,), {"b": 2}, num_proc=3) == [(0, "3", 3), (1, "3", 3), (2, "3", 3)]


def test_any_iterable_of_arguments():
    assert horovod.run(lambda a, b: a + b, iter([1, 2])) == [3]


def test_a_decorator_may_supply_arguments():
    def with_greeting(function):
        @functools.wraps(function)
        def call(name):
            return function("hello", name)

        return call

    @with_greeting
    def greet(greeting, name):
        return f"{greeting} {name}"

    assert horovod.run(greet, ("rank",)) == ["hello rank"]
    with pytest.raises(TypeError, match=r"greet\(name\) cannot be called with these args"):
        horovod.run(greet, ("hello", "rank"))


def test_functions_of_modules_are_found():
    assert horovod.run(rank, num_proc=2) == [0, 1]


def test_one_process_is_the_default():
    assert horovod.run(os.getpid)[0] != os.getpid()


def test_large_values_and_none():
    data = os.urandom(8 << 20)
    assert horovod.run(lambda x: x[::-1] if rank() else None, (data,), num_proc=2) == [None, data[::-1]]


def test_old_spellings():
    with pytest.warns(DeprecationWarning, match=r"horovod.run\(np=...\) is deprecated, use num_proc"):
        assert horovod.run(rank, np=2, use_gloo=True) == [0, 1]


def test_signature():
    parameters = inspect.signature(horovod.run).parameters.values()
    empty = inspect.Parameter.empty
    # Horovod 0.28.1's, in its order. Programs pass some of them by position.
    assert [p.name for p in parameters] == [
        *("func", "args", "kwargs", "num_proc", "min_num_proc", "max_num_proc", "slots", "reset_limit"),
        *("cooldown_range", "hosts", "hostfile", "host_discovery_script", "start_timeout", "ssh_port"),
        *(
            "ssh_identity_file",
            "disable_cache",
            "output_filename",
            "verbose",
            "use_gloo",
            "use_mpi",
            "mpi_args",
        ),
        *("network_interface", "network_interfaces", "executable", "np", "min_np", "max_np"),
    ]
    others = {"func": empty, "args": (), "num_proc": 1}
    assert {p.name: p.default for p in parameters} == {p.name: others.get(p.name) for p in parameters}
    assert {p.kind for p in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_failure_tells_the_first_process_and_its_traceback(capfd):
    def work():
        if rank() == 1:
            raise KeyError("lost")
        import time

        time.sleep(600)

    with pytest.raises(RuntimeError) as caught:
        horovod.run(work, num_proc=2)
    text = str(caught.value)
    assert "The first process to do so was:\nProcess name: 1\nExit code: 1\n" in text
    assert "KeyError: 'lost'" in text
    assert isinstance(caught.value.__cause__, KeyError)
    assert "[1]<stderr>:KeyError: 'lost'" in capfd.readouterr().err


def test_a_rank_that_heard_of_the_failure_is_not_its_cause():
    with pytest.raises(RuntimeError, match=r"Process name: 1\nExit code: 1\n") as caught:
        horovod.run(fail_and_end_slowly, num_proc=2)
    assert "KeyError: 'lost'" in str(caught.value) and "HorovodInternalError" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_exceptions_of_horovod_are_those_of_the_caller():
    def work():
        import hvd_core as hvd

        hvd.rank()

    with pytest.raises(RuntimeError) as caught:
        horovod.run(work)
    assert isinstance(caught.value.__cause__, NotInitializedError)


def test_exception_that_cannot_be_pickled():
    def work():
        raise OddError(1, 2)

    with pytest.raises(RuntimeError, match="OddError: 1") as caught:
        horovod.run(work)
    assert caught.value.__cause__ is None


def test_result_that_cannot_be_pickled():
    with pytest.raises(RuntimeError, match="cannot pickle"):
        horovod.run(lambda: (x for x in range(3)))


@pytest.mark.parametrize("how, code", [(lambda: sys.exit(3), 3), (lambda: os.kill(os.getpid(), 9), 137)])
def test_exit_and_death(how, code):
    with pytest.raises(RuntimeError, match=rf"Process name: 0\nExit code: {code}\n"):
        horovod.run(how)


def test_functions_that_exit_with_0_have_no_result():
    with pytest.raises(RuntimeError, match=r"Process 0 ended with status 0 before the function returned"):
        horovod.run(lambda: os._exit(0))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"hosts": "localhost:1", "hostfile": "f"}, ValueError, "hosts and hostfile"),
        ({"use_gloo": True, "use_mpi": True}, ValueError, "use_gloo and use_mpi"),
        ({"num_proc": 4, "hosts": "localhost:2"}, ValueError, r"more processes \(4\)"),
        ({"num_proc": 0}, ValueError, "at least 1"),
        ({"network_interfaces": "nope0"}, ValueError, "no network interface 'nope0'"),
        (
            {"executable": "/nowhere/python"},
            ValueError,
            "The Python interpreter '/nowhere/python' was not found",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        horovod.run(rank, **arguments)


def test_output_folder(tmp_path):
    horovod.run(lambda: print("said"), num_proc=2, output_filename=str(tmp_path / "logs"))
    assert (tmp_path / "logs" / "rank.1" / "stdout").read_text() == "said\n"


def test_output_goes_to_replaced_streams(capsys):
    """Notebooks replace sys.stdout by an object without a descriptor."""
    horovod.run(lambda: print("grüße"), num_proc=1)
    assert capsys.readouterr().out == "[0]<stdout>:grüße\n"


def test_no_descriptor_is_left_open():
    horovod.run(rank)
    gc.collect()  # descriptors of earlier tests must not be closed meanwhile
    before = sorted(os.listdir("/proc/self/fd"))
    horovod.run(rank, num_proc=2)
    with pytest.raises(RuntimeError):
        horovod.run(lambda: sys.exit(1))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_in_a_thread():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(horovod.run, rank, num_proc=2) for _ in range(2)]
        assert [job.result(timeout=150) for job in jobs] == [[0, 1], [0, 1]]


def test_ctrl_c_ends_the_job(launcher):
    process = subprocess.Popen(
        program_words(runner_ranks.run_until_ctrl_c),
        cwd=launcher.folder,
        env=launcher.environment(),
        stdout=subprocess.PIPE,
    )
    launcher.started.append(process)
    launcher.wait_for(2, "ready.")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    assert out == b"interrupted\n"
    assert launcher.processes() == []


@pytest.mark.parametrize(
    "call, text",
    [
        ((None,), r"horovod\.run: the function to run must be callable, found None"),
        ((len, 3), "cannot be called with these args and kwargs: 'int' object is not iterable"),
        ((lambda a: a, (), {"b": 1}), r"cannot be called with these args and kwargs: .*'b'|missing"),
        ((rank, (), {1: 2}), "cannot be called with these args and kwargs: .*keywords must be strings"),
    ],
)
def test_a_call_that_cannot_work_starts_nothing(call, text):
    with pytest.raises(TypeError, match=text):
        horovod.run(*call, executable="/nowhere/python")


def test_the_value_that_cannot_be_sent_is_named(tmp_path):
    with open(tmp_path / "log", "w") as log:
        options = {"level": 1, "log": log}

        def work():
            options["log"].write("x")

        with pytest.raises(
            TypeError, match=r"variable 'options' of the function .*work, of type dict, cannot be sent"
        ):
            horovod.run(work, executable="/nowhere/python")
        with pytest.raises(TypeError, match=r"args\[0\], of type TextIOWrapper"):
            horovod.run(print, (log,), executable="/nowhere/python")

        class Training:
            def __init__(self):
                self.log = log

            def run(self):
                return self.log

        with pytest.raises(
            TypeError, match=r"attribute 'log' of self of the function .*Training.run, of type"
        ):
            horovod.run(Training().run, executable="/nowhere/python")


def test_the_exception_of_the_rank_comes_first():
    def work():
        raise KeyError("lost")

    with pytest.raises(RuntimeError, match=r"\Arank 0 failed:\n") as caught:
        horovod.run(work)
    assert isinstance(caught.value.__cause__, KeyError)
