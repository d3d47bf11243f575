"""Reductions that were begun and that nobody will wait for: their optimizer was dropped, or told to forget them.

They run on, and the engine uses their tensors until they end; until then their names are taken. So they are kept here,
dropped when they have ended, and waited for by whoever begins another reduction of that name. Any thread that holds
the GIL, finalizers included.
"""

from collections.abc import Iterable
from contextlib import suppress

from horovod.torch._slots import Slot
from horovod.torch._sparse import SparseReduction
from horovod.torch._submit import HorovodInternalError, _basics, _handle_map, engine, forget

# (process set, name) -> handles. Truth is all that a submission asks of it as a rule.
LEFT: dict[tuple[int | None, str], tuple[int, ...]] = {}


def give_up(slots: Iterable[Slot], set_id: int | None) -> None:
    """Keep what is under way of these parameters until it ends."""
    for slot in slots:
        handles = slot.handle.handles if isinstance(slot.handle, SparseReduction) else (slot.handle,)
        key = set_id, slot.wire_name if slot.group is None else slot.group.name
        earlier = LEFT.get(key, ())
        handles = tuple(h for h in handles if h in _handle_map and h not in earlier)
        if handles:
            LEFT[key] = earlier + handles
    sweep()


def sweep() -> None:
    """Drop what has ended."""
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
    except ValueError:  # another engine's, or another thread was quicker
        _handle_map.pop(handle, None)
    forget(core, handle)
    return True


def wait_for(set_id: int | None, name: str) -> None:
    """Wait until a name is free. How its earlier reduction ends is nobody's business any more."""
    handles = LEFT.pop((set_id, name), ())
    core = engine()
    for handle in handles:
        if handle in _handle_map:
            with suppress(HorovodInternalError, ValueError):
                core.wait(handle)
            forget(core, handle)
