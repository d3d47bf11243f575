// See host_math.h.
#include "engine/dataplane/host_math.h"

#include <hvd/backend_abi.h>

#include <algorithm>
#include <concepts>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/plugins/errors.h"

namespace hvd::dataplane {
namespace {

// Calls body(T{}) with the C++ type of the elements. Returns false for types that C++ does not compute with.
template <class Body>
bool with_type(int32_t dtype, Body&& body) {
  switch (dtype) {
    case HVD_UINT8:
      return body(uint8_t{}), true;
    case HVD_INT8:
      return body(int8_t{}), true;
    case HVD_UINT16:
      return body(uint16_t{}), true;
    case HVD_INT16:
      return body(int16_t{}), true;
    case HVD_INT32:
      return body(int32_t{}), true;
    case HVD_INT64:
      return body(int64_t{}), true;
    case HVD_UINT32:
      return body(uint32_t{}), true;
    case HVD_UINT64:
      return body(uint64_t{}), true;
    case HVD_FLOAT32:
      return body(float{}), true;
    case HVD_FLOAT64:
      return body(double{}), true;
    default:
      return false;
  }
}

template <typename T>
void fill(void* data, uint64_t bytes, T value) {
  auto* p = static_cast<char*>(data);
  for (uint64_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) std::memcpy(p + i, &value, sizeof value);
}

template <typename T>
void fill_identity(void* data, uint64_t bytes, int32_t op) {
  using L = std::numeric_limits<T>;
  const T largest = L::has_infinity ? L::infinity() : L::max();
  const T smallest = L::has_infinity ? -L::infinity() : L::lowest();
  fill<T>(data, bytes, op == HVD_PROD ? T{1} : op == HVD_MIN ? largest : op == HVD_MAX ? smallest : T{0});
}

// 16-bit floats by their bit patterns.
void fill_bits(void* data, uint64_t bytes, int32_t op, uint16_t one, uint16_t infinity) {
  const auto minus_infinity = static_cast<uint16_t>(infinity | 0x8000);
  fill<uint16_t>(data, bytes, op == HVD_PROD ? one : op == HVD_MIN ? infinity : op == HVD_MAX ? minus_infinity : 0);
}

}  // namespace

void fill_neutral(void* data, uint64_t bytes, int32_t dtype, int32_t op) {
  if (dtype == HVD_FLOAT16) return fill_bits(data, bytes, op, 0x3c00, 0x7c00);
  if (dtype == HVD_BFLOAT16) return fill_bits(data, bytes, op, 0x3f80, 0x7f80);
  if (dtype == HVD_BOOL)  // product and min are "and"
    return fill<uint8_t>(data, bytes, op == HVD_PROD || op == HVD_MIN ? 1 : 0);
  if (!with_type(dtype, [&](auto type) { fill_identity<decltype(type)>(data, bytes, op); }))
    std::memset(data, 0, bytes);
}

namespace {

// Bytes per tile: few enough to stay in the first caches, and enough for the prefetchers of the memory.
constexpr uint64_t kTileBytes = 16384;
constexpr uint64_t tile_of(uint64_t width) { return kTileBytes / width; }  // elements

hvd_buf whole(const void* p, uint64_t bytes) { return {const_cast<void*>(p), 0, bytes}; }

[[noreturn]] void refuse(const std::string& what, int32_t dtype) {
  throw plugins::BackendError(HVD_E_UNSUPPORTED, 0, 0,
                              what + " of " + base::dtype_name(dtype) + " on host memory does not exist");
}

// memcpy, because a tensor need not be aligned; it compiles to a plain load or store.
template <class T, class Divisor>
void divide_each(void* data, uint64_t n, Divisor divisor) {
  auto* at = static_cast<char*>(data);
  for (uint64_t i = 0; i < n; ++i, at += sizeof(T)) {
    T v;
    std::memcpy(&v, at, sizeof v);
    v = static_cast<T>(v / divisor);
    std::memcpy(at, &v, sizeof v);
  }
}

// Averages of 64-bit integers, whose sums need more than 64 bits.
template <class T>
void add_wide(__int128* sum, const void* tile, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    T v;
    std::memcpy(&v, static_cast<const char*>(tile) + i * sizeof v, sizeof v);
    sum[i] += v;
  }
}

template <class T>
void quotients(void* tile, const __int128* sum, uint64_t n, uint32_t divisor) {
  for (uint64_t i = 0; i < n; ++i) {
    const auto v = static_cast<T>(sum[i] / divisor);
    std::memcpy(static_cast<char*>(tile) + i * sizeof v, &v, sizeof v);
  }
}

}  // namespace

