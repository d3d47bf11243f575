// How a reduction is divided into two levels: the type that both levels reduce, the factors of each level, and the
// computation after the last level. A value; HierarchicalTransport copies it into its computations.
//
// The first level is a collective within a host, the last one a collective between hosts. Hosts may have different
// numbers of ranks, so an average is a sum and a division at the end:
//   integers up to 32 bits   are summed as 64-bit integers and divided exactly
//   64-bit integers          are summed as two numbers, quotient and remainder by the number of ranks: no sum overflows
//   float32, float64         are summed and divided (by a power of two: in the last level's factor, which is as exact)
//   float16, bfloat16        stay 16 bits wide between the levels, so they are rounded once per level. Their sum could
//                            overflow, so both levels average; hosts with fewer ranks count less, by a factor
#pragma once

#include <cstdint>

#include "engine/data/host_math.h"
#include "engine/plugin/communicator.h"

namespace hvd::data {

// How the ranks of a collective lie on hosts.
struct Hosts {
  uint32_t number;      // of hosts
  uint32_t here, most;  // ranks on this host, and on the host that has the most
};

class TwoLevels {
 public:
  // Throws plugin::BackendError for an average of booleans. `math` must outlive this object.
  TwoLevels(const HostMath& math, const plugin::Collective& c, uint32_t ranks, const Hosts& hosts);

  int32_t op = HVD_SUM;     // of both levels
  int32_t wire = 0;         // the type both levels reduce
  uint64_t per = 1;         // elements of the wire type for one element of the tensor
  uint64_t wire_bytes = 0;  // their size together
  bool expands = false;     // inputs are converted before the first level: expand()
  bool finishes = false;    // the sums need a computation after the last level: finish()
  double first_pre = 1.0, first_post = 1.0, last_post = 1.0;

  void expand(const void* in, uint64_t n, void* to) const;
  // The first level of a rank that is alone on its host. It is a plain copy if lone_copies().
  void lone(const void* in, uint64_t n, void* to) const;
  uint64_t bytes() const;  // of one element of the tensor
  bool lone_copies() const { return !expands && first_pre == 1.0 && first_post == 1.0; }
  // Computes the result in the tensor's type. Overwrites the sums; `out` may be the same memory if !expands.
  void finish(void* sums, uint64_t n, void* out) const;

 private:
  const HostMath* math_;
  int32_t dtype_;
  uint32_t ranks_;
  double prescale_ = 1.0;  // expand() multiplies by it
  double post_ = 1.0;      // finish() multiplies by it
};

}  // namespace hvd::data
