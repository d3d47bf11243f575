#!/usr/bin/env python3
"""The cost of hvd-core on GPUs: beside raw NCCL, beside device-to-device copies, and in training steps.

    python benchmarks/gpu.py [-np 1] [--rounds 7] [--parts overhead,packing,step] [--json result.json]

Three parts, each a process (or a job of -np ranks) of its own, in which the alternatives take turns:

- overhead: an allreduce of one tensor, of 50 and of a ResNet-50's 161 gradients; ours, NCCL's own functions through
  ctypes on a communicator of their own, and for lists NCCL on one buffer. "host" is the time of the calls alone, per
  batch; "device" the time until the device has done them, per batch.
- packing: the backend's batched copy, plain, scaled and converted, and as much in one device-to-device copy. Bandwidth
  counts bytes read and bytes written.
- step: a training step alone, with hvd.DistributedOptimizer, and with DistributedDataParallel over NCCL.

Ranks beyond the GPUs share them, which says something about correctness and nothing about speed. --device gcu runs all of
it on the simulated device of backends/eccl_stub, to try this script: figures then mean nothing, and say "simulated".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.alternatives import horovodrun
from hvd_core.bench import _report

HERE = Path(__file__).resolve().parent
WORKERS = {"overhead": "gpu_overhead.py", "packing": "gpu_packing.py", "step": "gpu_step.py"}


def run_part(part: str, options: argparse.Namespace) -> dict:
    """The figures that rank 0 of the part's job has measured, or {"failed": why}."""
    ranks = 1 if part == "packing" else options.np
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part.json"
        command = [
            sys.executable,
            str(HERE / "workers" / WORKERS[part]),
            options.device,
            str(options.rounds),
            str(out),
        ]
        command += ["quick"] if options.quick else []
        if part != "packing":
            command = [*horovodrun(ranks), *command]
        env = {"HOROVOD_BACKEND": options.backend, **os.environ}
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=options.timeout)
        except subprocess.TimeoutExpired:
            return {"failed": f"not finished after {options.timeout:.0f} s"}
        if done.returncode or not out.exists():
            return {"failed": f"exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-2000:]}"}
        return json.loads(out.read_text())


def tables(result: dict) -> str:
    """The result as text."""
    note = ", SIMULATED: these figures mean nothing" if result["simulated"] else ""
    out = [f"{result['device_name']}, {result['ranks']} rank(s){note}"]
    for part, found in result["parts"].items():
        out += ["", f"{part}:" + (f" not measured: {found['failed']}" if "failed" in found else ""), ""]
        if "failed" not in found:
            out.append({"overhead": _overhead, "packing": _packing, "step": _step}[part](found))
    return "\n".join(out)


def _overhead(found: dict) -> str:
    rows = []
    for case, ways in found["cases"].items():
        for way, times in ways.items():
            ratios = [
                _report.ratio(times[what], ways["nccl"][what]) if "nccl" in ways else None
                for what in ("host", "device")
            ]
            median = [_report.summary(times[what], found["bytes"][case]) for what in ("host", "device")]
            rows.append(
                [f"{case}, {way}", *(_report.number(m["median_us"]) for m in median)]
                + [_report.number(median[1]["algbw_gb_s"]), *map(_report.number, ratios)]
            )
    header = ["batch", "host us", "device us", "GB/s", "host x NCCL's", "device x NCCL's"]
    return _report.table(header, rows)


def _packing(found: dict) -> str:
    rows = [
        [
            way,
            _report.number(_report.summary(times, 1)["median_us"]),
            _report.number(moved / min(times) / 1e9),
        ]
        + [_report.number(_report.ratio(found["times"]["one copy"], times))]
        for way, times in found["times"].items()
        for moved in [found["moved"][way]]
    ]
    return _report.table(["way", "us", "GB/s, best", "one copy's time / this one's"], rows)


def _step(found: dict) -> str:
    alone = found["ms"]["alone"]
    rows = [
        [
            way,
            _report.number(_report.summary(times, 1)["median_us"] / 1e6),
            _report.number(_report.ratio(times, alone)),
        ]
        for way, times in found["ms"].items()
    ]
    return _report.table(["way", "ms per step", "x alone"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-np", type=int, default=1, help="ranks (default 1)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each alternative (default 7)")
    parser.add_argument("--parts", default=",".join(WORKERS), help=f"of {','.join(WORKERS)} (default all)")
    parser.add_argument(
        "--device", default="cuda", choices=["cuda", "gcu"], help="type of device (default cuda)"
    )
    parser.add_argument(
        "--backend", help="the backend of the device's tensors (default nccl; eccl_stub on gcu)"
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions and small tensors")
    parser.add_argument("--timeout", type=float, default=280, metavar="S", help="seconds for each part (280)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    options.backend = options.backend or {"cuda": "nccl", "gcu": "eccl_stub"}[options.device]
    parts = options.parts.split(",")
    if not set(parts) <= set(WORKERS):
        parser.error(f"unknown parts in {parts}; there are {','.join(WORKERS)}")
    found = {part: run_part(part, options) for part in parts}
    names = [part["device_name"] for part in found.values() if "device_name" in part]
    result = {
        "machine": _report.machine(),
        "device": options.device,
        "device_name": names[0] if names else "no device",
        "simulated": options.device != "cuda",
        "ranks": options.np,
        "rounds": options.rounds,
        "parts": found,
    }
    print(tables(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    if any("failed" in part for part in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
