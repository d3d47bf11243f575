// Chooses the kernels for the processor that runs, at entry. Compiled with baseline flags, like all but the kernels.
#include <atomic>
#include <cstring>

#include "kernels.h"

namespace hvd::host_kernels {

extern const KernelTable kernels_base;
#ifdef HVD_HOST_X86_KERNELS
extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
#endif

namespace {

std::atomic<const KernelTable*> g_chosen{&kernels_base};

}  // namespace

bool choose_kernels(const char* name) {
  const KernelTable* best = &kernels_base;
  const KernelTable* named = std::strcmp(name, "base") == 0 ? best : nullptr;
#ifdef HVD_HOST_X86_KERNELS
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2) best = &kernels_avx2;
  if (avx2 && std::strcmp(name, "avx2") == 0) named = best;
  if (avx512) best = &kernels_avx512;
  if (avx512 && std::strcmp(name, "avx512") == 0) named = best;
#endif
  g_chosen.store(named != nullptr ? named : best, std::memory_order_release);
  return named != nullptr || std::strcmp(name, "auto") == 0;
}

const KernelTable& kernels() { return *g_chosen.load(std::memory_order_acquire); }

}  // namespace hvd::host_kernels
