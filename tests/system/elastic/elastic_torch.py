"""A program of elastic jobs on PyTorch with all that may live across worlds: workers of a loader, optimizers that
compress, group and use Adasum, mixed precision, a join, and commits that are copied while training goes on."""

import sys

import torch

import elastic_programs
import horovod.torch as hvd


def everything():
    """Each step adds the same to the weights, for any number of ranks."""
    torch.set_num_threads(1)
    hvd.init()
    assert "torch._dynamo" in sys.modules  # else a spare loads it while the others wait
    model = torch.nn.Sequential(torch.nn.Linear(8, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    vector = torch.nn.Parameter(torch.zeros(6))
    with torch.no_grad():
        model[0].weight.zero_()
        model[1].weight.copy_(torch.eye(4))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
        groups=[[model[0].weight, model[1].weight]],
    )
    adasum = hvd.DistributedOptimizer(
        torch.optim.SGD([vector], lr=1.0), named_parameters=[("vector", vector)], op=hvd.Adasum
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    data = torch.utils.data.TensorDataset(torch.ones(96, 8))
    sampler = hvd.elastic.ElasticSampler(data)
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler, **options)
    extra = torch.nn.ParameterList([vector])
    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, adasum=adasum, extra=extra, sampler=sampler, scaler=scaler, steps=0
    )
    workers = []

    def step(inputs):
        optimizer.zero_grad()
        adasum.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model[0](inputs).mean()
        scaler.scale(loss + 0.0 * model[1].weight.sum()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        vector.sum().backward()
        adasum.step()

    @hvd.elastic.run
    def train(state):
        steps = elastic_programs.Steps()
        while True:
            for number, (inputs,) in enumerate(loader):
                workers.append(loader._iterator._workers[0].pid)
                if not steps.go_on():
                    hvd.join()
                    return state.steps
                step(inputs)
                state.steps += 1
                state.sampler.record_batch(number, 4)
                hvd.elastic.commit_async(state)
                if state.steps % 5 == 0:
                    hvd.join()
            state.sampler.set_epoch(state.sampler.epoch + 1)

    steps = train(state)
    assert len(set(workers)) == 1  # the worker has outlived the worlds
    elastic_programs.close(model[0].weight.detach(), torch.full((4, 8), -0.125 * steps))
    elastic_programs.close(vector.detach(), torch.full((6,), -1.0 * steps))
    elastic_programs.same_everywhere(model[0].weight.detach().numpy(), "weights")
    elastic_programs.done(steps, hvd.rank(), hvd.size())


if __name__ == "__main__":
    elastic_programs.main(globals())
