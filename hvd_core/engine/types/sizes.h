// Sizes in bytes of what another rank announces: no product or sum of them wraps. Any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace hvd::types {

// No buffer is larger: processes have address spaces of 2^47 or 2^48 bytes. So a sum of 2^15 sizes does not wrap
// either.
inline constexpr uint64_t kMostBytes = uint64_t{1} << 48;

// Nothing if a factor is negative, or if the product is more than `most`.
constexpr std::optional<uint64_t> product(std::span<const int64_t> factors, uint64_t bytes,
                                          uint64_t most = kMostBytes) {
  if (std::ranges::any_of(factors, [](int64_t f) { return f < 0; })) return std::nullopt;
  if (std::ranges::find(factors, 0) != factors.end()) return 0;
  for (const int64_t f : factors)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(f), &bytes) || bytes > most) return std::nullopt;
  return bytes;
}

}  // namespace hvd::types
