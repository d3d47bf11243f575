"""The launcher's part in naming the end of a rank, over the job's store.

It tells the ranks that wait in init() which processes have ended (hvd_core/_bootstrap/session.py reads that). It learns
which ranks failed only because another one had failed before: these report it themselves, and are not named as the
cause of the job's end. Used on the thread of Job.run(); the store's server is in this process, so calls return at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable

from horovod._runner.exit_codes import describe_code


class EndedRanks:
    """`address` and `secret` of the store. A store that cannot be reached is ignored: the job goes on without it.
    `encrypted`: as for StoreClient."""

    def __init__(self, address: str, secret: bytes, encrypted: bool | None = None):
        self._address, self._secret, self._encrypted = address, secret, encrypted
        self._store = None
        self._told = 0

    def tell(self, rank: int, code: int, host: str | None) -> None:
        """Publishes that the process of `rank` has ended with `code` (exit_codes.py)."""
        with contextlib.suppress(OSError, RuntimeError):
            text = f"ended ({f'host {host}, ' if host else ''}{describe_code(code)})"
            value = json.dumps({"rank": rank, "text": text}).encode()
            self._connected().set(f"hvd/ended/{self._told}", value)
            self._told += 1

    def bereaved(self, ranks: Iterable[int]) -> set[int]:
        """Those of `ranks` that reported another rank's failure before their own."""
        found = set()
        with contextlib.suppress(OSError, RuntimeError):
            for rank in ranks:
                if self._connected().add(f"hvd/bereaved/{rank}", 0) > 0:
                    found.add(rank)
        return found

    def close(self) -> None:
        """Closes the connection."""
        if self._store is not None:
            self._store.close()

    def _connected(self):
        if self._store is None:
            # Imported late: the parser, --version and wrong arguments need no store.
            from hvd_core._bootstrap.store import StoreClient

            self._store = StoreClient(self._address, self._secret, encrypted=self._encrypted)
        return self._store
