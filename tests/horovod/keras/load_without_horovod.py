"""Loads a model that was saved by Keras in a process that cannot import horovod, and prints the sum of its outputs.

python load_without_horovod.py FILE
"""

import os
import sys

import numpy as np

sys.modules.update(dict.fromkeys(["horovod", "hvd_core"]))
# Else `import torch` loads what the installed package offers it.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import keras  # noqa: E402

output = keras.models.load_model(sys.argv[1])(np.ones((1, 6)))
print(
    float(np.asarray(keras.ops.convert_to_numpy(output) if hasattr(keras, "ops") else output.numpy()).sum())
)
