"""Checks of horovod.torch.elastic on ranks of a job that is not elastic: states, samplers, and the loop of run()."""

import shutil
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod.common import _elastic_state
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt, OperationFailedError
from horovod.torch.elastic import sampler as sampler_module
from horovod.torch.elastic import state as state_module
from horovod.torch.elastic.state import (
    ModelStateHandler,
    StateHandler,
    copied,
    get_handler_registry,
    set_handler_registry,
)
from torch_support import raises, same_everywhere

pytestmark = pytest.mark.ranks(2, framework="torch")


def trained(seed):
    """A model and its distributed optimizer, after two steps of this rank alone."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        step(model, optimizer)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 6)).square().sum().backward()
    optimizer.step()


def values(model, optimizer):
    """All numbers of the state, as one tensor."""
    momenta = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    tensors = [*model.state_dict().values(), *momenta]
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def test_a_state_goes_back_to_its_last_commit():
    model, optimizer = trained(hvd.rank())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=3, losses=[1.0])
    assert state.model is model and state.optimizer is optimizer and state.batch == 3
    before = values(model, optimizer)
    for _ in range(3):  # the memory of the copies is used again
        step(model, optimizer)
        state.batch = 9
        state.losses.append(2.0)
        assert not torch.equal(values(model, optimizer), before)
        state.restore()
        assert torch.equal(values(model, optimizer), before)
        assert state.batch == 3 and state.losses == [1.0]
    step(model, optimizer)
    state.batch = 4
    state.commit()
    kept = values(model, optimizer)
    step(model, optimizer)
    state.restore()
    assert torch.equal(values(model, optimizer), kept) and state.batch == 4


def test_a_state_is_that_of_rank_0_after_sync():
    model, optimizer = trained(hvd.rank())
    sampler = hvd.elastic.ElasticSampler(range(40))
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=hvd.rank() + 1)
    if hvd.rank() == 0:
        sampler.set_epoch(2)
        sampler.record_batch(0, 3)
    state.sync()
    same_everywhere(values(model, optimizer), "state")
    assert state.step == 1 and sampler.epoch == 2 and sampler.processed_num == 3 * hvd.size()
    assert len(sampler.remaining_indices) == 40 - sampler.processed_num
    synced = values(model, optimizer)
    step(model, optimizer)
    state.step = 5
    state.restore()
    assert torch.equal(values(model, optimizer), synced) and state.step == 1


def test_half_done_reductions_are_forgotten():
    """A rank may die between backward() and step(): then restore() begins anew."""
    model, optimizer = trained(0)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
    state.sync()
    model(torch.randn(8, 6)).square().sum().backward()
    state.restore()
    optimizer.zero_grad()
    step(model, optimizer)
    for name, parameter in model.named_parameters():
        same_everywhere(parameter, name)


def test_copies_are_made_while_training_goes_on():
    model, optimizer = trained(hvd.rank())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)
    for state.batch in (1, 2, 3):
        model(torch.randn(8, 6)).square().sum().backward()
        kept = values(model, optimizer)
        hvd.elastic.commit_async(state)  # between backward() and step()
        optimizer.step()  # waits for the copies
        optimizer.zero_grad()
        assert not torch.equal(values(model, optimizer), kept)
    state.restore()
    assert torch.equal(values(model, optimizer), kept) and state.batch == 3
    hvd.elastic.commit_async(state)
    with torch.no_grad():
        model(torch.randn(8, 6))  # changes the statistics of the batch norm, which were copied at once
    state.wait()
    state.restore()
    assert torch.equal(values(model, optimizer), kept)
    state._copier.begin()
    for handler in state._handlers.values():
        handler.save_by(state._copier)
    with torch.no_grad():
        model[0].weight.add_(1)
    state._copier.start()
    with raises(ValueError, "commit_async(): 1 tensors of the state were changed"):
        state.restore()


def test_ranks_in_step_send_what_differs():
    model, optimizer = trained(0)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=hvd.rank())
    state.sync()
    with torch.no_grad():
        model[1].running_mean.fill_(hvd.rank())  # each rank has statistics of its own
        model[0].weight[0, 0] = 5.0 + hvd.rank()
    before = values(model, optimizer)
    sent = []

    def broadcast(params, root_rank):
        sent.extend(params)
        hvd.broadcast_parameters(params, root_rank)

    with (
        _elastic_state.syncing(True),
        mock.patch.object(state_module, "broadcast_parameters", broadcast),
        mock.patch.object(state_module, "broadcast_optimizer_state", side_effect=AssertionError("was sent")),
    ):
        state.batch = hvd.rank()
        state.sync()
    assert sent == ["0.weight", "1.running_mean"] and state.batch == 0
    same_everywhere(values(model, optimizer), "state")
    if hvd.rank() == 0:
        assert torch.equal(values(model, optimizer), before)
    optimizer.param_groups[0]["lr"] = 0.5 + hvd.rank()
    with _elastic_state.syncing(True):
        state.sync()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_sums_of_tensors():
    """Any bit counts, in each part of a tensor, and the order does."""
    numbers = np.random.default_rng(0).integers(0, 255, 9 * 8 * 1021 + 5, np.uint8)  # equal on all ranks
    others = [numbers.copy() for _ in range(4)]
    for other, place in zip(others, (0, 8 * 1021 * 4 + 3, len(numbers) - 1)):
        other[place] ^= hvd.rank()  # another one on rank 1
    if hvd.rank():
        others[3][:8], others[3][8:16] = numbers[8:16], numbers[:8]
    with _elastic_state.syncing(True):
        arrays = [numbers, *others, np.float32(hvd.rank()), np.zeros(0), None, np.zeros((2, 1))[:, 0]]
        assert _elastic_state.alike(arrays) == [True, *[False] * 5, True, False, True]
    assert _elastic_state.alike([numbers]) == [False]


def test_another_model_is_saved_when_it_is_assigned():
    model, _ = trained(0)
    state = hvd.elastic.TorchState(model=model)
    state.model = torch.nn.Linear(2, 2)
    weight = state.model.weight.detach().clone()
    with torch.no_grad():
        state.model.weight.zero_()
    state.restore()
    assert torch.equal(state.model.weight, weight)


def test_handlers_of_a_program():
    class Counter:
        count = 0

    class CounterHandler(StateHandler):
        saved = 0

        def save(self):
            self.saved = self.value.count

        def restore(self):
            self.value.count = self.saved

        def sync(self):
            self.value.count = hvd.broadcast_object(self.value.count, 0, name="counter")

    before = get_handler_registry()
    set_handler_registry([*before, (Counter, CounterHandler)])
    try:
        state = hvd.elastic.TorchState(counter=Counter(), model=torch.nn.Linear(1, 1))
    finally:
        set_handler_registry(before)
    state.counter.count = hvd.rank() + 4
    state.sync()
    assert state.counter.count == 4
    state.counter.count = 7
    state.restore()
    assert state.counter.count == 4


def test_copies_use_memory_again():
    model = torch.nn.Linear(3, 3)
    handler = ModelStateHandler(model)
    places = [tensor.data_ptr() for tensor in handler._saved.values()]
    handler.save()
    assert [tensor.data_ptr() for tensor in handler._saved.values()] == places
    assert model.weight.data_ptr() not in places
    strided = torch.zeros(4, 4).t()
    assert copied(strided, torch.zeros(4, 4)).stride() == strided.stride()
    nested = {"a": [torch.ones(2), 3], "b": {"c": None}}
    assert str(copied(nested, None)) == str(nested) == str(copied(nested, {"a": [1]}))


def epochs_of_changing_ranks(sizes, length, batch):
    """The samples that all ranks process when the number of ranks changes after each batch."""
    seen = []

    def deal(size, me, sampler):
        with (
            mock.patch.object(sampler_module, "size", return_value=size),
            mock.patch.object(sampler_module, "rank", return_value=me),
        ):
            sampler.reset()
        return list(sampler)

    samplers = [hvd.elastic.ElasticSampler(range(length), seed=5) for _ in range(max(sizes))]
    done = 0
    for size in sizes:
        shares = []
        for me in range(size):
            samplers[me].processed_num = done
            shares.append(deal(size, me, samplers[me]))
            assert len(shares[-1]) == len(samplers[me])
        for share in shares:
            seen += share[:batch]
        samplers[0].record_batch(0, batch)
        done = samplers[0].processed_num
    return seen, samplers


def test_no_sample_is_lost_or_repeated_when_ranks_change():
    seen, _ = epochs_of_changing_ranks([3, 2, 4, 1], length=100, batch=10)
    assert len(seen) == 100 and sorted(seen) == list(range(100))


def test_the_head_is_repeated_where_ranks_cannot_share_evenly():
    sampler = hvd.elastic.ElasticSampler(range(3), shuffle=False)
    with mock.patch.object(sampler_module, "size", return_value=8):
        sampler.reset()
    list(sampler)
    assert sampler.indices == [0, 1, 2, 0, 1, 2, 0, 1] and sampler.num_samples == 1
    sampler.processed_num = 5  # the last batch was not full
    sampler.reset()
    assert list(sampler) == [] and len(sampler) == 0
    state = sampler.state_dict()
    assert state == {"epoch": 0, "processed_num": 5}
    sampler.set_epoch(1)
    assert sampler.processed_num == 0 and len(sampler) == -(-3 // hvd.size())
    sampler.load_state_dict(state)
    assert sampler.processed_num == 5 and sampler.epoch == 0


def test_epochs_are_shuffled_alike_on_all_ranks():
    sampler = hvd.elastic.ElasticSampler(range(50))
    first = list(sampler.remaining_indices)
    assert first != list(range(50)) and sorted(first) == list(range(50))
    same_everywhere(torch.tensor(first), "indices")
    sampler.set_epoch(1)
    assert sampler.remaining_indices != first


def test_run_calls_again_after_an_update_and_a_failure():
    model, optimizer = trained(hvd.rank())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    calls, resets = [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state, more, last=None):
        calls.append((state.step, more, last))
        state.step += 1
        if len(calls) == 1:
            state.commit()
            raise HostsUpdatedInterrupt(skip_sync=True)
        if len(calls) == 2:
            raise HorovodInternalError("raised by the program")  # the step is not committed
        step(state.model, state.optimizer)
        return "value"

    assert train(state, 5, last=6) == "value"
    assert calls == [(0, 5, 6), (1, 5, 6), (1, 5, 6)]
    assert resets == [hvd.size()] * 2
    assert train.__name__ == "train"
    for name, parameter in model.named_parameters():
        same_everywhere(parameter, name)


def test_run_raises_mistakes_of_the_program_at_once():
    state = hvd.elastic.TorchState(step=0)
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(1)
        hvd.allreduce(torch.zeros(2 + hvd.rank()), name="mismatch")

    with raises(OperationFailedError, "mismatch"):
        train(state)
    assert calls == [1]
    assert float(hvd.allreduce(torch.ones(1), name="after", op=hvd.Sum)) == hvd.size()


def test_updates_of_a_program_itself():
    state = hvd.elastic.TorchState(step=0)
    state.on_hosts_updated(1.0, 1)
    with raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state.on_hosts_updated(1.0, 2)  # not newer
    state.check_host_updates()
    state.on_hosts_updated(2.0, 2)
    with raises(HostsUpdatedInterrupt):
        state.commit()


def test_a_state_that_cannot_be_written_fails_on_all_ranks_at_the_first_commit():
    state = hvd.elastic.TorchState(batch=0, lock=0)
    path = Path(
        hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0, name="folder"), "commit"
    )
    state.keep_commits(path, every=100)
    if hvd.rank() == 1:
        state.lock = lambda: None  # deepcopy takes it, pickle does not
    with raises(
        ValueError if hvd.rank() == 1 else HorovodInternalError,
        "the value 'lock' of the state cannot be written",
    ):
        state.commit()
    state.lock = 0
    state.commit()
    if hvd.rank() == 0:
        assert not path.exists()
        shutil.rmtree(path.parent)


def test_a_new_job_goes_on_from_a_commit_in_a_file():
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0, name="folder")
    path = Path(folder) / "commit"
    model, optimizer = trained(hvd.rank())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)
    assert state.keep_commits(path, every=2) is False
    state.sync()
    for state.epoch in (1, 2, 3):
        step(model, optimizer)
        state.commit()
        if state.epoch == 2:
            kept = values(model, optimizer)
    hvd.broadcast_object(None, 0, name="written")  # rank 0 is through
    other, its_optimizer = trained(hvd.rank() + 7)
    state = hvd.elastic.TorchState(model=other, optimizer=its_optimizer, epoch=0)
    assert state.keep_commits(path) is True
    if hvd.rank() == 0:
        assert torch.equal(values(other, its_optimizer), kept)
    state.sync()
    assert state.epoch == 2
    same_everywhere(values(other, its_optimizer), "state")
    with raises(ValueError, "another state"):
        hvd.elastic.TorchState(batch=0).keep_commits(path)
    with raises(ValueError, "at least 1"):
        state.keep_commits(path, every=0)
    hvd.broadcast_object(None, 0, name="read")
    hvd.allreduce(torch.zeros(1), name="all have read")
    if hvd.rank() == 0:
        path.write_bytes(b"no commit")
        with raises(ValueError, "no commit that can be read"):
            state.keep_commits(path)
        shutil.rmtree(folder)


def test_a_scheduler_in_the_state_drives_the_optimizer():
    """Made for the optimizer before it was wrapped, or for the wrapped one."""
    for made_before in (True, False):
        model = torch.nn.Linear(2, 1)
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR
        scheduler = schedule(plain, 1, 0.5) if made_before else None
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
        scheduler = scheduler or schedule(optimizer, 1, 0.5)
        state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, schedulers=[scheduler])
        assert state.scheduler is scheduler and state.schedulers == [scheduler]
        rate = optimizer.param_groups[0]
        optimizer.step()
        scheduler.step()
        assert rate["lr"] == 0.5
        state.restore()
        assert rate["lr"] == 1.0 and scheduler.last_epoch == 0 and state.scheduler is scheduler
        optimizer.step()
        for _ in range(1 + hvd.rank()):
            state.scheduler.step()
        state.sync()
        assert rate["lr"] == 0.5 and scheduler.last_epoch == 1 and state.scheduler is scheduler
        state.schedulers[0].step()
        assert rate["lr"] == optimizer.param_groups[0]["lr"] == 0.25
        state.restore()
        assert rate["lr"] == 0.5


class Average:
    """Of a model's weights; it has no state_dict()."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.weight, self.groups = (
            model,
            optimizer,
            model.weight,
            optimizer.param_groups,
        )
        self.values = [float(hvd.rank())]


