// The proof that a peer knows a secret: one formula for every handshake. hvd_core/_base/auth.py has it in Python.
// Pure functions, any thread.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <string_view>

#include "sha256.h"

namespace hvd::wire_security {

inline std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// `role`: of the side that proves, so that a proof cannot be reflected; "key" for the key of the connection.
// `purpose`: the protocol. `nonces`: of both sides, so that it cannot be replayed. `identity`: what the sides claim.
inline Digest proof(std::string_view secret, std::string_view role, std::string_view purpose, std::string_view nonces,
                    std::string_view identity) {
  Hmac hmac(secret.data(), secret.size());
  const char zero = 0;
  for (const std::string_view part : {role, purpose, nonces}) {
    hmac.update(part.data(), part.size());
    hmac.update(&zero, 1);
  }
  hmac.update(identity.data(), identity.size());
  return hmac.finish();
}

// At most 256 bytes, which come whole or not at all. Returns false, with errno, if the system has none.
inline bool random_bytes(void* to, size_t n) {
  for (;;) {
    if (::getrandom(to, n, 0) == static_cast<ssize_t>(n)) return true;
    if (errno != EINTR) return false;
  }
}

}  // namespace hvd::wire_security
