#!/bin/bash
# One wheel under several versions of TensorFlow and PyTorch: the table in docs/compatibility.md.
#
#   tests/system/versions/run_matrix.sh [-o OUT] [ENVIRONMENT ...]       tensorflow==2.15.1 ... torch==2.13.0; OUT: out/matrix
#
# Builds the wheel once, by PYTHON (python3; it needs what is in requirements/build.txt), unless OUT has one. Then, for each
# version, makes a fresh environment with that framework alone, installs the very same wheel, and runs the framework's tests
# on a copy of tests/ that has no sources of ours beside it. "tensorflow" is the newest, "tensorflow+torch" both.
# PYTEST_ARGS adds to pytest's options, HVD_MATRIX_KEEP=1 keeps the environments (about 1.3 GB each), HVD_MATRIX_TESTS names
# tests instead of all of the framework's. In OUT: the wheel, per version a log and results, table.md.
set -u
ROOT=$(cd "$(dirname "$0")/../../.." && pwd)
cd "$ROOT" || exit 2
OUT=out/matrix
[ "${1:-}" = -o ] && { OUT=${2:?-o needs a folder}; shift 2; }
PYTHON=$(command -v "${PYTHON:-python3}") || { echo "no ${PYTHON:-python3}"; exit 2; }
ALL="tensorflow==2.15.1 tensorflow==2.16.2 tensorflow==2.19.1 tensorflow+torch torch"
VERSIONS=${*:-$ALL}
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 2
TORCH=$("$PYTHON" requirements/install.py --print examples | grep '^torch==')
unset PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1 TF_CPP_MIN_LOG_LEVEL=2

if ! ls "$OUT"/hvd_core-*.whl >/dev/null 2>&1; then
  PATH=$(dirname "$PYTHON"):$PATH nice "$PYTHON" -m pip wheel -q --no-deps --no-build-isolation -w "$OUT" . || exit 2
fi
WHEEL=$(ls "$OUT"/hvd_core-*.whl)
case $WHEEL in *$'\n'*) echo "more than one wheel in $OUT: remove all but one"; exit 2 ;; esac

# The tests see the installed wheel, as nothing else of ours is beside them.
rm -rf "$OUT/work" && mkdir "$OUT/work" || exit 2
cp -r tests examples pyproject.toml "$OUT/work" || exit 2

packages() { # version -> what pip installs
  case $1 in
    tensorflow+torch) echo "tensorflow-cpu $TORCH" ;;
    tensorflow*) echo "tensorflow-cpu${1#tensorflow}" ;;
    torch) echo "$TORCH" ;;
    *) echo "$1" ;;
  esac
}

tests() { # version -> its tests
  local found=()
  case $1 in
    tensorflow+torch) found=(tests/horovod/tensorflow tests/horovod/keras tests/system/versions tests/system/examples/test_tf_examples.py) ;;
    tensorflow*) found=(tests/horovod/tensorflow tests/horovod/keras tests/system/examples/test_tf_examples.py) ;;
    *) found=(tests/horovod/torch) ;;
  esac
  echo "${HVD_MATRIX_TESTS:-${found[*]}}"
}

describe() { # python -> "| versions | sha256 |" of the installed packages and of libhvd_tf.so
  (cd "$OUT/work" && "$1" - <<'PY'
import hashlib, importlib.metadata as metadata, platform
from pathlib import Path

def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return "-"

import hvd_core
site = Path(hvd_core.__file__).parents[1]
library = site / "horovod" / "tensorflow" / "lib" / "libhvd_tf.so"
digest = hashlib.sha256(library.read_bytes()).hexdigest()[:16]
assert "site-packages" in str(site), site
cells = [version("tensorflow-cpu", "tensorflow"), version("keras"), version("torch"), version("numpy"),
         platform.python_version(), digest]
print("| " + " | ".join(cells) + " |", end="")
PY
  )
}

outcome() { # junit file -> " passed | skipped | failed | seconds |"
  "$PYTHON" - "$1" <<'PY'
import sys
import xml.etree.ElementTree as tree

try:
    suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
    count = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    bad = count["failures"] + count["errors"]
    print(f" {count['tests'] - bad - count['skipped']} | {count['skipped']} | {bad} | {float(suite.get('time')):.0f} |")
except (OSError, tree.ParseError, AttributeError):
    print(" no result | | | |")
PY
}

{
  echo "Wheel $(basename "$WHEEL"), sha256 $(sha256sum "$WHEEL" | cut -c1-16)..., $(date -u +%F)"
  echo
  echo "| TensorFlow | Keras | torch | NumPy | Python | sha256 of libhvd_tf.so | passed | skipped | failed | seconds |"
  echo "|---|---|---|---|---|---|---|---|---|---|"
} | tee "$OUT/table.md"
BAD=0
for version in $VERSIONS; do
  place=$OUT/env-$version
  log=$OUT/$version.log
  results=$OUT/$version.xml
  rm -f "$results"
  rm -rf "$place"
  # shellcheck disable=SC2046 # several packages
  if ! { "$PYTHON" -m venv "$place" && "$place/bin/python" -m pip install -q $(packages "$version") "$WHEEL" \
      pytest pytest-timeout pytest-xdist psutil scikit-learn tqdm matplotlib; } >"$log" 2>&1; then
    echo "| $version cannot be installed: see $log | | | | | | | | | |" | tee -a "$OUT/table.md"
    BAD=1
    continue
  fi
  # shellcheck disable=SC2046
  (cd "$OUT/work" && PATH=$place/bin:$PATH nice "$place/bin/python" -m pytest $(tests "$version") -q -p no:cacheprovider \
    --junitxml "$results" ${PYTEST_ARGS:-}) >>"$log" 2>&1
  code=$?
  echo "$(describe "$place/bin/python")$(outcome "$results")" | tee -a "$OUT/table.md"
  [ $code = 0 ] || { BAD=1; tail -40 "$log"; }
  [ -n "${HVD_MATRIX_KEEP:-}" ] || rm -rf "$place"
done
exit $BAD
