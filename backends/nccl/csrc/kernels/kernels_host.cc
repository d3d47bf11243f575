// Executes a launch of the kernels on the host, thread after thread, with the very code that the device runs. For tests
// and simulators; no part of the backend.
#include <cstring>

#include "copy_scale.h"
#include "reduce.h"

// As cuLaunchKernel has it: the kernel's name, blocks, threads of a block, and the addresses of its parameters. Any
// thread. False: there is no such kernel, or it is not launched in this shape.
extern "C" __attribute__((visibility("default"))) bool hvd_kernel_on_host(const char* name, unsigned grid,
                                                                          unsigned block, void** params) {
  using namespace hvd_kernels;
  if (block != kThreads || grid == 0) return false;
  const uint32_t threads = grid * block;
  if (std::strcmp(name, "hvd_copy_scale") == 0) {
    const auto& args = *static_cast<const CopyArgs*>(params[0]);
    for (uint32_t thread = 0; thread < threads; ++thread) copy_scale_thread(args, thread, threads);
    return true;
  }
  if (std::strcmp(name, "hvd_reduce") == 0) {
    const auto& args = *static_cast<const ReduceArgs*>(params[0]);
    for (uint32_t thread = 0; thread < threads; ++thread) reduce_thread(args, thread, threads);
    return true;
  }
  return false;
}
