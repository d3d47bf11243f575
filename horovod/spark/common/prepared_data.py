"""Writes a Spark frame as Parquet for an estimator, split into data for training and for validation. On the driver."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PreparedData:
    """The addresses of the data; `val` is None without validation. close() deletes what prepare() has written."""

    store: Any
    train: str
    val: str | None
    written: bool = False

    def close(self) -> None:
        if self.written:
            for path in filter(None, (self.train, self.val)):
                self.store.remove(path)


def prepare(
    frame: Any,
    store: Any,
    columns: list[str],
    validation: float | str | None,
    ranks: int,
    partitions_per_process: int,
    batch_size: int,
    seed: int | None,
    every_column: bool = False,
) -> PreparedData:
    """Writes `columns` of the frame. Vectors of pyspark.ml become lists. `every_column`: for a transformation_fn.

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
        if not 0 < float(validation) < 1:
            raise ValueError(
                f"validation={validation}: give a fraction between 0 and 1, or the name of a column"
            )
        train, val = frame.randomSplit([1.0 - validation, validation], seed=seed)
    number = uuid.uuid4().hex[:12]
    data = PreparedData(
        store,
        store.get_train_data_path(number),
        None if val is None else store.get_val_data_path(number),
        written=True,
    )
    try:
        # The split is random: without the cache, rows could be in both parts or in none.
        frame = frame.cache()
        for part, path, what in ((train, data.train, "training"), (val, data.val, "validation")):
            if part is not None:
                _write(part, store.spark_path(path), what, ranks, partitions_per_process, batch_size)
    except BaseException:
        data.close()
        raise
    finally:
        frame.unpersist()
    return data


def _write(part: Any, path: str, what: str, ranks: int, per_process: int, batch_size: int) -> None:
    rows = part.count()
    if rows < ranks:
        raise ValueError(f"{rows} rows for {what} are not enough for {ranks} processes")
    # A file with less than a batch would only cost time; each rank needs one.
    files = max(ranks, min(ranks * per_process, rows // batch_size))
    part.repartition(files).write.parquet(path)


def plain_vectors(frame: Any) -> Any:
    """The frame with lists in place of the vectors of pyspark.ml."""
    from pyspark.ml.functions import vector_to_array

    for name in vector_columns(frame):
        frame = frame.withColumn(name, vector_to_array(name))
    return frame


def vector_columns(frame: Any) -> list[str]:
    """The columns with vectors of pyspark.ml."""
    from pyspark.ml.linalg import VectorUDT

    return [field.name for field in frame.schema.fields if isinstance(field.dataType, VectorUDT)]
