"""The function of `horovod.run` and its results, in the job's store, for ranks that inherit no descriptors.

A process that reads or writes there has proved that it knows the job's secret, so unpickling trusts only processes of
this job. Any thread.
"""

from __future__ import annotations

import os

FROM_STORE = "HOROVOD_RUN_FROM_STORE"
FUNCTION = "run/function"
# The store's own limit for one request is 16 MiB.
_PART = 8 << 20


def put(client, key: str, data: bytes) -> None:
    """Stores `data` under `key`; readers see all of it or none."""
    parts = range(0, len(data), _PART)
    for number, start in enumerate(parts):
        client.set(f"{key}/{number}", data[start : start + _PART])
    client.set(f"{key}/parts", str(len(parts)).encode())


def get(client, key: str, timeout_s: float) -> bytes:
    """The data that put() has stored. Raises BootstrapTimeout if it is not there in time."""
    count = int(client.get(f"{key}/parts", timeout_s))
    return b"".join(client.get(f"{key}/{number}", timeout_s) for number in range(count))


def result_key(rank: int) -> str:
    return f"run/result/{rank}"


def note_failure(client, rank: int) -> None:
    """Records the failure of a rank; the store keeps the order of the failures."""
    client.set(f"run/failure/{client.add('run/failures', 1)}", str(rank).encode())


def first_failure(client) -> int | None:
    """The rank that note_failure() was called for first."""
    return int(client.get("run/failure/1", 5.0)) if client.add("run/failures", 0) else None


def from_environment():
    """A connection to the store of the job that this process belongs to, and this process's rank."""
    from hvd_core._bootstrap.identity import identify
    from hvd_core._bootstrap.store import StoreClient

    identity = identify(os.environ)
    store, secret = os.environ["HOROVOD_STORE"], bytes.fromhex(os.environ["HOROVOD_SECRET_KEY"])
    return StoreClient(store, secret, identity.rank), identity.rank
