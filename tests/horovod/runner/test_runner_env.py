"""The ranks' variables: their place in the job and the store's address; the secret is not printed."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import runner_ranks
from horovod._runner.launch_spec import start_timeout
from horovod.runner.launch import parse_args
from hvd_core._bootstrap.world import connect
from hvd_core._config.settings import read_environment


def environments(launcher, count, *words, env=None):
    done = launcher.python(count, runner_ranks.dump_environment, *words, env=env)
    assert done.returncode == 0, done.stderr
    return [json.loads((launcher.folder / f"env.{rank}").read_text()) for rank in range(count)], done


def test_ranks_know_their_place(launcher):
    found, _ = environments(launcher, 3)
    for rank, env in enumerate(found):
        expected = {
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": "3",
            "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_LOCAL_SIZE": "3",
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_CONTROLLER": "gloo",
            "PYTHONUNBUFFERED": "1",
        }
        assert {name: env.get(name) for name in expected} == expected
        host, port = env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], env["HOROVOD_GLOO_RENDEZVOUS_PORT"]
        assert env["HOROVOD_STORE"] == f"tcp://{host}:{port}" == f"tcp://127.0.0.1:{port}"
        assert len(bytes.fromhex(env["HOROVOD_SECRET_KEY"])) == 32
        # These are the caller's business, or would choose a backend.
        for name in (
            "HOROVOD_CPU_OPERATIONS",
            "OMP_NUM_THREADS",
            "NCCL_SOCKET_IFNAME",
            "HOROVOD_START_TIMEOUT",
        ):
            assert env.get(name) == os.environ.get(name)
    assert len({env["HOROVOD_SECRET_KEY"] for env in found}) == 1


def test_two_jobs_have_two_secrets(launcher):
    (first, _), (second, _) = environments(launcher, 1), environments(launcher, 1)
    assert first[0]["HOROVOD_SECRET_KEY"] != second[0]["HOROVOD_SECRET_KEY"]


def test_callers_environment_is_kept_and_flags_beat_it(launcher):
    given = {
        "OMPI_COMM_WORLD_RANK": "7",
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_CACHE_CAPACITY": "10",
        "HOROVOD_RANK": "99",
        "HOROVOD_SECRET_KEY": "00" * 32,
        "CUDA_VISIBLE_DEVICES": "1",
        "_HOROVOD_SECRET_KEY": "old",
        "OLDPWD": "/",
    }
    words = ["--cache-capacity", 20, "--start-timeout", 45, "--tcp", "--network-interfaces", "lo"]
    (env,), _ = environments(launcher, 1, *words, env=given)
    assert env["OMPI_COMM_WORLD_RANK"] == "7"
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["HOROVOD_CYCLE_TIME"] == "3.5"
    assert env["HOROVOD_CACHE_CAPACITY"] == "20"
    assert env["HOROVOD_START_TIMEOUT"] == "45"
    assert env["NCCL_IB_DISABLE"] == "1"
    assert env["HOROVOD_GLOO_IFACE"] == env["NCCL_SOCKET_IFNAME"] == "lo"
    assert env["HOROVOD_RANK"] == "0"
    assert env["HOROVOD_SECRET_KEY"] != "00" * 32
    assert "_HOROVOD_SECRET_KEY" not in env
    assert "OLDPWD" not in env


def test_the_secret_is_nowhere_but_in_the_ranks_environment(launcher):
    process = launcher.start_python(
        2, runner_ranks.dump_environment_and_sleep, "--verbose", stderr=subprocess.STDOUT
    )
    (text, _) = launcher.wait_for(2, "env.")
    secret = json.loads(text)["HOROVOD_SECRET_KEY"].encode()
    ranks = set()
    for entry in Path("/proc").iterdir():
        try:
            assert secret not in (entry / "cmdline").read_bytes()
            if entry.name.isdigit() and secret in (entry / "environ").read_bytes():
                ranks.add(int(entry.name))
        except OSError:
            continue
    assert len(ranks) == 2
    process.terminate()
    out, _ = process.communicate(timeout=100)
    assert b"HOROVOD_STORE=tcp://" in out
    assert b"HOROVOD_CONTROLLER=gloo" in out
    assert secret not in out


def test_the_ranks_meet_in_the_store(launcher):
    done = launcher.python(4, runner_ranks.meet_in_the_store)
    assert done.returncode == 0, done.stderr
    said = "hello 0 hello 1 hello 2 hello 3"
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:{said}" for rank in range(4)]


@pytest.mark.parametrize("text, seconds", [("30.5", 30.5), ("1e2", 100.0), (" 45 ", 45.0), ("", 30.0)])
def test_a_time_means_the_same_to_launcher_and_ranks(text, seconds):
    environ = {"HOROVOD_START_TIMEOUT": text}
    assert start_timeout(parse_args(["-np", "1", "true"]), environ) == seconds
    assert read_environment(environ).start_timeout_s == seconds
    if text:
        assert start_timeout(parse_args(["-np", "1", "--start-timeout", text, "true"]), {}) == seconds


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "1e9"])
def test_a_wrong_time_is_wrong_for_launcher_and_ranks(launcher, text):
    environ = {"HOROVOD_START_TIMEOUT": text}
    says = f"HOROVOD_START_TIMEOUT must be a positive number of seconds, found {text!r}."
    done = launcher.run("-np", 1, "true", env=environ)
    assert done.returncode == 2 and says in done.stderr
    for read in (read_environment, connect):
        with pytest.raises(ValueError, match=re.escape(says)):
            read(environ)