def test_values_that_refer_to_others_keep_doing_so():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(
        model,
        optimizer,
        average=Average(model[0], plain),
        closure=lambda: model[0].weight,
        call=model.forward,
    )

    def is_of_this_rank():
        average = state.average
        assert average.model is model[0] and average.optimizer is plain and average.weight is model[0].weight
        assert average.groups is plain.param_groups is optimizer.param_groups
        assert state.call.__self__ is model

    is_of_this_rank()
    state.average.values.append(7.0)
    state.restore()
    assert state.average.values == [hvd.rank()]
    is_of_this_rank()
    state.sync()
    assert state.average.values == [0]
    is_of_this_rank()
    folder = tempfile.mkdtemp()
    assert state.closure() is model[0].weight
    state.closure = None  # a file holds no lambdas
    state.keep_commits(Path(folder) / "commit")
    state.commit()
    if hvd.rank() == 0:
        state.average.values.append(7.0)
        assert state.keep_commits(Path(folder) / "commit") and state.average.values == [0]
        is_of_this_rank()
    shutil.rmtree(folder)


def test_values_that_cannot_be_kept_are_named():
    with raises(TypeError, "value 'batches' of the state cannot be copied", "state_dict()"):
        hvd.elastic.TorchState(torch.nn.Linear(1, 1), batches=(number for number in range(3)))


