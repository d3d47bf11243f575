// The kernels that this device can execute: those of backends/nccl, by their own code compiled for the host.
#pragma once

#include <vector>

#include "cuda_abi.h"

namespace cusim {

struct Kernel {
  const char* name;
  size_t parameter_bytes;
  // Executes a launch, on a stream's thread. `parameters` are a copy.
  CUresult (*run)(unsigned blocks, unsigned threads, std::vector<char> parameters);
};

// Null for a kernel that cannot be executed here.
const Kernel* find_kernel(const char* name);

}  // namespace cusim
