"""All changes that Horovod makes to Keras itself, each once per process. Importing Horovod changes nothing.

By the init() of horovod.keras and horovod.tensorflow.keras, or by the first DistributedOptimizer, in Keras 3:

- ``Model.compile`` accepts the argument `experimental_run_tf_function`, and ignores it with a warning. Scripts for
  Horovod pass it, and Keras 3 would refuse it.
- ``Optimizer.variables`` returns a list that can also be called, on TensorFlow: scripts for Horovod call
  ``hvd.broadcast_variables(opt.variables(), root_rank=0)``, as it was a method in Keras 2. The first
  DistributedGradientTape makes this change too.

By the first DistributedOptimizer:

- Keras 3: ``LossScaleOptimizer.apply`` with a distributed inner optimizer reduces gradients before it checks whether they
  are finite (see keras3_optimizer.apply_scaled). Other optimizers are treated as before.
- Keras 2: ``LossScaleOptimizer`` lets a distributed inner optimizer know that it scales losses, and reduces all gradients
  before it checks them.
- Saved models name the wrapped class instead of the class of the distributed optimizer, so that programs without Horovod
  can read them.
"""

import functools
import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from horovod._keras.backends import major_version
from horovod._keras.gradients import CallableList, Distributed

Method = Callable[..., Any]


def accept_older_calls(keras: ModuleType) -> None:
    """Let programs call Keras 3 as they called Keras 2 with Horovod."""
    tolerate_run_tf_function(keras)
    let_variables_be_called(keras)


def tolerate_run_tf_function(keras: ModuleType) -> None:
    """Let ``Model.compile`` accept `experimental_run_tf_function`. Changes nothing in Keras 2, which accepts it."""
    if major_version(keras) < 3:
        return
    # The class that defines compile(): Keras compares with it to see whether a model overrides compile().
    owner = next(cls for cls in keras.Model.__mro__ if "compile" in vars(cls))

    def patched(original: Method) -> Method:
        def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
            if "experimental_run_tf_function" in kwargs:
                kwargs.pop("experimental_run_tf_function")
                warnings.warn(
                    "compile() of Keras 3 has no argument experimental_run_tf_function. Horovod does not need it any "
                    "more; it is ignored. Leave it out.",
                    stacklevel=2,
                )
            return original(self, *args, **kwargs)

        return compile

    _patch(owner, "compile", patched)


class _CallableVariables(property):
    """The property `variables` of Keras 3, whose list can also be called."""


def let_variables_be_called(keras: ModuleType) -> None:
    """Let ``optimizer.variables`` of Keras 3 on TensorFlow be called as well, as it was a method in Keras 2.

    Changes nothing for Keras 2, where it is a method, and for other backends of Keras: programs that call it were
    written for TensorFlow.
    """
    if major_version(keras) < 3 or keras.backend.backend() != "tensorflow":
        return
    owner = next(cls for cls in keras.optimizers.Optimizer.__mro__ if "variables" in vars(cls))
    original = vars(owner)["variables"]
    if not isinstance(original, _CallableVariables):
        owner.variables = _CallableVariables(
            lambda self: CallableList(original.fget(self)), doc=original.__doc__
        )


def reduce_before_loss_scaling(keras: ModuleType) -> None:
    """Let ``LossScaleOptimizer`` get reduced gradients if its inner optimizer is distributed. For Keras 3."""
    from horovod._keras.keras3_optimizer import apply_scaled

    def patched(original: Method) -> Method:
        def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
            inner = self.inner_optimizer
            if isinstance(inner, Distributed) and not inner._hvd.reduced:
                return apply_scaled(original, self, grads, trainable_variables)
            return original(self, grads, trainable_variables)

        return apply

    _patch(keras.optimizers.LossScaleOptimizer, "apply", patched)


def report_loss_scaling(keras: ModuleType) -> None:
    """Let a distributed optimizer know that a ``LossScaleOptimizer`` is around it (see gradients.py), and reduce all
    gradients before the LossScaleOptimizer removes those that are None. For Keras 2."""
    public = keras.mixed_precision.LossScaleOptimizer
    for cls in {public, *public.__subclasses__()}:
        for name, patched in (("__init__", _init_that_reports), ("apply_gradients", _apply_that_reduces)):
            if name in vars(cls):
                _patch(cls, name, patched)


def _init_that_reports(original: Method) -> Method:
    """`original` (__init__), after which a distributed inner optimizer knows that losses are scaled."""

    def __init__(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(self, inner_optimizer, *args, **kwargs)
        if isinstance(inner_optimizer, Distributed):
            inner_optimizer._hvd.reducer.spread_overflow = True

    return __init__


def _apply_that_reduces(original: Method) -> Method:
    """`original` (apply_gradients) with gradients that a distributed inner optimizer has reduced."""

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
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
            inner._hvd.aggregated = False  # also after a step that was skipped

    return apply_gradients


def _patch(owner: type, name: str, patched: Callable[[Method], Method]) -> None:
    """Replace a method of `owner` by ``patched(method)``, once per process."""
    original = getattr(owner, name)
    if not hasattr(original, "_hvd_original"):
        replacement: Any = functools.wraps(original)(patched(original))
        replacement._hvd_original = original
        setattr(owner, name, replacement)


def save_as(keras: ModuleType, cls: type, base: type) -> None:
    """Let Keras save instances of `cls` as instances of `base`. Changes nothing if this Keras does not have the tables
    that this function knows: files then name `horovod._keras`, and hvd.load_model() reads them."""
    if major_version(keras) < 3:
        for attribute in ("_keras_api_names", "_keras_api_names_v1"):
            if attribute in vars(base):
                setattr(cls, attribute, vars(base)[attribute])
        return
    names = _table("keras.src.api_export", "REGISTERED_OBJS_TO_NAMES")
    # On PyTorch the class of an optimizer is a private one that derives from the public class.
    public = next((names[c] for c in base.__mro__ if c in names and c.__name__ == base.__name__), None)
    if public is not None:
        names[cls] = public
        return
    registered = _table("keras.src.saving.object_registration", "GLOBAL_CUSTOM_NAMES")
    if base in registered:
        registered[cls] = registered[base]


def _table(module: str, name: str) -> dict[Any, str]:
    try:
        table: dict[Any, str] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return {}
    return table
