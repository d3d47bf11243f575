"""`horovodrun --check-build`: what this installation can do, in the layout that scripts look for.

Imports no framework: asking whether one is installed must not take seconds.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_FRAMEWORKS = (("TensorFlow", "tensorflow"), ("PyTorch", "torch"), ("MXNet", "mxnet"))


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _framework(name: str) -> bool:
    """Whether the framework is installed and we have a face for it."""
    return (Path(__file__).parents[1] / name / "__init__.py").is_file() and _exists(name)


def _embedded_backends() -> list[str]:
    """Names of the backends inside the hvd_core package, by their files."""
    spec = importlib.util.find_spec("hvd_core")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    found = {file.name for place in places for file in (Path(place) / "lib").glob("libhvd_backend_*.so")}
    return sorted(name.removeprefix("libhvd_backend_").removesuffix(".so") for name in found)


def check_build() -> str:
    """The text of --check-build."""
    from hvd_core.version import __version__

    backends = _embedded_backends()
    # "Gloo" stands for "without MPI" in the original: its scripts ask for it to know how they can start.
    engine = _exists("hvd_core._core")

    def line(present: bool, name: str, remark: str = "") -> str:
        return f"    [{'X' if present else ' '}] {name}{f'  ({remark})' if present and remark else ''}"

    lines = [f"Horovod v{__version__}:", "", "Available Frameworks:"]
    lines += [line(_framework(module), name) for name, module in _FRAMEWORKS]
    lines += ["", "Available Controllers:", line(False, "MPI")]
    lines += [line(engine, "Gloo", "the engine's own control plane, under Gloo's name"), ""]
    lines += ["Available Tensor Operations:"]
    lines += [line(False, name) for name in ("NCCL", "DDL", "CCL", "MPI")]
    lines += [line(engine and bool(backends), "Gloo", f"CPU tensors, by backend {', '.join(backends)}"), ""]
    lines += ["Available Backends:"]
    lines += [line(True, name) for name in backends] or ["    none"]
    return "\n".join(lines)
