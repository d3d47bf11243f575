"""The programs of the workers of elastic jobs: one function each, named on the command line. None imports a framework."""

import os
import signal
import sys
import threading
import time

import numpy as np

import hvd_core as hvd
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.exports import init, rank, shutdown, size
from horovod.common.objects import broadcast_object


def _state(**values):
    return ObjectState(lambda value: broadcast_object(value, 0, name="values"), rank, **values)


def _reset():
    shutdown()
    init()


def _note(name):
    """A file that tells the test that this process has come here."""
    with open(f"{name}.{os.getpid()}.tmp", "w") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(f"{name}.{os.getpid()}.tmp", f"{name}.{os.getpid()}")


def _any_rank(condition):
    return bool(hvd.allreduce(np.array([int(condition)]), op=hvd.Max, name="condition")[0])


def count_steps():
    """Adds 1 to a sum in each step, until the file `enough` is there. Commits after every step. An elastic job's
    process notes its number."""
    _note(f"begun.{os.environ.get('HOROVOD_ELASTIC_WORKER', '')}")
    init()
    state = _state(steps=0, total=0.0)

    @lambda function: run_fn(function, _reset)
    def train(state):
        noted = False
        while not _any_rank(os.path.exists("enough")):
            gradient = hvd.allreduce(np.full(1000, 1.0), op=hvd.Average, name="gradient")
            state.total += float(gradient[0])
            state.steps += 1
            time.sleep(0.005)
            state.commit()
            if not noted:
                noted = True
                _note(f"in.{size()}.rank{rank()}")
        assert state.total == state.steps
        return state.steps

    steps = train(state)
    print(f"rank {rank()} of {size()} is done, {'some' if steps else 'no'} steps", flush=True)


def is_stopped_in_a_step():
    """Process STOPPED is stopped by SIGSTOP when it has made some steps."""
    init()
    state = _state(steps=0)

    @lambda function: run_fn(function, _reset)
    def train(state):
        while state.steps < 20:
            if state.steps == 10 and os.environ["HOROVOD_ELASTIC_WORKER"] == os.environ["STOPPED"]:
                _note("stopped")
                os.kill(os.getpid(), signal.SIGSTOP)
            hvd.allreduce(np.ones(1), name="step")
            state.steps += 1
            state.commit()

    train(state)
    print(f"rank {rank()} of {size()} is done", flush=True)


def count_executed_steps():
    """As count_steps(). Each rank that has executed all steps of the state says so at the end."""
    init()
    state = _state(steps=0)
    executed = 0

    @lambda function: run_fn(function, _reset)
    def train(state):
        nonlocal executed
        noted = False
        while not _any_rank(os.path.exists("enough")):
            hvd.allreduce(np.ones(1), name="step")
            executed += 1
            state.steps += 1
            time.sleep(0.002)
            if not noted:
                noted = True
                _note(f"in.{size()}.rank{rank()}")
            state.commit()

    train(state)
    if executed == state.steps:
        print("all executed steps count", flush=True)


def trains_twice():
    """A short training, and one that lasts until the file `enough` is there."""
    init()
    first, second = _state(steps=0), _state(steps=0)

    @lambda function: run_fn(function, _reset)
    def train(state):
        noted = False
        while state.steps < 3 or (state is second and not _any_rank(os.path.exists("enough"))):
            hvd.allreduce(np.ones(1), name="step")
            state.steps += 1
            time.sleep(0.002)
            state.commit()
            if state is second and not noted:
                noted = True
                _note(f"in.{size()}.rank{rank()}")

    train(first)
    train(second)
    print(f"rank {rank()} of {size()} is done twice", flush=True)


def dies_in_a_phase():
    """Process VICTIM ends itself in PHASE: the first "sync", "commit" (saved, not compared), "restore" or "reset" that
    it comes to. Another process ends itself in its tenth step, so that there is something to restore. Each process checks
    that its sum has every step exactly once."""
    from hvd_core._bootstrap.driver_channel import channel

    init()
    # The processes of the first world have ranks in the order of their numbers.
    me = str(rank()) if channel().place.world == 1 else "new"
    victim, phase = os.environ["VICTIM"], os.environ["PHASE"]

    def come_to(name):
        if me == victim and name == phase:
            os.kill(os.getpid(), 9)

    class State(ObjectState):
        def sync(self):
            come_to("sync")
            super().sync()

        def check_host_updates(self):
            come_to("commit")
            super().check_host_updates()

        def restore(self):
            come_to("restore")
            super().restore()

        def on_reset(self):
            come_to("reset")
            super().on_reset()

    state = State(lambda value: broadcast_object(value, 0, name="values"), rank, steps=0, total=0.0)

    @lambda function: run_fn(function, _reset)
    def train(state):
        while state.steps < 40:
            if state.steps == 10 and me == "2":
                os.kill(os.getpid(), 9)
            state.total += float(
                hvd.allreduce(np.full(1, float(state.steps)), op=hvd.Average, name="step")[0]
            )
            state.steps += 1
            state.commit()
        return state.total

    print(f"the sum is {train(state):g}", flush=True)


