"""Small helpers that programs written for Horovod import from here. Pure Python, any thread.

The questions about the build take `verbose`, as in the original, and print nothing.
"""

import importlib
import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from horovod.common.basics import UNAVAILABLE, HorovodBasics

__all__ = [
    "ccl_built",
    "check_extension",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

_basics = HorovodBasics()


def gloo_built(verbose: bool = False) -> bool:
    """Whether jobs can do without MPI, as ``hvd.gloo_built()``."""
    return _basics.gloo_built()


def mpi_built(verbose: bool = False) -> bool:
    """Whether MPI can be used here, as ``hvd.mpi_built()``."""
    return _basics.mpi_built()


def nccl_built(verbose: bool = False) -> int:
    """The version code of the library that the backend nccl finds, as ``hvd.nccl_built()``; 0 without either."""
    return _basics.nccl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Whether a backend named ccl is installed, as ``hvd.ccl_built()``."""
    return _basics.ccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """Whether a backend named ddl is installed, as ``hvd.ddl_built()``."""
    return _basics.ddl_built()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is a front end for a framework ("torch", "tensorflow", "mxnet", "jax"), the framework is installed,
    and the engine can be loaded. Imports no framework."""
    if ext_base_name not in ("tensorflow", "torch", "mxnet", "jax"):
        return False
    front_end = os.path.join(os.path.dirname(os.path.dirname(__file__)), ext_base_name, "__init__.py")
    framework = importlib.util.find_spec(ext_base_name)
    # A folder of that name on the path has no origin.
    is_installed = framework is not None and framework.origin is not None
    return UNAVAILABLE is None and os.path.isfile(front_end) and is_installed


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Does nothing if ``extension_available()`` is true for the last part of `ext_name`, "horovod.torch" say.

    Args:
        ext_env_var, pkg_path, args: accepted for compatibility; hvd-core has one engine for all frameworks.

    Raises:
        ImportError: the framework is not installed, has no front end, or the engine cannot be loaded.
    """
    if not extension_available(ext_name.rpartition(".")[2]):
        reason = UNAVAILABLE or "the framework is not installed, or hvd-core has no front end for it"
        raise ImportError(f"Extension {ext_name} cannot be used: {reason}.") from UNAVAILABLE


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework ("torch", "tensorflow", "mxnet", "jax") sees a GPU. Imports the framework; False if it has
    no front end."""
    if not extension_available(ext_base_name):
        return False
    return bool(importlib.import_module(f"horovod.{ext_base_name}")._check_has_gpu())


@contextmanager
def env(**kwargs: str) -> Iterator[None]:
    """Within it these environment variables are set, in addition to those that were set before."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in kwargs.items()})
    try:
        yield
    finally:
        for name in kwargs:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is `target` or above; "2.6.0rc1" counts as 2.6.0.

    Raises:
        ValueError: one of them is not a version of at least two numbers.
    """
    from packaging import version

    parts = []
    for text in (ver, target):
        if not isinstance(text, str) or text.count(".") < 1:
            raise ValueError(f"A version such as '2.6.0' is required, but found {text!r}.")
        parts.append(version.Version(version.Version(text).base_version))
    return parts[0] >= parts[1]


def num_rank_is_power_2(num_rank: int) -> bool:
    """True when `num_rank` is 1, 2, 4, 8, ...: the numbers of ranks that plain Adasum accepts."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], num_parts: int) -> list[list[Any]]:
    """Split `items` into `num_parts` runs whose lengths differ by at most one, the longer ones first.

    There are never more parts than items, and always at least one part.
    """
    num_parts = max(1, min(num_parts, len(items)))
    length, longer = divmod(len(items), num_parts)
    parts, start = [], 0
    for part in range(num_parts):
        end = start + length + (part < longer)
        parts.append(list(items[start:end]))
        start = end
    return parts


def is_iterable(value: Any) -> bool:
    """True when `value` can be iterated over."""
    return isinstance(value, Iterable)
