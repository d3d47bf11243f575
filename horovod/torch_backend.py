"""The entry point `torch.backends` of hvd-core: `import torch` calls register(), so that `init_process_group("hvd")`
needs no import of horovod.

It imports the rest of horovod.torch when the first group is made, and nothing before. It raises nothing: an exception
here would be one of `import torch`, also for programs that know nothing of horovod. For the same reason it changes
nothing of torch.distributed but its list of names, until the program names the backend. Under horovodrun it also
extends `env://`, which raises an error there otherwise.
"""

import os
import sys
from typing import Any

NAME = "hvd"


class _Name:
    """The attribute `Backend.HVD`, which torch.distributed reads when a program names the backend."""

    def __get__(self, backend: Any, owner: type) -> str:
        use()
        return NAME


def register() -> None:
    """Make "hvd" known to torch.distributed, if this PyTorch has it. A second call does nothing."""
    import torch.distributed as dist

    if not dist.is_available() or NAME.upper() in getattr(dist.Backend, "_plugins", {}):
        return
    # register_backend() would make hvd the default of types of devices whose own backend is registered later.
    defaults = dist.Backend.default_device_backend_map
    before = dict(defaults)
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=_device_types())
    defaults.clear()
    defaults.update(before)
    setattr(dist.Backend, NAME.upper(), _Name())
    # torch.distributed parses a string such as "cpu:hvd,cuda:gloo" only after the rendezvous.
    if "HOROVOD_RANK" in os.environ:
        _extend_env()


def use() -> None:
    """The program uses the backend: `env://` works under launchers of horovod, and hvd is the default of types of devices
    that have no other. A second call does nothing."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    for device in _device_types():
        dist.Backend.default_device_backend_map.setdefault(device, NAME)
    _extend_env()


def register_with_torch() -> None:
    """register() for the entry point: raises nothing."""
    try:
        register()
    except Exception as error:
        import logging

        logging.getLogger("horovod").debug("torch.distributed does not know the backend hvd: %r", error)


def _device_types() -> list[str]:
    """The types of devices whose tensors hvd takes: all that torch has, since those that no backend serves are copied
    through host memory."""
    import torch

    types = ["cpu", "cuda", "xpu"]
    named = getattr(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")()
    return types + [named]


def _extend_env() -> None:
    """Let `env://` work under launchers that set no RANK for torch.distributed: horovodrun, mpirun."""
    # A function of torch.distributed has the module's name.
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    handlers = getattr(rendezvous, "_rendezvous_handlers", {})
    original = handlers.get("env")
    if original is None or isinstance(original, _EnvRendezvous):
        return

    handlers["env"] = _EnvRendezvous(original)


class _EnvRendezvous:
    """The handler of `env://`: `original`, where torch's own variables are set."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(self, url: str, **options: Any) -> Any:
        from hvd_core._bootstrap import launchers

        if "RANK" in os.environ or "rank=" in url or launchers.find(os.environ) is None:
            return self._original(url, **options)
        import torch.distributed as dist

        from horovod.torch.distributed._startup import env_rendezvous

        return env_rendezvous(options.get("timeout", dist.constants.default_pg_timeout))


def _create(options: Any, backend_options: Any) -> Any:
    from horovod.torch.distributed._group import create

    return create(options, backend_options)
