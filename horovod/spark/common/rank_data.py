"""The data of one rank of an estimator: its shards, with the shapes that the model wants. No framework, no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from horovod.spark.common.parquet_shards import ParquetShard


class RankData:
    """`task`: HorovodEstimator._task(). `train`, `val`: shards, `val` None without validation; `train_steps`,
    `val_steps`: of an epoch."""

    def __init__(self, task: dict[str, Any], rank: int, size: int) -> None:
        self._task = task
        weight = task["sample_weight_col"]
        columns = [*task["feature_cols"], *task["label_cols"], *([weight] if weight else [])]
        files, place = task["store"].filesystem(task["train_path"])
        common = {"seed": task["seed"], "transform": task["transformation_fn"]}
        self.train = ParquetShard(
            *(files, place, columns, task["batch_size"], rank, size),
            shuffle=task["shuffle"],
            buffer_rows=task["buffer_rows"],
            **common,
        )
        self.val = None
        self.val_steps = 0
        if task["val_path"] is not None:
            files, place = task["store"].filesystem(task["val_path"])
            self.val = ParquetShard(
                *(files, place, columns, task["val_batch_size"], rank, size),
                shuffle=False,
                all_rows=True,
                **common,
            )
            self.val_steps = task["validation_steps_per_epoch"] or len(self.val)
        self.train_steps = task["train_steps_per_epoch"] or len(self.train)

    def batches(
        self, shard: ParquetShard, shapes: Sequence[Sequence[int] | None]
    ) -> Iterator[tuple[list[np.ndarray], list[np.ndarray], np.ndarray | None]]:
        """(features, labels, weights) without an end. `shapes`: [-1, ...] for each feature, None as they are."""
        task = self._task
        labels = task["label_shapes"] or [None] * len(task["label_cols"])
        for batch in shard.forever():
            yield (
                shaped([batch[name] for name in task["feature_cols"]], shapes),
                shaped([batch[name] for name in task["label_cols"]], labels),
                batch[task["sample_weight_col"]] if task["sample_weight_col"] else None,
            )


def shaped(arrays: list[np.ndarray], shapes: Sequence[Sequence[int] | None]) -> list[np.ndarray]:
    """The arrays in these shapes; float64 becomes float32, in which models compute."""
    found = []
    for array, shape in zip(arrays, shapes):
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        found.append(array if shape is None else array.reshape([-1, *shape[1:]]))
    return found


def columns_of(frame: Any, names: Sequence[str]) -> list[np.ndarray]:
    """Columns of a pandas frame as arrays [rows, ...]."""
    found = []
    for name in names:
        column = frame[name].to_numpy()
        found.append(np.stack([np.asarray(row) for row in column]) if column.dtype == object else column)
    return found
