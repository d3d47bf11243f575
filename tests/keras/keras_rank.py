"""What the ranks of test_keras_ranks.py execute: a check for one kind of Keras.

Kinds: "tensorflow" and "torch" are horovod.keras with that backend, "tf.keras" is horovod.tensorflow.keras.
"""

import importlib
import os
import sys

from harness.framework_rank import end_together


def call_check(kind, module, name):
    """Calls a check of a module of this folder, and waits until all ranks are through with it. The engine is running."""
    support = sys.modules.get("keras_support")
    if support is not None and kind != support.KIND:  # a process with TensorFlow serves two kinds
        for known in list(sys.modules):
            if known == "keras_support" or known.startswith("ranks_keras_"):
                del sys.modules[known]
    if kind == "torch":  # Keras imports TensorFlow when it saves a model, if there is one
        sys.modules.setdefault("tensorflow", None)
    os.environ["HVD_TEST_KERAS_KIND"] = kind
    support = importlib.import_module("keras_support")
    with support.in_float64():
        getattr(importlib.import_module(module), name)()
    end_together()
