"""Keras with a warm-up and a schedule of the rate, with the steps of Horovod's larger Keras examples, another data set
and fewer epochs."""

import os

import keras
from handwritten import load_data

import horovod.keras as hvd

BASE_LR = 1.0
EPOCHS, WARMUP_EPOCHS, BATCH_SIZE = 5, 2, 64
CHECKPOINT = "./checkpoint-{epoch}.h5"

hvd.init()

# Continue from the last checkpoint, which rank 0 knows
resume_from_epoch = 0
for try_epoch in range(EPOCHS, 0, -1):
    if os.path.exists(CHECKPOINT.format(epoch=try_epoch)):
        resume_from_epoch = try_epoch
        break
resume_from_epoch = int(hvd.broadcast(resume_from_epoch, 0, name="resume_from_epoch"))
verbose = 1 if hvd.rank() == 0 else 0

(x_train, y_train), (x_test, y_test) = load_data()
x_train = x_train.reshape(-1, 8, 8, 1).astype("float32") / 255
x_test = x_test.reshape(-1, 8, 8, 1).astype("float32") / 255
y_train = keras.utils.to_categorical(y_train, 10)
y_test = keras.utils.to_categorical(y_test, 10)

initial_lr = BASE_LR * hvd.size()

if resume_from_epoch > 0 and hvd.rank() == 0:
    # Loads the optimizer too, as a DistributedOptimizer
    model = hvd.load_model(CHECKPOINT.format(epoch=resume_from_epoch), compression=hvd.Compression.none)
else:
    model = keras.models.Sequential()
    model.add(keras.layers.Conv2D(8, kernel_size=(3, 3), activation="relu", input_shape=(8, 8, 1)))
    model.add(keras.layers.MaxPooling2D(pool_size=(2, 2)))
    model.add(keras.layers.Dropout(0.25))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(64, activation="relu"))
    model.add(keras.layers.Dense(10, activation="softmax"))

    opt = keras.optimizers.Adadelta(initial_lr)
    opt = hvd.DistributedOptimizer(opt, compression=hvd.Compression.none)
    model.compile(
        loss=keras.losses.categorical_crossentropy,
        optimizer=opt,
        metrics=["accuracy"],
        experimental_run_tf_function=False,
        jit_compile=False,  # the program of tf2_keras_tutorial.py is compiled by XLA, which takes long
    )

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(
        initial_lr=initial_lr, warmup_epochs=WARMUP_EPOCHS, verbose=verbose
    ),
    # After the warm-up. A number is a factor for each further epoch; a function returns the whole factor
    hvd.callbacks.LearningRateScheduleCallback(
        initial_lr=initial_lr, multiplier=1e-1, start_epoch=WARMUP_EPOCHS, end_epoch=4
    ),
    hvd.callbacks.LearningRateScheduleCallback(
        initial_lr=initial_lr, multiplier=lambda epoch: 1e-2, start_epoch=4
    ),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(CHECKPOINT))

history = model.fit(
    x_train,
    y_train,
    batch_size=BATCH_SIZE,
    callbacks=callbacks,
    epochs=EPOCHS,
    initial_epoch=resume_from_epoch,
    verbose=verbose,
    validation_data=(x_test, y_test),
)

# Averaged over the processes
score = hvd.allreduce(model.evaluate(x_test, y_test, verbose=0))
if verbose:
    print("Test loss:", score[0])
    print("Test accuracy:", score[1])
