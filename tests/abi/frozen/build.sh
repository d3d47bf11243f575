#!/bin/sh
# How the libraries of this folder were made: the template backend and its simulated vendor library, as a release of ABI 1.0
# builds them, without symbols that nobody needs. Run once for each kind of machine (uname -m), when 1.0 was frozen; later
# engines load what was built then, so run it again only for a kind that is missing, from the sources of that time:
#
#   git worktree add ../abi-1.0 <the commit that SHA256SUMS.txt came with> && ../abi-1.0/tests/abi/frozen/build.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
grep -q '^#define HVD_ABI_MINOR 0$' "$root/hvd_core/include/hvd/backend_abi.h" || {
  echo "these are not the sources of ABI 1.0" >&2
  exit 1
}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -S "$root/backends/eccl_stub" -B "$build" -DCMAKE_BUILD_TYPE=Release -DHVD_INCLUDE_DIR="$root/hvd_core/include" \
  -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$root=. -ffile-prefix-map=$build=build" -DCMAKE_INSTALL_PREFIX="$build/installed"
cmake --build "$build" --parallel 2
cmake --install "$build" --strip
to=$here/$(uname -m)
mkdir -p "$to"
cp "$build"/installed/hvd_backend_eccl_stub/lib/libhvd_backend_eccl_stub.so "$to"
cp "$build"/installed/hvd_backend_eccl_stub/lib/libeccl_sim.so "$to"
cd "$here"
sha256sum ./*/*.so >SHA256SUMS.txt
ls -l "$to"
