"""The names of the original's launcher that programs import (horovod/runner/common/README.md), and missing ones."""

import importlib
import io
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import horovod.runner
from horovod.runner import gloo_run, launch, mpi_run
from horovod.runner.common.util import hosts, safe_shell_exec, secret, settings, timeout
from horovod.runner.util import network, threads

README = Path(horovod.runner.__file__).parent / "common" / "README.md"


def test_the_page_names_what_is_there():
    rows = [line.split("|")[1] for line in README.read_text().splitlines() if line.startswith("| `horovod")]
    found = 0
    for part in (part for row in rows for part in row.split(";")):
        module, *names = re.findall(r"`([\w.]+)`", part)
        for name in names:
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
            found += 1
    assert found > 30


@pytest.mark.parametrize(
    "statement, says",
    [
        ("import horovod.spark.lightning", "horovod.spark.run()"),
        ("from horovod.spark.tensorflow import compute_worker", "horovod.spark.run()"),
        ("from horovod import ray", "horovodrun or horovod.run()"),
        ("from horovod.data import BaseDataLoader", "data loaders"),
        ("from horovod.runner.http.http_server import RendezvousServer", "horovod.run()"),
        ("from horovod.runner.gloo_run import RendezvousServer", "--remote-shell"),
        ("from horovod.runner.gloo_run import gloo_run_elastic", "--min-np"),
        ("from horovod.runner.driver import driver_service", "horovod.run()"),
        ("import horovod.tensorflow.data", "tf.data.experimental.service"),
        ("from horovod.runner.task.task_service import x", "horovod.run()"),
        ("from horovod.runner.common.service import driver_service", "horovod.run()"),
        ("from horovod.runner.elastic.driver import ElasticDriver", "--host-discovery-script"),
        ("from horovod.runner.elastic.rendezvous import create_rendezvous_handler", "horovodrun"),
        ("from horovod.runner.elastic import registration", "horovodrun"),
        ("from horovod.runner.elastic import settings", "--min-np"),
        ("from horovod.runner.elastic.worker import WorkerNotificationManager", "horovodrun"),
        ("from horovod.runner.js_run import js_run", "horovodrun --mpi"),
        ("from horovod.runner.mpi_run import mpi_run", "horovod.run(..., use_mpi=True)"),
    ],
)
def test_a_missing_part_says_what_to_use_instead(statement, says):
    with pytest.raises(ImportError, match=re.escape(says)) as caught:
        exec(statement)
    assert re.match(r"horovod\.[\w.]+ is not part of hvd-core \d", str(caught.value))


def test_other_names_are_missing_in_the_usual_way():
    for module in (gloo_run, mpi_run, horovod.runner):
        assert not hasattr(module, "no_such_name")


def test_secrets_and_digests():
    key, other = secret.make_secret_key(), secret.make_secret_key()
    assert len(key) == secret.DIGEST_LENGTH == 32 and key != other
    digest = secret.compute_digest(key, b"message")
    assert len(digest) == 32 and secret.check_digest(key, b"message", digest)
    assert not secret.check_digest(key, b"massage", digest) and not secret.check_digest(
        other, b"message", digest
    )


def test_a_timeout_names_the_activity():
    plenty = timeout.Timeout(1000, "unused")
    plenty.check_time_out_for("nothing")
    assert 0 < plenty.remaining() <= 1000 and not plenty.timed_out()
    over = timeout.Timeout(-1, "{activity} took longer than {timeout} s")
    assert over.timed_out() and over.remaining() == 0
    with pytest.raises(timeout.TimeoutException, match="starting took longer than -1 s"):
        over.check_time_out_for("starting")


def test_hosts_and_environment_of_a_rank():
    """The steps of launchers that place the ranks themselves."""
    assert hosts.parse_hosts_and_slots("a:2,b:1") == (["a", "b"], {"a": 2, "b": 1})
    assert hosts.parse_hosts_and_slots("a:2,a:1") == (["a", "a"], {"a": 3})
    first, _, last = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:1"), 3)
    assert first.to_response_string() == "0,3,0,2,0,2"
    assert gloo_run.create_slot_env_vars(last)["HOROVOD_RANK"] == "2"


def test_options_come_from_a_file_and_become_variables():
    from horovod.runner.common.util import config_parser
    from horovod.runner.launch import parse_args

    args = parse_args(["-np", "1", "true"])
    file = {"params": {"cache_capacity": 7, "cycle_time_ms": 3}}
    config_parser.set_args_from_config(args, file, override_args={"cycle_time_ms"})
    config_parser.validate_config_args(args)
    env = config_parser.set_env_from_args({}, args)
    assert env["HOROVOD_CACHE_CAPACITY"] == "7" and "HOROVOD_CYCLE_TIME" not in env


