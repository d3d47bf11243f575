"""Waits for the worlds of an elastic job whose ranks note where they are (elastic_programs.Steps)."""

import time


def wait_for_ranks(launcher, process, size):
    """Waits until all ranks of a world of this size train. Returns their process ids by rank."""
    deadline = time.monotonic() + 250
    while True:
        found = [list(launcher.folder.glob(f"in.{size}.rank{rank}.*[0-9]")) for rank in range(size)]
        if all(found):
            return [int(files[0].name.rpartition(".")[2]) for files in found]
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline, "the ranks do not come"
        time.sleep(0.05)
