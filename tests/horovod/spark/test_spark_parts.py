"""Parts of horovod.spark that need no Spark: places, channels, the pool of tasks, HorovodRunner on this machine."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from horovod._runner.environment import is_this_python
from horovod._runner.event_loop import EventLoop
from horovod.spark import _channel
from horovod.spark._cluster import check_encryption
from horovod.spark._ranks import TaskFacts, assign, base_environment
from horovod.spark._task import PURPOSE, Plan, masked
from horovod.spark._task_pool import TaskPool
from hvd_core._base.auth import NO_RANK, client_handshake
from hvd_core._base.messages import line_of
from hvd_core._base.sockets import AuthenticationError, Deadline, split_address

SPARKDL = Path(__file__).resolve().parents[3] / "packages" / "sparkdl"
SECRET = b"s" * 32


@pytest.mark.parametrize(
    ("variables", "settings", "master", "refused"),
    [
        ({"HOROVOD_TLS": "1"}, {}, "spark://a:7077", True),
        ({}, {"spark.executorEnv.HOROVOD_TLS": "1"}, "yarn", True),
        ({"HOROVOD_TLS": "1"}, {"spark.network.crypto.enabled": "true"}, "yarn", True),
        (
            {"HOROVOD_TLS": "1"},
            {"spark.network.crypto.enabled": "true", "spark.authenticate": "true"},
            "yarn",
            False,
        ),
        ({"HOROVOD_TLS": "1"}, {"spark.ssl.rpc.enabled": "true"}, "yarn", False),
        ({"HOROVOD_TLS": "1"}, {}, "local[2]", False),
        ({"HOROVOD_TLS": "0"}, {}, "yarn", False),
    ],
)
def test_an_encrypted_jobs_secret_needs_sparks_own_encryption(variables, settings, master, refused):
    context = SimpleNamespace(master=master, getConf=lambda: settings)
    expected = (
        pytest.raises(RuntimeError, match=r"the job's secret .* in the clear")
        if refused
        else contextlib.nullcontext()
    )
    with expected:
        check_encryption(context, variables)


def test_ranks_of_a_host_follow_each_other_and_the_host_of_task_0_is_first():
    tasks = [TaskFacts(host, "") for host in ("b", "a", "b", "a", "c")]
    slots = [place.slot for place in assign(tasks)]
    assert [slot.rank for slot in slots] == [0, 2, 1, 3, 4]
    assert [(slot.hostname, slot.local_rank, slot.local_size) for slot in slots] == [
        *(("b", 0, 2), ("a", 0, 2), ("b", 1, 2), ("a", 1, 2), ("c", 0, 1))
    ]
    assert [(slot.cross_rank, slot.cross_size) for slot in slots] == [(0, 3), (1, 3), (0, 2), (1, 2), (2, 3)]


def test_containers_of_one_host_are_hosts_of_their_own():
    slots = [place.slot for place in assign([TaskFacts("a", "pid:[1]"), TaskFacts("a", "pid:[2]")])]
    assert [(slot.rank, slot.local_size, slot.cross_rank) for slot in slots] == [(0, 1, 0), (1, 1, 1)]


@pytest.mark.parametrize(
    "given, seen",
    [
        ([("2",), ("0",)], ("2", "0")),
        ([("4", "5"), ("6", "7")], ("4", "6", "5", "7")),
        ([("0",), ()], None),
        ([(), ()], None),
    ],
)
def test_a_local_rank_is_the_number_of_its_device(given, seen):
    places = assign([TaskFacts("a", "", devices) for devices in given])
    assert [place.devices for place in places] == [seen, seen]


def test_variables_of_spark_are_kept_from_ranks():
    ours = {"PATH": "/bin", "NCCL_DEBUG": "INFO"}
    sparks = {"SPARK_HOME": "/s", "PYSPARK_PYTHON": "p", "_PYSPARK_DRIVER_CONN_INFO_PATH": "/t"}
    sparks |= {"PYTHON_WORKER_FACTORY_SECRET": "secret", "SPARK_LOCAL_DIRS": "/d"}
    env = base_environment({**ours, **sparks, "HOROVOD_SECRET_KEY": "00"}, {"HOROVOD_TIMELINE": "t"})
    assert ours.items() <= env.items() and not sparks.keys() & env.keys()
    assert env["HOROVOD_TIMELINE"] == "t"
    # Another Python gets the import path of the executors' one neither from Spark nor from this process.
    other = base_environment({"PYTHONPATH": "/x"}, {}, "/no/such/python")
    assert "PYTHONPATH" in env and "PYTHONPATH" not in other


def test_the_secret_is_not_in_the_text_of_a_plan():
    plan = Plan("tcp://h:1", SECRET, {"TOKEN": "hidden"}, "tcp://h:2")
    assert "sss" not in f"{plan} {plan!r}" and "hidden" not in repr(plan)


class TestChannel:
    def test_messages_arrive_whole_and_are_cut(self, monkeypatch):
        ours, theirs = socket.socketpair()
        with ours:
            monkeypatch.setenv(_channel.DESCRIPTOR, str(theirs.detach()))
            _channel.open_channel()
            try:
                _channel.log_to_driver("\u00e9" * (_channel.MOST_CHARACTERS + 5))
                _channel.log_to_driver("two\nlines")
                reader, texts = _channel.MessageReader(), []
                while len(texts) < 2:
                    texts += reader.feed(ours.recv(7))
            finally:
                _channel._channel.close()
                _channel._channel = None
        assert texts == ["\u00e9" * _channel.MOST_CHARACTERS, "two\nlines"]

    def test_the_rest_of_a_message_whose_beginning_was_dropped_is_left_out(self):
        assert _channel.MessageReader().feed(b'end"\n"fine"\n') == ["fine"]


class TestPool:
    @pytest.fixture
    def pool(self):
        pool = TaskPool("127.0.0.1", "127.0.0.1", SECRET, lambda text: pool.notes.append(text))
        pool.notes, pool.loop = [], EventLoop(lambda: [pool])
        pool.register(pool.loop.selector)
        yield pool
        pool.close()
        pool.loop.close()

    def connect(self, pool, secret=SECRET):
        """The connection of a task, or its error."""
        found = []

        def work():
            try:
                peer = socket.create_connection(split_address(pool.address))
                client_handshake(peer, secret, PURPOSE, NO_RANK, 0, Deadline(30))
                found.append(peer)
            except (OSError, RuntimeError) as error:
                found.append(error)

        threading.Thread(target=work).start()
        self.turn_until(pool, lambda: found)
        return found[0]

    def turn_until(self, pool, condition):
        while not condition():
            pool.loop.turn(time.monotonic() + 0.05)

    def test_tasks_wait_until_they_are_taken_or_end(self, pool):
        peers = []
        for space in ("a", "a", "b"):
            peers.append(self.connect(pool))
            peers[-1].sendall(line_of(asdict(TaskFacts("host", space))))
            self.turn_until(pool, lambda: len(pool.waiting) == len(peers))
        assert [task.host for task in pool.waiting] == ["host", "host", "host#2"]
        taken = pool.waiting[0]
        pool.take(taken)
        peers[2].close()
        self.turn_until(pool, lambda: len(pool.waiting) == 1)
        pool.close()
        assert peers[1].recv(1) == b""
        taken.peer.sendall(b"x")
        assert peers[0].recv(1) == b"x"
        for peer in (*peers, taken.peer):
            peer.close()

    def test_a_stranger_is_refused(self, pool):
        assert isinstance(self.connect(pool, b"another secret of 32 bytes......"), AuthenticationError)
        assert pool.notes and "does not know this job's secret" in pool.notes[0] and not pool.was_reached


def test_the_secret_of_a_world_is_masked_on_the_way_to_a_worker():
    secret, other = "ab" * 32, {"env": {"HOROVOD_RANK": "1"}}
    said = {"kind": "enter", "env": {"HOROVOD_SECRET_KEY": secret, "HOROVOD_EPOCH": "2", **other["env"]}}
    hidden = masked(json.dumps(said).encode() + b"\n", SECRET)
    assert secret.encode() not in hidden and json.loads(hidden)["env"]["HOROVOD_RANK"] == "1"
    assert json.loads(masked(hidden, SECRET)) == said
    said["env"]["HOROVOD_EPOCH"] = "3"
    assert json.loads(masked(json.dumps(said).encode(), SECRET))["env"] != json.loads(hidden)["env"]
    assert masked(b'{"kind": "update"}\n', SECRET) == b'{"kind": "update"}\n'


def test_names_that_programs_import(monkeypatch):
    from horovod.spark import conf
    from horovod.spark.task import get_available_devices

    pairs = [value for name, value in vars(conf).items() if isinstance(value, tuple)]
    assert len(pairs) >= 8 and all(name.startswith("spark.") for name, _ in pairs)
    assert get_available_devices() == []
    monkeypatch.setenv("HOROVOD_TASK_DEVICES", "2,5")
    assert get_available_devices() == ["2", "5"]


def test_another_interpreter_is_known_by_its_folder(tmp_path):
    """The environments of one Python share its program."""
    assert is_this_python(sys.executable) and not is_this_python("/no/such/python")
    other = tmp_path / Path(sys.executable).name
    other.symlink_to(os.path.realpath(sys.executable))
    assert not is_this_python(str(other))


def test_horovod_runner_on_this_machine():
    """np < 0 needs no PySpark: the value of rank 0, the output and the messages, then a failure with its traceback."""
    program = Path(__file__).with_name("program_horovod_runner.py")
    env = {**os.environ, "PYTHONPATH": str(SPARKDL)}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert {"[0]<stdout>:rank 0 prints", "[1]<stdout>:rank 1 prints", "told by 0", "told by 1"} <= set(lines)
    assert "value 30.0" in lines
    assert lines[-1] == "ValueError: bad data in file 17 of ValueError", lines
