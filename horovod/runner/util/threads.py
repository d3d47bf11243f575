"""Threads as programs start them. Any thread."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """The thread that runs `target(*args)`, started.

    Args:
        daemon: the process may end while the thread runs.
        silent: an exception in `target` is not printed.

    Raises:
        ValueError: `args` is not a tuple or a list.
    """
    if not isinstance(args, (tuple, list)):
        raise ValueError(
            f"args must be a tuple, not {type(args).__name__}: for a single argument write (argument,)."
        )

    def run() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """The started thread that waits for `event` and calls `func(*args, **kwargs)` then; it ends without that when `stop`
    is set, for which it looks every `check_stop_interval_s` seconds."""

    def wait() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        func(*args, **(kwargs or {}))

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """The results of `fn(*args)` for each element of `args_list`, by its index; None without `block_until_all_done`."""
    pool = ThreadPoolExecutor(max(1, min(max_concurrent_executions, len(args_list))))
    futures = [pool.submit(fn, *args) for args in args_list]
    pool.shutdown(wait=block_until_all_done)
    return {index: future.result() for index, future in enumerate(futures)} if block_until_all_done else None
