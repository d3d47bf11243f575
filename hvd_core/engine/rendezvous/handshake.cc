// See handshake.h.
#include "engine/rendezvous/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <hvd/encryption.hpp>
#include <hvd/sha256.hpp>
#include <system_error>

namespace hvd::rendezvous {
namespace {

constexpr std::string_view kMagic = "hvdauth1", kPurpose = "store";
constexpr uint32_t kEncrypt = 1;  // in the last word of the client's identity
constexpr uint32_t kNoRank = UINT32_MAX;

Digest proof(const std::string& secret, std::string_view role, std::string_view nonces, std::string_view identity) {
  Hmac hmac(secret.data(), secret.size());
  const char zero = 0;
  for (const std::string_view part : {role, kPurpose, nonces}) {
    hmac.update(part.data(), part.size());
    hmac.update(&zero, 1);
  }
  hmac.update(identity.data(), identity.size());
  return hmac.finish();
}

const unsigned char* octets(const char* p) { return reinterpret_cast<const unsigned char*>(p); }

}  // namespace

Handshake::Handshake(bool must_encrypt) : must_encrypt_(must_encrypt) {
  // So few bytes come whole, or not at all.
  while (::getrandom(nonce_.data(), nonce_.size(), 0) != static_cast<ssize_t>(nonce_.size())) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "random bytes");
  }
}

std::string Handshake::challenge() const { return std::string(kMagic) + std::string(nonce_.data(), nonce_.size()); }

bool Handshake::feed(std::string_view bytes, const std::string& secret, std::string* confirmation) {
  received_ += bytes;
  const std::string_view all = received_;
  const size_t head = std::min(all.size(), kMagic.size());
  if (all.substr(0, head) != kMagic.substr(0, head)) return false;
  if (missing() > 0) return true;
  std::string nonces(nonce_.data(), nonce_.size());
  nonces += all.substr(kMagic.size(), kNonceBytes);
  const std::string_view identity = all.substr(kMagic.size() + kNonceBytes, kIdentityBytes);
  const Digest wanted = proof(secret, "client", nonces, identity);
  if (!equal_digests(wanted.data(), octets(all.data() + kAnswerBytes - kProofBytes))) return false;
  uint32_t rank, flags;
  std::memcpy(&flags, identity.data() + kIdentityBytes - sizeof flags, sizeof flags);
  std::memcpy(&rank, identity.data() + kIdentityBytes - sizeof flags - sizeof rank, sizeof rank);
  const bool encrypt = flags & kEncrypt;
  refused_ = encrypt ? CryptoLibrary::find() == nullptr : must_encrypt_ && rank == kNoRank;
  const Digest ours = proof(secret, refused_ ? "no encryption" : "server", nonces, identity);
  confirmation->assign(reinterpret_cast<const char*>(ours.data()), ours.size());
  if (encrypt && !refused_) {
    const Digest key = proof(secret, "key", nonces, identity);
    encryption_key_.assign(reinterpret_cast<const char*>(key.data()), key.size());
  }
  return true;
}

}  // namespace hvd::rendezvous
