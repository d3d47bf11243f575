"""What the parameters of an estimator may be: looked at on the driver, before data is written or a job starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_COUNTS = (
    "num_proc",
    "batch_size",
    "val_batch_size",
    "epochs",
    "train_steps_per_epoch",
    "validation_steps_per_epoch",
    "partitions_per_process",
    "backward_passes_per_step",
)
_FUNCTIONS = ("transformation_fn", "train_minibatch_fn")
_METHODS = {
    "store": ("get_train_data_path", "get_checkpoint_path", "read", "write"),
    "backend": ("run", "num_processes"),
}


def check(kind: str, given: Mapping[str, Any]) -> None:
    """Raises ValueError that names the parameter, its value and the kind that is needed. `kind`: the estimator's class;
    `given`: the parameters by name, None where the user gave no value."""
    present = {name: value for name, value in given.items() if value is not None}
    for name in _COUNTS:
        if name in present and not _is_count(present[name]):
            _refuse(kind, name, present[name], "an integer of at least 1")
    for name in ("feature_cols", "label_cols"):
        if not _is_names(present.get(name)):
            _refuse(kind, name, present.get(name), "a list of names of columns")
    both = set(given["feature_cols"]) & set(given["label_cols"])
    if both:
        raise ValueError(f"{kind}: {', '.join(sorted(both))} is in feature_cols and in label_cols")
    for name in _FUNCTIONS:
        if name in present and not callable(present[name]):
            _refuse(kind, name, present[name], "a function")
    for name, methods in _METHODS.items():
        lacking = [method for method in methods if not hasattr(present.get(name), method)]
        if name in present and lacking:
            _refuse(kind, name, present[name], f"an object with the methods {', '.join(methods)}")
    labels, inputs = len(given["label_cols"]), len(given["feature_cols"])
    _check_length(kind, "label_shapes", present, labels, "one shape for each of label_cols")
    _check_length(kind, "input_shapes", present, inputs, "one shape for each of feature_cols")
    _check_length(kind, "output_cols", present, labels, "one name for each of label_cols")
    # One loss serves all labels.
    for name in ("loss", "loss_constructors", "loss_weights"):
        value = present.get(name)
        if isinstance(value, (list, tuple)) and len(value) not in (1, labels):
            _refuse(kind, name, value, f"one for all, or one for each of the {labels} label_cols")
    validation = present.get("validation")
    if validation is not None and not isinstance(validation, (int, float, str)):
        _refuse(kind, "validation", validation, "a fraction between 0 and 1, or the name of a column")


def check_type(kind: str, name: str, value: Any, wanted: type | Callable, text: str) -> None:
    """Raises ValueError if `value`, unless it is None, is no instance of `wanted`."""
    if value is not None and not isinstance(value, wanted):
        _refuse(kind, name, value, text)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(name, str) for name in value)


def _check_length(kind: str, name: str, present: Mapping[str, Any], length: int, text: str) -> None:
    value = present.get(name)
    if value is not None and (not isinstance(value, Sequence) or len(value) != length):
        _refuse(kind, name, value, text)


def _refuse(kind: str, name: str, value: Any, wanted: str) -> None:
    shown = repr(value)
    shown = shown if len(shown) <= 100 else f"{shown[:100]}..."
    raise ValueError(f"{kind}({name}={shown}): it must be {wanted}")
