"""Checks of an estimator's store and shards. Called by spark_driver.py, as pyarrow is in its environment; no job runs."""

import tempfile

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from horovod.spark.common._data import ParquetShard
from horovod.spark.common.store import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store


def raised(kind, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"{function} has not raised {kind}")


def written(files, path, rows=1000, parts=4):
    """A folder of `parts` files with row groups of several lengths."""
    files.makedirs(path, exist_ok=True)
    numbers = np.arange(rows)
    for part, own in enumerate(np.array_split(numbers, parts)):
        lists = pa.FixedSizeListArray.from_arrays(pa.array((own[:, None] * np.ones(3)).ravel()), 3)
        with files.open(f"{path}/part-{part}.parquet", "wb") as file:
            pq.write_table(pa.table({"id": own, "x": lists}), file, row_group_size=31 + 7 * part)
    return path


def check_shards_are_equal_and_disjoint(spark):
    for files, path in (
        (fsspec.filesystem("memory"), "/shards"),
        (fsspec.filesystem("file"), tempfile.mkdtemp()),
    ):
        written(files, path)
        for size in (1, 2, 3, 5):
            shards = [
                ParquetShard(files, path, ["id", "x"], 16, rank, size, buffer_rows=100)
                for rank in range(size)
            ]
            for _ in range(2):  # epochs
                assert len({len(shard) for shard in shards}) == 1
                steps = len(shards[0])
                batches = [list(shard) for shard in shards]
                assert [len(own) for own in batches] == [steps] * size
                ids = np.concatenate([batch["id"] for own in batches for batch in own])
                assert len(np.unique(ids)) == len(ids) == steps * 16 * size > 1000 - (60 + 16) * size
                for own in batches:
                    assert all(np.array_equal(b["x"], b["id"][:, None] * np.ones(3)) for b in own)


def check_an_epoch_is_shuffled_and_can_be_repeated(spark):
    files = fsspec.filesystem("memory")
    written(files, "/order")
    make = lambda seed: ParquetShard(files, "/order", ["id"], 10, 0, 2, seed=seed)  # noqa: E731
    ids = lambda shard: np.concatenate([batch["id"] for batch in shard])  # noqa: E731
    shard = make(1)
    first, second = ids(shard), ids(shard)
    assert not np.array_equal(first, second) and not np.array_equal(first, np.sort(first))
    again, other = make(1), make(2)
    again.epoch = 1  # as a run does that goes on
    assert np.array_equal(ids(again), second) and not np.array_equal(ids(other), first)
    plain = ParquetShard(files, "/order", ["id"], 10, 0, 1, shuffle=False)
    assert np.array_equal(ids(plain), np.arange(1000))


def check_validation_reads_every_row(spark):
    files = fsspec.filesystem("memory")
    written(files, "/val", rows=101, parts=3)
    shards = [
        ParquetShard(files, "/val", ["id"], 16, rank, 3, shuffle=False, all_rows=True) for rank in range(3)
    ]
    batches = [list(shard) for shard in shards]
    assert [len(own) for own in batches] == [len(shard) for shard in shards]
    assert sorted(np.concatenate([b["id"] for own in batches for b in own])) == list(range(101))


def check_too_little_data_is_an_error(spark):
    files = fsspec.filesystem("memory")
    written(files, "/few", rows=40, parts=2)
    text = raised(ValueError, ParquetShard, files, "/few", ["id"], 4, 0, 9)
    assert "40 rows in 2 row groups" in text or "cannot be shared by 9 ranks" in text, text
    text = raised(ValueError, ParquetShard, files, "/few", ["id"], 32, 0, 2)
    assert "less than one batch of 32" in text, text
    shard = ParquetShard(files, "/few", ["id"], 4, 0, 1, transform=lambda frame: frame[:3])
    assert "must keep their number" in raised(ValueError, list, shard)
    shard = ParquetShard(
        files, "/few", ["twice"], 4, 0, 1, transform=lambda f: f.assign(twice=f["id"] * 2), shuffle=False
    )
    assert np.concatenate([b["twice"] for b in shard]).tolist() == list(range(0, 80, 2))


def check_stores(spark):
    kinds = {"/a/b": FilesystemStore, "file:///a/b": FilesystemStore, "s3://bucket/a": FilesystemStore}
    kinds |= {"hdfs://h:9000/a": HDFSStore, "dbfs:/a": DBFSLocalStore, "/dbfs/a": DBFSLocalStore}
    for path, kind in kinds.items():
        assert type(Store.create(path)) is kind, path
    assert Store.create("/a/b").get_train_data_path(3) == "file:///a/b/intermediate_train_data.3"
    assert Store.create("s3a://bucket/a").get_run_path("r") == "s3://bucket/a/runs/r"
    store = Store.create("s3://bucket/a")
    assert store.spark_path(store.get_val_data_path()) == "s3a://bucket/a/intermediate_val_data"
    for path in ("dbfs:/x/y", "/dbfs/x/y", "file:///dbfs/x/y", "dbfs:///x/y"):
        store = Store.create(path)
        assert store.get_checkpoint_path("r") == "file:///dbfs/x/y/runs/r/checkpoint.tf", path
    assert HDFSStore("/a", host="h", port=9).prefix_path == "hdfs://h:9/a"
    assert "libhdfs" in raised(ValueError, HDFSStore, "/a", driver="libhdfs3")
    for store in (LocalStore(tempfile.mkdtemp()), Store.create("memory://stores")):
        path = store.get_checkpoint_path("run")
        assert not store.exists(path)
        store.write(path, b"one")
        store.write(path, b"two")
        assert store.read(path) == b"two" and store.exists(path)
        store.write_text(f"{path}.ckpt", "text")
        assert [name.rpartition("/")[2] for name in store.get_checkpoints("run")] == ["checkpoint.ckpt"]
        store.remove(store.get_runs_path())
        assert not store.exists(path)
