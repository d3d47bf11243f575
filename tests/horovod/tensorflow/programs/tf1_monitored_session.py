"""TensorFlow 1 with a monitored session, with the steps of Horovod's page on TensorFlow and another data set.
TensorFlow 2
requires one change: the import of tensorflow."""

import numpy as np
import tensorflow.compat.v1 as tf
from handwritten import load_data

import horovod.tensorflow as hvd

tf.disable_v2_behavior()


def layer(inputs, units, name):
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [inputs.shape[1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(inputs, weights) + bias


def training_batches(images, labels, batch_size):
    while True:
        order = np.random.permutation(len(images))
        for i in range(0, len(order) - batch_size + 1, batch_size):
            yield images[order[i : i + batch_size]], labels[order[i : i + batch_size]]


hvd.init()

# Pin a GPU to the process
config = tf.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = str(hvd.local_rank())

(x_train, y_train), _ = load_data()
x_train = np.reshape(x_train, (-1, 64)).astype(np.float32) / 255.0

with tf.name_scope("input"):
    image = tf.placeholder(tf.float32, [None, 64], name="image")
    label = tf.placeholder(tf.float32, [None], name="label")
logits = layer(tf.nn.relu(layer(image, 128, "hidden")), 10, "out")
loss = tf.losses.softmax_cross_entropy(tf.one_hot(tf.cast(label, tf.int32), 10), logits)

# Scale the rate, wrap the optimizer
opt = tf.train.AdagradOptimizer(0.01 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
global_step = tf.train.get_or_create_global_step()
train_op = opt.minimize(loss, global_step=global_step)

hooks = [
    hvd.BroadcastGlobalVariablesHook(0),
    tf.train.StopAtStepHook(last_step=500 // hvd.size()),
    tf.train.LoggingTensorHook(tensors={"step": global_step, "loss": loss}, every_n_iter=100),
]

# Checkpoints on rank 0 only, so that other ranks do not corrupt them
checkpoint_dir = "./checkpoints" if hvd.rank() == 0 else None
batches = training_batches(x_train, y_train, batch_size=100)

with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks, config=config) as mon_sess:
    while not mon_sess.should_stop():
        image_, label_ = next(batches)
        mon_sess.run(train_op, feed_dict={image: image_, label: label_})