HostMath::HostMath(std::shared_ptr<plugins::Backend> cpu) : cpu_(std::move(cpu)) {
  const hvd_device_api* api = cpu_->device_api();
  if (cpu_->device_type() != "cpu" || !HVD_HAS(api, hvd_device_api, reduce_local) ||
      !HVD_HAS(api, hvd_device_api, batched_copy_scale) || !HVD_HAS(api, hvd_device_api, stream_create)) {
    throw plugins::BackendError(HVD_E_UNSUPPORTED, 0, 0,
                                "backend '" + cpu_->name() + "' has no device table for \"cpu\" with local reductions");
  }
  hvd_error error = plugins::empty_error();
  hvd_rc rc = api->open(0, nullptr, &device_, &error);
  if (rc != HVD_OK) plugins::throw_backend_error(cpu_->name(), "open", rc, error);
  rc = api->stream_create(device_, 0, &stream_, &error);
  if (rc == HVD_OK) return;
  hvd_error ignored = plugins::empty_error();
  api->close(device_, &ignored);
  plugins::throw_backend_error(cpu_->name(), "stream_create", rc, error);
}

HostMath::~HostMath() {
  hvd_error ignored = plugins::empty_error();
  cpu_->device_api()->stream_destroy(stream_, &ignored);
  cpu_->device_api()->close(device_, &ignored);
}

void HostMath::reduce(void* inout, const void* in, uint64_t n, int32_t dtype, int32_t op) const {
  const uint64_t bytes = n * base::dtype_bytes(dtype);
  hvd_error error = plugins::empty_error();
  const hvd_rc rc =
      cpu_->device_api()->reduce_local(stream_, whole(inout, bytes), whole(in, bytes), n, dtype, op, &error);
  if (rc != HVD_OK) plugins::throw_backend_error(cpu_->name(), "reduce_local", rc, error);
}

