"""Programs for Horovod as their users write them (programs/), on two ranks, against plain torch in one process
(plain_programs.py).
"""

from harness.frameworks import run_with
from harness.installed import need
from one_process import call_in_one_process

need("torch")


def agrees_with_plain_torch(name, folder):
    out = str(folder / f"{name}.pt")
    run_with("torch", 2, "torch/rank_programs.py::run", name, out, init=None)
    call_in_one_process("torch/plain_programs.py::agrees", name, out)


def test_dcgan_with_two_optimizers(tmp_path):
    agrees_with_plain_torch("dcgan", tmp_path)


def test_accumulation_with_a_short_last_window(tmp_path):
    agrees_with_plain_torch("accumulation", tmp_path)


def test_uneven_data_with_join(tmp_path):
    agrees_with_plain_torch("uneven", tmp_path)


def test_sync_batch_norm_has_the_statistics_of_the_whole_batch(tmp_path):
    agrees_with_plain_torch("sync_norm", tmp_path)
