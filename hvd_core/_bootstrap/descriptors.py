"""Sets of descriptors with an owner, so that a forked child can close its copies.

Otherwise a forked DataLoader worker would keep the job's sockets open, and the peers would not notice its parent's death.
Every object of the bootstrap that holds sockets owns one DescriptorSet. Any thread may call; the fork hook runs in the
child's only thread.
"""

import contextlib
import os
import weakref

_live = weakref.WeakSet()


class DescriptorSet:
    """Raw descriptors and closable objects (sockets, selectors) that are closed together."""

    def __init__(self):
        self._items = []
        _live.add(self)

    def own(self, item):
        """Takes over ``item`` (an int descriptor or an object with close()) and returns it."""
        self._items.append(item)
        return item

    def disown(self, item):
        """Gives ``item`` back to the caller, who must close it; returns ``item``."""
        self._items = [other for other in self._items if other is not item]
        return item

    def discard(self, item):
        """Closes one item now."""
        self.disown(item)
        _close(item)

    def close(self):
        """Closes all items; calling it again does nothing."""
        items, self._items = self._items, []
        for item in items:
            _close(item)


def _close(item):
    # An error for one item (its peer is gone, or it is closed already) must not keep the others open.
    with contextlib.suppress(OSError):
        if isinstance(item, int):
            os.close(item)
        else:
            item.close()


def _close_in_child():
    # close() never shuts a connection down, so the parent's copies keep working.
    for owner in list(_live):
        owner.close()


os.register_at_fork(after_in_child=_close_in_child)
