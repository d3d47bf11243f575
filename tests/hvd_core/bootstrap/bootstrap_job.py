"""Starts the ranks of a test job as real processes and collects their reports. Used by the tests of this "
"folder only."""

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import hvd_core._bootstrap

HERE = Path(__file__).parent
RANK_PROGRAM = str(HERE / "bootstrap_rank.py")
STORE_PROGRAM = str(HERE / "bootstrap_store.py")


def environment(**extra):
    """This process's environment, with hvd_core importable in the ranks."""
    values = {**os.environ, **{name: str(value) for name, value in extra.items()}}
    try:
        importlib.metadata.distribution("hvd-core")
    except importlib.metadata.PackageNotFoundError:
        root = str(Path(hvd_core._bootstrap.__file__).parents[2])
        values["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return values


def start(command, **extra):
    """Popen of ``command`` with pipes."""
    return subprocess.Popen(
        command,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_rank(rank, size, store, secret, *options, prefix=(), **extra):
    """Rank ``rank`` as horovodrun would start it, at the store ``store`` ('tcp://host:port')."""
    return start(
        [*prefix, sys.executable, RANK_PROGRAM, *options],
        HOROVOD_RANK=rank,
        HOROVOD_SIZE=size,
        HOROVOD_STORE=store,
        HOROVOD_SECRET_KEY=secret.hex(),
        **extra,
    )


def reports(processes, timeout=60):
    """All JSON lines of ``processes``, in the order of the processes; kills what does not end in time."""
    end = time.monotonic() + timeout
    lines, complaints = [], []
    try:
        for process in processes:
            out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
            complaints.append(err)
            lines += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert lines, "no rank reported anything:\n" + "\n".join(complaints)
    return lines


def check_healthy(worlds, size, launcher):
    """Checks the rules of every job: all ranks are present, one table, every link used, no descriptor left open."""
    worlds = sorted(worlds, key=lambda world: world.get("rank", -1))
    assert [world.get("rank") for world in worlds] == list(range(size)), worlds
    for world in worlds:
        assert world["size"] == size
        assert world["launcher"] == launcher
        assert world["hosts"] == worlds[0]["hosts"]
        assert world["pids"] == worlds[0]["pids"]
        assert all(world["uses"].values()) and len(world["uses"]) == len(world["links"])
        assert world["left_over"] == [] and world["inheritable"] == [] and not world["secret_in_argv"]
    check_tree(worlds)
    return worlds


def check_tree(worlds):
    """Each rank but 0 has one parent, which knows it as a child, and the children's subtrees cover all "
    "ranks once."""
    covered = {}
    for world in worlds:
        parents = [link for link in world["links"] if link[3]]
        assert len(parents) == (world["rank"] != 0) and all(link[2] == [] for link in parents)
        covered[world["rank"]] = sorted([world["rank"], *(r for link in world["links"] for r in link[2])])
        for kind, peer, subtree, is_parent in world["links"]:
            if not is_parent:
                child = worlds[peer]
                assert [kind, world["rank"], [], True] in child["links"]
                assert subtree == sorted([peer, *(r for link in child["links"] for r in link[2])])
    assert covered[0] == list(range(len(worlds)))
