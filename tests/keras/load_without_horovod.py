"""Loads a model that was saved by Keras in a process that cannot import horovod, and prints the sum of its outputs.

python load_without_horovod.py FILE
"""

import sys

import numpy as np

# `import torch`, which Keras may have done, has told PyTorch the name "hvd" (horovod/torch_backend.py) and nothing more.
loaded = {name for name in sys.modules if name.partition(".")[0] in ("horovod", "hvd_core")}
assert loaded <= {"horovod", "horovod._compat", "horovod.runner", "horovod.torch_backend"}, loaded
sys.modules.update(dict.fromkeys([*loaded, "horovod", "hvd_core"]))

import keras  # noqa: E402

output = keras.models.load_model(sys.argv[1])(np.ones((1, 6)))
print(
    float(np.asarray(keras.ops.convert_to_numpy(output) if hasattr(keras, "ops") else output.numpy()).sum())
)
