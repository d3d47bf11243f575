"""The parameters of the estimators, as parameters of pyspark.ml with their setters and getters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.ml.param import Param, Params

# name -> (default, text). None: not given.
COMMON: dict[str, tuple[Any, str]] = {
    "num_proc": (None, "the number of ranks; default: that of the backend"),
    "backend": (None, "starts the ranks; default SparkBackend"),
    "store": (None, "where data, checkpoints and logs are kept"),
    "model": (None, "the model to train"),
    "optimizer": (None, "the optimizer"),
    "loss": (None, "the loss, or a list with one for each label"),
    "loss_weights": (None, "a factor for each loss"),
    "metrics": ([], "the metrics"),
    "feature_cols": (None, "the columns that are the inputs of the model, in order"),
    "label_cols": (None, "the columns that are the labels, in order"),
    "output_cols": (None, "the columns that transform() adds; default LABEL__output"),
    "label_shapes": (None, "a shape [-1, ...] for each label"),
    "sample_weight_col": (None, "the column with the weight of each row"),
    "continuous_cols": (None, "accepted; has no effect"),
    "categorical_cols": (None, "accepted; has no effect"),
    "validation": (None, "a fraction of the rows, or a column that is true for the rows, to validate with"),
    "callbacks": ([], "callbacks of the framework"),
    "batch_size": (32, "rows of a step of one rank"),
    "val_batch_size": (None, "the same for validation; default batch_size"),
    "epochs": (1, "epochs"),
    "train_steps_per_epoch": (None, "steps of an epoch; default: as many as the data gives each rank"),
    "validation_steps_per_epoch": (None, "steps of a validation; default: all rows"),
    "verbose": (1, "0: the ranks print nothing"),
    "shuffle": (True, "rows are shuffled in each epoch"),
    "shuffle_buffer_size": (None, "rows that are shuffled together; default: those of a row group"),
    "random_seed": (None, "of the split and the shuffles"),
    "partitions_per_process": (10, "files that Spark writes for each rank"),
    "run_id": (None, "the name of the run in the store; a run that is there continues"),
    "gradient_compression": (None, "hvd.Compression.*"),
    "transformation_fn": (
        None,
        "a function of a pandas frame, applied by the ranks; keeps the number of rows",
    ),
    "backend_env": (None, "variables of the ranks"),
    "use_gpu": (True, "ranks use the GPU of their local rank, where there is one"),
    "data_module": (None, "accepted; the data is read by pyarrow"),
    "train_reader_num_workers": (2, "of petastorm: accepted"),
    "val_reader_num_workers": (2, "of petastorm: accepted"),
    "reader_pool_type": ("thread", "of petastorm: accepted"),
    "inmemory_cache_all": (False, "of petastorm: accepted"),
    "compress_sparse_cols": (False, "of petastorm: accepted"),
    "mp_start_method": (None, "of petastorm: accepted"),
}
_OF_PETASTORM = (
    "data_module",
    "train_reader_num_workers",
    "val_reader_num_workers",
    "reader_pool_type",
    "inmemory_cache_all",
    "compress_sparse_cols",
    "mp_start_method",
    "tensorflow_dataset_prefetch_buffer_size",
)
# Setters and getters of the original that do not follow the names.
_ODD = {
    "train_reader_num_workers": "TrainReaderNumWorker",
    "val_reader_num_workers": "ValReaderNumWorker",
    "shuffle_buffer_size": "ShufflingBufferSize",
    "inmemory_cache_all": "InMemoryCacheAll",
    "label_cols": "LabelColoumns",
}


def with_params(table: dict[str, tuple[Any, str]]) -> Any:
    """A decorator of a class of Params: adds a Param for each name, with setNAME() and getNAME()."""

    def add(kind: type) -> type:
        for name, (_, text) in table.items():
            setattr(kind, name, Param(Params._dummy(), name, text))
            for camel in {"".join(map(str.capitalize, name.split("_"))), _ODD.get(name, "")} - {""}:
                setattr(kind, f"set{camel}", lambda self, value, name=name: self._set(**{name: value}))
                setattr(kind, f"get{camel}", lambda self, name=name: self.getOrDefault(name))
        setattr(kind, "_table", {**getattr(kind, "_table", {}), **table})  # noqa: B010  # the class is any
        return kind

    return add


@with_params(COMMON)
class EstimatorParams(Params):
    """The parameters that all estimators have.

    Args:
        kwargs: parameters by name. Not given: None, or the default of the table.

    Raises:
        TypeError: there is no parameter of that name.
    """

    _table: dict[str, tuple[Any, str]]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        unknown = sorted(kwargs.keys() - self._table.keys())
        if unknown:
            raise TypeError(f"{type(self).__name__} has no parameter {', '.join(unknown)}")
        self._setDefault(**{name: default for name, (default, _) in self._table.items()})
        # pyspark.ml leaves out values that are None.
        self._set(**kwargs)

    def value(self, name: str) -> Any:
        """The value of a parameter, or its default."""
        return self.getOrDefault(name)

    def warn_of_petastorm(self) -> None:
        """One warning that names all parameters of petastorm with another value than the default."""
        names = [name for name in _OF_PETASTORM if name in self._table]
        changed = [name for name in names if self.value(name) != self._table[name][0]]
        if changed:
            warnings.warn(
                f"{type(self).__name__}: {', '.join(changed)} are parameters of petastorm and have no effect: "
                "the data is read by pyarrow.",
                stacklevel=4,
            )


# ---- Checks, on the driver, before data is written or a job starts

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


def check_type(kind: str, name: str, value: Any, wanted: type | tuple[type, ...], text: str) -> None:
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
