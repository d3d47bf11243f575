"""Trains a PyTorch model on one rank of an estimator's job, and predicts with it in executors. Needs no PySpark."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch

from horovod.spark.common._data import RankData, columns_of, flat, shaped


def loaded(data: bytes, device: Any = "cpu") -> Any:
    """The inverse of saved(). The bytes come from the program itself, or from its own store."""
    return torch.load(io.BytesIO(data), map_location=device, weights_only=False)


def saved(value: Any) -> bytes:
    """A model, a model and its optimizer with the same parameters, or their state, as bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


def predictor(
    model: bytes, inputs: Sequence[str], shapes: Sequence[Any]
) -> Callable[[Any], list[np.ndarray]]:
    """A function (pandas frame -> one float32 array for each output of the model)."""
    module = loaded(model)
    module.eval()

    def predict(frame: Any) -> list[np.ndarray]:
        arrays = [torch.as_tensor(array) for array in shaped(columns_of(frame, inputs), shapes)]
        with torch.no_grad():
            outputs = module(*arrays)
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        return [flat(output.float().numpy()) for output in outputs]

    return predict


def train(task: dict[str, Any]) -> tuple[bytes, list[dict[str, Any]]] | None:
    """The function of the ranks: (the weights, the history) on rank 0."""
    import horovod.torch as hvd

    hvd.init()
    device = torch.device("cpu")
    if task["use_gpu"] and torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
        device = torch.device("cuda", hvd.local_rank())
    run = _Run(hvd, task, device)
    for epoch in range(run.first_epoch, run.last_epoch):
        run.train_epoch(epoch)
    if hvd.rank() != 0:
        return None
    return saved(run.model.cpu().state_dict()), run.history


