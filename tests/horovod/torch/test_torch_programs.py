"""Programs for Horovod as their users write them (programs/), on two ranks, against plain torch in one process
(plain_programs.py).
"""

import plain_programs
import torch_programs
from harness import run_on_ranks


def agrees_with_plain_torch(name, folder):
    out = str(folder / f"{name}.pt")
    run_on_ranks(2, torch_programs.run, name, out, framework="torch", init=None)
    run_on_ranks(1, plain_programs.agrees, name, out, framework="torch", init=None)


def test_dcgan_with_two_optimizers(tmp_path):
    agrees_with_plain_torch("dcgan", tmp_path)


def test_accumulation_with_a_short_last_window(tmp_path):
    agrees_with_plain_torch("accumulation", tmp_path)


def test_uneven_data_with_join(tmp_path):
    agrees_with_plain_torch("uneven", tmp_path)


def test_sync_batch_norm_has_the_statistics_of_the_whole_batch(tmp_path):
    agrees_with_plain_torch("sync_norm", tmp_path)
