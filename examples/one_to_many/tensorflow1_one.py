"""Trains a classifier of handwritten digits in the style of TensorFlow 1, in one process: python tensorflow1_one.py"""

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

tf.disable_v2_behavior()
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
train_images, train_labels = images[:1400], labels[:1400]
order = np.random.default_rng(1)

inputs = tf.placeholder(tf.float32, [None, 64])
targets = tf.placeholder(tf.int64, [None])
hidden = tf.nn.relu(tf.matmul(inputs, tf.get_variable("w1", [64, 64])) + tf.get_variable("b1", [64]))
logits = tf.matmul(hidden, tf.get_variable("w2", [64, 10])) + tf.get_variable("b2", [10])
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits))
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), targets), tf.float32))
optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
step = tf.train.get_or_create_global_step()
train = optimizer.minimize(loss, global_step=step)

with tf.train.MonitoredTrainingSession(checkpoint_dir="checkpoints") as session:
    for _ in range(440):
        chosen = order.choice(len(train_images), 32)
        session.run(train, {inputs: train_images[chosen], targets: train_labels[chosen]})
    right = session.run(accuracy, {inputs: images[1400:], targets: labels[1400:]})
    print(f"test accuracy {100 * right:.2f} %")
