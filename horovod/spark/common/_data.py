"""A rank's share of a folder of Parquet files, as batches of NumPy arrays. What the original uses petastorm for.

Row groups are dealt to the ranks, each to the one with the fewest rows; in an order that the seed and the epoch decide,
equally on all ranks. For training each rank has as many batches as the rank with the fewest rows, as a rank with more
steps would wait for the others indefinitely; for validation each has all of its rows. Used by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


class ParquetShard:
    """`files`, `path`: fsspec's file system, and the folder there. `transform`: a function of a pandas frame, applied to
    each row group, which keeps the number of rows. `all_rows`: for validation. `buffer_rows`: rows that are shuffled
    together.

    Raises ValueError if there is less than one row group per rank, or less than one batch.
    """

    def __init__(
        self,
        files: Any,
        path: str,
        columns: Sequence[str],
        batch_size: int,
        rank: int,
        size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        buffer_rows: int = 0,
        all_rows: bool = False,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self._files, self._columns, self._batch = files, list(columns), batch_size
        self._rank, self._size, self._shuffle, self._seed = rank, size, shuffle, seed
        self._buffer, self._all_rows, self._transform = max(batch_size, buffer_rows), all_rows, transform
        self.epoch = 0
        self._groups: list[tuple[str, int, int]] = []
        for name in sorted(name for name in files.find(path) if name.endswith(".parquet")):
            with files.open(name) as file:
                about = pq.ParquetFile(file).metadata
                self._groups += [(name, i, about.row_group(i).num_rows) for i in range(about.num_row_groups)]
        self._groups = [group for group in self._groups if group[2]]
        self.rows = sum(group[2] for group in self._groups)
        if len(self._groups) < size:
            raise ValueError(
                f"{path} has {self.rows} rows in {len(self._groups)} row groups, which cannot be shared by {size} ranks: "
                "each needs one. Write more files, or smaller row groups (parquet.block.size), or use fewer processes."
            )
        if not all_rows and min(self._deal()[1]) < batch_size:
            raise ValueError(
                f"{path}: a rank has only {min(self._deal()[1])} of the {self.rows} rows, less than one batch of "
                f"{batch_size}. Use a smaller batch_size, or fewer processes."
            )

    def _deal(self) -> tuple[list[int], list[int]]:
        """(the row groups of this rank, the number of rows of each rank) in this epoch."""
        count = len(self._groups)
        order: Sequence[int] = range(count)
        if self._shuffle:
            order = np.random.RandomState([self._seed, self.epoch]).permutation(count).tolist()
        hands: list[list[int]] = [[] for _ in range(self._size)]
        rows = [0] * self._size
        # The longest first: the shares differ by less than one row group.
        for group in sorted(order, key=lambda group: -self._groups[group][2]):
            hand = rows.index(min(rows))
            hands[hand].append(group)
            rows[hand] += self._groups[group][2]
        mine = hands[self._rank]
        return (mine if self._shuffle else sorted(mine)), rows

    def __len__(self) -> int:
        """Batches of this epoch on this rank."""
        _, rows = self._deal()
        return -(-rows[self._rank] // self._batch) if self._all_rows else min(rows) // self._batch

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """The batches of one epoch, {column: rows}. The next iteration is the next epoch."""
        mine, _ = self._deal()
        steps = len(self)
        random = np.random.RandomState([self._seed, self.epoch, self._rank])
        if self._shuffle:
            random.shuffle(mine)
        self.epoch += 1
        held: list[pa.Table] = []
        for number, group in enumerate(mine, 1):
            held.append(self._read(group))
            last = number == len(mine)
            if sum(map(len, held)) < self._buffer and not last:
                continue
            table = pa.concat_tables(held)
            if self._shuffle:
                table = table.take(random.permutation(len(table)))
            end = len(table) if last and self._all_rows else len(table) - len(table) % self._batch
            for start in range(0, end, self._batch):
                if steps == 0:
                    return
                steps -= 1
                part = table.slice(start, self._batch)
                yield {name: as_array(part[name]) for name in self._columns}
            held = [table.slice(end)] if end < len(table) else []

    def forever(self) -> Iterator[dict[str, np.ndarray]]:
        """Batches of one epoch after the other, without an end."""
        while True:
            yield from self

    def _read(self, group: int) -> pa.Table:
        name, index, rows = self._groups[group]
        with self._files.open(name) as file:
            if self._transform is None:
                return pq.ParquetFile(file).read_row_group(index, columns=self._columns)
            frame = self._transform(pq.ParquetFile(file).read_row_group(index).to_pandas())
        if len(frame) != rows:
            raise ValueError(
                f"transformation_fn has made {len(frame)} rows of {rows}; it must keep their number, as all "
                "ranks need equal numbers of steps"
            )
        return pa.Table.from_pandas(frame[self._columns], preserve_index=False)


def as_array(column: pa.ChunkedArray) -> np.ndarray:
    """A column as an array [rows] or, of lists, [rows, length]. Raises ValueError for lists of unequal lengths."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return np.stack([np.asarray(row) for row in column.to_numpy()])
    found: np.ndarray = column.to_numpy()
    return found


# ---- The data of one rank of an estimator: its shards, with the shapes that the model wants


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


def flat(output: np.ndarray) -> np.ndarray:
    """An output of a model as [rows] if it has one number for each row, else as [rows, numbers]."""
    rows: np.ndarray = output.reshape((len(output), -1)).astype(np.float32)
    return rows[:, 0] if rows.shape[1] == 1 else rows
