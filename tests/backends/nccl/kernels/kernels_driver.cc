// What test_nccl_kernels.py calls: a batch as the backend plans it, executed on the host with the kernels' own code.
#include <hvd/backend_reduce.hpp>
#include <vector>

#include "copy_launch.h"

extern "C" bool hvd_kernel_on_host(const char* name, unsigned grid, unsigned block, void** params);

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Both answer with the number of launches (0 or 1), or -1; facts: whether the table was too long for the arguments,
// kinds, items, tiles, bytes of a tile, blocks.
static int batch(const hvd_kernels::Copy* copies, uint64_t n, uint32_t processors, uint32_t facts[6], bool run) {
  hvd_kernels::CopyLaunch launch;
  prepare_copies({copies, copies + n}, processors, launch);
  hvd_kernels::CopyArgs& args = launch.args;
  args.table = launch.table.empty() ? 0 : reinterpret_cast<uint64_t>(launch.table.data());
  const uint32_t found[6] = {args.table != 0, args.n_kinds, args.n_items, args.tiles, args.tile_bytes, launch.blocks};
  std::copy(found, found + 6, facts);
  if (launch.blocks == 0) return 0;
  void* params[] = {&args};
  return !run || hvd_kernel_on_host("hvd_copy_scale", launch.blocks, hvd_kernels::kThreads, params) ? 1 : -1;
}
EXPORTED int run_batch(const hvd_kernels::Copy* copies, uint64_t n, uint32_t processors, uint32_t facts[6]) {
  return batch(copies, n, processors, facts, true);
}
EXPORTED int plan_batch(const hvd_kernels::Copy* copies, uint64_t n, uint32_t processors, uint32_t facts[6]) {
  return batch(copies, n, processors, facts, false);
}

EXPORTED int run_reduce(int32_t dtype, int32_t op, void* inout, const void* in, uint64_t count, uint32_t processors) {
  hvd_kernels::ReduceArgs args{reinterpret_cast<uint64_t>(inout), reinterpret_cast<uint64_t>(in), count, dtype, op};
  void* params[] = {&args};
  const uint32_t blocks = hvd_kernels::reduce_blocks(count, processors);
  return blocks == 0 || hvd_kernel_on_host("hvd_reduce", blocks, hvd_kernels::kThreads, params) ? 0 : -1;
}

// The arithmetic that backends on the host use, to be equal to.
EXPORTED int reference_reduce(int32_t dtype, int32_t op, void* inout, const void* in, uint64_t count) {
  return hvd::guarded(nullptr, [&]() -> hvd_rc {
    hvd::reduce_elements(dtype, op, inout, in, count);
    return HVD_OK;
  });
}
EXPORTED int reference_scale(int32_t dtype, void* data, uint64_t count, double factor) {
  return hvd::guarded(nullptr, [&]() -> hvd_rc {
    hvd::scale_elements(dtype, data, count, factor);
    return HVD_OK;
  });
}
