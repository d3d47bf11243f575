"""Parts of horovod.spark that need no Spark: places, the channel and the log of ranks, HorovodRunner on this machine."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from horovod._runner.environment import is_this_python
from horovod._runner.output import Output, Sink
from horovod.spark._channel import LONGEST_LINE, MOST_CHARACTERS, LineReader, RankChannel
from horovod.spark._cluster import check_encryption, check_java
from horovod.spark._logs import LogSender, LogServer
from horovod.spark._ranks import TaskFacts, assign, base_environment
from horovod.spark._task import BarrierPlan, masked
from hvd_core._base.sockets import AuthenticationError, split_address

SPARKDL = Path(__file__).resolve().parents[2] / "packages" / "sparkdl"
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
    ours = {"PATH": "/bin", "NCCL_DEBUG": "INFO", "PYTHONPATH": "/x"}
    sparks = {"SPARK_HOME": "/s", "PYSPARK_PYTHON": "p", "_PYSPARK_DRIVER_CONN_INFO_PATH": "/t"}
    sparks |= {"PYTHON_WORKER_FACTORY_SECRET": "secret", "SPARK_LOCAL_DIRS": "/d"}
    env = base_environment({**ours, **sparks, "HOROVOD_SECRET_KEY": "00"}, {"HOROVOD_TIMELINE": "t"})
    assert ours.items() <= env.items() and not sparks.keys() & env.keys()
    assert env["HOROVOD_TIMELINE"] == "t"


def test_the_secret_is_not_in_the_text_of_a_plan():
    plan = BarrierPlan("tcp://h:1", "tcp://h:2", SECRET, {"TOKEN": "hidden"}, None, True)
    assert "sss" not in f"{plan} {plan!r}" and "hidden" not in repr(plan)


class TestChannel:
    def test_messages_arrive_whole_and_are_cut(self):
        ours, theirs = socket.socketpair()
        with ours:
            channel = RankChannel(theirs.detach())
            channel.send("\u00e9" * (MOST_CHARACTERS + 5))
            channel.send("two\nlines")
            reader, texts = LineReader(), []
            while len(texts) < 2:
                texts += reader.feed(ours.recv(7))
        assert texts == ["\u00e9" * MOST_CHARACTERS, "two\nlines"]

    def test_a_task_that_does_not_read_costs_messages_and_not_time(self):
        ours, theirs = socket.socketpair()
        with ours:
            channel = RankChannel(theirs.detach())
            for number in range(1000):
                channel.send(f"{number} " + "x" * MOST_CHARACTERS)
            reader, texts, sent = LineReader(), [], False
            while not sent:
                texts += reader.feed(ours.recv(1 << 16))
                channel.send("the last one")
                sent = any("the last one" in text for text in texts)
        dropped = [text for text in texts if text.startswith("(")]
        assert dropped and "messages before this one were dropped" in dropped[0]

    def test_strange_lines_are_left_out(self):
        reader = LineReader()
        good = json.dumps({"text": "fine", "dropped": 0}).encode() + b"\n"
        assert reader.feed(b"nonsense\n[1]\n{}\n" + good) == ["fine"]
        assert reader.feed(b"x" * (LONGEST_LINE + 1)) == [] and reader.feed(b"\n" + good) == ["fine"]


class TestLog:
    @pytest.fixture
    def server(self):
        output, told = Output(2), []
        output.stdout = output.stderr = Sink(io.StringIO())
        server = LogServer("127.0.0.1", SECRET, output, lambda rank, text: told.append((rank, text)))
        server.shown, server.told = output.stdout.stream, told
        yield server
        server.close()

    def test_lines_of_ranks_do_not_mix(self, server):
        senders = [LogSender(server.address, SECRET, rank) for rank in (0, 1)]
        for rank, sender in enumerate(senders):
            sender.output(rank, 0, b"first\nsec")
            sender.output(rank, 0, b"ond\n")
            sender.output(rank, 1, b"warning\n")
            sender.message(rank, f"hello from {rank}")
        for sender in senders:
            sender.close()
        server.close()
        expected = [
            line
            for r in (0, 1)
            for line in (f"[{r}]<stdout>:first", f"[{r}]<stdout>:second", f"[{r}]<stderr>:warning")
        ]
        assert sorted(server.shown.getvalue().splitlines()) == sorted(expected)
        assert sorted(server.told) == [(0, "hello from 0"), (1, "hello from 1")]

    def test_a_broken_connection_is_made_again(self, server):
        sender = LogSender(server.address, SECRET, 0)
        sender.message(0, "before")
        while not server.told:
            time.sleep(0.01)
        connections = server.__dict__["_connections"]
        (peer,) = connections
        peer.shutdown(socket.SHUT_RDWR)
        while peer in connections:
            time.sleep(0.01)
        number = 0
        # Text that is written before the break is noticed is lost, as with every connection.
        while len(server.told) < 2:
            sender.message(0, f"after {number}")
            number += 1
            time.sleep(0.01)
        sender.close()
        server.close()
        assert server.told[0] == (0, "before") and server.told[-1] == (0, f"after {number - 1}")

    def test_a_stranger_is_not_heard(self, server):
        with pytest.raises(AuthenticationError):
            LogSender(server.address, b"another secret of 32 bytes......", 0)
        with socket.create_connection(split_address(server.address)) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 10)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(1000):
                    pass  # until the server closes it
        sender = LogSender(server.address, SECRET, 1)
        sender.message(1, "still here")
        sender.close()
        server.close()
        assert server.told == [(1, "still here")] and server.shown.getvalue() == ""


def test_the_secret_of_a_world_is_veiled_on_the_way_to_a_worker():
    secret, other = "ab" * 32, {"env": {"HOROVOD_RANK": "1"}}
    said = {"kind": "enter", "env": {"HOROVOD_SECRET_KEY": secret, "HOROVOD_EPOCH": "2", **other["env"]}}
    hidden = masked(json.dumps(said).encode() + b"\n", SECRET)
    assert secret.encode() not in hidden and json.loads(hidden)["env"]["HOROVOD_RANK"] == "1"
    assert json.loads(masked(hidden, SECRET)) == said
    said["env"]["HOROVOD_EPOCH"] = "3"
    assert json.loads(masked(json.dumps(said).encode(), SECRET))["env"] != json.loads(hidden)["env"]
    assert masked(b'{"kind": "update"}\n', SECRET) == b'{"kind": "update"}\n'


@pytest.mark.parametrize(
    "said, pyspark, told",
    [
        ('openjdk version "11.0.20" 2023-07-18', "4.0.0", "needs Java 17 to 21, and .* is Java 11"),
        ('java version "1.8.0_381"', "4.0.0", "is Java 8"),
        ('openjdk version "25" 2025-09-16', "4.0.0", "is Java 25"),
        ('openjdk version "21.0.1" 2023-10-17', "3.5.1", "needs Java 8 to 17, and .* is Java 21"),
        ('openjdk version "17.0.15" 2025-04-15', "4.0.0", None),
        ('java version "1.8.0_381"', "3.5.1", None),
    ],
)
def test_a_java_that_does_not_fit_is_named(tmp_path, said, pyspark, told):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    expected = contextlib.nullcontext() if told is None else pytest.raises(RuntimeError, match=told)
    with expected:
        check_java(pyspark, {"JAVA_HOME": str(tmp_path)})


def test_no_java_at_all_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="no java is on the path"):
        check_java("4.0.0", {"PATH": str(tmp_path)})
    with pytest.raises(RuntimeError, match=f"JAVA_HOME={tmp_path} has none"):
        check_java("4.0.0", {"JAVA_HOME": str(tmp_path)})


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
