"""Where an estimator keeps its data, checkpoints and logs: a folder of any file system that fsspec knows.

Spark writes the data there by its own means, and the ranks read them by fsspec: both must reach the folder under one
address. fsspec and, for other systems, its driver (s3fs, gcsfs, adlfs) are installed with the extra `spark`. Any thread.
"""

from __future__ import annotations

import os
import posixpath
import re
import uuid
from collections.abc import Callable
from typing import Any

# Hadoop's names of file systems, where they differ from fsspec's.
_OF_SPARK = {"s3": "s3a"}
_OF_FSSPEC = {"s3a": "s3", "s3n": "s3", "wasbs": "abfs", "abfss": "abfs"}


class Store:
    """The names and the parts that all stores have."""

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """The store for a folder: DBFSLocalStore for dbfs:/ and /dbfs, HDFSStore for hdfs://, else FilesystemStore."""
        if DBFSLocalStore.matches(prefix_path):
            return DBFSLocalStore(prefix_path, *args, **kwargs)
        if HDFSStore.matches(prefix_path):
            return HDFSStore(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)


class AbstractFilesystemStore(Store):
    """`prefix_path`: the folder; `train_path`, `val_path`, `test_path`, `runs_path`: other places for its parts;
    `save_runs`: keep checkpoints and logs; `storage_options`: for fsspec; `checkpoint_filename`: of each run."""

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: dict[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        self.prefix_path: str = self._normal(prefix_path)
        self.storage_options: dict[str, Any] = dict(storage_options or {})
        self._train = self._normal(train_path) if train_path else self._join("intermediate_train_data")
        self._val = self._normal(val_path) if val_path else self._join("intermediate_val_data")
        self._test = self._normal(test_path) if test_path else self._join("intermediate_test_data")
        self._runs = self._normal(runs_path) if runs_path else self._join("runs")
        self._save_runs = save_runs
        self._checkpoint = checkpoint_filename or "checkpoint"

    @staticmethod
    def _normal(path: str) -> str:
        """The address as fsspec takes it; a path without a scheme is absolute."""
        scheme, found, rest = str(path).partition("://")
        if found:
            return f"{_OF_FSSPEC.get(scheme, scheme)}://{rest.rstrip('/')}"
        return "file://" + os.path.abspath(str(path).removeprefix("file:"))

    def _join(self, *names: str) -> str:
        return posixpath.join(self.prefix_path, *names)

    def filesystem(self, path: str) -> tuple[Any, str]:
        """(fsspec's file system, the path there) of an address."""
        import fsspec

        found: tuple[Any, str] = fsspec.core.url_to_fs(path, **self.storage_options)
        return found

    def spark_path(self, path: str) -> str:
        """The address as Spark takes it."""
        scheme, found, rest = path.partition("://")
        return f"{_OF_SPARK.get(scheme, scheme)}://{rest}" if found else path

    def is_parquet_dataset(self, path: str) -> bool:
        """Whether the folder holds Parquet files."""
        files, place = self.filesystem(path)
        return files.isdir(place) and any(name.endswith(".parquet") for name in files.find(place))

    def get_parquet_dataset(self, path: str) -> Any:
        """pyarrow's dataset of the folder."""
        import pyarrow.dataset

        files, place = self.filesystem(path)
        return pyarrow.dataset.dataset(place, filesystem=files, format="parquet")

    def get_train_data_path(self, idx: Any = None) -> str:
        return self._train if idx is None else f"{self._train}.{idx}"

    def get_val_data_path(self, idx: Any = None) -> str:
        return self._val if idx is None else f"{self._val}.{idx}"

    def get_test_data_path(self, idx: Any = None) -> str:
        return self._test if idx is None else f"{self._test}.{idx}"

    def saving_runs(self) -> bool:
        return self._save_runs

    def get_runs_path(self) -> str:
        return self._runs

    def get_run_path(self, run_id: str) -> str:
        return posixpath.join(self._runs, run_id)

    def get_checkpoint_filename(self) -> str:
        return self._checkpoint

    def get_checkpoint_path(self, run_id: str) -> str:
        return posixpath.join(self.get_run_path(run_id), self._checkpoint)

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """The files of a run that end in `suffix`, oldest name first."""
        files, place = self.filesystem(self.get_run_path(run_id))
        return (
            sorted(name for name in files.find(place) if name.endswith(suffix)) if files.exists(place) else []
        )

    def get_logs_subdir(self) -> str:
        return "logs"

    def get_logs_path(self, run_id: str) -> str:
        return posixpath.join(self.get_run_path(run_id), self.get_logs_subdir())

    def exists(self, path: str) -> bool:
        files, place = self.filesystem(path)
        return bool(files.exists(place))

    def read(self, path: str) -> bytes:
        """The content of a file. Raises FileNotFoundError."""
        files, place = self.filesystem(path)
        return bytes(files.cat_file(place))

    def write(self, path: str, data: bytes) -> None:
        """Writes a file; readers see the old content or the new one."""
        files, place = self.filesystem(path)
        files.makedirs(posixpath.dirname(place), exist_ok=True)
        part = f"{place}.part-{uuid.uuid4().hex[:8]}"
        with files.open(part, "wb") as file:
            file.write(data)
        files.mv(part, place)

    def write_text(self, path: str, text: str) -> None:
        self.write(path, text.encode())

    def remove(self, path: str) -> None:
        """Deletes a folder with its content, if it is there."""
        files, place = self.filesystem(path)
        if files.exists(place):
            files.rm(place, recursive=True)

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that copies a local folder into the folder of a run."""

        def sync(local: str) -> None:
            files, place = self.filesystem(self.get_run_path(run_id))
            files.makedirs(place, exist_ok=True)
            files.put(os.path.join(local, ""), place, recursive=True)

        return sync


class FilesystemStore(AbstractFilesystemStore):
    """A folder of any file system of fsspec: a path, or an address such as s3://bucket/folder."""


class LocalStore(FilesystemStore):
    """A folder on this machine, or one that all executors mount at the same path."""


class HDFSStore(AbstractFilesystemStore):
    """A folder of HDFS: hdfs://host:port/folder, or a path with `host`. Needs Hadoop's native library for pyarrow."""

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        if driver != "libhdfs":
            raise ValueError(f"HDFSStore(driver={driver!r}): pyarrow has 'libhdfs' only")
        given = {"user": user, "kerb_ticket": kerb_ticket, "extra_conf": extra_conf}
        options = {name: value for name, value in given.items() if value is not None}
        kwargs["storage_options"] = {**options, **(kwargs.get("storage_options") or {})}
        if not self.matches(prefix_path):
            place = f"{host or 'default'}{f':{port}' if port else ''}"
            prefix_path = f"hdfs://{place}/{str(prefix_path).lstrip('/')}"
        super().__init__(prefix_path, **kwargs)

    @staticmethod
    def matches(path: str) -> bool:
        """Whether the address is one of HDFS."""
        return str(path).startswith("hdfs://")


class DBFSLocalStore(FilesystemStore):
    """A folder of Databricks' file system: dbfs:/folder, /dbfs/folder and file:/dbfs/folder are the same."""

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("checkpoint_filename", "checkpoint.tf")
        super().__init__(self.local_path(prefix_path), *args, **kwargs)

    @staticmethod
    def local_path(path: str) -> str:
        """The path at which each machine of Databricks mounts the folder."""
        rest = re.sub(r"^(dbfs:|file:)?/+(dbfs/+)?", "", str(path))
        return f"/dbfs/{rest}"

    @staticmethod
    def matches(path: str) -> bool:
        """Whether the address is one of Databricks."""
        return re.match(r"dbfs:/|(file:)?/+dbfs/", str(path)) is not None
