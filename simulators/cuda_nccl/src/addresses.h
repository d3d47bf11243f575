// Where the bytes are that a caller's pointer stands for. Any thread.
#pragma once

#include "cuda_abi.h"
#include "memory.h"

namespace cusim {

// As kernels and NCCL see it: device memory of any device, managed and pinned memory. False: nothing of that kind, or
// not so long.
bool reachable(const void* p, size_t bytes, sim::Span* span);

// Memory that copies take: also host memory that is unknown to the driver. `pageable`: it is such memory.
CUresult copyable(const void* p, size_t bytes, sim::Span* span, bool* pageable);

}  // namespace cusim