def test_modules_and_optimizers_within_lists_and_dicts():
    metric = torch.nn.Linear(1, 1)
    models = [torch.nn.Linear(1, 1), {"inner": torch.nn.Linear(1, 1)}]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(models[0].parameters(), lr=1.0))
    state = hvd.elastic.TorchState(
        metrics={"metric": metric}, models=models, more=(optimizer, hvd.rank()), metric=metric
    )

    def weights():
        return [float(model.weight) for model in (metric, models[0], models[1]["inner"])]

    def fill(value):
        with torch.no_grad():
            for model in (metric, models[0], models[1]["inner"]):
                model.weight.fill_(value)
        optimizer.param_groups[0]["lr"] = value

    assert sorted(state._handlers) == ["metric", "models[0]", "models[1]['inner']", "more[0]"]
    fill(2.0 + hvd.rank())
    state.commit()
    fill(7.0)
    state.restore()
    assert weights() == [2.0 + hvd.rank()] * 3 and optimizer.param_groups[0]["lr"] == 2.0 + hvd.rank()
    assert state.metrics["metric"] is metric and state.models[1]["inner"] is models[1]["inner"]
    assert state.more[0] is optimizer and state.more[1] == hvd.rank()
    state.sync()
    assert weights() == [2.0] * 3 and optimizer.param_groups[0]["lr"] == 2.0 and state.more == (optimizer, 0)


