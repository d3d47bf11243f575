"""A program that does not use hvd, for test_torch_distributed_launch.py. Prints what it finds in torch.distributed."""

import sys

import torch.distributed as dist


def main() -> None:
    ours = {name for name in sys.modules if name.startswith(("horovod.", "hvd_core"))}
    assert ours <= {"horovod.runner", "horovod.torch_backend"}, ours
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    print(handlers["env"].__module__, sorted(dist.Backend.default_device_backend_map.items()))
    try:
        dist.init_process_group("gloo")  # under a launcher of horovod, which sets no RANK
    except ValueError as error:
        print(error)


if __name__ == "__main__":
    main()
