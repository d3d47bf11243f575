"""Checks of horovod.spark.run_elastic in the executors of a Spark session. Called by spark_driver.py."""

import io
import os
import signal
import threading
from pathlib import Path

import horovod.spark
from checks_spark_jobs import LONG_S, alive, new_folder, raised, wait_until


def counts(folder, enough):
    """Adds the average of ones to a sum in each step. Each process leaves a file with its number of ranks and its pid."""
    import os
    import time
    from pathlib import Path

    import numpy as np

    import hvd_core as hvd
    from horovod.common.elastic import ObjectState, run_fn
    from horovod.common.exports import init, rank, shutdown, size
    from horovod.common.objects import broadcast_object

    init()
    state = ObjectState(lambda value: broadcast_object(value, 0, name="values"), rank, steps=0, total=0.0)

    def reset():
        shutdown()
        init()

    @lambda function: run_fn(function, reset)
    def train(state):
        place = Path(folder) / f"{size()}.{os.getpid()}"
        place.with_suffix(".part").write_text("")
        place.with_suffix(".part").rename(place)
        print(f"in a world of {size()}", flush=True)
        while not hvd.allreduce(np.array([int(Path(enough).exists())]), op=hvd.Max, name="enough")[0]:
            state.total += float(hvd.allreduce(np.ones(100), op=hvd.Average, name="ones")[0])
            state.steps += 1
            time.sleep(0.01)
            state.commit()

    train(state)
    return rank(), size(), state.total - state.steps, state.steps, os.getpid()


def members(folder, size, count):
    """The processes that have been in a world of `size`, once they are `count` at least that live."""
    found = []

    def there():
        found[:] = [int(file.suffix[1:]) for file in folder.glob(f"{size}.*") if file.suffix[1:].isdigit()]
        found[:] = [pid for pid in found if alive(pid)]
        return len(found) >= count

    wait_until(there, f"{count} processes in a world of {size}")
    return list(found)


def executor_of(pid):
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def check_elastic_job_survives_a_killed_rank_and_a_killed_executor(spark):
    folder = new_folder("elastic")
    enough, troubles = folder.with_name("elastic_enough"), []

    def kill():
        try:
            first = members(folder, 2, 2)
            os.kill(first[0], signal.SIGKILL)
            wait_until(lambda: not alive(first[0]), "the killed rank ends")
            second = members(folder, 2, 2)  # another process in the same task
            victim = first[1]
            assert victim in second
            executor = executor_of(victim)
            os.kill(executor, signal.SIGKILL)
            wait_until(lambda: not alive(victim), "the rank of a killed executor ends")
            third = members(folder, 2, 2)  # in the task of another executor
            assert executor not in map(executor_of, third)
        except BaseException as error:
            troubles.append(error)
        finally:
            enough.touch()

    thread = threading.Thread(target=kill)
    thread.start()
    out, err = io.StringIO(), io.StringIO()
    found = horovod.spark.run_elastic(
        counts,
        (str(folder), str(enough)),
        num_proc=2,
        min_num_proc=1,
        max_num_proc=2,
        stdout=out,
        stderr=err,
    )
    thread.join()
    assert not troubles, (troubles, err.getvalue())
    assert [(rank, size) for rank, size, *_ in found] == [(0, 2), (1, 2)], found
    assert all(difference == 0 for _, _, difference, _, _ in found) and found[0][3] == found[1][3] > 0
    assert "in a world of 1" in out.getvalue() and "has ended (killed by SIGKILL)" in err.getvalue()
    assert "horovodrun" not in err.getvalue(), err.getvalue()
    wait_until(lambda: not any(alive(pid) for *_, pid in found), "the ranks end")


def check_elastic_mistakes_and_limits(spark):
    def fails():
        import hvd_core as hvd

        hvd.init()
        raise ValueError("bad data in file 17")

    def dies(folder):
        import os
        import signal

        from horovod.common.exports import init

        init()
        os.kill(os.getpid(), signal.SIGKILL)

    err = io.StringIO()
    error = raised(RuntimeError, horovod.spark.run_elastic, fails, num_proc=1, stderr=err)
    assert str(error).endswith("ValueError: bad data in file 17"), error
    assert str(error).startswith("process 0 on host ") and isinstance(error.__cause__, ValueError)
    error = raised(RuntimeError, horovod.spark.run_elastic, dies, ("x",), num_proc=1, stderr=err)
    assert "killed by SIGKILL" in str(error), error
    error = raised(RuntimeError, horovod.spark.run_elastic, fails, num_proc=3, start_timeout=1)
    assert "3 processes were asked for" in str(error), error
    for options in ({"num_proc": 2, "min_num_proc": 3}, {"max_num_proc": 0}, {"reset_limit": -1}):
        raised(ValueError, horovod.spark.run_elastic, fails, **options)


def check_an_interrupt_ends_an_elastic_job(spark):
    folder = new_folder("elastic_interrupted")
    before, pids = signal.signal(signal.SIGINT, signal.default_int_handler), []

    def interrupt():
        pids.extend(members(folder, 2, 2))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    arguments = (str(folder), str(folder / "never"))
    try:
        raised(KeyboardInterrupt, horovod.spark.run_elastic, counts, arguments, num_proc=2)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    wait_until(lambda: not any(map(alive, pids)), "the ranks end")
    assert horovod.spark.run(os.getpid, num_proc=2), "the slots are free again"


def check_cancel_ends_an_elastic_job(spark):
    folder = new_folder("elastic_cancelled")
    context, errors = spark.sparkContext, []

    def job():
        context.setJobGroup("of an elastic user", "an elastic job of Horovod")
        try:
            horovod.spark.run_elastic(
                counts, (str(folder), str(folder / "never")), num_proc=2, stderr=io.StringIO()
            )
        except Exception as error:
            errors.append(error)

    from pyspark import InheritableThread

    thread = InheritableThread(target=job)
    thread.start()
    pids = members(folder, 2, 2)
    context.cancelJobGroup("of an elastic user")
    thread.join(LONG_S)
    assert errors and "cancelled" in str(errors[0]), errors
    wait_until(lambda: not any(map(alive, pids)), "the ranks end")
