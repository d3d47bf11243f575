"""The interface to a backend of Keras (TensorFlow, PyTorch, JAX), and the function that chooses one.

DistributedOptimizer, callbacks and the value functions use it. Each framework's front end implements it in its own folder
(``horovod/tensorflow/_keras_backend.py``, ``horovod/torch/_keras_backend.py``), so this package imports none of them.
Support for another backend of Keras is a class with the methods of ``Backend``, and a line in ``_CLASSES``. Choosing a
backend imports its framework.
"""

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any, TypeVar

from horovod._keras.options import Options
from horovod.common.objects import Entry
from horovod.common.process_sets import ProcessSet, global_process_set


def keras_package(keras: ModuleType) -> ModuleType:
    """The package `keras` for `tf.keras`, which with Keras 3 is another name of it. Keras 2 is returned as it
    is."""
    return keras if major_version(keras) < 3 else importlib.import_module("keras")


@functools.cache
def version(keras: ModuleType) -> str:
    """The version of a Keras module. Not every `tf.keras` has the attribute; the package of its classes has it."""
    found = getattr(keras, "__version__", None)
    return str(found or importlib.import_module(keras.Model.__module__.partition(".")[0]).__version__)


def major_version(keras: ModuleType) -> int:
    """2 or 3."""
    return int(version(keras).partition(".")[0])


Function = TypeVar("Function", bound=Callable[..., Any])

_CLASSES = {
    "jax": ("horovod.jax._keras_backend", "JaxBackend"),
    "torch": ("horovod.torch._keras_backend", "TorchBackend"),
    "tensorflow": ("horovod.tensorflow._keras_backend", "TensorFlowBackend"),
}


