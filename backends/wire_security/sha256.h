// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), written from the standards: for handshakes that prove a secret,
// without a library of the system. Header-only, C++20, pure functions and values, any thread.
// tests/backends/host/sha256_vectors.cc holds the published vectors.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hvd::wire_security {
namespace sha256 {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
inline constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The same of the square roots of the first 8 primes.
inline constexpr uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

inline uint32_t load_be(const unsigned char* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

inline void store_be(unsigned char* p, uint32_t v) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<unsigned char>(v >> (24 - 8 * i));
}

}  // namespace sha256

using Digest = std::array<unsigned char, 32>;

class Sha256 {
 public:
  Sha256();
  void update(const void* data, size_t n);
  // Once, at the end.
  Digest finish();

 private:
  void block(const unsigned char* p);

  uint32_t state_[8];
  uint64_t length_ = 0;
  unsigned char pending_[64];
};

class Hmac {
 public:
  Hmac(const void* key, size_t key_bytes);
  void update(const void* data, size_t n) { inner_.update(data, n); }
  // Once, at the end.
  Digest finish();

 private:
  Sha256 inner_, outer_;
};

inline Sha256::Sha256() { std::copy(sha256::kStart, sha256::kStart + 8, state_); }

inline void Sha256::block(const unsigned char* p) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = sha256::load_be(p + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t x = w[i - 15], y = w[i - 2];
    const uint32_t s0 = std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3);
    const uint32_t s1 = std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  uint32_t v[8];
  std::copy(state_, state_ + 8, v);
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
    const uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
    const uint32_t t1 = v[7] + s1 + choice + sha256::kRound[i] + w[i];
    const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
    const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    std::copy_backward(v, v + 7, v + 8);
    v[4] += t1;
    v[0] = t1 + s0 + majority;
  }
  for (int i = 0; i < 8; ++i) state_[i] += v[i];
}

inline void Sha256::update(const void* data, size_t n) {
  const unsigned char* p = static_cast<const unsigned char*>(data);
  while (n > 0) {
    const size_t used = length_ % 64, take = std::min(n, 64 - used);
    std::memcpy(pending_ + used, p, take);
    length_ += take;
    p += take;
    n -= take;
    if (used + take == 64) block(pending_);
  }
}

inline Digest Sha256::finish() {
  const uint64_t bits = length_ * 8;
  const unsigned char one = 0x80, zero = 0;
  update(&one, 1);
  while (length_ % 64 != 56) update(&zero, 1);
  unsigned char tail[8];
  sha256::store_be(tail, static_cast<uint32_t>(bits >> 32));
  sha256::store_be(tail + 4, static_cast<uint32_t>(bits));
  update(tail, 8);
  Digest out;
  for (size_t i = 0; i < 8; ++i) sha256::store_be(out.data() + 4 * i, state_[i]);
  return out;
}

inline Hmac::Hmac(const void* key, size_t key_bytes) {
  unsigned char block[64] = {};
  if (key_bytes > sizeof block) {
    Sha256 hash;
    hash.update(key, key_bytes);
    const Digest d = hash.finish();
    std::copy(d.begin(), d.end(), block);
  } else {
    std::memcpy(block, key, key_bytes);
  }
  unsigned char pad[64];
  for (size_t i = 0; i < 64; ++i) pad[i] = block[i] ^ 0x36;
  inner_.update(pad, sizeof pad);
  for (size_t i = 0; i < 64; ++i) pad[i] = block[i] ^ 0x5c;
  outer_.update(pad, sizeof pad);
}

inline Digest Hmac::finish() {
  const Digest d = inner_.finish();
  outer_.update(d.data(), d.size());
  return outer_.finish();
}

// Takes the same time for every difference.
inline bool equal_digests(const unsigned char* a, const unsigned char* b) {
  unsigned char difference = 0;
  for (size_t i = 0; i < 32; ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace hvd::wire_security
