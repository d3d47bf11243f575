// float16 and bfloat16 to and from float32, without branches, so that loops over them vectorise.
//
// Round to nearest even; subnormals, infinities and NaN survive (a NaN becomes quiet). Everything here has internal
// linkage on purpose: the kernels are compiled several times with different machine flags, and a shared inline
// function might be kept in the version that the running processor does not have.
#pragma once

#include <stdint.h>

namespace hvd::host_kernels {
namespace {

union FloatBits {
  float f;
  uint32_t u;
};

inline float bits_to_float(uint32_t u) {
  FloatBits b;
  b.u = u;
  return b.f;
}

inline uint32_t float_to_bits(float f) {
  FloatBits b;
  b.f = f;
  return b.u;
}

#ifdef __aarch64__
// The processor's own conversions, which vectorise.
inline float half_to_float(uint16_t h) {
  __fp16 v;
  __builtin_memcpy(&v, &h, sizeof v);
  return static_cast<float>(v);
}

inline uint16_t float_to_half(float f) {
  const __fp16 v = static_cast<__fp16>(f);
  uint16_t h;
  __builtin_memcpy(&h, &v, sizeof h);
  return h;
}
#else
inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t rest = h & 0x7fffu;
  const uint32_t normal = (rest << 13) + (112u << 23);
  const uint32_t special = (rest << 13) | 0x7f800000u | (rest > 0x7c00u ? 0x400000u : 0u);
  const uint32_t tiny =
      float_to_bits(static_cast<float>(static_cast<int32_t>(rest)) * 5.9604644775390625e-8f);  // 2^-24
  const uint32_t bits = rest >= 0x7c00u ? special : (rest < 0x400u ? tiny : normal);
  return bits_to_float(bits | sign);
}

inline uint16_t float_to_half(float f) {
  const uint32_t bits = float_to_bits(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  const uint32_t normal = (rest + 0xfffu + ((rest >> 13) & 1u) - (112u << 23)) >> 13;
  // Adding 0.5 aligns a number below 2^-14 so that the float adder rounds it to a multiple of 2^-24.
  const uint32_t tiny = float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | ((rest >> 13) & 0x3ffu);
  uint32_t out = rest < 0x38800000u ? tiny : normal;
  out = rest >= 0x477ff000u ? 0x7c00u : out;
  out = rest > 0x7f800000u ? nan : out;
  return static_cast<uint16_t>(out | sign);
}
#endif

inline float bfloat_to_float(uint16_t h) { return bits_to_float(static_cast<uint32_t>(h) << 16); }

inline uint16_t float_to_bfloat(float f) {
  const uint32_t bits = float_to_bits(f);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

}  // namespace
}  // namespace hvd::host_kernels
