// Types and reductions: pure functions, any thread.
//
// Sources are combined in the order given, so that all ranks get the same bits. float16 and bfloat16 are computed in
// float32 and rounded once; integers wrap around, except that an average's sum is exact (of up to 32
// bits) and its division truncates. A NaN in any source makes MIN and MAX NaN. Reductions
// `by_device` imitate devices that calculate in the type itself: small floats are rounded after each step, and a NaN
// loses against a number in MIN and MAX.
#pragma once

#include <eccl.h>

#include <vector>

namespace sim {

// Types that ECCL does not have, and libraries of the same make do.
constexpr auto kFloat8e4m3 = static_cast<ecclDataType_t>(10);
constexpr auto kFloat8e5m2 = static_cast<ecclDataType_t>(11);

size_t width_of(ecclDataType_t type);  // bytes; 0: no such type
const char* name_of(ecclDataType_t type);
bool is_64_bit(ecclDataType_t type);

struct Reduction {
  ecclRedOp_t op = ecclSum;  // one of the built-in ones
  bool scaled = false;       // each source times its own factor, before the sum
  bool by_device = false;
};

struct Source {
  const char* data;
  double factor;  // where scaled
};

// out[i] = sources[0][i] op sources[1][i] ... for `count` elements. `out` may be one of the sources.
void reduce(ecclDataType_t type, const Reduction& how, const std::vector<Source>& sources, char* out, size_t count);

// The number at `p`.
double scalar_of(ecclDataType_t type, const void* p);
// What `value` becomes as one of the type.
double rounded_to(ecclDataType_t type, double value);

}  // namespace sim