def waits_for_a_place():
    """Asks the driver for a place, as init() does."""
    from hvd_core._bootstrap.driver_channel import channel

    channel().enter()


def loses_uncommitted_steps():
    """Commits once, then counts without a commit until rank 1 is killed. Prints the count of the next call."""
    init()
    state = _state(steps=0)

    @lambda function: run_fn(function, _reset)
    def train(state):
        if state.steps:
            return state.steps
        state.steps = 7
        state.commit()
        state.steps = 8
        _note(f"committed.rank{rank()}")
        while True:
            hvd.allreduce(np.zeros(1), name="step")

    print(f"goes on from {train(state)}", flush=True)


def dies_in_its_first_init():
    """The first process that gets rank 1 ends itself when it is told its place, before it is connected."""
    from hvd_core._bootstrap import world

    connect = world.connect

    def dying_connect(environ, **more):
        if environ["HOROVOD_RANK"] == "1" and environ["HOROVOD_EPOCH"] == "1":
            os.kill(os.getpid(), 9)
        return connect(environ, **more)

    world.connect = dying_connect
    init()
    print(f"one of {size()}", flush=True)


def dies_some_ms_after_its_place_is_told():
    """Rank VICTIM of the first world ends itself after AFTER_MS milliseconds. Prints how long the others then need."""
    from hvd_core._bootstrap import world
    from hvd_core._runtime import current_job

    connect = world.connect

    def die():
        with open("killed.tmp", "w") as file:
            file.write(str(time.monotonic()))
        os.rename("killed.tmp", "killed")
        os.kill(os.getpid(), 9)

    def dying_connect(environ, **more):
        if environ["HOROVOD_RANK"] == os.environ["VICTIM"] and environ["HOROVOD_EPOCH"] == "1":
            threading.Timer(float(os.environ["AFTER_MS"]) / 1000, die).start()
        return connect(environ, **more)

    world.connect = dying_connect
    init()
    state = _state(steps=0)

    @lambda function: run_fn(function, _reset)
    def train(state):
        while not _any_rank(os.path.exists("killed")):
            time.sleep(0.001)
        if current_job.world().epoch >> 20 == 1:
            while True:  # the victim is about to end
                hvd.allreduce(np.zeros(1), name="step")
        with open("killed") as file:
            return time.monotonic() - float(file.read())

    print(f"again after {train(state):.3f} s", flush=True)


def disagrees():
    """The ranks ask for different things under one name: a mistake of the program."""
    init()

    @lambda function: run_fn(function, _reset)
    def train(state):
        _note(f"called.rank{rank()}")
        hvd.allreduce(np.zeros(2 + rank()), name="mismatch")

    train(_state(steps=0))


def fails():
    init()

    @lambda function: run_fn(function, _reset)
    def train(state):
        raise ValueError("a mistake in the program")

    train(_state(steps=0))


def leaves_too_early():
    """Rank 1 ends the whole process with exit code 0, while rank 0 has steps to do."""
    init()

    @lambda function: run_fn(function, _reset)
    def train(state):
        for step in range(10):
            if step == 5 and rank() == 1:
                os._exit(0)
            hvd.allreduce(np.zeros(1), name="step")

    train(_state(steps=0))


def rank_and_size():
    init()
    return rank(), size()


def rank_0_of_the_first_world_dies(data):
    """Returns the rank, the length of `data` and the number of the world."""
    from hvd_core._bootstrap.driver_channel import channel

    init()

    @lambda function: run_fn(function, _reset)
    def train(state):
        if channel().place.world == 1:
            if rank() == 0:
                os.kill(os.getpid(), 9)
            while True:
                hvd.allreduce(np.zeros(1), name="step")
        return rank(), len(data), channel().place.world

    return train(_state(steps=0))


def rank_1_dies_while_functions_return():
    """The training is over on all ranks. One of them dies before its result is handed over."""
    init()
    me = train_ten_steps()
    if me == 1:
        os.kill(os.getpid(), 9)
    return b"x" * 1_000_000


def rank_1_dies_when_rank_0_has_returned():
    """Rank 0 does not take part in the last steps of the others."""
    init()
    if train_ten_steps() == 1:
        hvd.allreduce(np.ones(1), name="rank 0 has returned")
        os.kill(os.getpid(), 9)
    return rank()


def train_ten_steps():
    @lambda function: run_fn(function, _reset)
    def train(state):
        for _ in range(10):
            hvd.allreduce(np.ones(1), name="step")
        return rank()

    return train(_state(steps=0))


def ends_at_once():
    sys.exit(5)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