def test_members_keep_their_names():
    """Rank 0 has sorted its list."""
    first, second = (torch.nn.Linear(1, 1) for _ in range(2))
    with torch.no_grad():
        first.weight.fill_(1.0 + hvd.rank())
        second.weight.fill_(3.0 + hvd.rank())
    state = hvd.elastic.TorchState(population=[first, second])
    if hvd.rank() == 0:
        state.population.reverse()
        state.save()
    state.sync()
    assert state.population == [second, first]
    assert float(first.weight) == 1.0 and float(second.weight) == 3.0


def test_a_module_that_is_added_to_a_list_is_a_plain_value():
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0, name="folder")
    path = Path(folder) / "commit"
    model = torch.nn.Linear(1, 1)
    state = hvd.elastic.TorchState(model=model, history=[model], epoch=0)
    assert state.keep_commits(path) is False
    hvd.broadcast_object(None, 0, name="looked")
    hvd.allreduce(torch.zeros(1), name="all have looked")
    if hvd.rank() == 0:  # the other ranks are new
        state.history.append(torch.nn.Linear(1, 1))
        state.save()
    state.sync()
    assert state.history[0] is model
    same_everywhere(state.history[1].weight, "added")
    state.commit()
    kept = float(state.history[1].weight)
    with torch.no_grad():
        state.history[1].weight.fill_(7.0)
    state.restore()
    assert float(state.history[1].weight) == kept
    hvd.broadcast_object(None, 0, name="written")
    other = torch.nn.Linear(1, 1)
    resumed = hvd.elastic.TorchState(model=other, history=[other], epoch=0)
    assert resumed.keep_commits(path) is True
    assert resumed.history[0] is other and float(resumed.history[1].weight) == kept
    hvd.allreduce(torch.zeros(1), name="all have read")
    if hvd.rank() == 0:
        shutil.rmtree(folder)


