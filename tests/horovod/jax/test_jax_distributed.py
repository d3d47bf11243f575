"""horovod.jax and jax.distributed in the same processes. The ranks are new, as JAX allows it once and before it has
started its devices."""

import socket

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import horovod.jax as hvd
from jax_support import all_of, mine, same

pytestmark = pytest.mark.ranks(2, framework="jax", fresh=True, slow=True)


def begin():
    """JAX's coordinator gets a port that this process keeps for it."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as the coordinator's
        keeper.bind(("127.0.0.1", 0))
        address = hvd.broadcast_object(f"127.0.0.1:{keeper.getsockname()[1]}", root_rank=0)
        jax.distributed.initialize(address, hvd.size(), hvd.rank(), coordinator_bind_address=address)


def test_both_in_one_process():
    begin()
    assert jax.process_count() == hvd.size() and jax.process_index() == hvd.rank()
    assert jax.device_count() == hvd.size() and jax.local_device_count() == 1
    for way in (lambda f: f, jax.jit):  # on the rank's own arrays
        same(way(lambda x: hvd.allreduce(x, op=hvd.Sum))(mine((3,))), all_of((3,)).sum(0))

    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    rows = PartitionSpec("ranks")
    whole = jax.make_array_from_process_local_data(NamedSharding(mesh, rows), np.asarray(mine((2,))))
    total = all_of((2,)).sum(0)

    def part_of(array):
        (shard,) = array.addressable_shards
        return shard.data

    def both(x):
        return hvd.allreduce(x, op=hvd.Sum) + jax.lax.psum(x, "ranks")

    mapped = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
    same(part_of(mapped(whole)), 2 * total)
    # For a program on a global array each rank has the whole array.
    summed = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum).sum())(whole)
    same(part_of(summed), hvd.size() * total.sum())

    hvd.barrier()
    jax.distributed.shutdown()
    same(hvd.allreduce(mine((3,)), op=hvd.Sum), all_of((3,)).sum(0))
