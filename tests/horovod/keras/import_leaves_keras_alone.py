"""import_leaves_keras_alone.py MODULE: whether the import of a module of ours changes Keras or TensorFlow, and whether a
training loads another framework.

It compares the attributes of their modules, and of the classes in these.
"""

import importlib
import sys
from types import ModuleType

import numpy as np

PACKAGES = ("keras", "tf_keras", "tensorflow")
# Python makes these when they are first asked for.
MADE_BY_PYTHON = ("__annotations__", "__abstractmethods__", "_abc_impl", "__static_attributes__")


def attributes() -> dict[tuple[str, ...], object]:
    """The attributes of the modules and of the classes defined in them, but for submodules, which an import may add."""
    found: dict[tuple[str, ...], object] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in PACKAGES or not isinstance(module, ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            found[name, attribute] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {(name, attribute, member): v for member, v in vars(value).items()}
    return {
        key: value
        for key, value in found.items()
        if key[-1] not in MADE_BY_PYTHON and not isinstance(value, ModuleType)
    }


def difference(before: dict[tuple[str, ...], object]) -> list[str]:
    """The attributes of modules that were there before which are other ones now, are gone, or are new."""
    after = attributes()
    modules = {key[0] for key in before}
    changed = [key for key, value in before.items() if after.get(key) is not value]
    new = [key for key in after if key[0] in modules and key not in before]
    return [".".join(key) for key in changed + new]


def methods(keras):
    """What init() changes in Keras, in the classes that define it."""
    owners = (keras.Model, keras.optimizers.Optimizer)
    return [dict(vars(cls)) for owner in owners for cls in owner.__mro__ if cls is not object]


def main(name):
    if name == "horovod.keras":
        import keras
    else:
        from tensorflow import keras
    keras.Model, keras.optimizers.Optimizer, keras.callbacks.Callback, keras.version  # noqa: B018 (tf.keras loads them now)
    before, methods_before = attributes(), methods(keras)
    assert len(before) > 10000, len(before)
    hvd = importlib.import_module(name)
    found = difference(before)
    assert not found, f"the import has changed {len(found)} attributes: {found[:10]}"
    hvd.init()
    patches = name != "horovod.tensorflow" and not keras.__version__.startswith("2.")
    assert (methods(keras) != methods_before) == patches
    if name == "horovod.keras":
        train(keras, hvd)
        backend = keras.backend.backend()
        loaded = {
            other for other in ("torch", "tensorflow", "jax", "mxnet") if f"horovod.{other}" in sys.modules
        }
        assert loaded == {backend}, loaded
        # Keras imports JAX itself where it is installed, and TensorFlow when it saves a model.
        assert backend == "tensorflow" or "tensorflow" not in sys.modules


def train(keras, hvd):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.train_on_batch(np.ones((3, 2)), np.ones((3, 1)))


if __name__ == "__main__":
    main(sys.argv[1])
