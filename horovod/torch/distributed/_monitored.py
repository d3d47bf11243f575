"""monitored_barrier(): a barrier that names the ranks that have not come in time. All ranks of the group call it."""

from typing import Any

from horovod.torch.distributed._work import seconds_of
from hvd_core.errors import HorovodInternalError


def monitored_barrier(group: Any, timeout: Any, wait_all_ranks: bool) -> None:
    """Wait for all ranks of the group, for `timeout` at most.

    Args:
        group: the Group. timeout: a timedelta, which may be 0; None for the group's limit.
        wait_all_ranks: whether the error names all missing ranks, or the first one.

    Raises:
        RuntimeError: ranks have not come in time, or the barrier has failed.
    """
    calls = group._calls
    seconds = 0.0 if timeout is not None and not timeout else seconds_of(timeout, calls.seconds)
    name = calls.next_name()
    keys = [f"hvd/monitored/{name}/{rank}" for rank in range(group._size)]
    # The engine does not tell which ranks have submitted a barrier; each rank says it in torch's store before.
    group._store.set(keys[group._rank], b"here")
    core = calls.core
    handle = core.ordered("barrier", name, calls.number, None, None)
    try:
        if core.wait_for(handle, seconds):
            return
    except HorovodInternalError as error:
        raise RuntimeError(f"[Rank {group._rank}]: monitoredBarrier failed: {error}") from error
    finally:
        core.release(handle)
    missing = [rank for rank, key in enumerate(keys) if not group._store.check([key])]
    who = "A rank"  # all have come meanwhile
    if missing:
        who = "Ranks " + ", ".join(map(str, missing)) if wait_all_ranks else f"Rank {missing[0]}"
    raise RuntimeError(
        f"[Rank {group._rank}]: Rank {group._rank} timed out in monitoredBarrier: {who} failed to pass "
        f"monitoredBarrier in {round(seconds * 1000)} ms"
    )
