"""Bootstrap: finds this process's rank and the other ranks, and connects them. The engine uses the resulting descriptors.

The engine needs connect() only; StoreServer is for launchers. Both may be used from any thread, one call at a time. The
names are loaded when they are first used. README.md describes the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_core._base.sockets import (
        AuthenticationError,
        BootstrapError,
        BootstrapTimeout,
        RankLost,
        StoreLost,
    )
    from hvd_core._bootstrap.links import Link
    from hvd_core._bootstrap.store import StoreClient, StoreServer
    from hvd_core._bootstrap.world import World, connect

__all__ = [
    "AuthenticationError",
    "BootstrapError",
    "BootstrapTimeout",
    "Link",
    "RankLost",
    "StoreClient",
    "StoreLost",
    "StoreServer",
    "World",
    "connect",
]

if not TYPE_CHECKING:
    _HOMES = {
        "hvd_core._base.sockets": (
            "AuthenticationError",
            "BootstrapError",
            "BootstrapTimeout",
            "RankLost",
            "StoreLost",
        ),
        "hvd_core._bootstrap.links": ("Link",),
        "hvd_core._bootstrap.store": ("StoreClient", "StoreServer"),
        "hvd_core._bootstrap.world": ("World", "connect"),
    }

    def __getattr__(name):
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(home), name)
        return value
