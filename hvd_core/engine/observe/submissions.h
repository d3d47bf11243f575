// The last submissions of a rank, kept as they are and made text only for a report. The caller locks.
#pragma once

#include <time.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "engine/types/call_site.h"
#include "engine/types/operations.h"

namespace hvd::observe {

// CLOCK_MONOTONIC to some milliseconds, in nanoseconds, at a quarter of the cost of now_ns().
inline int64_t coarse_now_ns() {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

struct Submitted {
  std::shared_ptr<const std::string> name;
  types::CallSite site;
  int64_t at_ns = 0;  // coarse_now_ns()
  uint32_t set = 0;   // control::SetId
  types::OpKind kind = types::OpKind::Allreduce;
};

class Submissions {
 public:
  void add(Submitted s) { last_[count_++ % last_.size()] = std::move(s); }
  uint64_t count() const { return count_; }
  // Newest first.
  template <typename F>
  void for_each(F&& f) const {
    for (uint64_t i = count_; i > 0 && i + last_.size() > count_; --i) f(last_[(i - 1) % last_.size()]);
  }

 private:
  std::array<Submitted, 16> last_;
  uint64_t count_ = 0;
};

}  // namespace hvd::observe
