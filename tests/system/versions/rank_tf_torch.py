"""A rank with TensorFlow and PyTorch in one process. Started by test_tf_torch_one_process.py. Rank 0
imports TensorFlow first, rank 1 PyTorch. Prints "all well" when every check has passed."""

import contextlib
import importlib
import os
import sys
import threading
import time
from pathlib import Path

assert "tensorflow" not in sys.modules and "torch" not in sys.modules
FACES = ["horovod.tensorflow", "horovod.torch"]
for face in FACES if os.environ["HOROVOD_RANK"] == "0" else reversed(FACES):
    importlib.import_module(face)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import torch  # noqa: E402

import horovod.tensorflow as hvd_tf  # noqa: E402
import horovod.torch as hvd_torch  # noqa: E402

ROUNDS = 40


def values(rank, seed, count=33):
    """The contribution of `rank`, float32 (count,)."""
    return ((np.arange(count) * 7 + rank * 11 + seed) % 13 - 6).astype(np.float32)


def total(seed, count=33):
    return sum(values(rank, seed, count).astype(np.float64) for rank in range(hvd_tf.size()))


def same(found, wanted, what):
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=0, atol=1e-6, err_msg=what)


def engine_threads():
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found += (task / "comm").read_text().strip() == "hvd-engine"
    return found


def check_one_engine():
    """A job that one framework has started is there for the other."""
    hvd_tf.init()
    hvd_torch.init()
    assert hvd_tf.is_initialized() and hvd_torch.is_initialized()
    assert (hvd_tf.rank(), hvd_tf.size()) == (hvd_torch.rank(), hvd_torch.size())
    assert hvd_tf.size() == int(os.environ["HOROVOD_SIZE"]) == 2
    assert engine_threads() == 1, f"{engine_threads()} engines in this process"


def check_one_rank_from_torch_the_other_from_tensorflow():
    """An operation that rank 0 calls with a tensor of PyTorch and rank 1 with a tensor of TensorFlow."""
    mine = values(hvd_tf.rank(), 1)
    if hvd_tf.rank() == 0:
        found = hvd_torch.allreduce(torch.from_numpy(mine), op=hvd_torch.Sum, name="mixed").numpy()
        rows = hvd_torch.allgather(torch.from_numpy(mine[:2]), name="mixed.rows").numpy()
    else:
        found = hvd_tf.allreduce(tf.constant(mine), op=hvd_tf.Sum, name="mixed").numpy()
        rows = hvd_tf.allgather(tf.constant(mine[:2]), name="mixed.rows").numpy()
    same(found, total(1), "mixed")
    same(rows, np.concatenate([values(rank, 1)[:2] for rank in range(2)]), "mixed rows")


def check_interleaved():
    """Eager operations and a compiled function of TensorFlow while handles of torch are pending."""

    @tf.function
    def graph(x, y):
        return hvd_tf.allreduce(x, op=hvd_tf.Sum, name="graph.x"), hvd_tf.broadcast(y, 1, name="graph.y")

    def tensorflow_part(i):
        mine = tf.constant(values(hvd_tf.rank(), i + 2))
        same(hvd_tf.allreduce(mine, op=hvd_tf.Sum, name="eager"), total(i + 2), "eager")
        summed, sent = graph(mine, mine)
        same(summed, total(i + 2), "graph")
        same(sent, values(1, i + 2), "graph, broadcast")

    def torch_part(i):
        mine = torch.from_numpy(values(hvd_torch.rank(), i + 3))
        same(hvd_torch.allreduce(mine, op=hvd_torch.Sum, name="torch.sync"), total(i + 3), "torch")

    for i in range(ROUNDS):
        mine = [torch.from_numpy(values(hvd_torch.rank(), i + k)) for k in range(4)]
        handles = [
            hvd_torch.allreduce_async(x, op=hvd_torch.Sum, name=f"torch.{k}") for k, x in enumerate(mine)
        ]
        # These calls block, so all ranks make them in the same order.
        tensorflow_part(i)
        torch_part(i)
        for k in range(4) if hvd_torch.rank() == 0 else reversed(range(4)):
            same(hvd_torch.synchronize(handles[k]), total(i + k), f"torch.{k}")


