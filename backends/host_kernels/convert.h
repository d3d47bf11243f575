// Copying elements from one dtype to another with a factor, for the host device's batched_copy_scale. Any thread.
#pragma once

#include <cstdint>

namespace hvd::host_kernels {

// dst[i] = src[i] * scale for `count` elements, possibly at the same address when both dtypes have one size. Same dtype
// and scale 1: a plain copy. Between integers at scale 1 the value is kept modulo the width; otherwise the way leads
// through float64, integers truncate toward zero and saturate, bool is "not zero". False: a float8 would have to be
// converted, which this device cannot.
bool convert(void* dst, int32_t dst_dtype, const void* src, int32_t src_dtype, uint64_t count, double scale);

}  // namespace hvd::host_kernels
