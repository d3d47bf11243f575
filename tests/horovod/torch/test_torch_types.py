"""Types and documentation of the public functions, complete for each. `make lint` checks typed_client.py with mypy."""

import inspect
import typing
from pathlib import Path

import horovod
import horovod.torch as hvd
import hvd_core
from torch_support import in_one_process


@in_one_process
def test_each_function_has_types_and_documentation():
    names = [name for name in hvd.__all__ if inspect.isroutine(getattr(hvd, name))]
    assert len(names) > 40
    for name in names:
        function = getattr(hvd, name)
        hints = typing.get_type_hints(function)
        text = inspect.getdoc(function) or ""
        for parameter in inspect.signature(function).parameters:
            assert parameter in hints, f"{name}({parameter}) has no type"
            assert parameter in text, f"{name}({parameter}) is not in the documentation"
        assert "return" in hints, f"{name} does not say what it returns"
        if "tensor" in hints or "tensors" in hints:
            for part in ("Args:", "Returns:", "Raises:"):
                assert part in text, f"{name}: the documentation has no part {part}"


def test_packages_are_marked_as_typed():
    for package in (horovod, hvd_core):
        assert (Path(package.__file__).parent / "py.typed").exists()
