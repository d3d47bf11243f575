"""`hvd bench`, and the harness that it shares with the scripts of benchmarks/: ranks, turns, clocks, tables, plots."""

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall")
OPS = ("sum", "prod", "min", "max", "avg")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
