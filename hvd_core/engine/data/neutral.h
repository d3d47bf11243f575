// Neutral data: the contribution of a rank that has joined, which does not change a reduction.
#pragma once

#include <cstdint>

namespace hvd::data {

// Fills `data` with the identity of the reduction: 0 for sum and average, 1 for product, the largest value for min, the
// smallest for max (infinities for floating types).
void fill_neutral(void* data, uint64_t bytes, int32_t dtype, int32_t op);

}  // namespace hvd::data
