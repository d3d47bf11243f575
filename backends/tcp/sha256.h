// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for the handshake between ranks; no library of the system is
// needed for it. Pure functions and values, any thread. tests/backends/sha256_vectors.cc holds the published vectors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvd::tcp {

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

// Takes the same time for every difference.
bool equal_digests(const unsigned char* a, const unsigned char* b);

}  // namespace hvd::tcp
