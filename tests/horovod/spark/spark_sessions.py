"""Living Spark drivers for the tests: one process per version of PySpark, in the environment that has it, which holds one
session and calls the functions check_* of a module on request.

Starting a session with two executors takes between 10 seconds and a minute; a check on it takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import get_java

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
VERSIONS = ("4", "3.5")


def python_with(version: str) -> Path:
    """The interpreter of the environment with this PySpark."""
    return Path(sys.prefix) / f"spark-{version}" / "bin" / "python"


def java_home() -> Path | None:
    return get_java.system_java() or get_java.unpacked_java(Path(sys.prefix) / "java")


def why_not(version: str) -> str:
    """Why tests on this version cannot run here; "" if they can."""
    if not python_with(version).exists():
        return f"no PySpark {version} in an environment of its own ({python_with(version)}); `make test-all` makes it"
    return "" if java_home() else "no java here, and none in .venv/java; `make test-all` gets it"


def checks_of(module: str) -> list[str]:
    """Names of the functions check_* of a module beside this one, in the order of the file. Only a driver imports it."""
    return re.findall(r"^def (check_\w+)", (HERE / f"{module}.py").read_text(), re.MULTILINE)


class LivingDriver:
    """A driver process. `settings`: of the session, by name."""

    def __init__(self, version: str, settings: dict[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"hvd-spark-{version}-"))
        self.log = self.folder / "driver.log"
        (self.folder / "gpus").mkdir()
        asks, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        env = {
            **os.environ,
            "JAVA_HOME": str(java_home()),
            "PYSPARK_PYTHON": str(python_with(version)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_WORKER_DIR": str(self.folder / "work"),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "packages" / "sparkdl")]),
            "CUDA_VISIBLE_DEVICES": "",
            "HVD_TEST_GPUS": str(self.folder / "gpus"),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "HOROVOD_START_TIMEOUT": "200",
        }
        words = [
            python_with(version),
            HERE / "spark_driver.py",
            str(asks),
            str(answers),
            json.dumps(settings),
        ]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[asks, answers],
                start_new_session=True,
            )
        for end in (asks, answers):
            os.close(end)
        self._reader = os.fdopen(self._answers, "r")

    def call(self, module: str, check: str) -> None:
        """Calls `check` of tests/horovod/spark/`module`.py in the driver. Raises AssertionError with its traceback."""
        os.write(self._requests, json.dumps([module, check]).encode() + b"\n")
        answer = self._reader.readline()
        if not answer:
            raise AssertionError(f"the driver has ended:\n{self.log_text()}")
        text = json.loads(answer)
        assert not text, text + "\n--- the end of the driver's log ---\n" + self.log_text()

    def log_text(self, most: int = 6000) -> str:
        return self.log.read_text(errors="replace")[-most:]

    def close(self) -> None:
        """Stops the session; kills what is left of the driver's processes after a while."""
        os.close(self._requests)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._reader.close()
        shutil.rmtree(self.folder, ignore_errors=True)