class _Run:
    """The state of a rank. `history`: of all epochs of the run, earlier jobs included."""

    def __init__(self, hvd: Any, task: dict[str, Any], device: Any) -> None:
        self._hvd, self._task, self._device = hvd, task, device
        self._passes = 0  # backward passes since the last step of the optimizer
        self.model, optimizer = loaded(task["model"], device)
        self.model.to(device)
        self.history: list[dict[str, Any]] = []
        self._store = task["store"]
        self._path = self._store.get_checkpoint_path(task["run_id"])
        self.first_epoch = self._restore(optimizer)
        self.last_epoch = self.first_epoch + task["epochs"]
        if self._unfinished is not None:
            self.last_epoch = max(self.first_epoch, self._unfinished)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        compression = {"compression": task["gradient_compression"]} if task["gradient_compression"] else {}
        self._optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self.model.named_parameters(),
            backward_passes_per_step=task["backward_passes_per_step"],
            **compression,
        )
        self._losses = _as_list(task["loss"] or [make() for make in _as_list(task["loss_constructors"])])
        self._weights = task["loss_weights"] or [1.0] * len(self._losses)
        metrics = task["metrics"] or {}
        self._metrics = metrics if isinstance(metrics, dict) else {_name(m): m for m in metrics}
        self._data = RankData(task, hvd.rank(), hvd.size())
        self._data.train.epoch = self.first_epoch
        shapes = task["input_shapes"] or [None] * len(task["feature_cols"])
        self._train_batches = self._data.batches(self._data.train, shapes)
        self._val_batches = self._data.batches(self._data.val, shapes) if self._data.val else None

    def _restore(self, optimizer: Any) -> int:
        """Takes over the state of an earlier job of this run on rank 0, for all ranks; returns the next epoch."""
        state = None
        if self._hvd.rank() == 0 and self._store.saving_runs() and self._store.exists(self._path):
            state = loaded(self._store.read(self._path), self._device)
            self.model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            self.history = state["history"]
        resumed = None if state is None else (state["epoch"] + 1, state["last_epoch"])
        first, last = self._hvd.broadcast_object(resumed, root_rank=0, name="horovod.spark.resume") or (
            0,
            None,
        )
        # A run that was interrupted ends where it was to end; one that had ended is trained further.
        self._unfinished = last if last is not None and first < last else None
        return first

    def train_epoch(self, epoch: int) -> None:
        """One epoch, its validation, its checkpoint."""
        self.model.train()
        measured = {
            "epoch": epoch,
            "train": self._averages(self._data.train_steps, self._train_batches, self._step),
        }
        if self._val_batches is not None:
            self.model.eval()
            with torch.no_grad():
                measured["validation"] = self._averages(
                    self._data.val_steps, self._val_batches, self._evaluate
                )
        self.history.append(measured)
        if self._hvd.rank() != 0:
            return
        if self._task["verbose"]:
            print(f"epoch {epoch + 1} of {self.last_epoch}: {measured}", flush=True)
        if self._store.saving_runs():
            state = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
            state |= {"epoch": epoch, "last_epoch": self.last_epoch, "history": self.history}
            self._store.write(self._path, saved(state))

    def _averages(self, steps: int, batches: Any, step: Callable[..., tuple[Any, Any]]) -> dict[str, float]:
        sums = np.zeros(2 + len(self._metrics))
        for _, batch in zip(range(steps), batches):
            inputs, labels, weights = self._tensors(batch)
            outputs, loss = step(inputs, labels, weights)
            rows = len(inputs[0])
            outputs = [output.detach() for output in _as_list(outputs)]
            values = [
                float(loss.detach()),
                *(float(metric(*_one(outputs, labels))) for metric in self._metrics.values()),
            ]
            sums += np.array([1.0, *values]) * rows
        # Ranks may have unequal numbers of rows in a validation.
        sums = self._hvd.allreduce(
            torch.from_numpy(sums), op=self._hvd.Sum, name="horovod.spark.metrics"
        ).numpy()
        return dict(zip(["loss", *self._metrics], (sums[1:] / sums[0]).tolist()))

    def _tensors(self, batch: Any) -> tuple[list[Any], list[Any], Any]:
        inputs, labels, weights = batch

        def move(array: np.ndarray) -> torch.Tensor:
            return torch.as_tensor(np.ascontiguousarray(array)).to(self._device)

        return list(map(move, inputs)), list(map(move, labels)), None if weights is None else move(weights)

    def _step(self, inputs: list[Any], labels: list[Any], weights: Any) -> tuple[Any, Any]:
        custom = self._task["train_minibatch_fn"]
        if custom is not None:
            made: tuple[Any, Any] = custom(
                self.model, self._optimizer, _unchanged, self._losses, inputs, labels, weights
            )
            return made
        if self._passes == 0:
            self._optimizer.zero_grad()
        outputs = self.model(*inputs)
        loss = self._loss(outputs, labels, weights)
        loss.backward()
        self._passes = (self._passes + 1) % self._task["backward_passes_per_step"]
        if self._passes == 0:
            self._optimizer.step()
        return outputs, loss

    def _evaluate(self, inputs: list[Any], labels: list[Any], weights: Any) -> tuple[Any, Any]:
        outputs = self.model(*inputs)
        return outputs, self._loss(outputs, labels, weights)

    def _loss(self, outputs: Any, labels: list[Any], weights: Any) -> Any:
        total = 0.0
        losses = self._losses * len(labels) if len(self._losses) == 1 else self._losses
        factors = self._weights * len(labels) if len(self._weights) == 1 else self._weights
        for output, label, function, factor in zip(_as_list(outputs), labels, losses, factors):
            loss = function(output, label)
            if weights is not None:
                loss = (loss.reshape([len(label), -1]).mean(1) * weights).mean() if loss.dim() else loss
            total = total + factor * loss
        return total


def _unchanged(outputs: Any, labels: Any) -> tuple[Any, Any]:
    return outputs, labels


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _one(outputs: list[Any], labels: list[Any]) -> tuple[Any, Any]:
    return (outputs[0], labels[0]) if len(outputs) == 1 else (outputs, labels)


def _name(metric: Callable[..., Any]) -> str:
    return str(getattr(metric, "__name__", type(metric).__name__))
