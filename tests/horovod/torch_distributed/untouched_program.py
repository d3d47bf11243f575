"""A program that does not use hvd, for test_torch_distributed_launch.py. Prints the tables of torch.distributed."""

import sys

import torch.distributed as dist


def main() -> None:
    ours = {name for name in sys.modules if name.startswith(("horovod.", "hvd_core"))}
    assert ours <= {"horovod._compat", "horovod.runner", "horovod.torch_backend"}, ours
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    print({scheme: f"{function.__module__}.{function.__name__}" for scheme, function in handlers.items()})
    print(sorted(dist.Backend.default_device_backend_map.items()))
    # Tables with a row for each backend: that of hvd is the only one that may be added.
    tables = {
        "list": dict.fromkeys(dist.Backend.backend_list),
        "capability": dist.Backend.backend_capability,
        "type_map": dist.Backend.backend_type_map,
        "plugins": dist.Backend._plugins,
    }
    for name, table in tables.items():
        print(name, sorted((key, str(value)) for key, value in table.items() if key.lower() != "hvd"))
    print(sorted(name for name in vars(dist.Backend) if name != "HVD"))
    try:
        dist.init_process_group("gloo")  # under a launcher of horovod, which sets no RANK
    except ValueError as error:
        print(error)


if __name__ == "__main__":
    main()
