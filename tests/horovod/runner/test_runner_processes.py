"""Exit codes, and that nothing outlives the job, however it ends. Real processes only.

A job takes the supervisor's own times to end (END_S); the limit of a test has BUSY_S on top, for machines with other
work.
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

import runner_ranks
from horovod._runner import supervisor
from horovod._runner.failures import describe_code
from launchers import program_words, send_each

END_S, BUSY_S = 5, 20


def test_the_supervisors_times_leave_room_for_its_work():
    assert supervisor.REPORT_S + supervisor.FAILURE_GRACE_S < END_S
    assert supervisor.LEFTOVER_WAIT_S + supervisor.LEFTOVER_GRACE_S < END_S


def seconds_until_end(process, limit=100):
    start = time.monotonic()
    process.communicate(timeout=limit)
    return time.monotonic() - start


@pytest.mark.parametrize(
    "code, text",
    [
        (0, "exit code 0"),
        (128, "exit code 128"),
        (-9, "killed by SIGKILL"),
        (-37, "killed by signal 37"),  # a real-time signal has no name
        (137, "exit code 137; a shell exits so when SIGKILL has killed its program"),
        (193, "exit code 193"),
        (255, "exit code 255"),
    ],
)
def test_an_exit_code_in_words(code, text):
    assert describe_code(code) == text


def test_success(launcher):
    done = launcher.python(3, "pass")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert launcher.processes() == []


@pytest.mark.parametrize("code", [1, 2, 77, 143, 255])
def test_exit_code_of_the_failing_rank(launcher, code):
    start = time.monotonic()
    done = launcher.run("-np", 4, *program_words(runner_ranks.rank_1_exits, code))
    assert time.monotonic() - start < END_S + BUSY_S
    assert done.returncode == code
    assert f"Process 1 exit with status code {code}." in done.stderr
    assert done.stderr.count("Terminating remaining workers after failure of Process 1.") == 1
    assert done.stderr.endswith(
        "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be "
        f"terminated. The first process to do so was:\nProcess name: 1\nExit code: {code}\n"
    )
    assert launcher.processes() == []


def test_ranks_that_end_well_do_not_end_the_others(launcher):
    done = launcher.python(
        2, "import os, time\nif os.environ['HOROVOD_RANK'] == '0': time.sleep(1.5); print('end')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0]<stdout>:end\n", "")


def test_last_words_come_before_the_message(launcher):
    done = launcher.python(2, "import os\nif os.environ['HOROVOD_RANK'] == '1': raise KeyError('oops')")
    assert done.returncode == 1
    assert done.stderr.index("[1]<stderr>:KeyError: 'oops'") < done.stderr.index("Process 1 exit with status")


def test_others_get_a_moment_to_say_what_they_saw(launcher):
    # The moment begins when rank 1 has ended, and not before rank 0 has come so far. On a busy machine it may be over
    # before rank 0 has ended.
    for _ in range(4):
        done = launcher.python(2, runner_ranks.rank_0_sees_rank_1_die)
        assert done.returncode == 128 + 9
        if "Terminating" not in done.stderr:
            assert "[0]<stderr>:rank 1 died\n" in done.stderr
            break
        for name in ("rank 1", "ready"):
            (launcher.folder / name).unlink(missing_ok=True)
    else:
        raise AssertionError(done.stderr)


@pytest.mark.parametrize("last", ["sleep", "deaf"])
def test_kill_9_of_one_rank_ends_the_job_within_5_seconds(launcher, last):
    process = launcher.start_python(4, getattr(runner_ranks, f"family_and_{last}"))
    pids = launcher.wait_for(4, "ready.")
    launcher.wait_for(4, "orphan.")
    os.kill(int(pids[2]), signal.SIGKILL)
    assert seconds_until_end(process) < END_S + BUSY_S
    assert process.returncode == 128 + 9
    assert launcher.processes() == []


def test_all_ranks_killed(launcher):
    process = launcher.start_python(4, runner_ranks.family_and_sleep)
    pids = launcher.wait_for(4, "ready.")
    launcher.wait_for(4, "orphan.")
    send_each(signal.SIGKILL, map(int, pids))
    assert seconds_until_end(process) < END_S + BUSY_S
    assert process.returncode == 128 + 9
    assert launcher.processes() == []


def test_kill_9_of_the_launcher_leaves_nothing(launcher):
    process = launcher.start_python(4, runner_ranks.family_and_deaf)
    launcher.wait_for(4, "ready.")
    launcher.wait_for(4, "orphan.")
    process.kill()
    assert launcher.wait_for_none() == []


def test_kill_9_of_the_supervisor_ends_the_ranks(launcher):
    process = launcher.start_python(4, runner_ranks.sleep)
    pids = launcher.wait_for(4, "ready.")
    with open(f"/proc/{pids[0]}/stat") as stat:
        parent = int(stat.read().rpartition(")")[2].split()[1])
    assert parent != process.pid
    os.kill(parent, signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert b"ended with status -9 while ranks [0, 1, 2, 3] were running" in err
    assert launcher.wait_for_none() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_launcher_leaves_nothing(launcher, number):
    process = launcher.start_python(4, runner_ranks.family_and_sleep)
    launcher.wait_for(4, "ready.")
    launcher.wait_for(4, "orphan.")
    process.send_signal(number)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 128 + number
    assert b"stopping all processes" in err
    assert b"Traceback" not in err
    assert launcher.processes() == []


def test_ctrl_c_is_quick_when_the_ranks_obey(launcher):
    process = launcher.start_python(2, runner_ranks.sleep)
    launcher.wait_for(2, "ready.")
    process.send_signal(signal.SIGINT)
    assert seconds_until_end(process) < supervisor.STOP_GRACE_S


def test_second_ctrl_c_kills(launcher):
    process = launcher.start_python(2, runner_ranks.deaf)
    launcher.wait_for(2, "ready.")
    process.send_signal(signal.SIGINT)
    # Two signals before the first is handled would be one.
    launcher.wait_until_asleep(process.pid, quiet=0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert seconds_until_end(process) < supervisor.STOP_GRACE_S - 1
    assert launcher.processes() == []


def test_ranks_may_clean_up_after_ctrl_c(launcher):
    process = launcher.start_python(2, runner_ranks.save_at_the_end)
    launcher.wait_for(2, "ready.")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert out.count(b"saved") == 2


def test_ctrl_c_in_a_terminal(launcher):
    """The terminal signals the whole foreground group; ranks and supervisor are not in it."""
    process = launcher.start_python(2, runner_ranks.sleep, start_new_session=True)
    launcher.wait_for(2, "ready.")
    os.killpg(process.pid, signal.SIGINT)
    assert seconds_until_end(process) < supervisor.STOP_GRACE_S
    assert process.returncode == 130
    assert launcher.processes() == []


def test_signal_while_starting(launcher):
    """At any moment of the start: either the default action, or an orderly end; nothing stays."""
    for delay in (0.05, 0.1, 0.15, 0.2, 0.3):
        process = launcher.start_python(2, runner_ranks.sleep)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=100)
        assert process.returncode in (-15, 143)
        assert launcher.wait_for_none() == []


def test_what_ranks_leave_running_is_ended(launcher):
    start = time.monotonic()
    done = launcher.python(2, runner_ranks.family)
    assert done.returncode == 0
    assert time.monotonic() - start < END_S + BUSY_S
    assert launcher.processes() == []


def test_a_process_that_lives_without_its_first_thread_is_ended(launcher):
    done = launcher.python(1, runner_ranks.without_a_first_thread)
    assert done.returncode == 0 and "do not end" not in done.stderr, done.stderr
    (pid,) = re.findall(r"left (\d+)", done.stdout)
    assert not os.path.exists(f"/proc/{pid}")


def test_standard_input_is_empty(launcher):
    read_end, write_end = os.pipe()
    done = launcher.python(2, "import sys; print(repr(sys.stdin.read()))", stdin=read_end)
    os.close(read_end)
    os.close(write_end)
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:''", "[1]<stdout>:''"]


# Signals 32 and 33 belong to the C library, whose posix_spawn leaves them ignored in the programs that it starts:
# `make`, for one, hands that down to us, and no program can change it back.
LIBC_OWN = 1 << 31 | 1 << 32


def test_ranks_start_clean(launcher):
    """A session of their own, no stray descriptors, default signals."""
    done = launcher.python(2, runner_ranks.print_how_it_began)
    assert len(done.stdout.splitlines()) == 2
    for line in done.stdout.splitlines():
        clean, ignored = line[12:].rsplit(" ", 1)
        # Python itself ignores SIGPIPE (13) and SIGXFSZ (25) after its start.
        assert (clean, int(ignored, 16) & ~LIBC_OWN) == ("True [0, 1, 2]", 0x1001000)
    done = launcher.run("-np", 1, "grep", "SigIgn", "/proc/self/status")
    assert int(re.search(r"SigIgn:\s*([0-9a-f]+)\n", done.stdout)[1], 16) & ~LIBC_OWN == 0


def test_command_that_cannot_be_executed(launcher):
    script = launcher.folder / "broken"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    done = launcher.run("-np", 1, "./broken")
    assert done.returncode == 127
    assert "[0]<stderr>:horovodrun: cannot start './broken': No such file or directory" in done.stderr


def test_odd_arguments_and_variables_arrive_unchanged(launcher):
    odd = ["", " ", "a b", "'", '"', "$HOME", "*", "\\", "ü", "a\nb"]
    code = "import os, sys; print([os.fsencode(a) for a in sys.argv[1:]], os.environb[b'ODD'])"
    process = launcher.start(
        "-np", 1, sys.executable, "-c", code, *odd, env={"ODD": b"\xff\n=".decode("latin-1")}
    )
    out, _ = process.communicate(timeout=100)
    value = os.fsencode(b"\xff\n=".decode("latin-1"))
    assert out.decode() == f"[0]<stdout>:{[os.fsencode(word) for word in odd]} {value}\n"
    raw = subprocess.run(
        [
            os.fsencode(sys.executable),
            b"-m",
            b"horovod.runner.launch",
            b"-np",
            b"1",
            b"printf",
            b"%s",
            b"\xfe\xff",
        ],
        env=launcher.environment(),
        cwd=launcher.folder,
        capture_output=True,
        timeout=100,
    )
    assert raw.stdout == b"[0]<stdout>:\xfe\xff\n"


def test_an_idle_job_sleeps(launcher):
    """Neither launcher nor supervisor may poll."""
    process = launcher.start_python(2, runner_ranks.sleep)
    (pid, _) = launcher.wait_for(2, "ready.")
    with open(f"/proc/{pid}/stat") as stat:
        watched = process.pid, stat.read().rpartition(")")[2].split()[1]
    for one in watched:
        launcher.wait_until_asleep(one)

    def ticks():
        used = 0
        for one in watched:
            with open(f"/proc/{one}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
        return used

    before = ticks()
    time.sleep(3)
    assert ticks() - before <= 1
    process.terminate()
    process.communicate(timeout=100)
