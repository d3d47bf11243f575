#!/bin/sh
# How the libraries of this folder were made: the template backend, as a release of each minor of the ABI builds it, and (for
# 1.0) its simulated vendor library, without symbols that nobody needs. Run once for each minor and each kind of machine
# (uname -m), when the minor was frozen; later engines load what was built then, so run it again only for a kind that is
# missing, from the sources of that time:
#
#   git worktree add ../abi-1.0 <the commit that the library came with> && ../abi-1.0/tests/abi/frozen/build.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
minor=$(sed -n 's/^#define HVD_ABI_MINOR \([0-9]*\)$/\1/p' "$root/hvd_core/include/hvd/backend_abi.h")
to=$here/$(uname -m)
name=libhvd_backend_eccl_stub_1_$minor.so
if [ "$minor" = 0 ]; then name=libhvd_backend_eccl_stub.so; fi
if [ -e "$to/$name" ]; then
  echo "$to/$name exists: the library of ABI 1.$minor is never built anew" >&2
  exit 1
fi
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -S "$root/backends/eccl_stub" -B "$build" -DCMAKE_BUILD_TYPE=Release -DHVD_INCLUDE_DIR="$root/hvd_core/include" \
  -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$root=. -ffile-prefix-map=$build=build" -DCMAKE_INSTALL_PREFIX="$build/installed"
cmake --build "$build" --parallel 2
cmake --install "$build" --strip
mkdir -p "$to"
cp "$build"/installed/hvd_backend_eccl_stub/lib/libhvd_backend_eccl_stub.so "$to/$name"
if [ ! -e "$to/libeccl_sim.so" ]; then cp "$build"/installed/hvd_backend_eccl_stub/lib/libeccl_sim.so "$to"; fi
cd "$here"
for file in "$(uname -m)"/*.so; do
  grep -q " \./$file\$\| $file\$" SHA256SUMS.txt || sha256sum "./$file" >>SHA256SUMS.txt
done
ls -l "$to"
