// From a list of copies to one launch of hvd_copy_scale: kinds of copies, tiles, the kernel's arguments. Pure
// functions, any thread; no CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_args.h"

namespace hvd_kernels {

struct Copy {
  uint64_t src, dst, count;
  int32_t src_dtype, dst_dtype;
  double scale;
};

struct CopyLaunch {
  CopyArgs args;                     // `table` is 0; the caller that puts the table on the device sets it
  std::vector<unsigned char> table;  // its contents if the list is too long for the arguments; else empty
  uint32_t blocks = 0;               // of kThreads threads; 0: there is nothing to do
};

// `processors`: multiprocessors of the device. The copies do not overlap each other.
void prepare_copies(const std::vector<Copy>& copies, uint32_t processors, CopyLaunch& launch);

// Blocks for a reduction of `count` elements.
uint32_t reduce_blocks(uint64_t count, uint32_t processors);

}  // namespace hvd_kernels
