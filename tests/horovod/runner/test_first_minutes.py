"""Mistakes of the first minutes: a system that lacks what a job needs, or another Python. Each message says what was
found and what to do, and comes at once."""

import subprocess
import sys

import pytest

from harness import run_to_the_end
from harness.rank import ignore_the_launcher

HOROVODRUN = [sys.executable, "-m", "horovod.runner.launch"]
PROGRAM = [sys.executable, "-c", "import hvd_core as hvd; hvd.init()"]


def shell(launcher, line, *words):
    """(exit code, stderr) of a shell's line, in which "$@" stands for `words`."""
    process = launcher.start_command(["sh", "-c", line, "sh", *words])
    _, err = process.communicate(timeout=120)
    return process.returncode, err.decode()


def needs_namespaces(*options):
    if subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"unshare {' '.join(options)} is not possible here")


def test_too_few_open_files_for_the_launcher(launcher):
    code, said = shell(launcher, 'ulimit -n 10; exec "$@"', *HOROVODRUN, "-np", "2", *PROGRAM)
    assert code == 2
    assert "horovodrun: error: [Errno 24] Too many open files" in said, said


@pytest.mark.netns
def test_loopback_is_down(launcher):
    needs_namespaces("-n")
    code, said = shell(launcher, 'exec unshare -n "$@"', *HOROVODRUN, "-np", "2", *PROGRAM)
    assert code == 1
    assert (
        "the network interface lo is down on this host (Network is unreachable). Turn it on: ip link set lo up"
        in said
    )
    assert "firewall" not in said and "within 30 s" not in said


@pytest.mark.netns
def test_no_proc(launcher):
    needs_namespaces("-m")
    line = 'exec unshare -m sh -c \'umount -l /proc && exec "$@"\' sh "$@"'
    code, said = shell(launcher, line, *HOROVODRUN, "-np", "2", *PROGRAM)
    assert code == 2
    assert said == (
        "horovodrun: error: /proc is not mounted on this host, and horovodrun needs it: mount -t proc proc /proc\n"
    )


def test_a_python_without_hvd_core(launcher, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    python = str(tmp_path / "other" / "bin" / "python")
    words = ["-np", "2", python, "-c", "import hvd_core"]
    process = launcher.start_command([*HOROVODRUN, *words], {"PYTHONPATH": ""})
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.decode().endswith(
        f"horovodrun: the ranks ran {python}, for which hvd-core is not installed. It is installed for {sys.executable}: "
        "start the ranks with that Python, or install hvd-core for the other one.\n"
    ), err.decode()


def test_another_failure_of_the_right_python_gets_no_such_hint(launcher):
    done = launcher.run("-np", 1, sys.executable, "-c", "raise SystemExit(1)")
    assert done.returncode == 1 and "is not installed" not in done.stderr


def one_rank_is_bad():
    import numpy as np

    import hvd_core as hvd

    def bad():
        raise ValueError("bad batch")

    ignore_the_launcher()
    if hvd.rank() == 1:
        bad()
    try:
        hvd.allreduce(np.ones(1), name="t")
    except hvd.HorovodInternalError as error:
        print(f"told: {error}", flush=True)
        raise SystemExit(0) from None


def test_the_cause_and_the_rank_that_left_are_two_sentences():
    said = run_to_the_end(2, one_rank_is_bad, code=1)
    assert "in bad). rank 1 (host " in said, said
