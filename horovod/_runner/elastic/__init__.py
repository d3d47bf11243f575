"""Elastic jobs, whose number of processes changes while they run."""
