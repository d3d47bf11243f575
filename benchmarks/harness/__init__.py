"""What the benchmarks share: compiling helpers, starting ranks, taking turns, timing, tables."""