def test_settings_keep_what_they_are_given():
    found = settings.Settings(num_hosts=2, hosts="a:1,b:1", num_proc=2, key=b"k", own="more")
    values = (
        found.num_hosts,
        found.hosts,
        found.num_proc,
        found.key,
        found.own,
        found.verbose,
        found.elastic,
    )
    assert values == (2, "a:1,b:1", 2, b"k", "more", 0, False)
    assert isinstance(found, settings.BaseSettings)


def test_a_command_ends_with_its_code_and_its_output_is_labelled():
    out, err = io.StringIO(), io.StringIO()
    command = "echo $WORD; echo problem >&2; exit 7"
    assert safe_shell_exec.execute(command, env={"WORD": "hello"}, stdout=out, stderr=err, index=3) == 7
    assert (out.getvalue(), err.getvalue()) == ("[3]<stdout>:hello\n", "[3]<stderr>:problem\n")
    assert safe_shell_exec.execute("kill -9 $$", stdout=out, stderr=err) == 128 + signal.SIGKILL


def test_a_command_ends_with_all_its_processes_when_an_event_is_set():
    event, out = threading.Event(), io.StringIO()
    codes = []
    command = (
        f"{sys.executable} -c 'import os, time; print(os.getpid(), flush=True); time.sleep(1000)' & wait"
    )
    runner = threads.in_thread(
        lambda: codes.append(safe_shell_exec.execute(command, stdout=out, events=[event]))
    )
    deadline = time.monotonic() + 60
    while not out.getvalue().endswith("\n") and time.monotonic() < deadline:
        time.sleep(0.01)
    event.set()
    runner.join(60)
    assert codes == [128 + signal.SIGTERM]
    with pytest.raises(ProcessLookupError):
        os.kill(int(out.getvalue()), 0)


def test_threads():
    results, stopped, stop = [], threading.Event(), threading.Event()
    thread = threads.in_thread(results.append, (1,), name="one")
    thread.join(60)
    assert results == [1] and thread.daemon and thread.name == "one"
    with pytest.raises(ValueError, match="for a single argument write"):
        threads.in_thread(results.append, 1)
    event = threading.Event()
    waiting = threads.on_event(event, results.append, (2,), stop=stop, check_stop_interval_s=0.01)
    event.set()
    waiting.join(60)
    assert results == [1, 2]
    waiting = threads.on_event(
        threading.Event(), results.append, (3,), stop=stopped, check_stop_interval_s=0.01
    )
    stopped.set()
    waiting.join(60)
    assert results == [1, 2] and not waiting.is_alive()
    assert threads.execute_function_multithreaded(pow, [(2, 3), (3, 2)]) == {0: 8, 1: 9}


def test_an_exception_in_a_silent_thread_is_not_printed(capfd):
    threads.in_thread(lambda: 1 / 0, silent=True).join(60)
    assert capfd.readouterr().err == ""


def test_addresses_of_this_machine():
    assert network.get_driver_ip(["lo"]) == "127.0.0.1" and "127.0.0.1" in network.get_local_host_addresses()
    assert network.filter_local_addresses(["localhost", "no-such-host.invalid"]) == ["no-such-host.invalid"]
    with pytest.raises(RuntimeError, match="nonesuch0"):
        network.get_driver_ip(["nonesuch0"])


@pytest.mark.mpi
def test_the_mpi_of_this_machine(mpirun):
    env = {"PATH": f"{Path(mpirun[0]).parent}:{os.environ['PATH']}"}
    assert mpi_run.mpi_available(env)
    assert mpi_run.is_open_mpi(env) is (len(mpirun) > 1) and mpi_run.is_mpich(env) is (len(mpirun) == 1)
    assert not mpi_run.is_intel_mpi(env) and not mpi_run.is_spectrum_mpi(env)


def rank_and_size():
    return os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"]


def test_a_job_of_filled_in_options():
    options = horovod.runner._HorovodArgs()
    options.num_proc, options.hosts = 2, "localhost:2"
    options.command = [sys.executable, "-c", "import os; assert os.environ['HOROVOD_SIZE'] == '2'"]
    assert launch._run(options) is None
    options.command = [sys.executable, "-c", "import os; os._exit(3 * int(os.environ['HOROVOD_RANK']))"]
    with pytest.raises(RuntimeError, match="Process name: 1\nExit code: 3"):
        launch._run(options)
    options.command, options.run_func = None, rank_and_size
    assert launch._run(options) == [("0", "2"), ("1", "2")]
    options.min_num_proc = 3
    with pytest.raises(ValueError, match="-np 2 is less than --min-np 3"):
        launch._run(options)
