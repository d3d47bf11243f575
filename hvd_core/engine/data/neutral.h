// Data that does not change a reduction: what a rank that has joined contributes.
#pragma once

#include <cstdint>

namespace hvd::data {

// Fills with the identity of the reduction: 0 for sum and average, 1 for product, the largest value for min, the
// smallest for max (infinities for floating types).
void fill_neutral(void* data, uint64_t bytes, int32_t dtype, int32_t op);

}  // namespace hvd::data
