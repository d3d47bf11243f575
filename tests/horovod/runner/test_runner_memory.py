"""A rank that the kernel kills because its control group has no memory left: horovodrun says so."""

import contextlib
import os
import uuid
from pathlib import Path

import pytest

import runner_ranks
from horovod._runner import supervisor
from launchers import Launcher, program_words

LIMIT_MIB = 400
LIMITS = ("memory.max", "memory.limit_in_bytes")


@pytest.fixture
def group():
    """A control group that may use LIMIT_MIB, below the one of this process."""
    mounts = [Path(mount) for _, mount, *_ in reversed(supervisor.MEMORY_FILES) if os.access(mount, os.W_OK)]
    if not mounts or not supervisor.memory_files()[0]:
        pytest.skip("this user cannot make a memory control group here")
    folder = mounts[0] / f"hvd-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    limit = next((folder / name for name in LIMITS if (folder / name).exists()), None)
    try:
        if limit is None:
            pytest.skip("groups below this one cannot limit memory")
        limit.write_text(f"{LIMIT_MIB << 20}")
        with contextlib.suppress(OSError):
            (folder / "memory.swap.max").write_text("0")
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.parametrize("shell", [[], ["sh", "-c", '"$@"; exit $?', "sh"]], ids=["rank", "shell"])
def test_a_rank_that_is_killed_for_lack_of_memory(group, tmp_path, shell):
    enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    launcher = Launcher(tmp_path, enter)
    done = launcher.run("-np", 2, *shell, *program_words(runner_ranks.rank_1_needs_more_memory_than_there_is))
    assert launcher.wait_for_none() == []
    assert done.returncode == 137, done.stderr
    said = "horovodrun: rank 1 has ended for lack of memory, it seems: the kernel has killed a process of its group"
    assert f"{said} (cgroup limit {LIMIT_MIB} MiB)." in done.stderr


def test_each_process_that_the_kernel_has_killed_is_told_once(tmp_path):
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 3\n")
    job = supervisor.Supervisor(-1)
    job.kills_file, job.limit_file, job.kills = str(counter), str(tmp_path / "memory.max"), 3
    assert job.lack_of_memory() == ""
    counter.write_text("oom_kill 5\n")
    told = [job.lack_of_memory() for _ in range(3)]
    assert told == ["no cgroup limit here", "no cgroup limit here", ""]


@pytest.mark.parametrize(
    ("kills", "limit", "unlimited"),
    [
        (("memory.events", "low 0\noom 7\noom_kill 3\n"), "memory.max", "max"),
        (
            ("memory.oom_control", "oom_kill_disable 0\noom_kill 3\n"),
            "memory.limit_in_bytes",
            f"{(1 << 63) - 4096}",
        ),
    ],
)
def test_the_files_of_both_versions_of_control_groups(tmp_path, kills, limit, unlimited):
    file, other = tmp_path / kills[0], tmp_path / limit
    assert supervisor.number_in(str(file), "oom_kill ") is None
    file.write_text(kills[1])
    other.write_text(f"{unlimited}\n")
    assert supervisor.number_in(str(file), "oom_kill ") == 3 and supervisor.number_in(str(other)) is None
    other.write_text(f"{64 << 20}\n")
    assert supervisor.number_in(str(other)) == 64 << 20
