"""horovodrun: version and help, errors for wrong arguments, and the cost of importing horovod."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from horovod._runner.arguments import make_parser
from hvd_core.version import __version__

MEASURE_IMPORT = Path(__file__).with_name("measure_import.py")


def test_version(launcher):
    for flag in ("-v", "--version"):
        done = launcher.run(flag)
        assert (done.returncode, done.stdout) == (0, __version__ + "\n")


def test_version_is_new_enough():
    assert [int(part) for part in re.findall(r"\d+", __version__)][:3] >= [0, 28, 1]


def test_check_build_has_the_familiar_layout(launcher):
    done = launcher.run("-cb")
    assert done.returncode == 0
    assert done.stdout == launcher.run("--check-build").stdout
    lines = done.stdout.splitlines()
    assert lines[0] == f"Horovod v{__version__}:"
    sections = {
        "Available Frameworks:": ["TensorFlow", "PyTorch", "MXNet", "JAX"],
        "Available Controllers:": ["MPI", "Gloo"],
        "Available Tensor Operations:": ["NCCL", "DDL", "CCL", "MPI", "Gloo"],
    }
    for title, names in sections.items():
        start = lines.index(title) + 1
        for line, name in zip(lines[start:], names):
            assert line[:8] in ("    [X] ", "    [ ] ")
            assert line[8:].split()[0] == name
    assert "Available Backends:" in lines


@pytest.mark.parametrize(
    "words, message",
    [
        (["ls"], "argument -np/--num-proc is required"),
        (["-np", "2"], "a command is required"),
        (["-np", "x", "ls"], "invalid int value: 'x'"),
        (["-np", "0", "ls"], "The number of processes must be at least 1, found -np 0."),
        (
            ["-np", "4", "-H", "localhost:2", "ls"],
            r"Requested more processes (4) than there are available slots (2)",
        ),
        (["-np", "1", "-H", "localhost", "ls"], "Invalid host input"),
        (["-np", "1", "-H", "192.0.2.1:1", "--remote-shell", "rsh", "ls"], "has no {host}: put it"),
        (
            ["-np", "1", "-H", "192.0.2.1:1", "--remote-shell", "x '{host}", "ls"],
            "cannot be split into words",
        ),
        (
            ["-np", "1", "-H", "192.0.2.1:1", "--remote-shell", "x {host}", "-p", "2", "ls"],
            "put -p and -i into",
        ),
        (["-np", "1", "-H", "-x:1", "--remote-shell", "x {host}", "ls"], "expected one argument"),
        (["-np", "1", "--hostfile", "/nowhere/hosts", "ls"], "/nowhere/hosts"),
        (["-np", "1", "--config-file", "/nowhere/config", "ls"], "/nowhere/config"),
        (["-np", "1", "-H", "a:1", "--hostfile", "f", "ls"], "not allowed with argument"),
        (["-np", "1", "--network-interfaces", "nope0", "ls"], "no network interface 'nope0'"),
        (["-np", "1", "--start-timeout", "0", "ls"], "--start-timeout must be a positive number of seconds"),
        (["-np", "1", "no-such-command"], "The command 'no-such-command' was not found"),
        (["-np", "1", "--log-level", "loud", "ls"], "invalid choice"),
        (
            ["-np", "1", "--jsrun", "ls"],
            "--jsrun is not supported: there was no LSF to write and try it on. Start with horovodrun if ssh",
        ),
        (["-np", "1", "--mpi-args", " -x", "ls"], "--mpi-args is for mpirun, which does not start this job"),
        (["-np", "1", "--binding-args", " -b", "ls"], "--binding-args is for mpirun, which does not start"),
        (["-np", "1", "--max-num-proc", "2", "ls"], "--max-np is for elastic jobs. Add --min-np or"),
        (["-np", "1", "--slots-per-host", "2", "ls"], "--slots-per-host is for elastic jobs"),
        (["-np", "1", "--elastic-timeout", "2", "ls"], "--elastic-timeout is for elastic jobs"),
        (["-np", "1", "--reset-limit", "2", "ls"], "--reset-limit is for elastic jobs"),
        (
            ["-np", "1", "--blacklist-cooldown-range", "1", "2", "ls"],
            "--blacklist-cooldown-range is for elastic",
        ),
        (["-np", "1", "--min-np", "2", "ls"], "-np 1 is less than --min-np 2"),
        (["-np", "2", "--min-np", "0", "ls"], "min_num_proc=0 must be >= 1 (--min-np)"),
        (["-np", "2", "--min-np", "1", "--max-np", "1", "ls"], "--max-np 1 is less than -np 2"),
        (["-np", "1", "--spares", "1", "ls"], "--spares is for elastic jobs"),
        (["-np", "1", "--min-np", "1", "--spares", "1", "ls"], "--spares needs --max-np"),
        (["-np", "1", "--min-np", "1", "--mpi", "ls"], "--mpi cannot start an elastic job"),
        (
            ["-np", "1", "--min-np", "1", "--blacklist-cooldown-range", "2", "1", "ls"],
            "1 <= MIN < MAX <= 3600, found [2, 1]",
        ),
        (["-np", "1", "--host-discovery-script", "s", "-H", "a:1", "ls"], "not allowed with argument"),
        (["--min-np", "1", "no-such-command"], "The command 'no-such-command' was not found"),
    ],
)
def test_wrong_arguments(launcher, words, message):
    done = launcher.run(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_python_file_without_python(launcher):
    (launcher.folder / "train.py").write_text("print(1)\n")
    done = launcher.run("-np", "1", "./train.py")
    assert done.returncode == 2
    assert "did you mean: python ./train.py" in done.stderr


def test_options_of_the_command_are_left_to_it(launcher):
    code = "import sys; print(sys.argv[1:])"
    for separator in ([], ["--"]):
        done = launcher.run("-np", 1, *separator, sys.executable, "-c", code, "--verbose", "-np", "7")
        assert done.stdout == "[0]<stdout>:['--verbose', '-np', '7']\n"


def test_accepted_without_effect(launcher):
    done = launcher.run("-np", 1, "--gloo", "--disable-cache", "-p", 22, "-i", "key", "echo", "fine")
    said = "horovodrun: --disable-cache has no effect: nothing is cached\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0]<stdout>:fine\n", said)


def test_without_arguments_it_explains_itself(launcher):
    done = launcher.run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "horovodrun -np 2 python train.py" in done.stderr
    # Each command of the introduction is one that the parser takes.
    commands = re.findall(r"^  (horovodrun .*?)(?:   .*)?$", done.stderr, re.MULTILINE)
    assert len(commands) == 6
    for command in commands[:4]:
        words = command.split()[1:]
        assert make_parser().parse_args(words).command == ["python", "train.py"], command


def test_every_flag_of_horovod_is_known():
    flags = """-v --version -np --num-proc -cb --check-build --disable-cache --start-timeout --network-interfaces
        --network-interface --output-filename --verbose --config-file -p --ssh-port -i --ssh-identity-file
        --fusion-threshold-mb --cycle-time-ms --cache-capacity --hierarchical-allreduce --no-hierarchical-allreduce
        --hierarchical-allgather --no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune
        --no-autotune --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample
        --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np --min-num-proc --max-np
        --max-num-proc --slots-per-host --elastic-timeout --reset-limit --blacklist-cooldown-range
        --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles --no-stall-check --stall-check
        --stall-check-warning-time-seconds --stall-check-shutdown-time-seconds --mpi-threads-disable
        --no-mpi-threads-disable --mpi-args --tcp --binding-args --num-nccl-streams --thread-affinity
        --gloo-timeout-seconds --log-level --log-with-timestamp --log-without-timestamp --log-hide-timestamp
        --no-log-hide-timestamp -prefix-timestamp --prefix-output-with-timestamp -H --hosts -hostfile --hostfile
        --host-discovery-script --gloo --mpi --jsrun"""
    known = make_parser().format_help()
    assert [flag for flag in flags.split() if not re.search(rf"(?<![\w-]){flag}(?![\w-])", known)] == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ls"], "--num-proc is required; all slots of this job of LSF: -np 6 -H h1:4,h2:2"),
        (["-np", "2", "--jsrun", "ls"], "Start with horovodrun -H h1:4,h2:2 if ssh works between the hosts"),
    ],
)
def test_in_a_job_of_lsf(launcher, words, text):
    done = launcher.run(*words, env={"LSB_JOBID": "17", "LSB_MCPU_HOSTS": "h1 4 h2 2"})
    assert done.returncode == 2 and text in done.stderr


def test_hostfile(launcher):
    (launcher.folder / "hosts").write_text("# here\nlocalhost slots=2\n")
    for flag in ("-hostfile", "--hostfile"):
        done = launcher.run("-np", 2, flag, "hosts", "sh", "-c", "echo $HOROVOD_LOCAL_SIZE")
        assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:2", "[1]<stdout>:2"]


def test_import_is_cheap_and_needs_no_framework(launcher):
    best = 1.0
    for _ in range(10):
        words = subprocess.check_output(
            [sys.executable, MEASURE_IMPORT], text=True, env=launcher.environment()
        ).split()
        assert words[1:] == []
        best = min(best, float(words[0]))
        if best < 0.1:
            break
    assert best < 0.1


def test_run_is_a_function_not_a_module(launcher):
    import horovod

    assert callable(horovod.run)
    assert horovod.__version__ == __version__
    with pytest.raises(ImportError):
        __import__("horovod.run.runner")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = horovod.nothing