class Backend(ABC):
    """Operations on the tensors of one framework. Methods that communicate raise the errors of its Horovod front end."""

    batch_prefix: str
    """Begins the names of the requests that reduce() makes of batches."""

    @abstractmethod
    def mode(self) -> str:
        """How the calling code runs: "eager", "graph" (it is being traced) or "xla" (it is being traced for XLA)."""

    @abstractmethod
    def identity(self, variable: Any) -> Any:
        """The framework's own object inside a variable, which is the same for all wrappers of the variable."""

    @abstractmethod
    def is_variable(self, value: Any) -> bool:
        """Whether `value` is a variable of Keras or of the framework."""

    @abstractmethod
    def description_of(self, variable: Any) -> tuple[str, list[int], str]:
        """Name, shape and dtype of a variable."""

    @abstractmethod
    def values_of(self, variable: Any) -> Any:
        """The values of a variable as an array of NumPy; None if they are not known while a graph is made."""

    @abstractmethod
    def gradients(self, loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> list[Any]:
        """The gradients of a loss, None for a variable that has no gradient.

        Args:
            loss: a tensor, or a function that returns it.
            tape: the tape that has recorded the loss, or None.

        Raises:
            ValueError: `loss` is a tensor without its tape, and the framework needs one.
        """

    @abstractmethod
    def sparse_kind(self, gradient: Any) -> int:
        """agreement.SPARSE32 or SPARSE64 (by the dtype of the indices) for a sparse gradient; 0 for others and None."""

    @abstractmethod
    def dense(self, gradient: Any) -> Any:
        """A sparse gradient as a dense one."""

    @abstractmethod
    def sparse(self, gradient: Any, kind: int) -> Any:
        """A gradient as a sparse one. `kind`: agreement.SPARSE32 or SPARSE64."""

    @abstractmethod
    def zeros_for(self, variable: Any, kind: int) -> Any:
        """A gradient of zeros for a variable; a sparse gradient without rows if `kind` is a sparse kind."""

    @abstractmethod
    def scaled(self, gradient: Any, factor: Any) -> Any:
        """A gradient (dense or sparse) times a number or a scalar tensor."""

    @abstractmethod
    def nan_unless_finite(self, gradients: list[Any]) -> Any:
        """A scalar: 1 if all values in the gradients are finite, else NaN."""

    @abstractmethod
    def batches(self, indices: list[int], gradients: list[Any], variables: list[Any]) -> list[list[int]]:
        """`indices` of dense gradients in lists, each of which one operation reduces. Uses the variables' sizes."""

    @abstractmethod
    def reduce(
        self,
        batches: list[list[Any]],
        names: list[str],
        variables: list[Any],
        options: Options,
        presence: list[bool] | None,
    ) -> tuple[list[list[Any]], Any]:
        """Reduce batches of dense gradients, each under its name. May change gradients that belong to the `variables`.

        Args:
            presence: for each gradient, whether this rank has it; None not to send it. It is sent with the first batch
                as ones and zeros, and reduced as gradients are.

        Returns:
            The reduced batches, and the reduced `presence`, for any_rank_has().
        """

    @abstractmethod
    def any_rank_has(self, presence: Any) -> list[bool]:
        """For each element of the reduced `presence`, whether any rank has that gradient. Waits for the reduction."""

    @abstractmethod
    def reduce_sparse(self, gradient: Any, name: str, options: Options) -> Any:
        """A sparse gradient with the rows of all ranks, divided by their number for op=Average."""

    @abstractmethod
    def report(
        self, operation: str, name: str | None, error: BaseException | str, process_set: ProcessSet
    ) -> None:
        """Let the other ranks' matching call of "allreduce", "allgather", "broadcast" or "reducescatter" fail, after this
        rank's call has failed."""

    @contextmanager
    def reported(self, operation: str, name: str | None, process_set: ProcessSet) -> Iterator[None]:
        """A context for the steps before a call: an exception that leaves it is reported."""
        try:
            yield
        except BaseException as error:
            self.report(operation, name, error, process_set)
            raise

    @abstractmethod
    def broadcast_variables(
        self,
        variables: Sequence[Any],
        root_rank: int,
        name: str,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Assign the root's values to variables, which the ranks have alike. The operations' names begin with `name`."""

    @abstractmethod
    def allreduce(
        self,
        value: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        compression: Any,
        process_set: ProcessSet,
    ) -> Any:
        """The reduced value as a tensor. `value`: anything that the framework makes a tensor of."""

    @abstractmethod
    def allgather(self, value: Any, name: str | None, process_set: ProcessSet) -> Any:
        """The values of all ranks in one tensor, one after the other along dimension 0."""

    @abstractmethod
    def broadcast(self, value: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        """The root's value as a tensor."""

    @abstractmethod
    def reducescatter(self, value: Any, name: str | None, op: int, process_set: ProcessSet) -> Any:
        """This rank's rows of the reduced value, as a tensor."""

    @abstractmethod
    def copies_of(self, variables: Sequence[Any], earlier: Sequence[Any] | None) -> list[Any]:
        """Copies of the values of variables, which do not change with the variables. `earlier`: copies of the same
        variables that are not needed any more; their memory may be used again."""

    def assign(self, variables: Sequence[Any], copies: Sequence[Any]) -> None:
        """Give variables the values that copies_of() has returned. The copies stay as they are."""
        for variable, copy in zip(variables, copies):
            variable.assign(copy)

    def one_of(self, process_set: ProcessSet) -> Any:
        """1 / the number of ranks, a number or a scalar tensor: in a graph, of the ranks when it runs."""
        return 1.0 / (process_set.size() or 1)

    def why_not(self, options: Options) -> str:
        """The reason why an optimizer cannot have these options on this backend; "" if it can."""
        return ""

    def may_be_of_operation(self, error: Exception) -> bool:
        """Whether an exception is of the kind in which an operation in a compiled step fails when the job ends."""
        return False

    def sync_model(self, model: Any) -> None:
        """Make the variables of a model that is being trained hold its present values. Training continues with the values
        that are assigned to them."""
        return None

    def forget_step(self, model: Any) -> None:
        """Forget the values of a training step that has failed. Variables of the model may have no values until they are
        assigned."""
        return None

    def misfit_for(self, variable: Any, kind: int) -> Any:
        """A tensor whose shape fits no gradient: a graph sends it instead of a gradient that this rank does not have."""
        raise NotImplementedError("there are no graphs")

    def depending_on(self, outcomes: list[Any], gradients: list[Any]) -> list[Any]:
        """`gradients`, one of which depends in the graph on `outcomes`."""
        raise NotImplementedError("there are no graphs")

    def has_global_variables(self) -> bool:
        """Whether the calling code builds a graph with a collection of variables, as in TensorFlow 1."""
        return False

    def broadcast_global_variables(self, root_rank: int, process_set: ProcessSet) -> None:
        """Assign the root's values to the variables of that graph."""
        raise NotImplementedError("there are no global variables")

    def outside_of_graphs(self) -> AbstractContextManager[Any]:
        """A context in which variables are made outside of the graph that is being traced."""
        return nullcontext()

    def not_rewritten(self, function: Function) -> Function:
        """`function`, marked so that compilers that rewrite Python leave it as it is."""
        return function

    def methods_not_rewritten(self, methods: type) -> dict[str, Callable[..., Any]]:
        """The methods of the class `methods` that need such a mark, with it, by name."""
        return {}


_backends: dict[str, Backend] = {}


def _backend(name: str) -> Backend:
    if name not in _backends:
        if name not in _CLASSES:
            raise ValueError(
                f"Horovod works with Keras on {', '.join(sorted(_CLASSES))}, but Keras runs on {name}. "
                "Set KERAS_BACKEND before Keras is imported."
            )
        module, cls = _CLASSES[name]
        _backends[name] = getattr(importlib.import_module(module), cls)()
    return _backends[name]


def backend_of(keras: ModuleType) -> Backend:
    """The backend on which a Keras module (`keras`, `tf.keras`, `tf_keras`) runs.

    Raises:
        ValueError: Horovod does not support this backend.
    """
    return _backend("tensorflow" if major_version(keras) < 3 else keras_package(keras).backend.backend())


def may_be_of_operation(error: Exception) -> bool:
    """Backend.may_be_of_operation() of the backends in use."""
    return any(backend.may_be_of_operation(error) for backend in _backends.values())


def entries_of(backend: Backend, kind: str, variables: Sequence[Any]) -> list[Entry]:
    """Variables for require_same(). They are known by their places: Keras counts the names of layers."""
    described = [backend.description_of(variable) for variable in variables]
    return [(f"{kind} {i}", tuple(shape), dtype) for i, (_, shape, dtype) in enumerate(described)]


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer of any Keras: `variables` is a method of some optimizers and a list of others."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
