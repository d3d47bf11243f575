"""Reductions that have begun but are no longer wanted: their optimizer was deleted, or has abandoned them.

They stay pending, and the engine uses their tensors until they end; until then their names are taken. So they are kept
here and deleted when they have ended. A new reduction of the same name waits for them. Any thread that holds the GIL,
finalizers included.
"""

from collections.abc import Iterable
from contextlib import suppress

from horovod.common.exports import _basics
from horovod.torch._slots import Slot
from horovod.torch._sparse import SparseReduction
from horovod.torch._submit import HorovodInternalError, _handle_map, engine, forget

# (process set, name) -> handles. Usually empty, which is all that a submission checks.
LEFT: dict[tuple[int | None, str], tuple[int, ...]] = {}


def give_up(slots: Iterable[Slot], set_id: int | None) -> None:
    """Keep the pending reductions of these parameters until they end."""
    for slot in slots:
        handles = slot.handle.handles if isinstance(slot.handle, SparseReduction) else (slot.handle,)
        key = _key(slot, set_id)
        earlier = LEFT.get(key, ())
        handles = tuple(h for h in handles if h in _handle_map and h not in earlier)
        if handles:
            LEFT[key] = earlier + handles
    sweep()


def is_left(slot: Slot, set_id: int | None) -> bool:
    """Whether the engine may still write to the memory of a parameter's reduction."""
    return _key(slot, set_id) in LEFT


def _key(slot: Slot, set_id: int | None) -> tuple[int | None, str]:
    return set_id, slot.wire_name if slot.group is None else slot.group.name


def sweep() -> None:
    """Delete the reductions that have ended."""
    if not LEFT or not _basics.is_initialized():
        return
    core = engine()
    for key, handles in list(LEFT.items()):
        left = tuple(handle for handle in handles if not _ended(core, handle))
        if not left:
            LEFT.pop(key, None)
        elif key in LEFT:
            LEFT[key] = left


def _ended(core, handle: int) -> bool:
    try:
        if handle in _handle_map and not core.poll(handle):
            return False
    except ValueError:  # a handle of an earlier engine, or another thread was quicker
        _handle_map.pop(handle, None)
    forget(core, handle)
    return True


def wait_for(set_id: int | None, name: str) -> None:
    """Wait until a name is free. The outcome of its earlier reduction is ignored."""
    key = (set_id, name)
    core = engine()
    for handle in LEFT.get(key, ()):
        if handle in _handle_map:
            with suppress(HorovodInternalError, ValueError):
                core.wait(handle)
            forget(core, handle)
    # Not before the wait: after an exception of a signal handler there, the name is still taken.
    left = tuple(handle for handle in LEFT.pop(key, ()) if handle in _handle_map)
    if left:
        LEFT[key] = left
