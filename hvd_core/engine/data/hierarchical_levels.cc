// See hierarchical_levels.h.
#include "engine/data/hierarchical_levels.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/plugin/errors.h"
#include "engine/types/dtypes.h"
#include "engine/types/reductions.h"

namespace hvd::data {

namespace {

constexpr uint64_t kScaledTile = 1024;  // elements worked on at a time, so that they stay in the first-level cache

// memcpy, because a tensor need not be aligned.
template <class T>
void split(const void* in, uint64_t n, T divisor, void* to) {
  const auto* from = static_cast<const char*>(in);
  auto* pairs = static_cast<char*>(to);
  for (uint64_t i = 0; i < n; ++i, from += sizeof(T), pairs += 2 * sizeof(T)) {
    T v;
    std::memcpy(&v, from, sizeof v);
    const T pair[2] = {static_cast<T>(v / divisor), static_cast<T>(v % divisor)};
    std::memcpy(pairs, pair, sizeof pair);
  }
}

template <class T, class Wide>
void join(const void* sums, uint64_t n, T divisor, void* out) {
  const auto* pairs = static_cast<const char*>(sums);
  auto* to = static_cast<char*>(out);
  for (uint64_t i = 0; i < n; ++i, to += sizeof(T), pairs += 2 * sizeof(T)) {
    T pair[2];
    std::memcpy(pair, pairs, sizeof pair);
    const auto v = static_cast<T>((Wide{pair[0]} * Wide{divisor} + Wide{pair[1]}) / Wide{divisor});
    std::memcpy(to, &v, sizeof v);
  }
}

}  // namespace

TwoLevels::TwoLevels(const HostMath& math, const plugin::Collective& c, uint32_t ranks, const Hosts& hosts)
    : op(c.op), wire(c.dtype), math_(&math), dtype_(c.dtype), ranks_(ranks) {
  const double pre = c.prescale == 0.0 ? 1.0 : c.prescale, post = c.postscale == 0.0 ? 1.0 : c.postscale;
  first_pre = pre;
  last_post = post;
  if (op == HVD_AVG && types::is_half(dtype_)) {
    first_post = static_cast<double>(hosts.here) / hosts.most;
    last_post = static_cast<double>(hosts.most) * hosts.number / ranks * post;
  } else if (op == HVD_AVG) {
    if (!types::is_reducible(dtype_, op))
      throw plugin::BackendError(
          HVD_E_INVALID, 0, 0,
          std::string("there is no average of ") + types::dtype_name(dtype_) + "; reduce by sum, min or max");
    op = HVD_SUM;
    if (types::is_floating(dtype_) && std::has_single_bit(ranks)) {
      last_post = post / ranks;
    } else {
      finishes = true;
      last_post = 1.0;
      post_ = post;
      if (!types::is_floating(dtype_)) {
        expands = true;
        first_pre = 1.0;  // expand() applies prescale, in the tensor's own type
        wire = HostMath::partial_dtype(dtype_, HVD_AVG);
        if (types::dtype_bytes(dtype_) == 8) per = 2;
      }
    }
  }
  wire_bytes = per * types::dtype_bytes(wire);
  prescale_ = pre;
}

uint64_t TwoLevels::bytes() const { return types::dtype_bytes(dtype_); }

void TwoLevels::expand(const void* in, uint64_t n, void* to) const {
  const uint64_t width = types::dtype_bytes(dtype_);
  alignas(64) char scaled[kScaledTile * 8];
  for (uint64_t done = 0; done < n; done += kScaledTile) {
    const uint64_t m = std::min(kScaledTile, n - done);
    const void* from = static_cast<const char*>(in) + done * width;
    char* const wide = static_cast<char*>(to) + done * wire_bytes;
    if (prescale_ != 1.0) {
      // An integer is scaled within its own type, as in a backend.
      math_->convert(scaled, dtype_, from, dtype_, m, prescale_);
      from = scaled;
    }
    if (dtype_ == HVD_INT64)
      split<int64_t>(from, m, ranks_, wide);
    else if (dtype_ == HVD_UINT64)
      split<uint64_t>(from, m, ranks_, wide);
    else
      math_->convert(wide, wire, from, dtype_, m);
  }
}

void TwoLevels::lone(const void* in, uint64_t n, void* to) const {
  if (n == 0) return;
  if (expands)
    expand(in, n, to);
  else if (lone_copies())
    std::memmove(to, in, n * wire_bytes);
  else
    math_->reduce_all(to, &in, 1, n, dtype_, op, first_pre, first_post);
}

void TwoLevels::finish(void* sums, uint64_t n, void* out) const {
  if (n == 0) return;
  if (dtype_ == HVD_INT64) {
    join<int64_t, __int128>(sums, n, ranks_, out);
  } else if (dtype_ == HVD_UINT64) {
    join<uint64_t, unsigned __int128>(sums, n, ranks_, out);
  } else {
    math_->divide(sums, n, wire, ranks_);
    if (out != sums) math_->convert(out, dtype_, sums, wire, n);
  }
  if (post_ != 1.0) math_->convert(out, dtype_, out, dtype_, n, post_);
}

}  // namespace hvd::data
