"""What DistributedOptimizer, callbacks and the value functions need of a backend of Keras, and the choice of one.

A backend is a class beside this file: ``_torch_backend``, ``_tensorflow_backend``. One for another backend of Keras has
to bring the methods of ``Backend``, and a line in ``_CLASSES``. Choosing one imports its framework, importing this
file none.
"""

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from horovod._keras.options import Options
from horovod.common.process_sets import ProcessSet

_CLASSES = {
    "torch": ("horovod._keras._torch_backend", "TorchBackend"),
    "tensorflow": ("horovod._keras._tensorflow_backend", "TensorFlowBackend"),
}


class Backend(ABC):
    """The tensors of one framework. Methods that communicate raise what that framework's Horovod raises."""

    @abstractmethod
    def mode(self) -> str:
        """How the calling code is run: "eager", "graph" (being traced), "xla" (being traced for XLA)."""

    @abstractmethod
    def identity(self, variable: Any) -> Any:
        """The object that a variable is, whichever of its wrappers is given."""

    @abstractmethod
    def is_variable(self, value: Any) -> bool:
        """Whether this is a variable of Keras or of the framework."""

    @abstractmethod
    def described(self, variable: Any) -> tuple[str, list[int], str]:
        """Name, shape and dtype of a variable."""

    @abstractmethod
    def gradients(self, loss: Any, variables: list, grad_loss: Any, tape: Any) -> list:
        """Gradients of a loss, which may be a function; None where there is none. `tape`: what has recorded it, if any.

        Raises:
            ValueError: a tensor has come without its tape, where the framework needs one.
        """

    @abstractmethod
    def sparse_kind(self, gradient: Any) -> int:
        """agreement.SPARSE32 or SPARSE64, by the type of the indices, of a sparse gradient; 0 for others and None."""

    @abstractmethod
    def dense(self, gradient: Any) -> Any:
        """A sparse gradient as a dense one."""

    @abstractmethod
    def sparse(self, gradient: Any, kind: int) -> Any:
        """A gradient as a sparse one of a kind."""

    @abstractmethod
    def missing(self, variable: Any, kind: int) -> Any:
        """A gradient of zeros for a variable; of no rows if `kind` is a sparse one."""

    @abstractmethod
    def scaled(self, gradient: Any, factor: Any) -> Any:
        """A gradient, also a sparse one, times a number or a tensor without dimensions."""

    @abstractmethod
    def nan_unless_finite(self, gradients: list) -> Any:
        """A number: 1 if all that is in the gradients is finite, else NaN."""

    @abstractmethod
    def batches(self, indices: list[int], gradients: list, variables: list) -> list[list[int]]:
        """`indices` of dense gradients, divided into those to be reduced by one operation. Sizes are the variables'."""

    @abstractmethod
    def reduce(
        self,
        batches: list[list],
        names: list[str],
        variables: list,
        options: Options,
        presence: list[bool] | None,
    ) -> tuple[list[list], Any]:
        """Reduce batches of dense gradients, each under its name. Those that are the `variables`' own may be changed.

        `presence` travels with the first batch as ones and zeros, reduced as gradients are; what comes of it is the
        second result, for marked().
        """

    @abstractmethod
    def marked(self, presence: Any) -> list[bool]:
        """For each of the reduced marks, whether any rank has set it. Waits for it."""

    @abstractmethod
    def reduce_sparse(self, gradient: Any, name: str, options: Options) -> Any:
        """Reduce a sparse gradient: rows of all ranks one after the other, divided if it is to be an average."""

    @abstractmethod
    def poison(self, operation: str, name: str | None, text: str, process_set: ProcessSet) -> None:
        """A call of "allreduce", "allgather", "broadcast" or "reducescatter" has failed here: others' fail as well."""

    @abstractmethod
    def broadcast_variables(self, variables: Sequence, root_rank: int, name: str) -> None:
        """Give variables the values of the root's, under names that begin with `name`."""

    @abstractmethod
    def allreduce(self, value, name, op, prescale_factor, postscale_factor, compression, process_set) -> Any:
        """A value, of whatever the framework makes a tensor, reduced to a tensor."""

    @abstractmethod
    def allgather(self, value: Any, name: str | None, process_set: ProcessSet) -> Any:
        """Values of the ranks, one after the other along dimension 0."""

    @abstractmethod
    def broadcast(self, value: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        """The root's value."""

    @abstractmethod
    def reducescatter(self, value: Any, name: str | None, op: int, process_set: ProcessSet) -> Any:
        """This rank's rows of the reduced value."""

    def absent(self, variable: Any, kind: int) -> Any:
        """What a graph sends in place of a gradient that this rank has not: of a shape that fits no gradient."""
        raise NotImplementedError("there are no graphs")

    def after(self, outcomes: list, gradients: list) -> list:
        """`gradients`, which a graph does not have before `outcomes` either."""
        raise NotImplementedError("there are no graphs")

    def has_global_variables(self) -> bool:
        """Whether there is a graph with a collection of variables, as in TensorFlow 1."""
        return False

    def broadcast_global_variables(self, root_rank: int) -> None:
        """Give the variables of that graph the root's values."""
        raise NotImplementedError("there are no global variables")

    def lifted(self) -> AbstractContextManager:
        """Within it variables are made outside of the graph that is being traced."""
        return nullcontext()

    def untouched(self, function: Callable) -> Callable:
        """`function`, left alone by compilers that rewrite Python."""
        return function

    def methods(self, methods: type) -> dict[str, Callable]:
        """Methods that stand in a distributed optimizer's class in place of those of `methods`."""
        return {}


def the_keras(keras: ModuleType) -> ModuleType:
    """The module to work with, for one that programs use: `tf.keras` is only another name of Keras 3."""
    return keras if major_version(keras) < 3 else importlib.import_module("keras")


@functools.cache
def version(keras: ModuleType) -> str:
    """The version of a Keras. `tf.keras` does not say it everywhere, but the package that it is of does."""
    told = getattr(keras, "__version__", None)
    return told or importlib.import_module(keras.Model.__module__.partition(".")[0]).__version__


def major_version(keras: ModuleType) -> int:
    """2 or 3."""
    return int(version(keras).partition(".")[0])


@functools.cache
def _instance(name: str) -> Backend:
    try:
        module, cls = _CLASSES[name]
    except KeyError:
        raise ValueError(
            f"Horovod works with Keras on {' and '.join(sorted(_CLASSES))}, but Keras runs on {name}. "
            "Set KERAS_BACKEND before Keras is imported."
        ) from None
    return getattr(importlib.import_module(module), cls)()


def backend_of(keras: ModuleType) -> Backend:
    """The backend on which a Keras (`keras`, `tf.keras`, `tf_keras`) runs.

    Raises:
        ValueError: not one that Horovod serves.
    """
    if major_version(keras) < 3:
        return _instance("tensorflow")
    return _instance(keras.backend.backend())
