"""A program that knows of torch.distributed only, for test_torch_distributed_launch.py. Prints a line on rank 0.

launched_program.py             # under a launcher
launched_program.py spawn       # starts two ranks itself, which meet in a file
launched_program.py alone       # sets torch's variables itself: each process is a job of its own

The variable HVD_TEST_BACKEND names the backend in place of "hvd".
"""

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

if not hasattr(torch, "_import_device_backends"):  # PyTorch 2.4 does not load hvd's entry point
    import horovod.torch.distributed  # noqa: F401


BACKEND = os.environ.get("HVD_TEST_BACKEND", "hvd")


def listening_anywhere():
    """Ports on which this process listens for all interfaces."""
    mine = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the list itself
            mine.add(os.stat(f"/proc/self/fd/{name}").st_ino)
    rows = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    listening = [row[1] for row in rows if row[3] == "0A" and int(row[9]) in mine]
    return [place for place in listening if not place.partition(":")[0].strip("0")]


def work(rank=None, address=None):
    torch.set_num_threads(1)
    for again in ("", "again"):
        place = {} if address is None else {"init_method": address + again, "rank": rank, "world_size": 2}
        dist.init_process_group(BACKEND, **place)
        assert listening_anywhere() == [], listening_anywhere()
        tensor = torch.ones(3) * (dist.get_rank() + 1)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3] * 3
        group = dist.new_group([1])
        if dist.get_rank() == 1:
            dist.barrier(group)
        if again and dist.get_rank() == 0:
            print(f"{dist.get_backend()} on {dist.get_world_size()} ranks: done", flush=True)
        if "gloo" in BACKEND:
            dist.barrier()  # while rank 1 makes its group, it needs rank 0's store
        dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["spawn"]:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(work, (f"file://{os.path.join(folder, 'meeting')}",), nprocs=2)
    elif sys.argv[1:] == ["alone"]:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        dist.init_process_group("gloo")
        print(f"gloo on {dist.get_world_size()} ranks", flush=True)
    else:
        work()
