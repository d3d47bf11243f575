"""Trains a classifier of handwritten digits in the style of TensorFlow 1, in several processes:
horovodrun -np 2 python tensorflow1_many.py"""

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd

tf.disable_v2_behavior()
hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
train_images, train_labels = images[:1400][hvd.rank() :: hvd.size()], labels[:1400][hvd.rank() :: hvd.size()]
order = np.random.default_rng(1 + hvd.rank())

inputs = tf.placeholder(tf.float32, [None, 64])
targets = tf.placeholder(tf.int64, [None])
hidden = tf.nn.relu(tf.matmul(inputs, tf.get_variable("w1", [64, 64])) + tf.get_variable("b1", [64]))
logits = tf.matmul(hidden, tf.get_variable("w2", [64, 10])) + tf.get_variable("b2", [10])
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits))
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), targets), tf.float32))
optimizer = hvd.DistributedOptimizer(tf.train.MomentumOptimizer(0.05 * hvd.size(), 0.9))
step = tf.train.get_or_create_global_step()
train = optimizer.minimize(loss, global_step=step)

hooks = [hvd.BroadcastGlobalVariablesHook(0)]
folder = "checkpoints" if hvd.rank() == 0 else None
with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, config=config) as session:
    for _ in range(440 // hvd.size()):
        chosen = order.choice(len(train_images), 32)
        session.run(train, {inputs: train_images[chosen], targets: train_labels[chosen]})
    right = session.run(accuracy, {inputs: images[1400:], targets: labels[1400:]})
    if hvd.rank() == 0:
        print(f"test accuracy {100 * right:.2f} %")
