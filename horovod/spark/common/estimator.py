"""The base of the estimators: fit() writes the data, trains on the ranks of a job, and makes the model of the result."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.ml import Estimator, Model

from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.params import EstimatorParams, check, with_params

# ---- Data: a Spark frame as Parquet, split for training and for validation. On the driver


@dataclass(frozen=True)
class PreparedData:
    """The addresses of the data; `val` is None without validation."""

    store: Any
    train: str
    val: str | None


@contextlib.contextmanager
def prepared(
    frame: Any,
    store: Any,
    columns: list[str],
    validation: float | str | None,
    ranks: int,
    partitions_per_process: int,
    batch_size: int,
    seed: int | None,
    every_column: bool = False,
) -> Iterator[PreparedData]:
    """A context in which `columns` of the frame are in the store. Vectors of pyspark.ml become lists. `every_column`: for
    a transformation_fn.

    Raises ValueError for unknown columns, for a wrong `validation`, and for fewer rows than ranks.
    """
    from pyspark.sql import functions

    flag = validation if isinstance(validation, str) else None
    missing = [name for name in [*columns, *filter(None, [flag])] if name not in frame.columns]
    if missing:
        raise ValueError(f"the frame has no column {', '.join(missing)}; it has {', '.join(frame.columns)}")
    wanted = list(frame.columns) if every_column else list(dict.fromkeys([*columns, *filter(None, [flag])]))
    frame = plain_vectors(frame.select(*wanted))
    train, val = frame, None
    if flag is not None:
        is_val = functions.col(flag).cast("boolean")
        train, val = frame.where(~is_val), frame.where(is_val)
    elif validation:
        fraction = float(validation)
        if not 0 < fraction < 1:
            raise ValueError(
                f"validation={validation}: give a fraction between 0 and 1, or the name of a column"
            )
        train, val = frame.randomSplit([1.0 - fraction, fraction], seed=seed)
    number = uuid.uuid4().hex[:12]
    data = PreparedData(
        store, store.get_train_data_path(number), None if val is None else store.get_val_data_path(number)
    )
    try:
        # The split is random: without the cache, rows could be in both parts or in none.
        frame = frame.cache()
        try:
            for part, path, what in ((train, data.train, "training"), (val, data.val, "validation")):
                if part is not None:
                    _write(part, store.spark_path(path), what, ranks, partitions_per_process, batch_size)
        finally:
            frame.unpersist()
        yield data
    finally:
        for written in filter(None, (data.train, data.val)):
            store.remove(written)


def _write(part: Any, path: str, what: str, ranks: int, per_process: int, batch_size: int) -> None:
    rows = part.count()
    if rows < ranks:
        raise ValueError(f"{rows} rows for {what} are not enough for {ranks} processes")
    # A file with less than a batch would only cost time; each rank needs one.
    files = max(ranks, min(ranks * per_process, rows // batch_size))
    part.repartition(files).write.parquet(path)


def plain_vectors(frame: Any) -> Any:
    """The frame with lists instead of the vectors of pyspark.ml."""
    from pyspark.ml.functions import vector_to_array

    for name in vector_columns(frame):
        frame = frame.withColumn(name, vector_to_array(name))
    return frame


def vector_columns(frame: Any) -> list[str]:
    """The columns with vectors of pyspark.ml."""
    from pyspark.ml.linalg import VectorUDT

    return [field.name for field in frame.schema.fields if isinstance(field.dataType, VectorUDT)]


# ---- The estimator and its model

_REQUIRED = ("model", "store", "feature_cols", "label_cols")


class HorovodEstimator(Estimator, EstimatorParams):
    """fit() returns a model with the weights of the last epoch. Kinds of it say how a rank trains."""

    def fit(self, df: Any, params: dict[Any, Any] | None = None) -> Any:
        """Trains with the rows of a frame.

        Raises ValueError for missing or contradictory parameters, and for too few rows; RuntimeError if a rank fails.
        """
        return super().fit(df, params)

    def fit_on_parquet(self, params: dict[Any, Any] | None = None, dataset_idx: Any = None) -> Any:
        """Trains with the Parquet files that are in the store's folders for training and, if there, validation."""
        estimator = self.copy(params) if params else self
        store = estimator._checked()
        val = store.get_val_data_path(dataset_idx)
        has_val = store.exists(val) and estimator.value("validation") is not None
        data = PreparedData(store, store.get_train_data_path(dataset_idx), val if has_val else None)
        return estimator._train(estimator._backend(), data)

    def _fit(self, df: Any) -> Any:
        store = self._checked()
        backend = self._backend()
        columns = [*self.value("feature_cols"), *self.value("label_cols")]
        columns += [self.value("sample_weight_col")] if self.value("sample_weight_col") else []
        with prepared(
            df,
            store,
            columns,
            self.value("validation"),
            backend.num_processes(),
            self.value("partitions_per_process"),
            self.value("batch_size"),
            self.value("random_seed"),
            every_column=self.value("transformation_fn") is not None,
        ) as data:
            return self._train(backend, data)

    def _checked(self) -> Any:
        """The store, after the parameters were checked."""
        missing = [name for name in (*_REQUIRED, *self._also_required()) if self.value(name) is None]
        if missing:
            raise ValueError(f"{type(self).__name__} needs {', '.join(missing)}")
        if self.value("backend") is not None and self.value("num_proc") is not None:
            raise ValueError(
                "backend and num_proc were both given: the backend already has its number of processes"
            )
        check(type(self).__name__, {name: self.value(name) for name in self._table})
        self._check_kinds()
        self.warn_of_petastorm()
        return self.value("store")

    def _also_required(self) -> tuple[str, ...]:
        return ()

    def _check_kinds(self) -> None:
        """Raises ValueError for a model or an optimizer of another framework."""

    def _backend(self) -> Any:
        return self.value("backend") or SparkBackend(self.value("num_proc"))

    def _train(self, backend: Any, data: PreparedData) -> Any:
        run_id = self.value("run_id") or f"run_{time.strftime('%Y%m%d_%H%M%S')}_{uuid.uuid4().hex[:6]}"
        function, spec = self._remote(data, run_id)
        results = backend.run(function, args=(spec,), env=self.value("backend_env") or {})
        return self._model(results[0], run_id)

    def _task(self, data: PreparedData, run_id: str) -> dict[str, Any]:
        """What a rank of any framework receives."""
        return {
            **self._values(
                "feature_cols label_cols sample_weight_col label_shapes batch_size epochs verbose shuffle use_gpu "
                "train_steps_per_epoch validation_steps_per_epoch transformation_fn loss loss_weights metrics callbacks "
                "gradient_compression"
            ),
            "val_batch_size": self.value("val_batch_size") or self.value("batch_size"),
            "buffer_rows": self.value("shuffle_buffer_size") or 0,
            "seed": self.value("random_seed") or 0,
            "store": data.store,
            "train_path": data.train,
            "val_path": data.val,
            "run_id": run_id,
        }

    def _values(self, names: str) -> dict[str, Any]:
        return {name: self.value(name) for name in names.split()}

    def _of_model(self, model: Any, history: Any, run_id: str) -> dict[str, Any]:
        """The parameters of a trained model of any framework."""
        return {
            "model": model,
            "history": history,
            "run_id": run_id,
            "feature_columns": self.value("feature_cols"),
            "label_columns": self.value("label_cols"),
            "output_cols": self.value("output_cols"),
        }

    def _remote(self, data: PreparedData, run_id: str) -> tuple[Callable[[Any], Any], Any]:
        """(the function of the ranks, its argument)."""
        raise NotImplementedError

    def _model(self, result: Any, run_id: str) -> HorovodModel:
        """The model of what rank 0 has returned."""
        raise NotImplementedError


