"""`hvd bench`, and the harness that it shares with the scripts of benchmarks/: ranks, turns, clocks, tables, plots."""
