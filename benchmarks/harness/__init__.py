"""Shared by the benchmarks: compiling helpers, starting ranks, taking turns, timing, tables."""
