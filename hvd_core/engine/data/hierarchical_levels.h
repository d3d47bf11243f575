// How one reduction is shared between two levels: what is exchanged in place of the elements, which factors belong to
// which level, and what remains to be done at the end. A value for HierarchicalTransport, copied into its computations.
//
// The first level is a collective within a host, the last one a collective between hosts; a reduction over hosts of
// different sizes must not average at either. So an average is a sum, and the division comes at the end:
//   integers up to 32 bits   are summed as 64-bit integers, divided exactly
//   64-bit integers          are summed as two numbers, quotient and remainder by the number of ranks: no sum overflows
//   float32, float64         are summed, and divided (by a power of two: in the last level's factor, which is as exact)
//   float16, bfloat16        stay 16 bits wide between the levels, so that they are rounded once per level; the first
//                            level scales them down by a power of two, so that their sum does not overflow
#pragma once

#include <cstdint>

#include "engine/data/host_math.h"
#include "engine/plugin/communicator.h"

namespace hvd::data {

class TwoLevels {
 public:
  // Throws plugin::BackendError for an average of booleans. `math` must outlive this object.
  TwoLevels(const HostMath& math, const plugin::Collective& c, uint32_t ranks);

  int32_t op = HVD_SUM;     // of both levels
  int32_t wire = 0;         // the type both levels reduce
  uint64_t per = 1;         // elements of that type in place of one of the tensor's
  uint64_t wire_bytes = 0;  // of those together
  bool expands = false;     // inputs are converted before the first level: expand()
  bool finishes = false;    // something remains after the last level: finish()
  double first_pre = 1.0, first_post = 1.0, last_post = 1.0;

  void expand(const void* in, uint64_t n, void* to) const;
  // The first level of a rank that is alone on its host; nothing but a copy when lone_copies().
  void lone(const void* in, uint64_t n, void* to) const;
  uint64_t bytes() const;  // of one element of the tensor
  bool lone_copies() const { return !expands && first_pre == 1.0 && first_post == 1.0; }
  // From the sums to the tensor's own type. The sums are lost; `out` may be the same memory when !expands.
  void finish(void* sums, uint64_t n, void* out) const;

 private:
  const HostMath* math_;
  int32_t dtype_;
  uint32_t ranks_;
  double prescale_ = 1.0;  // what expand() multiplies with
  double post_ = 1.0;      // what finish() multiplies with
};

}  // namespace hvd::data
