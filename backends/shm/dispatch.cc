// Chooses the kernels for the processor that runs, once. Compiled with baseline flags, like all but the kernels.
#include "kernels.h"

namespace hvd::shm {

extern const KernelTable kernels_base;
#ifdef HVD_SHM_X86_KERNELS
extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
#endif

namespace {

const KernelTable& choose() {
#ifdef HVD_SHM_X86_KERNELS
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return kernels_avx512;
  }
  if (avx2) return kernels_avx2;
#endif
  return kernels_base;
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace hvd::shm
