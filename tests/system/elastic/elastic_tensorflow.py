"""Programs of elastic jobs on TensorFlow: functions that were traced before a change of the ranks work after it."""

import numpy as np
import tensorflow as tf

import elastic_programs
import horovod.tensorflow as hvd


def functions():
    """Steps in compiled functions, traced once by each process, whose results depend on the number of ranks."""
    hvd.init()
    weights = tf.Variable(tf.zeros([50]))
    table = tf.Variable(tf.zeros([4, 3]))
    state = hvd.elastic.TensorFlowState([weights, table], steps=0)
    hvd_rank = tf.Variable(0)
    traced = []

    @tf.function
    def step(share):
        traced.append(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * share) + tf.reduce_sum(tf.gather(table, [1, 1, 2]))
        tape = hvd.DistributedGradientTape(tape)
        of_weights, rows = tape.gradient(loss, [weights, table])
        weights.assign_sub(of_weights)
        table.scatter_sub(rows)
        summed = hvd.allreduce(tf.ones([]), op=hvd.Sum, name="ones")
        rank = tf.reshape(hvd.rank_op(), [1])
        return summed, hvd.size_op(), hvd.allgather(rank, name="ranks")

    @tf.function(jit_compile=True)
    def compiled(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x * tf.cast(hvd_rank, tf.float32))
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [x])[0]

    @hvd.elastic.run
    def train(state):
        steps = elastic_programs.Steps()
        while steps.go_on():
            summed, size, ranks = step(tf.constant(1.0))
            assert int(summed) == int(size) == hvd.size() and ranks.numpy().tolist() == list(
                range(hvd.size())
            )
            hvd_rank.assign(hvd.rank() + 1)
            assert compiled(tf.zeros([3])).numpy().tolist() == [sum(range(hvd.size() + 1))] * 3
            state.steps += 1
            state.commit()
        return state.steps

    steps = train(state)
    elastic_programs.close(weights.numpy(), np.full(50, -steps))
    elastic_programs.close(table.numpy(), np.outer([0, -2 * steps, -steps, 0], np.ones(3)))
    assert len(traced) == 1, "a function was traced again"
    elastic_programs.done(steps, hvd.rank(), hvd.size())


if __name__ == "__main__":
    elastic_programs.main(globals())
