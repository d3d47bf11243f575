"""import_leaves_keras_alone.py MODULE: whether the import of horovod.keras or horovod.tensorflow.keras changes Keras."""

import importlib
import sys


def methods(keras):
    """What Horovod changes in Keras, in the classes that define it."""
    owners = (keras.Model, keras.optimizers.Optimizer)
    return [dict(vars(cls)) for owner in owners for cls in owner.__mro__ if cls is not object]


def main(name):
    if name == "horovod.keras":
        import keras
    else:
        from tensorflow import keras
    before = methods(keras)
    hvd = importlib.import_module(name)
    assert methods(keras) == before, "the import has changed Keras"
    hvd.init()
    assert (methods(keras) == before) == keras.__version__.startswith("2.")


if __name__ == "__main__":
    main(sys.argv[1])
