"""Groups of which another backend serves some types of devices, as in "cpu:hvd,cuda:nccl".

PyTorch takes a group that is written in Python as it is, for all types of devices, and creates no backend that stands
behind it in that text. So the group itself hands the calls on: to a second group of the same ranks, which it makes at the
first call with a tensor of such a device. Called by the methods of a group.
"""

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Others:
    """The other backends of one group.

    Args:
        names: type of device -> the backend's name. ranks: the job's ranks of the members. seconds: the group's limit.
    """

    def __init__(self, names: dict[str, str], ranks: list[int], seconds: float):
        self.names, self._ranks, self._seconds = names, ranks, seconds
        self.made: dict[str, Any] = {}

    def group(self, device_type: str) -> Any:
        """The group that serves a type of device; None if hvd does. All members come here at the same call."""
        name = self.names.get(device_type)
        if name is not None and device_type not in self.made:
            self.made[device_type] = dist.new_group(
                self._ranks,
                timeout=timedelta(seconds=self._seconds),
                backend=f"{device_type}:{name}",
                use_local_synchronization=True,
            )
        return self.made.get(device_type)


def others_of(group: Any, ranks: list[int], seconds: float) -> Others | None:
    """The other backends that the program has named with this group; None while torch does not know the group yet."""
    text = dist.distributed_c10d._world.pg_backend_config.get(group)
    if text is None:
        return None
    pairs = [pair.split(":") for pair in text.split(",") if pair.count(":") == 1]
    return Others({device: name for device, name in pairs if name != group.name()}, ranks, seconds)


def served_by_device(*names: str) -> Callable[[type], type]:
    """A decorator for a class of groups, whose methods of these names hand calls on if their tensors are on a device of
    another backend."""

    def decorate(cls: type) -> type:
        for name in names:
            setattr(cls, name, by_device(getattr(cls, name), name))
        return cls

    return decorate


def by_device(method: Callable, name: str) -> Callable:
    """A method that does so, under this name of torch's."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        others = self.others()
        if others is not None and others.names and (tensor := _first_tensor(arguments)) is not None:
            group = others.group(tensor.device.type)
            if group is not None:
                return getattr(group, name)(*arguments, **more)
        return method(self, *arguments, **more)

    return call


def _first_tensor(values: Any) -> torch.Tensor | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (list, tuple)) and (found := _first_tensor(value)) is not None:
            return found
    return None
