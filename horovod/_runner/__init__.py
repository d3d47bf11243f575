"""The launcher behind `horovodrun` and `horovod.run`: starts the ranks of a job, on this host and on others."""