void HostMath::convert(void* dst, int32_t dst_dtype, const void* src, int32_t src_dtype, uint64_t n,
                       double scale) const {
  hvd_copy_item item;
  std::memset(&item, 0, sizeof item);
  item.hdr = {sizeof item, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  item.src = whole(src, n * base::dtype_bytes(src_dtype));
  item.dst = whole(dst, n * base::dtype_bytes(dst_dtype));
  item.scale = scale;
  item.count = n;
  item.src_dtype = src_dtype;
  item.dst_dtype = dst_dtype;
  hvd_error error = plugins::empty_error();
  const hvd_rc rc = cpu_->device_api()->batched_copy_scale(stream_, &item, 1, &error);
  if (rc != HVD_OK) plugins::throw_backend_error(cpu_->name(), "batched_copy_scale", rc, error);
}

void HostMath::divide(void* data, uint64_t n, int32_t dtype, uint32_t divisor) const {
  if (divisor == 1) return;
  if (base::is_half(dtype)) {
    constexpr uint64_t step = tile_of(sizeof(float));
    float tile[step];
    auto* at = static_cast<char*>(data);
    for (uint64_t done = 0; done < n; done += step) {
      const uint64_t m = std::min(step, n - done);
      convert(tile, HVD_FLOAT32, at + done * 2, dtype, m);
      divide_each<float>(tile, m, static_cast<float>(divisor));
      convert(at + done * 2, dtype, tile, HVD_FLOAT32, m);
    }
    return;
  }
  const bool known = with_type(dtype, [&](auto type) {
    using T = decltype(type);
    using Divisor = std::conditional_t<std::signed_integral<T>, int64_t, std::common_type_t<T, uint32_t>>;
    divide_each<T>(data, n, static_cast<Divisor>(divisor));
  });
  if (!known) refuse("an average", dtype);
}

int32_t HostMath::partial_dtype(int32_t dtype, int32_t op) {
  if (base::is_half(dtype)) return HVD_FLOAT32;
  if (op == HVD_AVG && base::is_integer(dtype)) return dtype == HVD_UINT64 ? HVD_UINT64 : HVD_INT64;
  return dtype;
}

void HostMath::load_partial(void* dst, int32_t partial, const void* src, int32_t dtype, uint64_t n,
                            double prescale) const {
  const bool scales = prescale != 0 && prescale != 1 && dtype != HVD_BOOL;
  if (!scales) return convert(dst, partial, src, dtype, n);
  if (partial == dtype) return convert(dst, dtype, src, dtype, n, prescale);
  const uint64_t width = base::dtype_bytes(dtype), wide = base::dtype_bytes(partial), step = tile_of(width);
  alignas(64) char tile[kTileBytes];
  for (uint64_t done = 0; done < n; done += step) {
    const uint64_t m = std::min(step, n - done);
    convert(tile, dtype, static_cast<const char*>(src) + done * width, dtype, m, prescale);
    convert(static_cast<char*>(dst) + done * wide, partial, tile, dtype, m);
  }
}

void HostMath::store_result(void* dst, int32_t dtype, const void* sums, int32_t partial, uint64_t n, uint32_t divisor,
                            double postscale) const {
  double post = postscale != 0 && dtype != HVD_BOOL ? postscale : 1.0;
  // As the backend's kernels do it: a 16-bit sum is rounded before its factor, an average only at its end. A division
  // by a power of two is an exact factor.
  const bool in_float32 = base::is_half(dtype) && divisor > 1;
  if (!base::is_integer(dtype) && (divisor & (divisor - 1)) == 0) post /= divisor, divisor = 1;
  const uint64_t width = base::dtype_bytes(dtype), wide = base::dtype_bytes(partial);
  // An integer that was summed in floating point is converted to int64 first, which wraps; a direct conversion
  // saturates.
  const int32_t middle = base::is_integer(dtype) && !base::is_integer(partial) ? int32_t{HVD_INT64} : partial;
  const uint64_t step = tile_of(base::dtype_bytes(middle));
  alignas(64) char tile[kTileBytes];
  for (uint64_t done = 0; done < n; done += step) {
    const uint64_t m = std::min(step, n - done);
    char* const to = static_cast<char*>(dst) + done * width;
    const char* from = static_cast<const char*>(sums) + done * wide;
    if (divisor > 1 || middle != partial || in_float32) {
      convert(tile, middle, from, partial, m);
      divide(tile, m, middle, divisor);
      if (in_float32 && post != 1.0) convert(tile, middle, tile, middle, m, post);
      from = tile;
    }
    convert(to, dtype, from, middle, m);
    if (!in_float32 && post != 1.0) convert(to, dtype, to, dtype, m, post);
  }
}

void HostMath::reduce_all(void* dst, const void* const* sources, uint32_t n_sources, uint64_t n, int32_t dtype,
                          int32_t op, double prescale, double postscale) const {
  if (!base::is_reducible(dtype, op)) refuse(std::string("a reduction by ") + base::reduce_op_name(op), dtype);
  const uint64_t width = base::dtype_bytes(dtype);
  const bool wide = op == HVD_AVG && base::is_integer(dtype) && width == 8;
  const int32_t partial = partial_dtype(dtype, op);
  const bool reads_source = partial == dtype && (prescale == 0 || prescale == 1);
  const uint32_t divisor = op == HVD_AVG ? n_sources : 1;
  const uint64_t step = tile_of(base::dtype_bytes(partial));
  alignas(64) char acc[kTileBytes], other[kTileBytes];
  alignas(64) __int128 sum[tile_of(sizeof(int64_t))];
  for (uint64_t done = 0; done < n; done += step) {
    const uint64_t m = std::min(step, n - done);
    if (wide) std::fill_n(sum, m, __int128{0});
    for (uint32_t r = 0; r < n_sources; ++r) {
      const void* from = static_cast<const char*>(sources[r]) + done * width;
      if (r == 0 || !reads_source) {
        char* const to = r == 0 ? acc : other;
        load_partial(to, partial, from, dtype, m, prescale);
        from = to;
      }
      if (wide && dtype == HVD_INT64) {
        add_wide<int64_t>(sum, from, m);
      } else if (wide) {
        add_wide<uint64_t>(sum, from, m);
      } else if (r > 0) {
        reduce(acc, from, m, partial, op == HVD_AVG ? HVD_SUM : op);
      }
    }
    if (wide && dtype == HVD_INT64) {
      quotients<int64_t>(acc, sum, m, divisor);
    } else if (wide) {
      quotients<uint64_t>(acc, sum, m, divisor);
    }
    store_result(static_cast<char*>(dst) + done * width, dtype, acc, partial, m, wide ? 1 : divisor, postscale);
  }
}

}  // namespace hvd::dataplane