def check_threads():
    """Each framework in a thread of its own, so the order of operations differs between ranks."""
    errors = []

    def tensorflow_thread():
        try:
            for i in range(ROUNDS):
                mine = tf.constant(values(hvd_tf.rank(), i))
                same(hvd_tf.allreduce(mine, op=hvd_tf.Sum, name="thread.tf"), total(i), "thread, TensorFlow")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=tensorflow_thread)
    thread.start()
    for i in range(ROUNDS):
        mine = torch.from_numpy(values(hvd_torch.rank(), i + 1))
        same(hvd_torch.allreduce(mine, op=hvd_torch.Sum, name="thread.torch"), total(i + 1), "thread, torch")
    thread.join()
    assert not errors, errors


def check_process_set_of_one_in_the_other():
    alone = hvd_torch.add_process_set([1])
    assert alone.process_set_id != 0
    if alone.included():
        mine = values(1, 5)
        same(
            hvd_tf.allreduce(tf.constant(mine), op=hvd_tf.Sum, name="set", process_set=alone),
            mine,
            "set, TensorFlow",
        )
        same(
            hvd_torch.allreduce(torch.from_numpy(mine), op=hvd_torch.Sum, name="set", process_set=alone),
            mine,
            "set, torch",
        )
    assert hvd_tf.remove_process_set(alone)


def check_training_of_both():
    """A linear model in each framework: the averaged gradients of both equal those of NumPy in each step."""
    weights = tf.Variable(np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2))
    linear = torch.nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weights.numpy().T))
    optimizer = hvd_torch.DistributedOptimizer(
        torch.optim.SGD(linear.parameters(), lr=0.1), named_parameters=linear.named_parameters()
    )
    hvd_torch.broadcast_parameters(linear.state_dict(), root_rank=0)
    hvd_tf.broadcast_variables([weights], root_rank=0)
    wanted = weights.numpy().astype(np.float64)
    inputs = [values(rank, 0, 12).reshape(4, 3) / 6 for rank in range(2)]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(x, weights) - 1.0) ** 2)
        tape = hvd_tf.DistributedGradientTape(tape)
        (gradient,) = tape.gradient(loss, [weights])
        weights.assign_sub(0.1 * gradient)

    for _ in range(5):
        optimizer.zero_grad()
        ((linear(torch.from_numpy(inputs[hvd_torch.rank()])) - 1.0) ** 2).mean().backward()
        step(tf.constant(inputs[hvd_tf.rank()]))  # while the gradients of PyTorch are being reduced
        optimizer.step()
        gradients = [x.T.astype(np.float64) @ (2 * (x @ wanted - 1.0) / 8) for x in inputs]
        wanted -= 0.1 * (gradients[0] + gradients[1]) / 2
    np.testing.assert_allclose(weights.numpy(), wanted, atol=1e-5, err_msg="TensorFlow")
    np.testing.assert_allclose(linear.weight.detach().numpy().T, wanted, atol=1e-5, err_msg="torch")


def check_one_shutdown_ends_both():
    hvd_tf.shutdown()
    assert not hvd_tf.is_initialized() and not hvd_torch.is_initialized()
    end = time.monotonic() + 20  # a thread that has been joined may still be listed
    while engine_threads() > 0:
        assert time.monotonic() < end
        time.sleep(0.001)
    for call in (
        lambda: hvd_torch.allreduce(torch.ones(2), name="late"),
        lambda: hvd_tf.allreduce(tf.ones(2), name="late"),
    ):
        try:
            call()
        except Exception as error:
            assert "initialized" in str(error), error
        else:
            raise AssertionError("an operation after shutdown() has not failed")
    # A second job, started by the other framework.
    hvd_torch.init()
    assert hvd_tf.is_initialized()
    check_one_rank_from_torch_the_other_from_tensorflow()
    hvd_torch.shutdown()
    assert not hvd_tf.is_initialized()


def main():
    torch.set_num_threads(1)
    check_one_engine()
    check_one_rank_from_torch_the_other_from_tensorflow()
    check_interleaved()
    check_threads()
    check_process_set_of_one_in_the_other()
    check_training_of_both()
    check_one_shutdown_ends_both()
    print("all well", flush=True)


if __name__ == "__main__":
    main()
