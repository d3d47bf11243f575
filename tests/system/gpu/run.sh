#!/bin/bash
# Builds hvd-core with the backend nccl in place, runs the tests for GPUs and the benchmark, and leaves the results as files.
#
#   tests/system/gpu/run.sh [OUT] [build] [kit] [tests] [bench]        all four by default; OUT: out/gpu
#
# Nothing is fetched: it takes the python (PYTHON=python3) with torch, NumPy and pytest that is there, cmake, a C++20
# compiler, pybind11 >= 3 and, for kernels built for this very GPU, nvcc. Missing Python packages may lie as wheels
# in a folder (HVD_GPU_WHEELS). Builds are kept in build/gpu, so that parts can be run one by one.
# HVD_GPU_TESTS names files instead of all of tests/system/gpu, PYTEST_ARGS adds to pytest's options, HVD_GPU_TESTS_S is the
# limit of the tests in seconds.
# In OUT: versions.txt, build.log, kit.txt and kit.json, tests.log and tests.xml, bench.txt and bench.json, summary.txt.
set -u
ROOT=$(cd "$(dirname "$0")/../../.." && pwd)
cd "$ROOT" || exit 2
PYTHON=$(command -v "${PYTHON:-python3}") || { echo "no ${PYTHON:-python3}"; exit 2; }
OUT=out/gpu
case "${1:-}" in build | kit | tests | bench | "") ;; *) OUT=$1; shift ;; esac
PARTS=${*:-build kit tests bench}
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd)
SITE=$ROOT/build/gpu/site
mkdir -p "$SITE"
if [ -n "${HVD_GPU_WHEELS:-}" ]; then
  "$PYTHON" -m pip install -q --no-index --no-deps --upgrade --target "$SITE" "$HVD_GPU_WHEELS"/*.whl || exit 2
fi
export PYTHONPATH=$ROOT:$ROOT/backends/nccl/src:$ROOT/backends/mpi/src:$SITE${PYTHONPATH:+:$PYTHONPATH}
CORES=$(env -u OMP_NUM_THREADS nproc)  # which that variable would limit
export PYTHONUNBUFFERED=1 NO_COLOR=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
FAILED=

note() { echo "== $* ($(date +%T))" | tee -a "$OUT/summary.txt"; }
outcome() { # name, exit code
  if [ "$2" = 0 ]; then note "$1: well"; else note "$1: exit code $2"; FAILED="$FAILED $1"; fi
}

versions() {
  date -u '+%Y-%m-%d %H:%M UTC'
  git log -1 --format='hvd-core %H' 2>/dev/null
  nvidia-smi 2>&1 | head -20
  nvidia-smi --query-gpu=name,driver_version,memory.total,pci.bus_id --format=csv 2>&1
  for tool in nvcc c++ cmake compute-sanitizer mpirun; do
    command -v "$tool" >/dev/null && "$tool" --version 2>&1 | head -4 || echo "$tool: not there"
  done
  uname -rm; echo "$CORES cores"
  "$PYTHON" - <<'EOF'
import importlib.metadata as m, sys
print("python", sys.version.split()[0])
for name in ("torch", "numpy", "pybind11", "pytest", "stevedore", "scikit-learn", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
    try:
        print(name, m.version(name))
    except m.PackageNotFoundError:
        print(name, "-")
import torch
print("torch's CUDA", torch.version.cuda, "NCCL", torch.cuda.nccl.version() if torch.version.cuda else "-")
for i in range(torch.cuda.device_count()):
    print(i, torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i))
EOF
}

# An entry point that importlib.metadata finds, as an installed wheel has it.
announce() { # distribution's name with underscores, backend
  local version info
  version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "backends/$2/pyproject.toml")
  info=$SITE/$1-$version.dist-info
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "${1//_/-}" "$version" >"$info/METADATA"
  printf '[hvd_core.backends]\n%s = %s:describe\n' "$2" "$1" >"$info/entry_points.txt"
}

build() {
  local generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  cmake -S . -B build/gpu/cmake "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DHVD_IN_PLACE=ON \
    -DPython_EXECUTABLE="$PYTHON" -DPython3_EXECUTABLE="$PYTHON" \
    -Dpybind11_DIR="$("$PYTHON" -c 'import pybind11; print(pybind11.get_cmake_dir())')" || return 1
  cmake --build build/gpu/cmake --parallel "$CORES" || return 1
  announce hvd_backend_nccl nccl
  announce hvd_backend_mpi mpi
  "$PYTHON" -m hvd_core._cli plugin list
}

: >>"$OUT/summary.txt"
versions >"$OUT/versions.txt" 2>&1
cat "$OUT/versions.txt"
for part in $PARTS; do
  note "$part begins"
  case $part in
    build)
      build >"$OUT/build.log" 2>&1
      code=$?
      tail -30 "$OUT/build.log"
      outcome build $code
      [ $code = 0 ] || exit 1
      ;;
    kit)
      timeout 240 "$PYTHON" -m hvd_core.conformance nccl -np 1 -v --json "$OUT/kit.json" >"$OUT/kit.txt" 2>&1
      code=$?
      tail -100 "$OUT/kit.txt"
      outcome kit $code
      ;;
    tests)
      timeout "${HVD_GPU_TESTS_S:-2400}" "$PYTHON" -m pytest ${HVD_GPU_TESTS:-tests/system/gpu} -p no:cacheprovider -v --tb=short \
        --junitxml "$OUT/tests.xml" ${PYTEST_ARGS:-} >"$OUT/tests.log" 2>&1
      code=$?
      tail -80 "$OUT/tests.log"
      outcome tests $code
      ;;
    bench)
      timeout 280 "$PYTHON" benchmarks/gpu.py --json "$OUT/bench.json" >"$OUT/bench.txt" 2>&1
      code=$?
      cat "$OUT/bench.txt"
      outcome bench $code
      ;;
    *) echo "unknown part $part; there are build, kit, tests, bench" && exit 2 ;;
  esac
done
[ -z "$FAILED" ] || { note "not well:$FAILED"; exit 1; }
