"""The model of benchmarks/simulate.py as pure functions: limits that every alpha-beta model has, and the
engine's batches."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def _module(name):
    """A module of benchmarks/harness, whose package's name the tests' own harness has."""
    spec = importlib.util.spec_from_file_location(
        f"bench_harness.{name}", BENCHMARKS / "harness" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


model = _module("cluster_model")
HOSTS = model.Cluster("c", 8, 200.0, 25.0, hop_us=20, batch_us=10, tensor_us=1, source="")


def test_a_large_allreduce_takes_what_the_links_allow():
    nbytes = 1 << 32
    within = nbytes * 2 * 7 / 8 / 200e9
    assert model.allreduce_s(nbytes, 8, HOSTS, False) == pytest.approx(within, rel=0.01)
    across = model.allreduce_s(nbytes, 64, HOSTS, False)
    assert across == pytest.approx(nbytes * 2 * 63 / 64 / 25e9, rel=0.01)
    # Each host's network carries 2 (h-1)/h of the buffer, and each rank moves it twice within its host.
    two_levels = nbytes * 2 * 7 / 8 / 25e9 + within
    assert model.allreduce_s(nbytes, 64, HOSTS, True) == pytest.approx(two_levels, rel=0.01)
    assert model.allreduce_s(nbytes, 1, HOSTS, True) == 0


def test_a_small_allreduce_grows_with_the_logarithm_of_the_hosts():
    times = [model.allreduce_s(8, 8 * hosts, HOSTS, False) for hosts in (16, 64, 256, 1024)]
    steps = [b - a for a, b in pairwise(times)]
    assert steps == pytest.approx([steps[0]] * 3, rel=1e-6) and steps[0] > 0


@pytest.mark.parametrize(
    ("ranks", "levels"), [(8, 0), (16, 1), (72, 1), (80, 2), (584, 2), (592, 3), (1024, 3)]
)
def test_agreement_takes_two_hops_per_level_of_the_control_tree(ranks, levels):
    assert model.agreement_s(ranks, HOSTS) == pytest.approx(2 * (levels + 1) * 20e-6)


def test_batches_form_as_in_the_engine():
    small, large = 1000, 300 << 10
    ready = [(0.0, small), (0.0005, small), (0.0016, small), (0.002, large), (0.003, small)]
    assert model.batches(ready, True) == [
        (0.001, 2 * small, 2),  # the coalescing delay after the first of them
        (0.002, small + large, 2),  # bytes enough
        (0.003, small, 1),  # the last one, for which the optimizer waits
    ]
    huge = 100 << 20
    assert model.batches([(0.1, huge), (0.2, huge)], False) == [(0.2, huge, 1), (0.2, huge, 1)]


def test_overlap_hides_no_more_than_the_backward_and_never_helps_to_lose():
    of = model.Model("m", [1 << 20] * 100, 0.1, "")
    for ranks in (1, 8, 64, 1024, 27600):
        for hierarchical in (False, True):
            with_overlap = model.efficiency(of, ranks, HOSTS, hierarchical, True)
            without = model.efficiency(of, ranks, HOSTS, hierarchical, False)
            assert 0 < without <= with_overlap <= 1
    slow = replace(HOSTS, cross_gb_s=0.01)
    assert model.step_s(of, 64, slow, False, True) > 100 * (1 << 20) * 2 * 63 / 64 / 0.01e9


def test_a_curve_goes_through_the_measured_points():
    curve = model.measured_curve({100: 1.0, 200: 2.0, 1000: 4.0})
    assert [curve(n) for n in (50, 100, 150, 200, 600, 1000)] == [1.0, 1.0, 1.5, 2.0, 3.0, 4.0]
    assert curve(1800) == pytest.approx(6.0)
    assert model.list_s([300 << 10, 100, 100], curve, 0.5, 7.0) == pytest.approx(
        7 + 1.5 + curve(300 << 10) + 2.0
    )


def test_a_step_between_two_amounts_of_memory_lies_between_their_curves():
    curve_of = model.by_footprint({100: lambda n: n, 10_000: lambda n: 3 * n})
    assert [curve_of(total)(5) for total in (1, 100, 1000, 10_000, 1 << 20)] == [
        5,
        5,
        pytest.approx(10),
        15,
        15,
    ]


def test_tables_name_sources_and_published_figures(tmp_path):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "simulate.py"), "--json", str(tmp_path / "a.json"), "--plots", str(tmp_path)],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "arXiv:1909.11150" in done.stdout and "tuning.cc" in done.stdout
    found = json.loads((tmp_path / "a.json").read_text())
    assert all(form["1"] == 1 for forms in found.values() for form in forms.values())
    assert "published: Horovod, VGG-16" in (tmp_path / "simulated-scaling.svg").read_text()
