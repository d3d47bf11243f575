"""Loads a model that was saved by Keras in a process that cannot import horovod, and prints the sum of its outputs.

python load_without_horovod.py FILE
"""

import sys

import numpy as np

assert "horovod" not in sys.modules
sys.modules["horovod"] = sys.modules["hvd_core"] = None

import keras  # noqa: E402

output = keras.models.load_model(sys.argv[1])(np.ones((1, 6)))
print(
    float(np.asarray(keras.ops.convert_to_numpy(output) if hasattr(keras, "ops") else output.numpy()).sum())
)