def test_containers_that_contain_themselves():
    model = torch.nn.Linear(1, 1)
    settings = {"model": model, "numbers": list(range(1000))}
    settings["all"] = [settings]
    state = hvd.elastic.TorchState(settings=settings)
    state.sync()
    assert sorted(state._handlers) == ["settings['model']"]
    assert state.settings["all"][0] is state.settings and state.settings["model"] is model


def test_ranks_that_differ_from_rank_0_are_refused():
    model = torch.nn.Linear(1, 1)
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), 0.1), 1)
    owner = "an object with state_dict() and load_state_dict()"
    for values, text in (
        (
            {"more": model} if hvd.rank() else {},
            "the value 'more' of the state is missing on rank 0, but handled by ModelStateHandler on rank 1",
        ),
        (
            {} if hvd.rank() else {"more": schedule},
            f"'more' of the state is {owner} on rank 0, but missing on rank 1",
        ),
        ({"epoch": schedule if hvd.rank() else 0}, f"is a plain value on rank 0, but {owner} on rank 1"),
        (
            {"one": schedule.optimizer if hvd.rank() else model},
            "handled by ModelStateHandler on rank 0, but handled by Opt",
        ),
        ({"all": [model] * hvd.rank()}, "the value 'all[0]' of the state is missing on rank 0"),
    ):
        state = hvd.elastic.TorchState(**values)
        if hvd.rank():
            with raises(ValueError, "TorchState.sync()", text):
                state.sync()
        else:
            state._require_same_values()  # rank 0 would begin to send


def test_plain_values_need_no_counterpart():
    state = hvd.elastic.TorchState(**({"epoch": 1, "mine": 2} if hvd.rank() else {"epoch": 0, "best": 1.5}))
    state.sync()
    assert (
        state.epoch == 0 and state.best == 1.5 and getattr(state, "mine", None) == (2 if hvd.rank() else None)
    )
    state.best = 3.0
    state.restore()
    assert state.best == 1.5


def test_models_that_differ_are_refused_everywhere():
    model = torch.nn.Linear(1, 1)
    if hvd.rank():
        model.__class__ = type("WithState", (torch.nn.Linear,), {"get_extra_state": lambda self: 3})
    state = hvd.elastic.TorchState(model=model)
    with raises(OperationFailedError, "'_extra_state' is on rank 1, but not on rank 0"):
        state.sync()
