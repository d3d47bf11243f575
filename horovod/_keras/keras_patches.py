"""The places where Keras itself is changed, each once per process, and nothing but what is said here. In Keras 3:

- ``Model.compile`` takes, and ignores with a warning, the argument `experimental_run_tf_function`, which scripts for
  Horovod pass and Keras 3 would refuse. From the import of horovod.keras or horovod.tensorflow.keras on.
- ``Optimizer.variables`` gives a list that can also be called, on TensorFlow: scripts for Horovod say
  ``hvd.broadcast_variables(opt.variables(), root_rank=0)``, as it was a method in Keras 2. From the same imports on,
  or from the first DistributedGradientTape.
- ``LossScaleOptimizer.apply`` has gradients reduced before it asks whether they are finite, if its inner optimizer is
  distributed (see keras3_optimizer.apply_scaled). From the first DistributedOptimizer on. All others it treats as before.

In Keras 2:

- ``LossScaleOptimizer`` tells a distributed inner optimizer that it is one, and has all gradients reduced before it
  looks at them. From the first DistributedOptimizer on.
"""

import functools
import warnings
from types import ModuleType
from typing import Any

from horovod._keras.backends import major_version, the_keras
from horovod._keras.distributed import Distributed


def tolerate_run_tf_function(keras: ModuleType) -> None:
    """Let ``Model.compile`` take `experimental_run_tf_function`. Nothing for Keras 2, which takes it by itself."""
    if major_version(keras) < 3:
        return
    # The class that defines compile(): Keras asks whether a model has one of its own by comparing with that.
    owner = next(cls for cls in the_keras(keras).Model.__mro__ if "compile" in vars(cls))
    original = owner.compile
    if hasattr(original, "_hvd_original"):
        return

    @functools.wraps(original)
    def compile(self, *args, **kwargs):
        if "experimental_run_tf_function" in kwargs:
            kwargs.pop("experimental_run_tf_function")
            warnings.warn(
                "Keras 3 has no argument experimental_run_tf_function of compile(). Horovod does not need it any more; "
                "it is ignored.",
                stacklevel=2,
            )
        return original(self, *args, **kwargs)

    compile._hvd_original = original
    owner.compile = compile


class _Variables(list):
    """A list that gives itself when it is called."""

    def __call__(self) -> list:
        return self


class _CallableVariables(property):
    """The property of Keras, with such a list."""


def let_variables_be_called(keras: ModuleType) -> None:
    """Let ``optimizer.variables`` be called as well. Nothing for Keras 2, where it can be, and other backends than
    TensorFlow, which no such script was written for."""
    if major_version(keras) < 3 or the_keras(keras).backend.backend() != "tensorflow":
        return
    owner = next(cls for cls in the_keras(keras).optimizers.Optimizer.__mro__ if "variables" in vars(cls))
    original = vars(owner)["variables"]
    if not isinstance(original, _CallableVariables):
        owner.variables = _CallableVariables(
            lambda self: _Variables(original.fget(self)), doc=original.__doc__
        )


def reduce_before_loss_scaling(keras: ModuleType) -> None:
    """Let ``LossScaleOptimizer`` see reduced gradients when its inner optimizer is distributed. For Keras 3."""
    from horovod._keras.keras3_optimizer import apply_scaled

    scaler = keras.optimizers.LossScaleOptimizer
    original = scaler.apply
    if hasattr(original, "_hvd_original"):
        return

    @functools.wraps(original)
    def apply(self, grads, trainable_variables=None):
        inner = self.inner_optimizer
        if isinstance(inner, Distributed) and not inner._hvd.reduced:
            return apply_scaled(original, self, grads, trainable_variables)
        return original(self, grads, trainable_variables)

    apply._hvd_original = original
    scaler.apply = apply


def tell_inner_of_loss_scaling(keras: ModuleType) -> None:
    """Let a distributed optimizer know that a ``LossScaleOptimizer`` is around it (see gradients.py), and give it all
    gradients: those that are None are taken out there. For Keras 2."""
    public = keras.mixed_precision.LossScaleOptimizer
    for cls in {public, *public.__subclasses__()}:
        for name, wrapper in (("__init__", _telling), ("apply_gradients", _reducing)):
            original = vars(cls).get(name)
            if original is not None and not hasattr(original, "_hvd_original"):
                setattr(cls, name, wrapper(original))


def _telling(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self, inner_optimizer, *args, **kwargs):
        original(self, inner_optimizer, *args, **kwargs)
        if isinstance(inner_optimizer, Distributed):
            inner_optimizer._hvd.reducer.spread_overflow = True

    __init__._hvd_original = original
    return __init__


def _reducing(original: Any) -> Any:
    @functools.wraps(original)
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        inner = self.inner_optimizer
        if not isinstance(inner, Distributed):
            return original(self, grads_and_vars, *args, **kwargs)
        pairs, options = list(grads_and_vars), {"experimental_aggregate_gradients": True, **kwargs}
        try:
            if options["experimental_aggregate_gradients"] and not options.get("skip_gradients_aggregation"):
                pairs = inner._hvd_aggregated(pairs, list)
                inner._hvd.aggregated = True
            return original(self, pairs, *args, **kwargs)
        finally:
            inner._hvd.aggregated = False  # also after a step that was left out

    apply_gradients._hvd_original = original
    return apply_gradients
