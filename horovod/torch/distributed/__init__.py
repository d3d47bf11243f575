"""hvd-core as a backend of torch.distributed: ``init_process_group("hvd")``. See docs/torch-distributed.md.

With PyTorch 2.5 and later no import is needed, because the entry point `torch.backends` registers the backend. For older
versions, and with TORCH_DEVICE_BACKEND_AUTOLOAD=0, importing this module registers it. Importing it also lets `env://`
work for all backends under launchers of horovod.

- ``_create``: a group for torch.distributed; ``_start``: the engine below all groups
- ``_group``: the collectives of a group; ``_point_to_point``: send and receive
- ``_mixed``: groups of which another backend serves some types of devices
- ``_rooted``: gather and scatter of large tensors
- ``_calls``: from a call to a request of the engine; ``_work``: waiting for it, and futures
- ``_operands``: tensors in the form that the engine takes, and back
"""

from horovod.torch_backend import NAME, register, use

__all__ = ["NAME", "register"]

register()
use()
