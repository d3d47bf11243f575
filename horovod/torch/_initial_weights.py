"""The weights that an optimizer announces before it reduces their gradients for the first time, so that the engine can
compare them between ranks (HOROVOD_CHECK_CONSISTENCY=1; see hvd_core/_frontend/initial_weights.py).

Used by the optimizers, on the thread that submits.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from horovod.common.process_sets import ProcessSet
from hvd_core._frontend import initial_weights

REMEDY = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"

checked = initial_weights.checked

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


def announce(name: str, weights: Iterable[tuple[str, torch.Tensor]], process_set: ProcessSet) -> None:
    """Announce the weights whose gradients (or changes) the next request `name` reduces.

    Args:
        name: of the request, with its prefix.
        weights: (name, parameter) pairs.
    """
    number: Any = process_set.process_set_id
    if number is not None:
        readers = [(label, lambda tensor=tensor: values_of(tensor)) for label, tensor in weights]
        initial_weights.announce(name, readers, REMEDY, number)


def values_of(tensor: torch.Tensor) -> np.ndarray | None:
    """The bits of a tensor's elements as integers, in one dimension; a complex number is two elements, as in a broadcast.
    None for a tensor without values, or with another layout than strides."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.contiguous().reshape(-1).view(_INTEGERS[plain.element_size()]).numpy()
