"""hvd-core as a backend of torch.distributed: ``init_process_group("hvd")``. See docs/torch-distributed.md.

With PyTorch 2.5 and later no import is needed, because the entry point `torch.backends` registers the backend. For older
versions, and with TORCH_DEVICE_BACKEND_AUTOLOAD=0, importing this module registers it. Importing it also lets `env://`
work for all backends under launchers of horovod.

- ``_startup``: the engine below all groups, and `env://` under launchers of horovod
- ``_group``: a group, how it is made, reductions, point to point, groups with another backend beside
- ``_collectives``: all_gather, gather, reduce_scatter, scatter, all_to_all
- ``_requests``: from a call to a request of the engine; ``_work``: waiting for it, and futures
"""

from horovod.torch_backend import NAME, register, use

__all__ = ["NAME", "register"]

register()
use()
