// The reduction kernels behind one table, chosen for the processor that runs.
//
// A kernel combines one element-aligned run of n elements from n_src sources in source order (which is rank order), so
// that every rank that computes it gets the same bits:
//     v = pre * src[0][i];  v = v op (pre * src[r][i]) for r = 1, 2, ...;  dst[i] = v / divisor * post
// float32 and float64 are multiplied by a factor of their own type. float16 and bfloat16 are computed in float32 and
// rounded at the end; a factor adds roundings (docs/backend-abi.md, "Factors"): of each product with `pre`, and of a
// sum before its product with `post`. Integers are multiplied in double and truncated toward zero (saturating). A NaN
// in any source makes MIN and MAX NaN. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "hvd/backend_abi.h"

namespace hvd::host_kernels {

struct Scale {
  double pre = 1.0, post = 1.0;
  uint32_t divisor = 1;  // the number of ranks for AVG, else 1
};

// dst may be one of the sources; no other overlap. Nothing need be aligned.
using ReduceFn = void (*)(void* dst, const void* const* src, uint32_t n_src, uint64_t n, const Scale&);

// A 16-bit type to and from float32; the two sides do not overlap.
struct HalfKernels {
  void (*widen)(void* floats, const void* halves, uint64_t n);
  void (*narrow)(void* halves, const void* floats, uint64_t n);  // to nearest even
};

struct KernelTable {
  const char* isa;
  HalfKernels float16, bfloat16;
  ReduceFn reduce[HVD_DTYPE_COUNT][HVD_REDOP_COUNT];  // NULL: no such reduction
};

// The table in use; the baseline one until choose_kernels.
const KernelTable& kernels();

// Takes the table called `name` (base, avx2, avx512), or the best that this processor can run when it is "auto" or
// cannot be had, which false tells. At entry, before any other call.
bool choose_kernels(const char* name);

}  // namespace hvd::host_kernels
