// The kernels as nvcc sees them. All that they do stands in headers that a host's compiler takes as well.
#include "copy_scale.h"
#include "reduce.h"

using namespace hvd_kernels;

extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    hvd_copy_scale(const __grid_constant__ CopyArgs args) {
  copy_scale_thread(args, blockIdx.x * kThreads + threadIdx.x, gridDim.x * kThreads);
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    hvd_reduce(const __grid_constant__ ReduceArgs args) {
  reduce_thread(args, blockIdx.x * kThreads + threadIdx.x, gridDim.x * kThreads);
}