@with_params({
    "history": (None, "what was measured in each epoch"),
    "model": (None, "the trained model"),
    "feature_columns": (None, "the inputs of the model"),
    "label_columns": (None, "the labels"),
    "output_cols": (None, "the columns that transform() adds; default LABEL__output"),
    "run_id": (None, "the name of the run in the store"),
})  # fmt: skip
class HorovodModel(Model, EstimatorParams):
    """A trained model. transform() adds a column for each label, LABEL__output: a number if the model gives one for each
    row, else a list of numbers."""

    def transform(self, df: Any, params: dict[Any, Any] | None = None) -> Any:
        """The frame with the model's outputs. The executors' Python needs the model's framework and pandas."""
        return super().transform(df, params)

    def _transform(self, df: Any) -> Any:
        import cloudpickle
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

        inputs = self.value("feature_columns")
        outputs = self.value("output_cols") or [f"{label}__output" for label in self.value("label_columns")]
        vectors, plain = vector_columns(df), plain_vectors(df)
        row = plain.select(*inputs).first()
        if row is None:
            scalar = [True] * len(outputs)
        else:
            import pandas

            predict = self._make_predictor()()
            scalar = [value.ndim == 1 for value in predict(pandas.DataFrame([row.asDict()]))]
        if len(scalar) != len(outputs):
            raise ValueError(f"the model has {len(scalar)} outputs, and output_cols names {len(outputs)}")
        kinds = [FloatType() if one else ArrayType(FloatType()) for one in scalar]
        added = [StructField(name, kind) for name, kind in zip(outputs, kinds)]
        pickled = cloudpickle.dumps(self._make_predictor())
        predictor = df.sparkSession.sparkContext.broadcast(pickled)

        def add(frames: Iterator[Any]) -> Iterator[Any]:
            predict = cloudpickle.loads(predictor.value)()
            for frame in frames:
                if len(frame):
                    for name, value in zip(outputs, predict(frame)):
                        frame[name] = value if value.ndim == 1 else list(value)
                else:
                    frame = frame.assign(**{name: [] for name in outputs})
                yield frame

        done = plain.mapInPandas(add, StructType([*plain.schema.fields, *added]))
        for name in vectors:
            done = done.withColumn(name, array_to_vector(name))
        return done

    def _make_predictor(self) -> Callable[[], Callable[[Any], list[Any]]]:
        """A picklable function that makes the function (pandas frame -> one float32 array for each output)."""
        raise NotImplementedError
