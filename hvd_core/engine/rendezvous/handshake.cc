// See handshake.h.
#include "engine/rendezvous/handshake.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

#include "wire_security/encryption.h"
#include "wire_security/proof.h"

namespace hvd::rendezvous {
namespace {

constexpr std::string_view kMagic = "hvdauth1", kPurpose = "store";
constexpr uint32_t kEncrypt = 1;  // in the last word of the client's identity
constexpr uint32_t kNoRank = UINT32_MAX;

using wire_security::CryptoLibrary, wire_security::Digest, wire_security::proof;

const unsigned char* octets(const char* p) { return reinterpret_cast<const unsigned char*>(p); }

}  // namespace

Handshake::Handshake(bool must_encrypt) : must_encrypt_(must_encrypt) {
  if (!wire_security::random_bytes(nonce_.data(), nonce_.size()))
    throw std::system_error(errno, std::generic_category(), "random bytes");
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
  const Digest wanted = proof(secret, "client", kPurpose, nonces, identity);
  if (!wire_security::equal_digests(wanted.data(), octets(all.data() + kAnswerBytes - kProofBytes))) return false;
  uint32_t rank, flags;
  std::memcpy(&flags, identity.data() + kIdentityBytes - sizeof flags, sizeof flags);
  std::memcpy(&rank, identity.data() + kIdentityBytes - sizeof flags - sizeof rank, sizeof rank);
  const bool encrypt = flags & kEncrypt;
  refused_ = encrypt ? CryptoLibrary::find() == nullptr : must_encrypt_ && rank == kNoRank;
  const Digest ours = proof(secret, refused_ ? "no encryption" : "server", kPurpose, nonces, identity);
  *confirmation = wire_security::bytes_of(ours);
  if (encrypt && !refused_) {
    encryption_key_ = wire_security::bytes_of(proof(secret, "key", kPurpose, nonces, identity));
  }
  return true;
}

}  // namespace hvd::rendezvous
