"""Trains a classifier of handwritten digits with Keras and tf.data, in one process: python keras_one.py"""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
train_set = tf.data.Dataset.from_tensor_slices((images[:1400], labels[:1400]))
train_set = train_set.shuffle(1400).batch(32)

model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
model.compile(
    optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
callbacks = [keras.callbacks.ModelCheckpoint("digits.keras")]
model.fit(train_set, epochs=10, callbacks=callbacks, verbose=2)

accuracy = model.evaluate(images[1400:], labels[1400:], verbose=0)[1]
print(f"test accuracy {100 * accuracy:.2f} %")
