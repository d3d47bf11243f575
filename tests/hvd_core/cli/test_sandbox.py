"""Child processes that hang, crash, print endlessly, or leave processes behind (hvd_core/_base/sandbox.py)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvd_core._base import sandbox

# Writes its pid to the file of its argument, then sleeps; it holds the pipes of its parent open.
GRANDCHILD = "sh -c 'echo $$ > \"$0\"; exec sleep 600' {} &"
FLOOD = "import os\nwhile True: os.write(1, b'x' * 65536)"
ATTACH = "import sys\nfrom hvd_core._base.sandbox import Reporter\nreporter = Reporter.attach(sys.argv)\n"


def python(program):
    return [sys.executable, "-c", program]


def written(path):
    """The pid in a file, as soon as it is there."""
    until = time.monotonic() + 60
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.01)
    return int(path.read_text())


def expect_gone(pid):
    """The process has ended, or is a zombie that its new parent has not reaped."""
    until = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)


class TestRun:
    def test_output_input_and_exit_code(self):
        done = sandbox.run(["sh", "-c", "cat; echo err >&2; exit 3"], timeout_s=60, stdin="in")
        assert (done.returncode, done.stdout, done.stderr) == (3, "in", "err\n")
        assert not done.timed_out and done.signal == ""

    def test_merged_output(self):
        done = sandbox.run(["sh", "-c", "echo a; echo b >&2"], timeout_s=60, merge_output=True)
        assert (done.stdout, done.stderr) == ("a\nb\n", "")

    def test_a_crash(self):
        done = sandbox.run(["sh", "-c", "echo a; kill -SEGV $$"], timeout_s=60)
        assert (done.returncode, done.signal, done.stdout) == (-signal.SIGSEGV, "SIGSEGV", "a\n")

    def test_a_hang(self):
        done = sandbox.run(["sh", "-c", "echo a; exec sleep 600"], timeout_s=0.5)
        assert done.timed_out and done.returncode is None and done.stdout == "a\n"

    def test_endless_output_does_not_delay_the_timeout(self):
        done = sandbox.run(python(FLOOD), timeout_s=0.5)
        assert done.timed_out and len(done.stdout) <= 16 << 20

    def test_large_output_is_complete(self):
        assert len(sandbox.run(python("print('x' * 3_000_000)"), timeout_s=60).stdout) == 3_000_001

    def test_a_grandchild_that_holds_the_pipes_is_killed_and_not_waited_for(self, tmp_path):
        began = time.monotonic()
        done = sandbox.run(["sh", "-c", GRANDCHILD.format(tmp_path / "pid") + " echo a"], timeout_s=300)
        assert done.returncode == 0 and done.stdout == "a\n" and time.monotonic() - began < 300
        if (tmp_path / "pid").exists() and (text := (tmp_path / "pid").read_text()):
            expect_gone(int(text))

    def test_a_program_that_does_not_exist(self):
        with pytest.raises(FileNotFoundError):
            sandbox.run(["/no/such/program"], timeout_s=1)

    def test_no_descriptor_is_left(self):
        before = len(os.listdir("/proc/self/fd"))
        sandbox.run(["true"], timeout_s=60)
        sandbox.run_forked(lambda reporter: None, {})
        with pytest.raises(FileNotFoundError):
            sandbox.run_reporting(["/no/such/program"], {})
        assert len(os.listdir("/proc/self/fd")) == before


class TestForked:
    def test_values_and_output(self):
        def work(reporter):
            print("printed")
            reporter.send({"a": [1, Path("p")]})

        report = sandbox.run_forked(work, {})
        assert report.values == [{"a": [1, "p"]}] and report.fault == "" and report.describe() == ""
        assert report.output == ["printed"]

    def test_an_exception(self):
        def work(reporter):
            reporter.send("begun")
            reporter.enter(("mine", "load"))
            raise ValueError("wrong")

        report = sandbox.run_forked(work, {}, describe_error=lambda error: f"<{error}>")
        assert report.values == ["begun"] and (report.subject, report.phase) == ("mine", "load")
        assert report.describe() == "it raised <wrong> in the phase load"
        assert any("ValueError: wrong" in line for line in report.output)

    def test_a_crash(self):
        def work(reporter):
            reporter.enter(("mine", "load"))
            os.kill(os.getpid(), signal.SIGSEGV)

        report = sandbox.run_forked(work, {})
        assert report.describe() == "its process was killed by SIGSEGV in the phase load"

    def test_an_exit(self):
        report = sandbox.run_forked(lambda reporter: os._exit(7), {})
        assert report.describe() == "its process exited with code 7"

    @pytest.mark.parametrize("closes", [False, True])
    def test_a_hang_in_a_phase(self, closes):
        def work(reporter):
            reporter.enter(("mine", "probe"))
            if closes:
                os.closerange(0, 1000)
            time.sleep(600)

        report = sandbox.run_forked(work, {"probe": 0.2})
        assert report.phase == "probe" and "timed out after 0.2 s" in report.fault

    def test_a_phase_gets_its_whole_time(self):
        def work(reporter):
            for _ in range(3):
                reporter.enter(("mine", "probe"))
                time.sleep(0.4)
            reporter.enter(None)

        assert sandbox.run_forked(work, {"probe": 60}, between_s=60).fault == ""

    def test_the_total(self):
        def work(reporter):
            while True:
                reporter.enter(("mine", "probe"))
                time.sleep(0.05)

        assert "timed out" in sandbox.run_forked(work, {"probe": 60}, total_s=0.5).fault

    def test_endless_output(self):
        def work(reporter):
            reporter.enter(("mine", "probe"))
            while True:
                os.write(1, b"x" * 65536)

        report = sandbox.run_forked(work, {"probe": 0.5})
        assert "timed out" in report.fault and sum(map(len, report.output)) <= 64 << 10

    def test_a_grandchild_is_killed(self, tmp_path):
        def work(reporter):
            subprocess.Popen(["sh", "-c", GRANDCHILD.format(tmp_path / "pid")])
            reporter.send(written(tmp_path / "pid"))

        report = sandbox.run_forked(work, {})
        assert report.fault == ""
        expect_gone(report.values[0])

    def test_a_fork_whose_parent_died_before_the_death_signal_was_set_does_not_work(self, tmp_path):
        ended, ends = os.pipe()
        # An interpreter: the end of a forked program would end its children too.
        program = Path(__file__).with_name("orphan_program.py")
        process = subprocess.Popen([sys.executable, str(program), str(tmp_path / "worked")], pass_fds=(ends,))
        os.close(ends)
        assert os.read(ended, 1) == b""  # the program and its fork have ended
        os.close(ended)
        assert process.wait() == -signal.SIGKILL and not (tmp_path / "worked").exists()


class TestReporting:
    def test_a_program(self):
        program = (
            ATTACH
            + "reporter.enter(('x', 'load'))\nreporter.send(3)\nprint('out', flush=True)\nreporter.done()"
        )
        report = sandbox.run_reporting(python(program), {"load": 60})
        assert (report.values, report.fault, report.output) == ([3], "", ["out"])

    def test_a_program_that_ends_too_early(self):
        report = sandbox.run_reporting(python(ATTACH + "reporter.enter(('x', 'load'))"), {"load": 60})
        assert report.describe() == "its process exited with code 0 in the phase load"

    def test_bytes_that_are_no_report_are_left_out(self):
        program = ATTACH + "import os\nos.write(int(sys.argv[-2]), b'\\xff\\n[1]\\n')\nreporter.done()"
        assert sandbox.run_reporting(python(program), {}).fault == ""

    def test_with_descriptors_beyond_those_of_select(self):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 1200:
            pytest.skip("this host does not allow 1200 descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1030)]
        try:
            assert sandbox.run_reporting(python(ATTACH + "reporter.done()"), {}).fault == ""
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


class TestChild:
    def test_a_dialogue(self):
        children = [sandbox.Child(python(ECHO)) for _ in range(2)]
        for number, child in enumerate(children):
            child.send({"a": number})
        answers = {}
        while len(answers) < 2:
            answers |= sandbox.receive_any([child for child in children if child not in answers], 60)
        assert [answers[child] for child in children] == [{"a": 0}, {"a": 1}]
        for child in children:
            child.kill()
            child.kill()

    def test_two_answers_at_one_time(self):
        child = sandbox.Child(python('print(\'{"a": 1}\\n{"a": 2}\', flush=True); input()'))
        assert [sandbox.receive_any([child], 60)[child]["a"] for _ in range(2)] == [1, 2]
        child.kill()

    def test_an_end(self):
        child = sandbox.Child(["sh", "-c", "echo why >&2; kill -9 $$"])
        assert sandbox.receive_any([child], 60) == {child: None}
        child.send({})  # is not noticed here
        assert child.wait(60) == -signal.SIGKILL and child.errors() == "why\n"
        child.kill()

    def test_a_hang(self, tmp_path):
        child = sandbox.Child(["sh", "-c", GRANDCHILD.format(tmp_path / "pid") + " sleep 600"])
        assert sandbox.receive_any([child], 0.1) == {} and child.wait(0.1) is None
        pid = written(tmp_path / "pid")
        child.kill()
        expect_gone(pid)


def test_descriptions_of_ends():
    assert sandbox.describe_exit(3) == "exited with code 3"
    assert sandbox.describe_exit(-signal.SIGABRT) == "was killed by SIGABRT"
    assert sandbox.describe_exit(-signal.SIGRTMIN - 1) == f"was killed by signal {signal.SIGRTMIN + 1}"


def test_where_sigchld_is_ignored():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        for _ in range(10):
            report = sandbox.run_forked(lambda reporter: reporter.send(1), {})
            assert (report.values, report.fault) == ([1], "")
    finally:
        signal.signal(signal.SIGCHLD, before)
