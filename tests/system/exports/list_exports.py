"""Prints the public names of modules, with the parameters of functions and methods, for test_exports.py.

    python list_exports.py MODULE [MODULE ...]

A module's public names are those of its ``__all__``; in a module without one, those without an underscore that it
defines. Annotations are left out: some of them depend on the version of the framework.
"""

import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

OURS = ("horovod", "hvd_core")

# Names outside of __all__ that programs use; see the last section of docs/compatibility.md.
ALSO_USED = {
    "horovod.torch": ("_MPI_LIB_AVAILABLE",),
    "horovod.torch.mpi_ops": ("_basics", "_handle_map"),
    "horovod.torch.optimizer": (
        *("_DistributedAdasumOptimizer", "_DistributedOptimizer"),
        *(
            "Sum",
            "allreduce_async_",
            "broadcast_object",
            "grouped_allreduce_async_",
            "rank",
            "rocm_built",
            "size",
        ),
        *("sparse_allreduce_async", "synchronize"),
    ),
    "horovod.tensorflow.mpi_ops": ("_basics",),
    "horovod.runner": ("_HorovodArgs",),
    "horovod.runner.launch": ("_run",),
}


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] in OURS


def _public_names(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        own = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
        ]
        names = [name for name in own if not name.startswith("_")]
    also = [name for name in ALSO_USED.get(module.__name__, ()) if hasattr(module, name)]
    return sorted({*names, *also})


def _default(value: Any) -> str:
    if type(value).__name__ == "ProcessSet":
        return "global_process_set" if value.process_set_id == 0 else "a process set"
    if isinstance(value, type):
        return value.__qualname__
    return repr(value) if value is None or isinstance(value, (bool, int, float, str, tuple)) else "an object"


def _parameters(function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    plain = []
    for parameter in signature.parameters.values():
        default = parameter.default
        text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
        plain.append(text if default is parameter.empty else f"{text}={_default(default)}")
        if parameter.kind == parameter.KEYWORD_ONLY and not any("*" in part for part in plain):
            plain.insert(-1, "*")
    return f"({', '.join(plain)})"


def _class_parameters(cls: type) -> str:
    """Empty where the constructor is a framework's or Python's, which differs from version to version."""
    maker = next(
        (base for base in cls.__mro__ if "__init__" in vars(base) or "__new__" in vars(base)), object
    )
    return _parameters(cls) if _is_ours(maker) else ""


def _lines_of(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, ModuleType):
        yield f"{name}: module"
    elif isinstance(value, type) and _is_ours(value):
        yield f"{name}{_class_parameters(value)}: class"
        # Bases of ours count, those of a framework do not.
        members = {}
        for base in reversed([base for base in value.__mro__ if _is_ours(base)]):
            members.update(vars(base))
        for member in sorted(members):
            if not member.startswith("_"):
                found = inspect.getattr_static(value, member)
                is_class_method = isinstance(found, classmethod)
                function = getattr(value, member) if is_class_method else getattr(found, "__func__", found)
                yield f"  .{member}{_parameters(function) if callable(function) else ''}"
    elif callable(value):
        yield f"{name}{_parameters(value)}"
    elif isinstance(value, (int, float)):
        yield f"{name} = {value}"
    else:
        yield name


def exports(module_name: str) -> list[str]:
    """The lines for one module, without its heading."""
    module = importlib.import_module(module_name)
    return [line for name in _public_names(module) for line in _lines_of(name, getattr(module, name))]


def text_of(module_names: list[str]) -> str:
    """One paragraph for each module."""
    return "\n".join("\n".join([f"[{name}]", *exports(name), ""]) for name in module_names)


if __name__ == "__main__":
    print(text_of(sys.argv[1:]), end="")
