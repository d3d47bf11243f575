"""Jobs on several hosts end everywhere after every failure, and nothing is left behind on any host."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

import host_programs
from launchers import program_words, send_each

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

NETNS = "ip netns exec {host}"
RELAY = f"{sys.executable} {Path(__file__).with_name('relay.py')} {{host}}"
both_shells = pytest.mark.parametrize("shell", [NETNS, RELAY], ids=["netns", "relay"])


def start(made, count, program=host_programs.sleep_with_an_orphan, *words, **options):
    """A job whose ranks and their children all run."""
    process = made.start_python(count, program, *words, **options)
    pids = made.wait_for(count, "ready.")
    made.wait_for(count, "orphan.")
    return process, [int(pid) for pid in pids]


def agents(made):
    """Process ids of the agents, by looking at what runs."""
    return [pid for pid in made.processes() if b"horovod._runner.agent" in words_of(pid)]


def relays(made):
    return [pid for pid in made.processes() if any(word.endswith(b"relay.py") for word in words_of(pid))]


def words_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


@both_shells
@pytest.mark.parametrize("failing", [0, 3])
def test_exit_code_of_the_failing_rank(cluster, shell, failing):
    made = cluster(2, 2, shell=shell)
    done = made.run("-np", 4, *program_words(host_programs.one_rank_exits, failing, 77))
    assert done.returncode == 77
    assert f"Process {failing} exit with status code 77." in done.stderr
    text = f"Terminating remaining workers after failure of Process {failing}."
    assert done.stderr.count(text) == 1
    assert done.stderr.endswith(f"Process name: {failing}\nExit code: 77\n")
    assert made.wait_for_none() == []


def test_others_get_a_moment_to_say_what_they_saw(cluster):
    made = cluster(1, 1, 1)
    for _ in range(4):  # on a busy machine the moment may be over before the others have ended
        done = made.python(3, host_programs.see_rank_1_die)
        assert done.returncode == 128 + 9
        if "Terminating" not in done.stderr:
            assert all(f"[{other}]<stderr>:rank 1 died\n" in done.stderr for other in (0, 2)), done.stderr
            break
        for name in ("rank 1", "ready.0", "ready.2"):
            (made.folder / name).unlink(missing_ok=True)
    else:
        raise AssertionError(done.stderr)


def test_ranks_that_end_well_do_not_end_the_others(cluster):
    made = cluster(1, 1, 1)
    body = "import os, time\nif os.environ['HOROVOD_RANK'] == '1': time.sleep(1.5); print('end')"
    done = made.python(3, body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1]<stdout>:end\n", "")


def test_killed_ranks_and_what_they_started_are_gone(cluster):
    made = cluster(1, 2)
    process, pids = start(made, 3, host_programs.deaf_with_an_orphan)
    os.kill(pids[2], signal.SIGKILL)
    process.communicate(timeout=100)
    assert process.returncode == 128 + 9
    assert made.processes() == []


@both_shells
def test_kill_9_of_the_launcher_leaves_nothing(cluster, shell):
    made = cluster(2, 2, shell=shell)
    process, _ = start(made, 4, host_programs.deaf_with_an_orphan)
    process.kill()
    assert made.wait_for_none() == []


def test_kill_9_of_the_launcher_although_somebody_holds_its_pipes(cluster):
    """A process forked by the program that called horovod.run has copies of all its descriptors."""
    made = cluster(1, 1, shell=RELAY)
    words = program_words(host_programs.run_a_function_beside_a_fork, made.network.spec(1, 1))
    program = made.network[0].start(
        *words, env=made.environment({"HOROVOD_REMOTE_SHELL": RELAY}), cwd=made.folder
    )
    made.started.append(program)
    ranks = [int(pid) for pid in made.wait_for(2, "ready.") + made.wait_for(2, "orphan.")]

    def callers():
        return [pid for pid in made.processes() if words_of(pid)[1:2] == [os.fsencode(words[1])]]

    deadline = time.monotonic() + 60
    while len(holders := callers()) < 2:
        assert time.monotonic() < deadline, holders
        time.sleep(0.05)
    program.kill()
    program.wait()
    deadline = time.monotonic() + 30
    while alive := [pid for pid in ranks if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


@pytest.mark.parametrize(
    "shell, number",
    [(NETNS, signal.SIGINT), (NETNS, signal.SIGHUP), (RELAY, signal.SIGTERM)],
    ids=["netns-INT", "netns-HUP", "relay-TERM"],
)
def test_signal_to_the_launcher_leaves_nothing(cluster, shell, number):
    made = cluster(2, 2, shell=shell)
    process, _ = start(made, 4)
    process.send_signal(number)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 128 + number
    assert err.count(b"stopping all processes") == 1
    assert b"Traceback" not in err and b"lost" not in err
    assert made.processes() == []


def test_ctrl_c_in_a_terminal(cluster):
    """The terminal signals the whole foreground group; neither ranks nor remote shells are in it."""
    made = cluster(1, 1, shell=RELAY)
    process = made.start_python(2, host_programs.save_at_the_end, start_new_session=True)
    made.wait_for(2, "ready.")
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert b"[0]<stdout>:saved" in out and b"[1]<stdout>:saved" in out


def test_second_ctrl_c_kills(cluster):
    made = cluster(1, 1)
    process, _ = start(made, 2, host_programs.deaf_with_an_orphan)
    process.send_signal(signal.SIGINT)
    # Two signals before the first is handled would be one.
    made.wait_until_asleep(process.pid, quiet=0.2)
    assert process.poll() is None
    before = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert time.monotonic() - before < 4  # less than the 5 s that one Ctrl-C leaves the ranks
    assert made.processes() == []


@both_shells
def test_a_lost_remote_shell_ends_the_job(cluster, shell):
    made = cluster(1, 1, 1, shell=shell)
    process, _ = start(made, 3)
    victim = (relays(made) if shell == RELAY else agents(made))[0]
    host = next(
        host.name for host in made.network if host.name.encode() in words_of(victim) or shell == NETNS
    )
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert b"horovodrun: lost the host 'hvdtest-" in err and b"with ranks [" in err
    assert b"the remote shell ended with status -9" in err
    if shell == RELAY:
        assert host.encode() in err.split(b"lost the host")[1]
    assert made.wait_for_none() == []


def test_a_hanging_host_is_given_up_after_three_requests(cluster):
    made = cluster(1, 1)
    process, _ = start(made, 2)
    (agent,) = agents(made)
    os.kill(agent, signal.SIGSTOP)
    try:
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            # Two signals before the first is handled would be one.
            made.wait_until_asleep(process.pid, quiet=0.2)
        _, err = process.communicate(timeout=100)
    finally:
        send_each(signal.SIGCONT, [agent])
    assert process.returncode == 130
    assert b"with ranks [1]: the remote shell did not answer" in err
    assert made.wait_for_none() == []


def test_the_agents_supervisor_is_killed(cluster):
    made = cluster(1, 1)
    # Without grandchildren: those in a session of their own are the supervisor's to find.
    process = made.start_python(2, host_programs.sleep)
    pids = made.wait_for(2, "ready.")
    supervisor = psutil.Process(int(pids[1])).ppid()
    os.kill(supervisor, signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert f"{made.network[1].name}: the process that watches over the ranks ended".encode() in err
    assert made.wait_for_none() == []


def test_nobody_reads_the_output(cluster):
    made = cluster(1, 1)
    process = made.start_python(2, host_programs.print_for_ever)
    process.stdout.read(1000)
    process.stdout.close()
    process.wait(100)
    assert process.returncode == 128 + signal.SIGPIPE
    assert made.wait_for_none() == []


def test_signal_while_starting(cluster):
    """At any moment of the start: either the default action, or an orderly end; nothing stays."""
    made = cluster(1, 1, shell=RELAY)
    for delay in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4):
        process = made.start_python(2, host_programs.sleep_with_an_orphan)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=100)
        assert process.returncode in (-15, 143)
        assert b"Traceback" not in err
        assert made.wait_for_none() == []
