"""Checks of jobs in the executors of a Spark session: horovod.spark.run and HorovodRunner. Called by spark_driver.py.

Functions of jobs import what they need inside, as those of users do: an executor has no module of the tests.
"""

import io
import os
import sys
import threading
import time
import warnings
from pathlib import Path

from sparkdl import HorovodRunner

import horovod.spark
from horovod.spark import _cluster

LONG_S = 120


def raised(kind, function, *args, **kwargs):
    """The exception that the call raises."""
    try:
        function(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{function} has not raised {kind}")


def wait_until(condition, what):
    until = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < until, f"{what}: not within {LONG_S} s"
        time.sleep(0.1)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def sums(factor):
    import os

    import numpy as np

    import hvd_core as hvd

    hvd.init()
    print(f"rank {hvd.rank()} prints", flush=True)
    total = hvd.allreduce(np.full(4, hvd.rank() + 1.0), op=hvd.Sum)
    return hvd.rank(), hvd.size(), hvd.local_rank(), float(total[0]) * factor, dict(os.environ)


def fails_on_rank_1():
    import numpy as np

    import hvd_core as hvd

    hvd.init()
    hvd.allreduce(np.ones(2))
    if hvd.rank() == 1:
        raise ValueError("bad data in file 17")
    while True:
        hvd.allreduce(np.ones(2), name="x")


def endless(folder):
    import os
    import time
    from pathlib import Path

    import numpy as np

    import hvd_core as hvd

    hvd.init()
    hvd.allreduce(np.ones(2))
    part = Path(folder) / f"{hvd.rank()}.part"
    part.write_text(str(os.getpid()))
    part.rename(Path(folder) / str(hvd.rank()))
    while True:
        time.sleep(0.05)
        hvd.allreduce(np.ones(2), name="x")


def pids_of(folder, ranks=2):
    """The processes of an endless job, once all of its ranks run."""
    files = [folder / str(rank) for rank in range(ranks)]
    wait_until(lambda: all(file.exists() for file in files), "the ranks begin")
    return [int(file.read_text()) for file in files]


def new_folder(name):
    folder = Path.cwd() / name
    folder.mkdir()
    return folder


def check_run_right_after_the_start(spark):
    """A session returns before its executors have registered."""
    out = io.StringIO()
    results = horovod.spark.run(sums, args=(10,), num_proc=2, stdout=out, env={"HVD_TEST": "42"})
    assert [result[:4] for result in results] == [(0, 2, 0, 30.0), (1, 2, 1, 30.0)]
    assert sorted(out.getvalue().splitlines()) == [f"[{r}]<stdout>:rank {r} prints" for r in (0, 1)]
    for result in results:
        env = result[4]
        assert env["HVD_TEST"] == "42"
        assert not [name for name in env if "SPARK_" in name and name != "HOROVOD_SPARK_START_TIMEOUT"], env
        assert "PYTHON_WORKER_FACTORY_SECRET" not in env


def check_devices_of_spark_are_in_the_order_of_local_ranks(spark):
    def visible():
        import os

        import hvd_core as hvd

        hvd.init()
        from horovod.spark.task import get_available_devices

        (own,) = get_available_devices()
        assert os.environ["CUDA_VISIBLE_DEVICES"].split(",")[hvd.local_rank()] == own
        return os.environ["CUDA_VISIBLE_DEVICES"]

    seen = horovod.spark.run(visible, num_proc=2)
    assert (
        seen[0] == seen[1] and len(set(seen[0].split(","))) == 2 and set(seen[0].split(",")) < set("3579")
    ), seen


def check_a_failure_has_the_traceback_of_the_rank(spark):
    error = raised(RuntimeError, horovod.spark.run, fails_on_rank_1, num_proc=2, stderr=io.StringIO())
    text = str(error)
    assert text.startswith("rank 1 on host ") and text.endswith("ValueError: bad data in file 17"), text
    assert "in fails_on_rank_1" in text and "Py4J" not in text and len(text.splitlines()) < 15, text
    assert isinstance(error.__cause__, ValueError)


def check_an_unpicklable_exception_and_a_function_that_exits(spark):
    def special():
        class Special(Exception):
            def __init__(self, a, b):
                super().__init__("special")
                self.lock = __import__("threading").Lock()

        raise Special(1, 2)

    def leaves():
        import os

        os._exit(7)

    error = raised(RuntimeError, horovod.spark.run, special, num_proc=1, stderr=io.StringIO())
    assert "Special: special" in str(error) and error.__cause__ is None
    error = raised(RuntimeError, horovod.spark.run, leaves, num_proc=1, stderr=io.StringIO())
    assert "exit code 7" in str(error), error


def check_a_module_that_executors_lack_is_named(spark):
    folder = new_folder("only_here")
    (folder / "only_on_the_driver.py").write_text("def f():\n    return 5\n")
    sys.path.insert(0, str(folder))
    try:
        import cloudpickle
        import only_on_the_driver

        # As on another machine: the executors' processes do not find the folder.
        hidden = folder.rename(folder.with_name("hidden"))
        error = raised(
            RuntimeError, horovod.spark.run, only_on_the_driver.f, num_proc=1, stderr=io.StringIO()
        )
        assert "has no module 'only_on_the_driver'" in str(error), error
        assert "cloudpickle.register_pickle_by_value(only_on_the_driver)" in str(error)
        cloudpickle.register_pickle_by_value(only_on_the_driver)
        assert horovod.spark.run(only_on_the_driver.f, num_proc=1) == [5]
        hidden.rename(folder)
    finally:
        sys.path.remove(str(folder))


def check_executors_without_horovod_are_named(spark):
    """Python workers whose interpreter finds no package of this name."""
    folder = new_folder("without")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['horovod'] = None\n")
    environment = spark.sparkContext.environment
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = str(folder)
    try:
        error = raised(RuntimeError, horovod.spark.run, sums, args=(1,), num_proc=1)
    finally:
        environment.pop("PYTHONPATH")
        if before is not None:
            environment["PYTHONPATH"] = before
    text = str(error)
    assert "cannot import horovod.spark" in text and "PYSPARK_PYTHON" in text and len(text) < 700, text


def check_another_interpreter_has_its_own_packages(spark):
    """A Python that finds other packages than the executors': their import path must not be there."""
    folder = new_folder("interpreter")
    import horovod as package

    root = Path(package.__file__).parents[1]
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{root}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    def told():
        import os

        return os.environ["PYTHONPATH"]

    (found,) = horovod.spark.run(told, num_proc=1, executable=str(python))
    assert found == f":{root}", found
    (found,) = horovod.spark.run(told, num_proc=1, executable=str(python), env={"PYTHONPATH": "/mine"})
    assert found == f"/mine:{root}", found
    assert str(root) in horovod.spark.run(told, num_proc=1)[0].split(os.pathsep)


def check_more_processes_than_slots(spark):
    error = raised(_cluster.NotEnoughSlots, horovod.spark.run, sums, args=(1,), num_proc=3, start_timeout=1)
    assert "3 processes were asked for" in str(error) and "can run 2 tasks at a time" in str(error), error


def check_busy_slots(spark):
    """The tasks of other jobs hold a slot: the stage waits, and gives up after start_timeout."""
    folder = new_folder("busy")

    def hold(_):
        import time
        from pathlib import Path

        (Path(folder) / "held").touch()
        while not (Path(folder) / "release").exists():
            time.sleep(0.1)
        yield 1

    context = spark.sparkContext
    from pyspark import InheritableThread

    thread = InheritableThread(target=lambda: context.parallelize([0], 1).mapPartitions(hold).collect())
    thread.start()
    wait_until(lambda: (folder / "held").exists(), "a slot is held")
    error = raised(TimeoutError, horovod.spark.run, sums, args=(1,), num_proc=2, start_timeout=3)
    assert "did not begin within 3 s" in str(error), error
    (folder / "release").touch()
    thread.join()
    assert len(horovod.spark.run(sums, args=(1,), num_proc=2, stdout=io.StringIO())) == 2


def check_dynamic_allocation_is_refused(spark):
    settings = spark.sparkContext._jsc.sc().conf()
    settings.set("spark.dynamicAllocation.enabled", "true")
    try:
        error = raised(RuntimeError, horovod.spark.run, sums, args=(1,), num_proc=1)
        assert "spark.dynamicAllocation.enabled=false" in str(error), error
        # Spark itself refuses, too: the check is not too strict.
        stage = spark.sparkContext.parallelize([0], 1).barrier().mapPartitions(lambda part: part)
        error = raised(Exception, stage.collect)
        assert "dynamic resource allocation" in str(error), error
    finally:
        settings.set("spark.dynamicAllocation.enabled", "false")


def check_cancel_ends_the_ranks(spark):
    folder = new_folder("cancelled")
    context, errors = spark.sparkContext, []

    def job():
        context.setJobGroup("of the user", "a job of Horovod")
        try:
            horovod.spark.run(endless, args=(str(folder),), num_proc=2, stderr=io.StringIO())
        except Exception as error:
            errors.append(error)

    from pyspark import InheritableThread

    thread = InheritableThread(target=job)
    thread.start()
    pids = pids_of(folder)
    context.cancelJobGroup("of the user")
    thread.join(LONG_S)
    assert errors and "cancelled" in str(errors[0]), errors
    wait_until(lambda: not any(map(alive, pids)), "the ranks end")


def check_an_interrupt_ends_the_job(spark):
    """As a notebook does it: KeyboardInterrupt on the main thread, whose job alone is cancelled."""
    import signal

    folder = new_folder("interrupted")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pids = []

    def interrupt():
        pids.extend(pids_of(folder))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        raised(KeyboardInterrupt, horovod.spark.run, endless, args=(str(folder),), num_proc=2)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    wait_until(lambda: not any(map(alive, pids)), "the ranks end")
    assert len(horovod.spark.run(sums, args=(1,), num_proc=2, stdout=io.StringIO())) == 2


def check_a_killed_rank_is_named(spark):
    import signal

    folder = new_folder("killed_rank")

    def kill():
        os.kill(pids_of(folder)[1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    error = raised(
        RuntimeError, horovod.spark.run, endless, args=(str(folder),), num_proc=2, stderr=io.StringIO()
    )
    thread.join()
    assert str(error).startswith("rank 1 on host ") and "killed by SIGKILL" in str(error), error


def check_a_killed_executor_is_named(spark):
    import signal

    folder, pids = new_folder("killed_executor"), []

    def kill():
        pids.extend(pids_of(folder))
        pid = pids[1]
        while "java" not in Path(f"/proc/{pid}/comm").read_text():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    error = raised(
        RuntimeError, horovod.spark.run, endless, args=(str(folder),), num_proc=2, stderr=io.StringIO()
    )
    thread.join()
    text = str(error)
    assert text.startswith("Rank 1 on host ") and "is lost: executor " in text and len(text) < 600, text
    wait_until(lambda: not any(map(alive, pids)), "the ranks end")
    # The cluster starts another executor, which registers later.
    assert len(horovod.spark.run(sums, args=(1,), num_proc=2, stdout=io.StringIO())) == 2


def check_the_secret_is_nowhere(spark):
    """Neither in Spark's settings, nor in the descriptions of jobs, nor in a log."""

    def secret():
        import os

        return os.environ["HOROVOD_SECRET_KEY"]

    (key,) = horovod.spark.run(secret, num_proc=1)
    assert len(key) == 64
    assert key not in str(spark.sparkContext.getConf().getAll())
    assert not [name for name, value in os.environ.items() if key in value]
    read = 0
    import pyspark

    work = Path(pyspark.__file__).parent / "work" / spark.sparkContext.applicationId
    for path in (Path.cwd() / "driver.log", *work.rglob("stderr"), *work.rglob("stdout")):
        read += 1
        assert key.encode() not in path.read_bytes(), path
    assert read >= 3, "the logs of the driver and of two executors"


def check_horovod_runner(spark):
    def train(factor):
        import numpy as np
        from sparkdl.horovod import log_to_driver

        import hvd_core as hvd

        hvd.init()
        print(f"rank {hvd.rank()} prints")
        log_to_driver(f"rank {hvd.rank()} of {hvd.size()} " + "x" * 5000)
        total = float(hvd.allreduce(np.full(4, hvd.rank() + 1.0), op=hvd.Sum)[0]) * factor
        return total if hvd.rank() == 0 else __import__("threading").Lock()

    import contextlib

    for verbosity in ("log_callback_only", "all"):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert HorovodRunner(np=2, driver_log_verbosity=verbosity).run(train, factor=10) == 30.0
        lines = sorted(out.getvalue().splitlines())
        told = [line for line in lines if "of 2" in line]
        assert [line[:12] for line in told] == ["rank 0 of 2 ", "rank 1 of 2 "]
        assert {len(line) for line in told} == {4000}
        printed = [line for line in lines if "prints" in line]
        assert printed == ([f"[{r}]<stdout>:rank {r} prints" for r in (0, 1)] if verbosity == "all" else [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert HorovodRunner(np=0).run(train, factor=1) == 3.0  # both slots
    assert [w for w in caught if w.category is DeprecationWarning and "np=0" in str(w.message)]
    error = raised(RuntimeError, HorovodRunner(np=2).run, fails_on_rank_1)
    assert str(error).endswith("ValueError: bad data in file 17"), error


def check_timeline_of_the_driver(spark):
    import json

    path = Path.cwd() / "timeline.json"
    os.environ["HOROVOD_TIMELINE"] = str(path)
    try:
        HorovodRunner(np=2).run(sums, factor=1)
    finally:
        del os.environ["HOROVOD_TIMELINE"]
    events = json.loads(path.read_text())
    assert any("ALLREDUCE" in event.get("name", "") for event in events)
